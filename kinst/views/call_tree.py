"""One call of a function as a tree: what was called in it, with arguments, results and times.

Built from records of entries and returns of one thread, in their order.  A call is placed by its
return address: a function that was entered by a jump at another function's end has that one's, and
is shown within it, as the kernel's function_graph tracer shows it.  What the compiler has inlined
is shown if something was called from it.  Functions that an interrupt's entry or exit code called
are left out, with all that they called.

Tested by tests/views/test_call_tree.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from kinst.core.source import InlinedCode, SourceFunction
from kinst.core.units import value_text

HEADER = "CPU FUNCTION\n"
STEP = 2  # columns
# Returns the inlined copies in a function that the call with this return address was made from.
CopiesAt = Callable[[tuple[str, str], int], Sequence[InlinedCode]]


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """A function was entered.

    Attributes:
        function: module and name.
        returns_to: the return address.
        arguments: as many as were recorded.
        interrupt: the function that the return address is in, if that is part of the kernel's
            interrupt entry or exit; else None.
    """

    cpu: int
    time: int
    function: tuple[str, str]
    returns_to: int
    arguments: tuple[int, ...]
    interrupt: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ReturnRecord:
    """Control left a function.

    Attributes:
        function: module and name.
        jumped: it went on in another function, which returns in this one's place.
        result: in the register for results.
    """

    cpu: int
    time: int
    function: tuple[str, str]
    jumped: bool
    result: int


@dataclass(slots=True)
class Call:
    """A call, or an inlined copy in which calls were made.

    Attributes:
        function: module and name.
        returns_to: the return address; 0 for an inlined copy.
        end: time of the return; None if it was not seen.
        left: time of the jump at its end, while the function jumped to runs.
        result: None if it is not known.
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
        """Yield this call and all within it, in the order in which they began."""
        yield self
        for one in self.calls:
            yield from one.walk()


@dataclass(frozen=True, slots=True)
class CallTree:
    """One call.

    Attributes:
        root: the call.
        unmatched: returns without an entry, and calls whose return was not seen, by function.
        interrupted: how many calls by interrupt entry and exit code were left out.
    """

    root: Call
    unmatched: Mapping[tuple[str, str], int]
    interrupted: int = 0


def build_tree(records: Iterable[EntryRecord | ReturnRecord]) -> CallTree | None:
    """Build the tree of the first call in these records of one thread; None without an entry."""
    rows = list(records)
    interrupted = 0
    resume = 0  # index of the first row after what an interrupt called
    stack: list[Call] = []
    root: Call | None = None
    unmatched: dict[tuple[str, str], int] = {}

    def end(result: int | None, time: int, cpu: int) -> None:
        """The innermost call returns, with those that had jumped to it."""
        while True:
            one = stack.pop()
            one.end, one.result, one.cpu = time, result, cpu
            if not (stack and stack[-1].left is not None):
                return

    for index, record in enumerate(rows):
        if index < resume:
            continue
        if isinstance(record, EntryRecord):
            if stack and record.interrupt not in (None, stack[-1].function):
                interrupted += 1
                resume = _index_after(rows, index)
                continue
            while stack and stack[-1].left is not None:
                if stack[-1].returns_to == record.returns_to:
                    break
                end(None, stack[-1].left, record.cpu)  # what it jumped to is not traced
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


def _index_after(rows: Sequence[EntryRecord | ReturnRecord], entry: int) -> int:
    """Return the index after the return of a call, or after its entry if it has no return: the
    function that counts an interrupt in returns as part of that interrupt, without a record."""
    function, depth = rows[entry].function, 0
    for index in range(entry, len(rows)):
        row = rows[index]
        if row.function != function:
            continue
        if isinstance(row, EntryRecord):
            depth += 1
        else:  # what a jump at its end leads to returns to the interrupt's code, too
            depth -= 1
            if not depth:
                return index + 1
    return entry + 1


def with_inlined(call: Call, functions: Mapping[tuple[str, str], Sequence[SourceFunction]]) -> None:
    """Put calls that were made from inlined copies into those.

    functions: of each function its parts with what is inlined in them."""
    _move_into_copies(call, cache(partial(_copies, functions)))


def _move_into_copies(call: Call, copies_at: CopiesAt) -> None:
    calls, call.calls = call.calls, []
    inside: list[tuple[InlinedCode, Call]] = []
    for one in calls:
        _move_into_copies(one, copies_at)
        # A function that was jumped to has the return address of this one.
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
    """Return the inlined copies in a function that a call was made from, outermost first."""
    at = returns_to - 1
    found = [
        (sum(high - low for low, high in copy.ranges), number, copy)
        for part in functions.get(caller, ())
        for number, copy in enumerate(part.inlined)
        if any(low <= at < high for low, high in copy.ranges)
    ]
    return tuple(copy for _, _, copy in sorted(found, key=lambda row: (-row[0], row[1])))


def tree_text(
    root: Call,
    arguments: Callable[[Call], str],
    result: Callable[[Call], str],
) -> str:
    """Return the tree in the manner of -F: a row for each entry and each return.

    Args:
        arguments: text of a call's arguments.
        result: text of its result, "" without one.
    """
    return HEADER + "".join(f"{row}\n" for row in _rows(root, 0, arguments, result))


def _rows(
    call: Call, indent: int, arguments: Callable[[Call], str], result: Callable[[Call], str]
) -> Iterator[str]:
    name = call.function[1]
    place = f"{call.cpu:3d} {' ' * indent}"
    if call.inlined:
        yield f"{place}-> {name} [inlined]"
    else:
        yield f"{place}-> {name}({arguments(call)})"
    for one in call.calls:
        yield from _rows(one, indent + STEP, arguments, result)
    if call.inlined:
        yield f"{place}<- {name} [inlined]"
        return
    value = result(call)
    took = "" if call.end is None else value_text(call.end - call.start, "ns")
    row = f"{place}<- {name}{f' = {value}' if value else ''}"
    yield f"{row:<60} {took}".rstrip()
