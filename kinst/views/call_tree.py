"""One call of a function as a tree: the calls made in it, with their arguments, results and times.

The tree is built from one thread's records of function entries and returns, in order of time. The
return address says where a call belongs in the tree.

A function that ends with a jump to another function (a tail call) passes its return address on. The
other function is shown inside the function that jumped. An inlined copy is shown if a call was made
from it. Calls made by interrupt entry or exit code are left out, with everything that was called in
them.

Tested by tests/views/test_call_tree.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache, partial

from kinst.core.dataclass import dataclass
from kinst.core.source import InlinedCode, SourceFunction
from kinst.core.units import value_text

HEADER = "CPU FUNCTION\n"
WIDTH = 60  # columns before the time of a call
STEP = 2  # columns of indentation for each level of the tree
# From a function and a call's return address to the inlined copies that the call was made from.
CopiesAt = Callable[[tuple[str, str], int], Sequence[InlinedCode]]


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """Record of the entry of a function.

    Attributes:
        cpu: number of the CPU.
        time: time of the entry, in nanoseconds.
        function: module and name.
        returns_to: the return address.
        arguments: values of the argument registers that were recorded.
        interrupt: module and name of the kernel's interrupt entry or exit function that contains
            the return address; None if the return address is elsewhere.
    """

    cpu: int
    time: int
    function: tuple[str, str]
    returns_to: int
    arguments: tuple[int, ...]
    interrupt: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ReturnRecord:
    """Record that control left a function, by a return instruction or a tail call.

    Attributes:
        cpu: number of the CPU.
        time: time of the return, in nanoseconds.
        function: module and name.
        jumped: whether a tail call left the function: a jump to another function, which then
            returns to this function's caller.
        result: value of the result register.
    """

    cpu: int
    time: int
    function: tuple[str, str]
    jumped: bool
    result: int


@dataclass(slots=True)
class Call:
    """A call, or an inlined copy from which calls were made.

    Attributes:
        function: module and name.
        cpu: number of the CPU on which the call returned; if no return was seen, of the CPU on
            which it began.
        start: time of the entry, in nanoseconds.
        returns_to: the return address; 0 for an inlined copy.
        arguments: values of the argument registers that were recorded.
        end: time of the return; None if no return was seen.
        left: time at which the function made a tail call, as long as the function that it jumped to
            still runs; otherwise None. Only used while the tree is built.
        result: value of the result register; None if it is not known.
        inlined: whether this is an inlined copy.
        calls: calls made from here, and inlined copies, in order of time.
    """

    function: tuple[str, str]
    cpu: int
    start: int
    returns_to: int
    arguments: tuple[int, ...] = ()
    end: int | None = None
    left: int | None = None
    result: int | None = None
    inlined: bool = False
    calls: list[Call] = field(default_factory=list)

    def walk(self) -> Iterator[Call]:
        """Yield this call, then all calls and inlined copies within it, in the order in which they
        began."""
        yield self
        for one in self.calls:
            yield from one.walk()


@dataclass(frozen=True, slots=True)
class CallTree:
    """Tree of one call.

    Attributes:
        root: the call.
        unmatched: number of returns without an entry plus number of calls without a return, by
            function.
        interrupted: number of calls by interrupt code that were left out.
    """

    root: Call
    unmatched: Mapping[tuple[str, str], int]
    interrupted: int = 0


def build_tree(records: Iterable[EntryRecord | ReturnRecord]) -> CallTree | None:
    """Return the tree of the first call in one thread's records; None if there is no record of an
    entry.

    Args:
        records: the thread's records, in order of time.
    """
    ordered = list(records)
    interrupted = 0
    resume = 0  # index of the first record after the calls of an interrupt
    stack: list[Call] = []
    root: Call | None = None
    unmatched: dict[tuple[str, str], int] = {}

    def end(result: int | None, time: int, cpu: int) -> None:
        """Pop the innermost call from the stack, and set its end. If this call was made by a tail
        call, the function that made the tail call ends now as well: repeat for it.
        """
        while True:
            one = stack.pop()
            one.end, one.result, one.cpu = time, result, cpu
            if not (stack and stack[-1].left is not None):
                return

    for index, record in enumerate(ordered):
        if index < resume:
            continue
        if isinstance(record, EntryRecord):
            if stack and record.interrupt not in (None, stack[-1].function):
                interrupted += 1
                resume = _index_after(ordered, index)
                continue
            while stack and stack[-1].left is not None:
                if stack[-1].returns_to == record.returns_to:
                    break
                end(None, stack[-1].left, record.cpu)  # the function jumped to is not traced
            call = Call(
                record.function, record.cpu, record.time, record.returns_to, record.arguments
            )
            if root is None:
                root = call
            elif stack:
                stack[-1].calls.append(call)
            stack.append(call)
            continue
        while stack and stack[-1].left is not None and stack[-1].function != record.function:
            end(None, stack[-1].left, record.cpu)
        if record.function not in [one.function for one in stack]:
            unmatched[record.function] = unmatched.get(record.function, 0) + 1
            continue
        while stack[-1].function != record.function:
            lost = stack.pop().function
            unmatched[lost] = unmatched.get(lost, 0) + 1
        if record.jumped:
            stack[-1].left = record.time
        else:
            stack[-1].left = None
            end(record.result, record.time, record.cpu)
        if not stack:
            break
    return None if root is None else CallTree(root, unmatched, interrupted)


def _index_after(records: Sequence[EntryRecord | ReturnRecord], entry: int) -> int:
    """Return the index of the first record after a call that interrupt code made. build_tree()
    skips the records of such a call.

    This is the record after the call's return or, if the return was not recorded, the record after
    the call's entry. (An example of a call without a recorded return is the kernel's function that
    marks the beginning of an interrupt: when it returns, the interrupt has begun, and returns are
    not recorded.)

    Args:
        records: records of one thread, in order of time.
        entry: index of the call's entry.
    """
    function, depth = records[entry].function, 0
    for index in range(entry, len(records)):
        record = records[index]
        if record.function != function:
            continue
        if isinstance(record, EntryRecord):
            depth += 1
        else:  # after a tail call the other function returns to the interrupt's code
            depth -= 1
            if not depth:
                return index + 1
    return entry + 1


def move_into_copies(
    call: Call, functions: Mapping[tuple[str, str], Sequence[SourceFunction]]
) -> None:
    """Move calls that were made from inlined copies into nodes for these copies, in the whole tree
    below a call.

    Args:
        call: root of the tree, which is changed in place.
        functions: debug information of the parts of each function, with their inlined copies.
    """
    _move_calls(call, cache(partial(_copies, functions)))


def _move_calls(call: Call, copies_at: CopiesAt) -> None:
    calls, call.calls = call.calls, []
    inside: list[tuple[InlinedCode, Call]] = []
    for one in calls:
        _move_calls(one, copies_at)
        # The target of a tail call has the return address of the function that jumped.
        jumped_to = one.returns_to == call.returns_to
        chain = () if jumped_to else copies_at(call.function, one.returns_to)
        kept = 0
        while kept < min(len(chain), len(inside)) and inside[kept][0] is chain[kept]:
            kept += 1
        del inside[kept:]
        for copy in chain[kept:]:
            made = Call((call.function[0], copy.name), one.cpu, one.start, 0, inlined=True)
            (inside[-1][1] if inside else call).calls.append(made)
            inside.append((copy, made))
        (inside[-1][1] if inside else call).calls.append(one)


def _copies(
    functions: Mapping[tuple[str, str], Sequence[SourceFunction]],
    caller: tuple[str, str],
    returns_to: int,
) -> tuple[InlinedCode, ...]:
    """Return the inlined copies from which a call was made, outermost first.

    Args:
        functions: debug information of the parts of each function, with their inlined copies.
        caller: module and name of the function that contains the copies.
        returns_to: the return address of the call.
    """
    at = returns_to - 1
    found = [
        (sum(high - low for low, high in copy.ranges), number, copy)
        for part in functions.get(caller, ())
        for number, copy in enumerate(part.inlined)
        if any(low <= at < high for low, high in copy.ranges)
    ]
    return tuple(copy for _, _, copy in sorted(found, key=lambda one: (-one[0], one[1])))


def tree_text(
    root: Call,
    arguments: Callable[[Call], str],
    result: Callable[[Call], str],
    declared_at: Callable[[Call], str] = lambda _: "",
) -> str:
    """Return a call tree as text in the manner of dtrace -F: a line for each entry and each return.

    Args:
        root: the outermost call.
        arguments: returns the text of a call's arguments.
        result: returns the text of a call's result; "" if there is no result.
        declared_at: returns the source file and line of a called function whose name is not enough;
            "" for other functions.
    """
    return HEADER + "".join(f"{line}\n" for line in _lines(root, 0, arguments, result, declared_at))


def _lines(
    call: Call,
    indent: int,
    arguments: Callable[[Call], str],
    result: Callable[[Call], str],
    declared_at: Callable[[Call], str],
) -> Iterator[str]:
    name = call.function[1]
    place = f"{call.cpu:3d} {' ' * indent}"
    if call.inlined:
        yield f"{place}-> {name} [inlined]"
    else:
        where = declared_at(call)
        yield f"{place}-> {name}({arguments(call)}){f' [{where}]' if where else ''}"
    for one in call.calls:
        yield from _lines(one, indent + STEP, arguments, result, declared_at)
    if call.inlined:
        yield f"{place}<- {name} [inlined]"
        return
    value = result(call)
    took = "" if call.end is None else value_text(call.end - call.start, "ns")
    line = f"{place}<- {name}{f' = {value}' if value else ''}"
    yield f"{line:<{WIDTH}} {took}".rstrip()
