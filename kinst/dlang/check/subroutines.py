"""D's subroutines: their prototypes, and calls of them checked against these.

Prototypes are libdtrace's (dt_open.c's table of globals; Dynamic Tracing Guide, "Actions and
Subroutines"), errors those of its dt_idcook_sign().  One that belongs to another kernel is
refused with its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kinst.core.dtypes import INT, VOID, DType, IntType, PointerType, StringType
from kinst.core.errors import DError, Span
from kinst.dlang import typed
from kinst.dlang.check.scope import Check, Scope
from kinst.dlang.syntax import tree
from kinst.dlang.types.convert import cast, is_string, is_string_like, is_zero, to_string
from kinst.dlang.types.members import decayed, string_place
from kinst.dlang.types.typenames import typedef
from kinst.dlang.vocabulary import builtins


@dataclass(frozen=True, slots=True)
class Parameter:
    """shown: as errors spell it.  type: integers are converted to it; a StringType takes what
    is like a string; any PointerType takes every pointer, because the kernel's own types for
    what it means differ."""

    shown: str
    type: DType


@dataclass(frozen=True, slots=True)
class Prototype:
    """required: arguments that must be passed, of all the parameters."""

    name: str
    result: DType
    parameters: tuple[Parameter, ...]
    required: int


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


# name: result (parameters), those in brackets may be left out.
_TABLE = """
alloca: void * (size_t)
basename: string (const char *)
bcopy: void (void *, void *, size_t)
cleanpath: string (const char *)
copyin: void * (uintptr_t, size_t)
copyinstr: string (uintptr_t, [size_t])
copyinto: void (uintptr_t, size_t, void *)
copyout: void (void *, uintptr_t, size_t)
copyoutstr: void (const char *, uintptr_t, size_t)
d_path: string (struct path *)
dirname: string (const char *)
getmajor: uint_t (uint64_t)
getminor: uint_t (uint64_t)
htonl: uint32_t (uint32_t)
htonll: uint64_t (uint64_t)
htons: uint16_t (uint16_t)
index: int (const char *, const char *, [int])
inet_ntoa: string (in_addr_t *)
inet_ntoa6: string (struct in6_addr *)
inet_ntop: string (int, void *)
json: string (const char *, const char *)
lltostr: string (int64_t, [int])
memref: uintptr_t * (void *, size_t)
memstr: string (void *, char, size_t)
ntohl: uint32_t (uint32_t)
ntohll: uint64_t (uint64_t)
ntohs: uint16_t (uint16_t)
progenyof: int (pid_t)
rand: int ()
rindex: int (const char *, const char *, [int])
strchr: string (const char *, char)
strjoin: string (const char *, const char *)
strlen: size_t (const char *)
strrchr: string (const char *, char)
strstr: string (const char *, const char *)
strtok: string (const char *, const char *)
strtoll: int64_t (const char *, [int])
substr: string (const char *, int, [int])
tolower: string (const char *)
toupper: string (const char *)
"""


def _parsed(line: str) -> Prototype:
    name, _, rest = line.partition(": ")
    result, _, inside = rest.rstrip(")").rpartition(" (")
    shown = [p for p in inside.split(", ") if p]
    required = sum(not p.startswith("[") for p in shown)
    parameters = tuple(Parameter(p, _type(p)) for p in (s.strip("[]") for s in shown))
    return Prototype(name, _type(result), parameters, required)


PROTOTYPES = {p.name: p for p in map(_parsed, _TABLE.strip().splitlines())}
assert frozenset(PROTOTYPES) == builtins.SUBROUTINES

# Those that write to the traced program (Dynamic Tracing Guide, "Destructive Actions").
DESTRUCTIVE = frozenset({"copyout", "copyoutstr"})

_LOCKS = "the locks of Linux are not what it asks about"
_STREAMS = "Linux has no STREAMS messages"
# Subroutines of other kernels.
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


def subroutine(node: tree.Call, name: str, scope: Scope, check: Check) -> typed.Expr:
    """The typed call of a subroutine; check: of any expression.

    Raises DError D_PROTO_LEN, D_PROTO_ARG and what the arguments' expressions raise."""
    prototype = PROTOTYPES[name]
    passed, needed = len(node.arguments), prototype.required
    most = len(prototype.parameters)
    if not needed <= passed <= most:
        at_least = "at least " if needed < most else ""
        raise DError(
            f"{name}( ) prototype mismatch: {passed} {'arg' if passed == 1 else 'args'} passed, "
            f"{at_least}{needed} expected",
            node.span,
            "D_PROTO_LEN",
        )
    args = tuple(
        _argument(name, number, parameter, check(argument, scope))
        for number, (parameter, argument) in enumerate(
            zip(prototype.parameters, node.arguments, strict=False), 1
        )
    )
    return typed.Subroutine(prototype.result, node.span, name, args)


def _argument(name: str, number: int, wanted: Parameter, given: typed.Expr) -> typed.Expr:
    """One argument as its parameter takes it (libdtrace's dt_node_is_argcompat())."""
    if isinstance(wanted.type, StringType):
        if is_string_like(given.type) or _is_null(given):
            return given if _is_null(given) and name == "strtok" else to_string(given)
    elif isinstance(wanted.type, PointerType):
        given = decayed(string_place(given))
        if isinstance(given.type, PointerType) or is_string(given.type) or is_zero(given):
            return given
    elif isinstance(given.type, IntType) or _is_null(given):
        return cast(given, wanted.type)
    pointer = isinstance(given.type, PointerType)
    hint = f"cast it: ({wanted.shown})" if pointer or isinstance(given.type, IntType) else ""
    raise DError(
        f"{name}( ) argument #{number} is incompatible with prototype: "
        f"prototype: {wanted.shown}, argument: {given.type}",
        given.span,
        "D_PROTO_ARG",
        hint,
    )


def _is_null(expr: typed.Expr) -> bool:
    """NULL or 0."""
    return is_zero(expr) and isinstance(expr.type, PointerType | IntType)


def absent(name: str, span: Span) -> DError:
    """The error for a subroutine of another kernel."""
    return DError(f"{name}( ) is not available: {ABSENT[name]}", span, "D_FUNC_UNDEF")


def destructive_calls(nodes: Sequence[typed.Expr]) -> list[str]:
    """The names of the destructive subroutines among these expressions."""
    return [n.name for n in nodes if isinstance(n, typed.Subroutine) and n.name in DESTRUCTIVE]
