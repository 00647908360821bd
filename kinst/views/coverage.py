"""Coverage: the source lines, functions and branches that ran in a trace that counts instructions.

A line is listed if the debug information's line table has instructions for it. Inlined code counts
for the file and line where the inline function is written.

A line can be compiled several times: into its function, and into each inlined copy of the function.
Each of these is a body. In each body, the line's count is the count of its most frequent
instruction. The sum over all bodies is the line's count. If no instruction of a line ran, but some
of its instructions could not be planted, the line is unknown and left out.

A branch is a conditional jump of the machine code with two ways, and belongs to the source line of
the jump. Each inlined copy has branches of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from kinst.core.code import FunctionCode
from kinst.core.dataclass import dataclass
from kinst.core.source import SourceFunction, TracedSite
from kinst.events import Aggregation
from kinst.views.flow import FlowCounts


@dataclass(frozen=True, slots=True)
class BranchWay:
    """One of the two ways on from a conditional jump.

    Attributes:
        line: source line of the jump.
        block: position of the jump among the jumps of the line, from 0.
        way: 0 for the jump taken, 1 for the next instruction.
        taken: how often control went this way; None if the jump was never reached.
    """

    line: int
    block: int
    way: int
    taken: int | None


@dataclass(slots=True)
class FileCoverage:
    """Coverage of one source file.

    Attributes:
        lines: counts by line.
        functions: counts by (line of declaration, name).
        branches: both ways of each conditional jump in the file.
        own: whether the file declares functions that were traced. Otherwise the file has only code
            that was inlined in traced functions.
    """

    lines: dict[int, int] = field(default_factory=dict)
    functions: dict[tuple[int, str], int] = field(default_factory=dict)
    branches: list[BranchWay] = field(default_factory=list)
    own: bool = False


@dataclass(frozen=True, slots=True)
class Coverage:
    """Coverage of a trace.

    Attributes:
        files: coverage of each source file, by its path in the debug information.
        sites: number of planted instructions.
        seen: number of planted instructions that ran.
        reasons: number of instructions that could not be planted, by reason.
        unknown: number of lines that are left out because instructions could not be planted.
        sourceless: names of functions without line information.
    """

    files: Mapping[str, FileCoverage]
    sites: int = 0
    seen: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    unknown: int = 0
    sourceless: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Total:
    """Number of lines, functions or branches that were reached (`seen`), and of all that exist
    (`all`)."""

    seen: int
    all: int

    @property
    def share(self) -> str:
        return f"{100 * self.seen / self.all:.1f}%" if self.all else "-"


def total(counts: Iterable[int | None]) -> Total:
    """Return how many counts are above 0, and how many counts there are.

    Args:
        counts: how often each line, function or branch ran; None for a branch that was never
            reached.
    """
    known = list(counts)
    return Total(sum(1 for count in known if count), len(known))


def counts_by_address(
    sites: Sequence[TracedSite], aggregation: Aggregation | None
) -> dict[int, int]:
    """Return how often each planted site ran, by its address.

    Args:
        sites: sites that were planted or refused.
        aggregation: count() with the keys module, function and offset; None if nothing was counted,
            which makes every count 0.
    """
    places = {(s.function.module, s.function.name, str(s.offset)): s for s in sites}
    counts = {site.address: 0 for site in sites if not site.reason}
    for key, count in aggregation.rows.items() if aggregation is not None else ():
        module, function, offset = key
        site = places.get((str(module), str(function), str(offset)))
        if site is not None and isinstance(count, int):
            counts[site.address] = count
    return counts


# Name, file, line, entry and address ranges of a function or an inlined copy.
_Body = tuple[str, str, int, int | None, tuple[tuple[int, int], ...]]


@dataclass(slots=True)
class _Line:
    """Counts of one source line.

    Attributes:
        bodies: count of the line's most frequent instruction in each body, by the body's number.
        left_out: whether an instruction of the line could not be planted.
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
        functions: debug information with source lines and inlined copies.
        sites: all instructions of the functions, planted or refused, in address order.
        counts: how often the planted sites ran, by address.
        flows: flow graphs of the functions with the counts of their edges, for branches.
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
        # A file has no lines if all code of its functions is inlined from other files.
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
    """Add the counts of a function's source lines to `lines`.

    Args:
        number: body number of the function itself; its inlined copies have the following numbers.
        addresses: the addresses of all sites, ascending.
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
    """Map from each address of a function to the number of the innermost inlined copy that contains
    the address."""

    def __init__(self, function: SourceFunction) -> None:
        # A copy comes after the copies that contain it, so the innermost one is written last.
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
        """Return the number of the innermost copy that contains an address: copies count from 1,
        and 0 is the function itself."""
        at = bisect_right(self._starts, address) - 1
        return self._copies[at] if at >= 0 else 0


def _add_functions(
    function: SourceFunction,
    addresses: Sequence[int],
    counts: Mapping[int, int],
    files: dict[str, FileCoverage],
) -> None:
    """Add the counts of a function and of the functions inlined in it to `files`.

    A function's count is the count of the first planted instruction at or after its entry. If this
    is 0, or if the entry is not known (a split-off part such as F.cold has none), the function's
    count is 1 if any of its instructions ran, otherwise 0. A function without planted instructions
    is left out.

    Args:
        addresses: the addresses of all sites, ascending.
    """
    begin = function.function.address
    whole_range = ((begin, begin + function.function.size),)
    bodies: list[_Body] = [
        (
            function.name,
            function.file,
            function.line,
            None if function.is_part else begin,
            whole_range,
        )
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
    """Add conditional jumps to `files`. A jump is left out if its block was not counted, or if it
    ran and the count of one of its ways is not known.
    """
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
            # A thread that was in the function when the trace began may make a count negative.
            file.branches += [
                BranchWay(span.line, number, way, max(count or 0, 0) if ran else None)
                for way, count in enumerate(taken)
            ]
