"""Coverage: which source lines, functions and branches ran in a trace that counts instructions.

A line is listed if it has instructions, by the debug information's line table; inlined code counts
for the file and line that it was written in.  A line's count is the sum, over the bodies that it is
in (a function, or a copy of an inline one), of the count of its most frequent instruction there.  A
line that did not run, but has instructions that could not be planted, is unknown and left out; a
line without code is not listed.

A branch is a conditional jump of the machine code, with two ways, at the line of the jump; each
copy of an inlined function has its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kinst.core.code import FunctionCode
from kinst.core.source import SourceFunction, TracedSite
from kinst.core.words import COLD
from kinst.events import Aggregation
from kinst.views.flow import FlowCounts


@dataclass(frozen=True, slots=True)
class BranchWay:
    """One way of a conditional jump.

    Attributes:
        line: of the jump.
        block: which jump of the line.
        way: 0 for the jump, 1 for straight on.
        taken: how often; None if the jump was never reached.
    """

    line: int
    block: int
    way: int
    taken: int | None


@dataclass(slots=True)
class FileCoverage:
    """Coverage of one file.

    Attributes:
        lines: counts by line.
        functions: counts by (line of declaration, name).
        branches: of all lines.
        own: whether wanted functions are declared here, and not only inlined from here.
    """

    lines: dict[int, int] = field(default_factory=dict)
    functions: dict[tuple[int, str], int] = field(default_factory=dict)
    branches: list[BranchWay] = field(default_factory=list)
    own: bool = False


@dataclass(frozen=True, slots=True)
class Coverage:
    """Coverage of a trace.

    Attributes:
        files: by path as the debug information has it.
        sites: how many instructions were planted.
        seen: how many of them ran.
        reasons: how many instructions could not be planted, by reason.
        unknown: how many lines are left out because of that.
        sourceless: functions without line information.
    """

    files: Mapping[str, FileCoverage]
    sites: int = 0
    seen: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    unknown: int = 0
    sourceless: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Total:
    """Number of lines, functions or branches that were reached, of all."""

    seen: int
    all: int

    @property
    def share(self) -> str:
        return f"{100 * self.seen / self.all:.1f}%" if self.all else "-"


def total(counts: Iterable[int | None]) -> Total:
    """Sum up lines, functions or branches by their counts."""
    known = list(counts)
    return Total(sum(1 for count in known if count), len(known))


def counts_by_address(
    sites: Sequence[TracedSite], aggregation: Aggregation | None
) -> dict[int, int]:
    """Return how often each planted site ran, by an aggregation with (module, function, offset) as
    keys.  None if nothing was counted."""
    places = {(s.function.module, s.function.name, str(s.offset)): s for s in sites}
    counts = {site.address: 0 for site in sites if not site.reason}
    for key, count in aggregation.rows.items() if aggregation is not None else ():
        module, function, offset = key
        site = places.get((str(module), str(function), str(offset)))
        if site is not None and isinstance(count, int):
            counts[site.address] = count
    return counts


# Name, file, line, entry and ranges of a function or a copy.
_Body = tuple[str, str, int, int | None, tuple[tuple[int, int], ...]]


@dataclass(slots=True)
class _Line:
    """Counts of one source line.

    Attributes:
        bodies: highest count by body.
        left_out: whether one of its instructions could not be planted.
    """

    bodies: dict[int, int] = field(default_factory=dict)
    left_out: bool = False


def cover(
    functions: Sequence[SourceFunction],
    sites: Sequence[TracedSite],
    counts: Mapping[int, int],
    flows: Iterable[tuple[FunctionCode, FlowCounts]] = (),
) -> Coverage:
    """Return the coverage of functions.

    Args:
        functions: with their lines and copies.
        sites: that were planted or left out.
        counts: of the planted sites, by address.
        flows: of the functions, for branches.
    """
    addresses = [site.address for site in sites]
    files: dict[str, FileCoverage] = {}
    lines: dict[tuple[str, int], _Line] = {}
    for number, function in enumerate(functions):
        _add_lines(function, number * (1 << 20), addresses, counts, lines)
        _add_functions(function, addresses, counts, files)
    unknown = 0
    for (file, line), line_counts in lines.items():
        count = sum(line_counts.bodies.values())
        if count or not line_counts.left_out:
            files.setdefault(file, FileCoverage()).lines[line] = count
        else:
            unknown += 1
    _add_branches(functions, flows, files)
    for function in functions:
        if function.file in files:
            files[function.file].own = True
    return Coverage(
        # If all lines are of code that is inlined further in, there is nothing to add.
        {path: file for path, file in sorted(files.items()) if file.lines},
        len(counts),
        sum(1 for count in counts.values() if count),
        Counter(site.reason for site in sites if site.reason),
        unknown,
        tuple(one.function.name for one in functions if not one.lines),
    )


def _within(addresses: Sequence[int], low: int, high: int) -> Sequence[int]:
    return addresses[bisect_left(addresses, low) : bisect_left(addresses, high)]


def _add_lines(
    function: SourceFunction,
    number: int,
    addresses: Sequence[int],
    counts: Mapping[int, int],
    lines: dict[tuple[str, int], _Line],
) -> None:
    """Add the lines of a function.

    Args:
        number: of the function's own body; its copies have the numbers after that.
    """
    start = function.function.address
    body = _Bodies(function)
    for span in function.lines:
        for address in _within(addresses, max(span.low, start), span.high):
            line = lines.setdefault((span.file, span.line), _Line())
            count = counts.get(address)
            if count is None:
                line.left_out = True
                continue
            own = number + body.at(address)
            line.bodies[own] = max(line.bodies.get(own, 0), count)


class _Bodies:
    """Finds the innermost inlined copy that the code at an address belongs to."""

    def __init__(self, function: SourceFunction) -> None:
        # A copy comes after those that it is in, so a later mark is further in.
        ends = {function.function.address}
        for copy in function.inlined:
            ends |= {end for bounds in copy.ranges for end in bounds}
        self._starts = sorted(ends)
        self._copies = [0] * len(self._starts)
        for number, copy in enumerate(function.inlined, 1):
            for low, high in copy.ranges:
                first = bisect_left(self._starts, low)
                last = bisect_left(self._starts, high)
                self._copies[first:last] = [number] * (last - first)

    def at(self, address: int) -> int:
        """Return the copy's number from 1, or 0 for the function's own code."""
        at = bisect_right(self._starts, address) - 1
        return self._copies[at] if at >= 0 else 0


def _add_functions(
    function: SourceFunction,
    addresses: Sequence[int],
    counts: Mapping[int, int],
    files: dict[str, FileCoverage],
) -> None:
    """Add the count of a function: that of its first planted instruction, and at least 1 if any of
    it ran.  A function without planted instructions is left out."""
    begin = function.function.address
    whole_range = ((begin, begin + function.function.size),)
    moved = COLD in function.function.name
    bodies: list[_Body] = [
        (function.name, function.file, function.line, None if moved else begin, whole_range)
    ]
    bodies += [(one.name, one.file, one.line, one.entry, one.ranges) for one in function.inlined]
    for name, file, line, entry, ranges in bodies:
        counted = [a for low, high in ranges for a in _within(addresses, low, high) if a in counts]
        if not counted or not file:
            continue
        count = 0
        if entry is not None:
            count = counts[min((a for a in counted if a >= entry), default=counted[0])]
        if not count:
            count = int(any(counts[a] for a in counted))
        known = files.setdefault(file, FileCoverage()).functions
        known[line, name] = known.get((line, name), 0) + count


def _add_branches(
    functions: Sequence[SourceFunction],
    flows: Iterable[tuple[FunctionCode, FlowCounts]],
    files: Mapping[str, FileCoverage],
) -> None:
    """Add the branches whose counts are known for each way, or that were not reached."""
    spans = sorted(
        (span for function in functions for span in function.lines), key=lambda span: span.low
    )
    numbers = Counter[tuple[str, int]]()
    for code, flow in flows:
        for block, one in enumerate(code.blocks):
            at = bisect_right(spans, one.last.address, key=lambda span: span.low) - 1
            ways = [k for k, edge in enumerate(one.edges) if edge.kind in ("taken", "next")]
            ran = flow.exits[block]
            if at < 0 or one.last.address >= spans[at].high or len(ways) != 2 or ran is None:
                continue
            span = spans[at]
            taken = [flow.edges.get((block, k)) for k in ways]
            file = files.get(span.file)
            if file is None or span.line not in file.lines or (ran and None in taken):
                continue
            number = numbers[span.file, span.line]
            numbers[span.file, span.line] += 1
            # A thread that was inside when the trace began may make one count too small.
            file.branches += [
                BranchWay(span.line, number, way, max(count or 0, 0) if ran else None)
                for way, count in enumerate(taken)
            ]
