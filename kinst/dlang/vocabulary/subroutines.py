"""Prototypes of D's subroutines, and the names of those that kinst does not have.

A subroutine's prototype stands beside its code, in kinst/codegen/subroutines; the checker is given
all of them (Environment.subroutines).

Tested by tests/dlang/check/test_calls.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.dtypes import INT, VOID, DType, IntType, PointerType, StringType
from kinst.dlang.vocabulary.type_names import typedef


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a subroutine.

    Attributes:
        shown: its type as errors spell it.
        type: integers are converted to it; a StringType takes everything that is like a string; a
            PointerType takes every pointer, because kernels differ in the types of these.
        nullable: whether NULL is a value like others, and not a bad address.
    """

    shown: str
    type: DType
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Prototype:
    """A subroutine as the checker knows it.

    Attributes:
        required: how many of the parameters have to be passed.
        destructive: whether it writes to the traced process (Dynamic Tracing Guide, "Destructive
            Actions").
    """

    name: str
    result: DType
    parameters: tuple[Parameter, ...]
    required: int
    destructive: bool = False

    @property
    def has_pointers(self) -> bool:
        """Whether it takes or returns an address."""
        types = (self.result, *(p.type for p in self.parameters))
        return any(isinstance(type_, PointerType) for type_ in types)


def _type(shown: str) -> DType:
    if shown in ("string", "const char *"):
        return StringType()
    if shown == "void":
        return VOID
    if shown.endswith("*"):
        to = shown.rstrip(" *")
        return PointerType(typedef(to) if to == "uintptr_t" else VOID)
    if shown == "char":
        return IntType(1, True, "char")
    return INT if shown == "int" else typedef(shown)


def prototype(text: str, destructive: bool = False) -> Prototype:
    """Read a prototype as C has it: "size_t strlen(const char *)".

    Brackets are around a parameter that may be left out, and a "?" follows one that may be NULL:
    "string strtok(const char *?, const char *)", "string lltostr(int64_t, [int])".
    """
    before, _, inside = text.rstrip(")").partition("(")
    name = before.replace("*", " ").split()[-1]
    parts = inside.split(", ") if inside else []
    plain = [(part.strip("[]?"), part.endswith("?")) for part in parts]
    return Prototype(
        name,
        _type(before.removesuffix(name).strip()),
        tuple(Parameter(shown, _type(shown), nullable) for shown, nullable in plain),
        sum(not part.startswith("[") for part in parts),
        destructive,
    )


_LOCKS = "it asks about locks of illumos or FreeBSD"

_STREAMS = "it asks about STREAMS messages of illumos"

# Subroutines that kinst has for no system, and why. A system may have a reason of its own
# (Dialect.absent).
ABSENT = {
    "ddi_pathname": "it names devices of illumos",
    "getf": "it is for user-land tracing on illumos",
    "msgdsize": _STREAMS,
    "msgsize": _STREAMS,
    "typeref": "it belongs to an old printt() of FreeBSD",
    **dict.fromkeys(
        (
            "mutex_owned", "mutex_owner", "mutex_type_adaptive", "mutex_type_spin",
            "rw_iswriter", "rw_read_held", "rw_write_held",
            "sx_exclusive_held", "sx_isexclusive", "sx_shared_held",
        ),
        _LOCKS,
    ),
}  # fmt: skip
