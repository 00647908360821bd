"""Trace of one call of a function, with all calls made in it (`kinst flow`).

The traced command (-c) runs several times. The first run finds the functions that run in the call,
the second one traces the call. If the call reaches more functions, further runs trace it again with
these. Without -c, kinst waits for a call each time instead.

Tested by tests/cli/test_call_flow.py and tests/vm/views/test_call_flow.py.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain

from kinst.api import Machine, Request
from kinst.cli.guard import say, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.outcome import finished
from kinst.cli.reporting import discard, user_report
from kinst.cli.steps import Steps
from kinst.core.units import counted
from kinst.errors import GoneError, KinstError
from kinst.events import Aggregation, Batch, Event, Lost, Record
from kinst.views.call_tracing import (
    CallingThread,
    CallTracing,
    FunctionKey,
    InlinedParts,
    Unfollowed,
    arguments_text,
    calls_found,
    declared_at,
    finding_program,
    found_functions,
    inlined_parts,
    result_text,
)
from kinst.views.call_tree import Call, CallTree, move_into_copies, tree_text
from kinst.views.executed_call import CallRules, ExecutedCall

ROUNDS = 6  # most traces of the call; tracing ends earlier if no function is missing
MOST_NAMED = 12  # most functions to name of those that were left out
# Sizes of buffers for a call of many records, by options; they fit into the scratch of any guest.
LARGER = {"bufsize": "16m", "aggsize": "1m"}
ENTRY = 24  # bytes of a function's start in which its entry probe lies


@dataclass(frozen=True, slots=True)
class _Round:
    """Results of one trace with a D program. The traced command (-c), if there is one, ran once.

    Attributes:
        aggregations: the D program's aggregations with their values at the end.
        records: records of the trace.
        left_out: why each instruction that is left out was not planted, by its address.
        status: exit status of the trace.
    """

    aggregations: Sequence[Aggregation]
    records: Sequence[Record]
    left_out: dict[int, str]
    status: int


@dataclass(frozen=True, slots=True)
class _Followed:
    """Results of tracing one call of a function.

    Attributes:
        tracing: the D program that traced the call, with what is needed to decode its results.
        parts: debug information of the traced functions, with their inlined copies.
        tree: the tree of calls.
        caller: the thread that made the call; None if it is not known.
        unfollowed: call instructions that called functions that were not traced.
        status: exit status of the trace.
    """

    tracing: CallTracing
    parts: InlinedParts
    tree: CallTree
    caller: CallingThread | None
    unfollowed: Sequence[Unfollowed]
    status: int


class _Follower:
    """Runner of the traces that find and follow one call on a machine."""

    def __init__(
        self, machine: Machine, request: Request, interrupts: Interrupts, steps: Steps
    ) -> None:
        self._machine, self._request, self._interrupts = machine, request, interrupts
        self._steps = steps
        self._rounds = 0
        self._sizes: Mapping[str, str] = {}  # of buffers, by the names of their options

    def run(self, program: str, step: str, *, shown: bool) -> _Round:
        """Trace with a D program while the traced command (-c) runs, and return the results.

        If records are lost, trace again with larger buffers, unless the user has set the size of
        the buffers.

        Args:
            program: D text.
            step: purpose of the trace, for the message of progress.
            shown: whether to print the traced command's output.

        Raises:
            KinstError: records were lost, or the program cannot be traced.
        """
        made = self._run(program, step, shown=shown)
        sized = any(name == "bufsize" for name, _ in self._request.settings)
        if made is None and not (self._sizes or sized):
            self._sizes = LARGER
            made = self._run(program, step, shown=shown)
        if made is None:
            raise KinstError(
                "the call has more records than fit into the buffer", "-b 16m enlarges it"
            )
        return made

    def _run(self, program: str, step: str, *, shown: bool) -> _Round | None:
        """Trace once with a D program while the traced command (-c) runs, and return the results;
        None if records were lost.

        Args:
            program: D text.
            step: purpose of the trace, for the message of progress.
            shown: whether to print the traced command's output.
        """
        self._rounds += 1
        self._steps.begin(f"round {self._rounds}, {step}: planning")
        records: list[Record] = []
        lost: list[Lost] = []

        def see(event: Event) -> None:
            if isinstance(event, Batch):
                records.extend(event)
            elif isinstance(event, Lost):
                lost.append(event)

        request = self._request
        options: dict[str, str | bool] = {"quiet": True, "only": "all", **self._sizes}
        trace = self._machine.trace(program, request.command, options)
        out = partial(write, sys.stderr) if shown else discard
        found, status = finished(trace, request, self._interrupts, out, see)
        return None if lost else _Round(found, records, trace.left_out, status)


def traced_call(
    request: Request, pattern: str, condition: str, interrupts: Interrupts
) -> tuple[str, int]:
    """Trace one call of a function, and return its tree as text and the exit status.

    Args:
        request: options of the machine and of the trace.
        pattern: names the function.
        condition: a D predicate that selects calls of the function; "" selects all calls.
        interrupts: handlers that end a trace.

    Raises:
        KinstError: the function was not called, or cannot be traced.
    """
    running = "running the command" if request.command else f"waiting for a call of {pattern}"
    if not request.command and not request.shell and request.kind.abilities.boots:
        say(f"kinst: the guest is idle, and may never call {pattern}: -c CMD gives it work")
        running += " in an idle guest (-c CMD gives it work)"
    following = {"code and plan": "planting", "plant": running}  # step that a stage's end begins
    report = user_report(request)
    report.left_out = discard  # _say_left_out() names them at the end
    with Steps(say) as steps, Machine(replace(request, arguments=()), report=report) as machine:

        def stage_ended(name: str) -> None:
            if name in following:
                steps.begin(following[name])

        report.on_stage = stage_ended
        steps.begin("starting the machine")
        root = _root(machine, pattern)
        follower = _Follower(machine, request, interrupts, steps)
        return _traced(machine, follower, root, condition, bool(request.command))


def executed_call(request: Request, pattern: str) -> tuple[str, int]:
    """Follow the first call of a function in a kernel's boot, and return its tree as text, without
    times, and the exit status.

    Args:
        request: options of the machine; its kernel's boot is traced.
        pattern: names the function.

    Raises:
        KinstError: the function was not called, or the machine does not tell what it executes.
    """
    report = user_report(request)
    with Steps(say) as steps, Machine(replace(request, arguments=()), report=report) as machine:
        steps.begin("starting the machine")
        module, name = _root(machine, pattern)
        root = machine.functions(f"{module}:{name}")[0].function
        stack_size = machine.stack_size
        if not stack_size:
            raise KinstError("the kernel's files do not tell how large a thread's stack is")
        rules = CallRules(
            machine.entries(), machine.function_at, machine.refusal,
            {one.address for one in machine.interrupt_entry()},
            machine.argument_registers, machine.result_register, machine.link_register,
            stack_size,
        )  # fmt: skip
        follower = ExecutedCall(root, rules)
        steps.begin(f"booting until {name} returns")
        status = 0
        try:
            with closing(machine.executed(root)) as executed:
                for blocks in executed:
                    follower.take(blocks)
                    if follower.is_over:
                        break
        except GoneError as error:
            say(f"kinst: {error}")
            status = 1
        tree = follower.tree
        if tree is None:
            raise KinstError(f"{name} was not called during the boot")
        if not follower.is_over:
            say(f"kinst: {name} had not returned when the boot ended")
        steps.begin("inlined functions")
        called = {one.function for one in tree.root.walk()}
        functions = machine.functions(*(f"{module}:{name}" for module, name in sorted(called)))
        parts = inlined_parts(machine.graphs(functions), functions)
        move_into_copies(tree.root, parts)
        _say_executed(tree, follower.left_out)
        heading = f"{name}, CPU {tree.root.cpu}: the first call of the boot\n"
        return heading + _text_of(machine, tree, parts), status


def _root(machine: Machine, pattern: str) -> FunctionKey:
    """Return the function that a pattern names. Raises KinstError if it names no function or
    several."""
    machine.functions(pattern)  # says what is wrong with it
    found = _functions(machine, pattern)
    if len(found) != 1:
        raise KinstError(
            f"{pattern} means {len(found)} functions", "name one function, or MODULE:NAME"
        )
    return found[0]


def _traced(
    machine: Machine, follower: _Follower, root: FunctionKey, condition: str, whole: bool
) -> tuple[str, int]:
    """Find the functions that run in calls of `root`, and trace one call. If the call reaches more
    functions, trace again with these. Return the tree as text, and the exit status.

    Args:
        machine: the machine.
        follower: runs the command.
        root: the function.
        condition: a D predicate that selects calls of `root`.
        whole: whether to look for functions in all calls; otherwise only in the first one.
    """
    finding = finding_program(root, condition, whole=whole)
    find = f"to find the functions that run in {root[1]}"
    first = follower.run(finding, find, shown=False)
    names, refused = found_functions(first.aggregations), dict(first.left_out)
    if root not in names:
        raise KinstError(
            f"{root[1]} was not called", "use a command (-c) or a condition (--if) that calls it"
        )
    call = _followed(machine, follower, root, condition, names, refused)
    for _ in range(ROUNDS - 1):
        missing = [one for one in call.unfollowed if not _reason(one, refused)]
        met = (_functions(machine, one.name) for one in missing if one.target is not None)
        new = set(chain.from_iterable(met)) - names
        if any(one.target is None for one in missing):
            again = follower.run(finding, find, shown=False)
            new |= found_functions(again.aggregations) - names
        if not new:
            break
        say(f"kinst: the traced call has reached {counted(len(new), 'more function')}:"
            " a call is traced once more")  # fmt: skip
        names |= new
        call = _followed(machine, follower, root, condition, names, refused)
    root_call = call.tree.root
    parts = call.parts
    move_into_copies(root_call, parts)
    _say_left_out(call, refused)
    heading = _heading(root[1], call.caller, calls_found(first.aggregations, root), whole=whole)
    return heading + _text_of(machine, call.tree, parts), call.status


def _text_of(machine: Machine, tree: CallTree, parts: InlinedParts) -> str:
    """Return a tree as text, with arguments and results by the functions' types."""
    prototype = cache(machine.prototype)

    def arguments(one: Call) -> str:
        return arguments_text(one.arguments, prototype(*one.function))

    def result(one: Call) -> str:
        return result_text(one.result, prototype(*one.function))

    return tree_text(tree.root, arguments, result, lambda one: declared_at(one.function, parts))


