"""D's subroutines: a row for each prototype.

To add one, add its row here and a function of its name to a module of codegen/subroutines/.
Prototypes are libdtrace's (dt_open.c's table of globals; Dynamic Tracing Guide, "Actions and
Subroutines"). Subroutines of other kernels are refused with a reason.

Tested by tests/dlang/check/test_calls.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.dtypes import INT, VOID, DType, IntType, PointerType, StringType
from kinst.dlang.vocabulary.type_names import typedef


@dataclass(frozen=True, slots=True)
class Parameter:
    """shown: its spelling in errors. type: integers are converted to it; a StringType takes
    whatever is like a string; a PointerType takes every pointer, because the kernel's types for the
    same thing differ. nullable: NULL is a value of its own here, not a bad address."""

    shown: str
    type: DType
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Prototype:
    """required: how many of the parameters have to be passed. destructive: it writes to the traced
    process (Dynamic Tracing Guide, "Destructive Actions")."""

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


# name: result (parameters).  [ ] are around a parameter that may be left out, ? is behind one that
# may be NULL, ! is before the name of a destructive subroutine.
_TABLE = """
alloca: void * (size_t)
basename: string (const char *)
bcopy: void (void *, void *, size_t)
cleanpath: string (const char *)
copyin: void * (uintptr_t, size_t)
copyinstr: string (uintptr_t, [size_t])
copyinto: void (uintptr_t, size_t, void *)
!copyout: void (void *, uintptr_t, size_t)
!copyoutstr: void (const char *, uintptr_t, size_t)
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
strtok: string (const char *?, const char *)
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
    plain = [(p.strip("[]?"), p.endswith("?")) for p in shown]
    parameters = tuple(Parameter(p, _type(p), nullable) for p, nullable in plain)
    return Prototype(name.lstrip("!"), _type(result), parameters, required, name.startswith("!"))


PROTOTYPES = {p.name: p for p in map(_parsed, _TABLE.strip().splitlines())}

_LOCKS = "it asks about locks of illumos or FreeBSD"

_STREAMS = "it asks about STREAMS messages of illumos"

# Subroutines that kinst has for no system; a system may say of them why it has none
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
