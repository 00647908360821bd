"""Prototypes of D's subroutines, and the names of the subroutines that kinst does not have.

The prototype of a subroutine is next to its code generator, in kinst/codegen/subroutines; the
checker gets all prototypes by Environment.subroutines.

Tested by tests/dlang/check/test_calls.py.
"""

from __future__ import annotations

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import INT, VOID, DType, IntType, PointerType, StringType
from kinst.dlang.vocabulary.type_names import typedef


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a subroutine of D.

    Attributes:
        shown: its type as error messages spell it.
        type: its type. An integer argument is converted to it. A StringType takes any argument that
            can be used as a string. A PointerType takes any pointer, because kernels differ in
            pointer types.
        nullable: whether NULL is a valid argument; otherwise NULL faults as a bad address.
    """

    shown: str
    type: DType
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Prototype:
    """The prototype of a subroutine of D, as the checker knows it.

    Attributes:
        name: name of the subroutine.
        result: type of its result.
        parameters: its parameters, in order.
        required: how many of the parameters must be passed.
        destructive: whether it writes to the memory of the process in which the probe fires
            (Dynamic Tracing Guide, "Destructive Actions").
    """

    name: str
    result: DType
    parameters: tuple[Parameter, ...]
    required: int
    destructive: bool = False

    @property
    def has_pointers(self) -> bool:
        """Whether the subroutine takes or returns an address."""
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
    """Parse a subroutine's prototype, written as in C: "size_t strlen(const char *)".

    A parameter in brackets may be left out, and a parameter followed by "?" may be NULL: "string
    strtok(const char *?, const char *)", "string lltostr(int64_t, [int])".
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

# Subroutines that kinst has on no system, with the reason. A system's dialect may give a reason of
# its own (Dialect.absent).
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