def _heading(function: str, caller: CallingThread | None, seen: int, *, whole: bool) -> str:
    """Return the line above the tree that says which call is shown; "" if the caller is not known.

    Args:
        function: name of the function.
        caller: the thread that made the call.
        seen: number of calls in the run that finds functions.
        whole: whether `seen` counts all calls of this run; otherwise the run ended after the first.
    """
    if caller is None:
        return ""
    if not whole:
        which = "the first call"
    else:
        which = "the only call" if seen == 1 else f"the first of {seen} calls"
    return f"{function} in {caller.execname}, pid {caller.pid}, CPU {caller.cpu}: {which}\n"


def _followed(
    machine: Machine,
    follower: _Follower,
    root: FunctionKey,
    condition: str,
    names: set[FunctionKey],
    refused: dict[int, str],
) -> _Followed:
    """Trace the first call of `root` with a given set of functions planted, and return it.

    Args:
        machine: the machine.
        follower: runs the command.
        root: the function.
        condition: a D predicate that selects calls of `root`.
        names: the functions to plant.
        refused: gets the reason for each instruction that is not planted, by address.

    Raises:
        KinstError: `root` was not called.
    """
    functions = machine.functions(*(f"{module}:{name}" for module, name in sorted(names)))
    tracing = CallTracing(
        root, machine.graphs(functions), machine.result_register, condition,
        machine.interrupt_entry(),
    )  # fmt: skip
    traced = follower.run(tracing.program, f"to trace one call of {root[1]}", shown=True)
    refused |= traced.left_out
    tree = tracing.tree(traced.records)
    if tree is None:
        raise KinstError(
            f"{root[1]} was not called when the command ran again",
            "use a condition (--if) that selects a call of each run",
        )
    unfollowed = tracing.unfollowed(tree, traced.aggregations)
    parts = inlined_parts(tracing.codes, functions)
    caller = tracing.caller(traced.records)
    return _Followed(tracing, parts, tree, caller, unfollowed, traced.status)


