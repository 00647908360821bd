"""Names of base types, typedefs and qualified types in the spelling of D.

Tested by tests/image/test_types.py.
"""

from __future__ import annotations

from dataclasses import replace

from kinst.core.dtypes import DType, IntType, PointerType, StructType, named, spelled

_LONG = {("long", "int"): "long", ("short", "int"): "short", ("long", "long", "int"): "long long"}


def base_name(name: str) -> str:
    """Return D's name of a base type, given the compiler's: "unsigned long" for gcc's "long
    unsigned int"."""
    words = name.split()
    signs = [w for w in words if w in ("unsigned", "signed")]
    others = [w for w in words if w not in signs]
    if not others or not set(words) <= {"unsigned", "signed", "char", "short", "int", "long"}:
        return name
    plain = _LONG.get(tuple(others), " ".join(others))
    # "signed char" is a type of its own; any other integer is signed anyway.
    return " ".join([*(s for s in signs if s == "unsigned" or plain == "char"), plain])


def integer(name: str, size: int, signed: bool) -> IntType:
    """Return the D type of an integer base type of C.

    Args:
        name: as the compiler spells it.
        size: bytes.
        signed: whether the type is signed.
    """
    return IntType(size, signed, base_name(name), plain_char=name == "char")


def qualified(type_: DType, qualifier: str) -> DType:
    """Return a type with const, volatile or restrict added to its name: in front of the name or,
    for a pointer, after it."""
    if isinstance(type_, PointerType):
        _, star, after = type_.alias.rpartition("*")
        if star and ")" not in after:  # it has a qualifier already
            return replace(type_, alias=f"{type_.alias} {qualifier}")
        if type_.alias:
            return replace(type_, alias=f"{qualifier} {type_.alias}")
        return replace(type_, alias=spelled(type_, qualifier))
    if isinstance(type_, IntType | StructType):
        return named(type_, f"{qualifier} {type_}")
    return type_
