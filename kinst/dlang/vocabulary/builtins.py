"""Tables of D's built-in variables, aggregating functions and actions, including those of dtrace(1)
that kinst does not have yet.

Types are dtrace(1)'s (Dynamic Tracing Guide, "Built-in Variables"). The size of a string type is in
bytes and includes the NUL.

Tested by tests/dlang/test_docs.py and tests/d/builtins.cases.
"""

from __future__ import annotations

from enum import Enum

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import INT, INT64, UINT64, VOID, DType, PointerType, StringType
from kinst.dlang.vocabulary.subroutines import ABSENT
from kinst.dlang.vocabulary.type_names import typedef, words


class Where(Enum):
    """Kind of probes at which a built-in variable has a value."""

    EVERYWHERE = "everywhere"
    KERNEL = "kernel"  # at probes in the kernel; 0 in BEGIN, END and tick


@dataclass(frozen=True, slots=True)
class BuiltinVariable:
    name: str
    type: DType
    where: Where
    meaning: str


def _table() -> dict[str, BuiltinVariable]:
    everywhere, kernel = Where.EVERYWHERE, Where.KERNEL
    # Sizes, with the NUL, of a process's short name (PRFNSZ, procfs.h) and of the parts of probe
    # names in dtrace(1).
    execname, part, function = StringType(16), StringType(64), StringType(192)
    uint, pid = typedef("uint_t"), typedef("pid_t")
    rows: list[tuple[str, DType, Where, str]] = [
        ("caller", typedef("uintptr_t"), kernel, "return address of the traced function"),
        ("cpu", INT, everywhere, "number of the CPU that the probe fires on"),
        ("cwd", StringType(), everywhere, "current directory of the current process"),
        ("curthread", PointerType(VOID), kernel, "address of the current thread's structure"),
        ("epid", uint, everywhere, "id of this enabling of the probe"),
        ("errno", INT, kernel, "error that the function returns, at fbt::F:return"),
        ("execargs", StringType(), everywhere, "arguments of the current process"),
        ("execname", execname, everywhere, "name of the current process"),
        ("gid", typedef("gid_t"), everywhere, "real group id of the current process"),
        ("id", uint, everywhere, "id of the probe"),
        ("pid", pid, everywhere, "id of the current process"),
        ("ppid", pid, everywhere, "id of its parent"),
        ("probefunc", function, everywhere, "third part of the probe's name"),
        ("probemod", part, everywhere, "second part of the probe's name"),
        ("probename", part, everywhere, "last part of the probe's name"),
        ("stackdepth", typedef("uint32_t"), kernel, "frames of the kernel's stack"),
        ("probeprov", part, everywhere, "first part of the probe's name"),
        ("root", StringType(), everywhere, "root directory of the current process"),
        ("tid", typedef("id_t"), everywhere, "id of the current thread"),
        ("timestamp", UINT64, everywhere, "nanoseconds since a fixed moment"),
        ("ucaller", UINT64, kernel, "return address of the traced program's function"),
        ("uid", typedef("uid_t"), everywhere, "real user id of the current process"),
        ("usermode", INT, everywhere, "1 where the probe fired in user mode, else 0"),
        ("ustackdepth", typedef("uint32_t"), kernel, "frames of the traced program's stack"),
        ("vtimestamp", UINT64, everywhere, "nanoseconds that the thread has run"),
        ("walltimestamp", UINT64, everywhere, "nanoseconds since 1970-01-01 00:00 UTC"),
    ]
    rows += [
        (f"arg{n}", INT64, everywhere, f"argument {n} of the probe, as an integer")
        for n in range(10)
    ]
    return {row[0]: BuiltinVariable(*row) for row in rows}


VARIABLES = _table()

ARRAYS = frozenset({"args", "regs", "uregs"})

ARRAYS_NOT_YET: frozenset[str] = frozenset()

VARIABLES_NOT_YET = words("inet ipl jid jailname locals zonename")


@dataclass(frozen=True, slots=True)
class AggregatingFunction:
    name: str
    least: int  # smallest number of arguments
    most: int | None  # largest number of arguments; None if the checker of the function limits it


AGGREGATING = {
    f.name: f
    for f in (
        AggregatingFunction("avg", 1, 1),
        AggregatingFunction("count", 0, 0),
        AggregatingFunction("llquantize", 5, None),
        AggregatingFunction("lquantize", 3, None),
        AggregatingFunction("max", 1, 1),
        AggregatingFunction("min", 1, 1),
        AggregatingFunction("quantize", 1, None),
        AggregatingFunction("stddev", 1, 1),
        AggregatingFunction("sum", 1, 1),
    )
}

ACTIONS = words(
    "breakpoint chill clear commit denormalize discard exit freopen ftruncate func goto jstack"
    " mod normalize panic print printa printf raise return setopt skip speculate stack stop sym"
    " system trace tracemem trunc uaddr ufunc umod ustack usym"
)

ACTIONS_NOT_YET = words("printm printt")


# Actions whose value is recorded and never computed with.
VALUED_ACTIONS = words("func jstack mod stack sym uaddr ufunc umod ustack usym")

CALLABLE = frozenset(AGGREGATING) | ACTIONS


def kind_of(name: str) -> str | None:
    """Return the kind of a built-in name in dtrace(1)'s words, such as "scalar" or "tracing
    function". Return None for any other name, also for the name of a subroutine that kinst has.
    """
    if name in VARIABLES or name in VARIABLES_NOT_YET:
        return "scalar"
    if name in ARRAYS or name in ARRAYS_NOT_YET:
        return "associative array"
    if name in AGGREGATING:
        return "aggregating function"
    if name in ACTIONS or name in ACTIONS_NOT_YET:
        return "tracing function"
    if name in ABSENT or name == "speculation":
        return "function"
    return None


def is_not_yet(name: str) -> bool:
    """Return whether dtrace(1) has a built-in or subroutine of this name that kinst lacks."""
    return (
        name in ARRAYS_NOT_YET
        or name in VARIABLES_NOT_YET
        or name in ACTIONS_NOT_YET
        or name in ABSENT
    )


SPECULATION = "speculation()"  # name of the typed.Builtin that a call of speculation() becomes

MOST_CHILL = 500_000_000  # ns; DTrace's limit, since a CPU that spins for longer seems dead
