"""Messages about a trace that shows nothing for a while: what is planted, and why nothing fires.

Tested by tests/session/test_silence.py and tests/vm/language/test_silence.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.dataclass import dataclass
from kinst.core.records import ProgramLayout
from kinst.core.units import counted
from kinst.dlang import typed
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.unparse import unparse_expression
from kinst.dlang.walk import find

SECONDS = 2.0  # seconds without a record after which kinst says why


@dataclass(frozen=True, slots=True)
class SilentTrace:
    """Facts about a trace that has shown no record of the kernel yet.

    Attributes:
        planted: how many instructions are planted.
        has_counted: whether an aggregation has a value.
        has_command: whether the trace ends with a command.
        is_guest: whether the machine is a guest that runs kinst's commands and nothing else.
        waits_in: function of the kernel in which the command waits; "" if the command runs, or the
            function is not known.
        each_hit_records: result of the function each_hit_records().
        records_under_predicates: result of the function records_under_predicates().
        has_predicates: whether the user has written a predicate.
    """

    planted: int
    has_counted: bool
    has_command: bool
    is_guest: bool
    waits_in: str = ""
    each_hit_records: bool = True
    records_under_predicates: bool = False
    has_predicates: bool = True


def message_while_silent(trace: SilentTrace) -> str:
    """Return the message that explains why a running trace shows nothing, "" for no message."""
    if not trace.planted:
        return ""
    if trace.has_counted:
        if trace.has_command:
            return ""
        return "kinst: probes fire; aggregations are printed when the trace ends: Ctrl-C ends it"
    some = counted(trace.planted, "instruction is", "instructions are")
    idle = "none has run" if trace.each_hit_records else "no clause has recorded anything"
    planted = f"kinst: {some} planted, and {idle} for {SECONDS:g} s"
    if not trace.has_command:
        if trace.is_guest:
            they = "it was" if trace.planted == 1 else "they were"
            return (
                f"{planted}: {they} planted after the guest's boot, and the guest is idle;"
                " -c or --shell gives it work, --boot traces its boot"
            )
        return f"{planted}: nothing that runs there comes to them"
    if trace.waits_in:
        return f"{planted}: the command waits in {trace.waits_in}()"
    if not trace.each_hit_records:
        return ""  # a predicate may wait for something rare
    return f"{planted}: the command has not come to {'it' if trace.planted == 1 else 'them'}"


def message_at_end(trace: SilentTrace) -> str:
    """Return the message that says, at the end of a trace, that no probe has fired or that no
    predicate was true; "" if a clause may have run, or no probe was planted.
    """
    if not trace.planted or trace.has_counted:
        return ""
    some = counted(trace.planted, "instruction was", "instructions were")
    if not trace.each_hit_records:
        if not trace.records_under_predicates:
            return ""
        never = "no probe fired, or no predicate was true"
        if not trace.has_predicates:
            never = "no probe whose clauses record anything fired"
        return f"kinst: nothing was recorded: {some} planted, and {never}"
    during = "the command ran" if trace.has_command else "the trace ran"
    if trace.is_guest and not trace.has_command:
        during += ", after the guest's boot (--boot traces its boot)"
    return f"kinst: no probe fired: {some} planted while {during}"


# Functions whose values count their calls: a value is not zero.
_COUNTING = ("count", "avg", "stddev", "quantize", "lquantize", "llquantize")


def each_hit_records(
    program: typed.TypedProgram,
    layout: ProgramLayout,
    sites: Sequence[Sequence[int]],
    passer: int,
) -> bool:
    """Return whether each hit of each site leaves a record or an aggregation with a value.

    If so, a trace without records and values has had no hit. False for a program that may clear its
    aggregations.

    Args:
        sites: for each site, the indexes of its clauses.
        passer: id of the process in which no clause fires, because not_in_process() has added the
            predicate `pid != passer` to all clauses; 0 if there is none.
    """
    if _clears(program):
        return False
    recording = {c.index for c in program.clauses if _always_records(c, layout, passer)}
    return all(not recording.isdisjoint(clauses) for clauses in sites)


def records_under_predicates(
    program: typed.TypedProgram, layout: ProgramLayout, sites: Sequence[Sequence[int]]
) -> bool:
    """Return whether some clause at the sites leaves a record or a value, and each such clause has
    a predicate. False for a program that may clear its aggregations.

    Args:
        sites: for each site, the indexes of its clauses.
    """
    if _clears(program):
        return False
    planted = {index for clauses in sites for index in clauses}
    recording = [c for c in program.clauses if c.index in planted and _records(c, layout)]
    return bool(recording) and all(clause.predicate is not None for clause in recording)


def _clears(program: typed.TypedProgram) -> bool:
    """Return whether a program may clear its aggregations, so that it may have counted although
    no aggregation has a value."""
    return any(find(program, typed.ClearAction)) or any(find(program, typed.TruncAction))


def has_predicates(program: tree.ProgramNode, passer: int) -> bool:
    """Return whether a program has a predicate besides that of not_in_process().

    Args:
        passer: id of the process in which no clause fires, 0 if there is none.
    """
    texts = (unparse_expression(one.predicate) for one in program.clauses if one.predicate)
    return any(text != f"pid != {passer}" for text in texts)


def _always_records(clause: typed.Clause, layout: ProgramLayout, passer: int) -> bool:
    """Return whether each firing of a clause leaves a record or an aggregation with a value."""
    if clause.predicate is not None and not _only_excludes(clause.predicate, passer):
        return False
    return _records(clause, layout)


def _records(clause: typed.Clause, layout: ProgramLayout) -> bool:
    """Return whether a clause leaves a record or an aggregation with a value when its actions
    run."""
    if any(
        isinstance(one, typed.AggregateAction)
        and one.aggregation.function.name in _COUNTING
        and one.weight is None
        for one in clause.actions
    ):
        return True
    return bool(layout.clauses[clause.index].size) and not any(find(clause, typed.Speculation))


def _only_excludes(predicate: typed.Expr, passer: int) -> bool:
    """Return whether a predicate is only what not_in_process() adds: `pid != passer`."""
    if not passer or not isinstance(predicate, typed.Binary) or predicate.op != "!=":
        return False
    pids = {one.name for one in find(predicate, typed.Builtin)}
    numbers = [one.value for one in find(predicate, typed.IntConst)]
    return pids == {"pid"} and numbers == [passer] and not any(find(predicate, typed.Logical))