def _functions(machine: Machine, name: str) -> list[FunctionKey]:
    """Return the functions that match a name, without parts that the compiler has split off; an
    empty list if no function matches."""
    try:
        found = [one.function for one in machine.functions(name) if not one.is_part]
    except KinstError:
        return []
    return [(one.module, one.name) for one in found]


def _reason(call: Unfollowed, refused: dict[int, str]) -> str:
    """Return why a function that was called cannot be traced; "" if it can, or if the function is
    not known."""
    if call.target is None:
        return ""
    low = call.target
    return next((why for at, why in refused.items() if low <= at < low + ENTRY), "")


def _say_left_out(followed: _Followed, refused: dict[int, str]) -> None:
    """Print how many calls the tree shows, and how many calls are left out, with reasons."""
    tree = followed.tree
    called = [one.function for one in tree.root.walk() if not one.inlined]
    shown, traced = len(set(called)), len(followed.tracing.codes)
    say(f"kinst: {counted(len(called), 'call')} of {counted(shown, 'function')};"
        f" {counted(traced, 'function')} {'was' if traced == 1 else 'were'} traced")  # fmt: skip
    left: Counter[tuple[str, str]] = Counter()
    for one in followed.unfollowed:
        why = _reason(one, refused) or "its entry has no probe"
        left[one.name or "a function that is called by its address", why] += one.count
    _say_calls_left_out(left)
    if tree.interrupted:
        say(f"kinst: {counted(tree.interrupted, 'call')} by interrupts left out; times include"
            " interrupts")  # fmt: skip
    for (_, name), count in tree.unmatched.items():
        say(f"kinst: {name}: {counted(count, 'return')} not seen")


def _say_executed(tree: CallTree, left_out: Counter[tuple[str, str]]) -> None:
    """Print how many calls the tree shows, and how many calls are left out, with reasons."""
    called = [one.function for one in tree.root.walk() if not one.inlined]
    say(f"kinst: {counted(len(called), 'call')} of {counted(len(set(called)), 'function')}")
    _say_calls_left_out(left_out)
    if tree.interrupted:
        say(f"kinst: {counted(tree.interrupted, 'call')} by interrupts left out")


def _say_calls_left_out(left: Counter[tuple[str, str]]) -> None:
    """Print how many calls of each function are left out.

    Args:
        left: number of calls, by the function's name and the reason.
    """
    for (name, why), count in left.most_common(MOST_NAMED):
        say(f"kinst: {counted(count, 'call')} of {name} left out: {why}")
    others = len(left) - MOST_NAMED
    if others > 0:
        count = sum(left.values()) - sum(count for _, count in left.most_common(MOST_NAMED))
        say(f"kinst: {counted(count, 'call')} of {counted(others, 'other function')} left out")
