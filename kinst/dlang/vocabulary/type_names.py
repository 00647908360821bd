"""The names of D's types: scalar types (Dynamic Tracing Guide, "Data Types and Sizes", LP64), and
the structures that the Guide's programs use.

Tested by tests/dlang/test_docs.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.dtypes import LONG, STRING, DType, IntType, Member, StructType
from kinst.core.errors import DError, Span


def words(text: str) -> frozenset[str]:
    """Return the set of words in a text, for tables of names."""
    return frozenset(text.split())


# The names of each integer type, by (size in bytes, whether it is signed).
_ALIASES: dict[tuple[int, bool], str] = {
    (1, True): "int8_t s8",
    (1, False): "uint8_t uchar_t u_char u8 _Bool bool",
    (2, True): "int16_t s16 pri_t",
    (2, False): "uint16_t ushort_t u_short u16 in_port_t",
    (4, True): (
        "int32_t pid_t id_t processorid_t s32 boolean_t chipid_t lgrp_id_t poolid_t projid_t"
        " psetid_t taskid_t zoneid_t"
    ),
    (4, False): "uint32_t uint_t u_int u32 uid_t gid_t mode_t ipaddr_t in_addr_t dev_t nlink_t",
    (8, True): (
        "int64_t intptr_t ssize_t ptrdiff_t longlong_t hrtime_t off_t loff_t time_t s64 clock_t"
        " suseconds_t"
    ),
    (8, False): "uint64_t uintptr_t size_t ulong_t u_long u_longlong_t u64 ino_t",
}  # fmt: skip

SCALARS: dict[str, DType] = {
    name: IntType(size, signed, name)
    for (size, signed), names in _ALIASES.items()
    for name in names.split()
}

SCALARS["string"] = STRING

# Size in bytes of each integer type, by its sorted words without signed and unsigned.
BASE_SIZES: dict[tuple[str, ...], int] = {
    ("char",): 1,
    ("short",): 2,
    ("int", "short"): 2,
    (): 4,
    ("int",): 4,
    ("long",): 8,
    ("int", "long"): 8,
    ("long", "long"): 8,
    ("int", "long", "long"): 8,
}

PLAIN_NAMES = {1: "char", 2: "short", 4: "int", 8: "long"}

BASE_WORDS = frozenset({"char", "short", "int", "long", "signed", "unsigned", "void", "string"})

QUALIFIERS = frozenset({"const", "volatile", "restrict"})

# The Guide's typedefs for structures, each with the structure's tag. If the kernel has a structure
# with the tag, the typedef means the kernel's structure.
STRUCTURES = {
    "in6_addr_t": "in6_addr",
    "timespec_t": "timespec",
    "timestruc_t": "timespec",
    "timeval_t": "timeval",
}

TYPEDEFS = (frozenset(SCALARS) | STRUCTURES.keys()) - BASE_WORDS

# Types in the Guide that the systems' D libraries define.
LIBRARY_TYPES = frozenset({"psinfo_t", "lwpsinfo_t", "cpuinfo_t", "fileinfo_t"})

TAGS = frozenset({"struct", "union", "enum"})

FLOATS = frozenset({"float", "double"})

STARTS_TYPE = BASE_WORDS | QUALIFIERS | TYPEDEFS | TAGS | FLOATS


def typedef(name: str) -> IntType:
    """Return the integer type of this name in D. Raises KeyError for any other name."""
    type_ = SCALARS[name]
    assert isinstance(type_, IntType)
    return type_


def is_bool(type_: DType) -> bool:
    return isinstance(type_, IntType) and type_.name.split()[-1] in ("_Bool", "bool")


def check_attributes(words: Sequence[str], word: str, span: Span) -> None:
    """Check that short, long, signed and unsigned fit the type that they are used with (libdtrace's
    dt_decl_check()).

    Raises DError D_DECL_CHARATTR, D_DECL_VOIDATTR, D_DECL_SIGNINT, D_DECL_LONGINT.

    Args:
        words: all words of the type.
        word: the type's name, one of `words`; "" for a structure, union or enumeration.
    """
    signs = [w for w in words if w in ("signed", "unsigned")]
    sizes = [w for w in words if w in ("short", "long")]
    if word == "char" and sizes:
        message, tag = "short and long may not be used with char type", "D_DECL_CHARATTR"
    elif word == "void" and (signs or sizes):
        message, tag = "attributes may not be used with void type", "D_DECL_VOIDATTR"
    elif signs and word not in ("char", "void"):
        message, tag = "signed and unsigned may only be used with integer type", "D_DECL_SIGNINT"
    elif "long" in sizes and word not in FLOATS:
        message = "long and long long may only be used with integer or floating-point type"
        tag = "D_DECL_LONGINT"
    else:
        return
    raise DError(f"invalid type declaration: {message}", span, tag)


# Members of the Guide's structures (STRUCTURES), for kernels without these structures.
_GUIDE_MEMBERS = {
    "timespec": (Member("tv_sec", typedef("time_t"), 0), Member("tv_nsec", LONG, 64)),
    "timeval": (Member("tv_sec", typedef("time_t"), 0), Member("tv_usec", LONG, 64)),
}
_GUIDE_SIZE = 16


class _Times:
    """The members of struct timespec and struct timeval, whose layout D knows without the kernel.
    Implements core.dtypes.MemberSource.
    """

    def members(self, struct: StructType) -> Sequence[Member]:
        return _GUIDE_MEMBERS[struct.name]


_TIMES = _Times()
GUIDE_STRUCTURES = {
    tag: StructType("struct", tag, _GUIDE_SIZE, tag, _TIMES) for tag in _GUIDE_MEMBERS
}
