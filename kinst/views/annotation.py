"""A function together with the results of a trace, as `kinst annotate` shows it.

Source lines form a tree: below a line are the functions that were inlined at calls on that line,
with lines of their own.

A line's count is the count of its most frequent instruction. A line's share is the part of the
function's executed instructions that belongs to the line or to code inlined at it. An instruction's
--by value is what `kinst annotate --by` measures there besides the count: a number or a
distribution.

Tested by tests/views/test_annotated_text.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property

from kinst.core.code import CodeInstruction, FunctionCode
from kinst.core.dataclass import dataclass
from kinst.core.inline import SourcePlace
from kinst.events import Bucket
from kinst.views.flow import FlowCounts, taken_share

NEAR = 4  # source lines up to a function's beginning in which fits() looks for its name

Measure = int | tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class SourceSpot:
    """A line of a source file; file "" and line 0 if the line is not known."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "?"


@dataclass(frozen=True, slots=True)
class InlinedAt:
    """Name of an inlined function, and the source line of the call that was inlined."""

    function: str
    call: SourceSpot


@dataclass(frozen=True, slots=True)
class BranchCounts:
    """Counts of a conditional branch.

    Attributes:
        taken: how often the branch was taken; None if that is not known.
        ran: how often the branch instruction ran.
    """

    taken: int | None
    ran: int


@dataclass(frozen=True, slots=True)
class AnnotatedInstruction:
    """An instruction with its results.

    Attributes:
        instruction: the decoded instruction.
        block: number of its basic block.
        count: how often it ran; None if it was not counted.
        share: its count divided by the sum of the counts of the function's instructions, 0 to 1.
        reason: why it was not counted; "" if it was counted.
        text: disassembly with names or offsets for branch targets.
        spot: its source line, in the innermost inlined function that it belongs to.
        within: the inlined functions that it belongs to, outermost first.
        branch: counts of a conditional branch; None for other instructions.
        measure: its --by value; None if it has no value.
    """

    instruction: CodeInstruction
    block: int
    count: int | None
    share: float
    reason: str
    text: str
    spot: SourceSpot
    within: tuple[InlinedAt, ...]
    branch: BranchCounts | None = None
    measure: Measure | None = None


@dataclass(slots=True)
class LineNode:
    """A source line of a function or of an inlined copy, with its instructions.

    Attributes:
        spot: file and line.
        own: instructions of the line itself, without those of copies inlined at it.
        inlined: copies inlined at calls on the line, by function name.
    """

    spot: SourceSpot
    own: list[AnnotatedInstruction] = field(default_factory=list)
    inlined: dict[str, CopyNode] = field(default_factory=dict)

    @property
    def count(self) -> int | None:
        counts = [one.count for one in self.own if one.count is not None]
        if not self.own:
            nested = (line.count for copy in self.inlined.values() for line in copy.lines.values())
            counts = [one for one in nested if one is not None]
        return max(counts, default=None)

    @property
    def instructions(self) -> Iterator[AnnotatedInstruction]:
        yield from self.own
        for copy in self.inlined.values():
            yield from copy.instructions

    @property
    def share(self) -> float:
        return sum(one.share for one in self.instructions)


@dataclass(slots=True)
class CopyNode:
    """The source lines of an inlined copy, or of the annotated function itself.

    Attributes:
        function: name of the inlined function; "" for the annotated function itself.
        lines: source lines by file and number, in the order of their first instructions.
    """

    function: str
    lines: dict[SourceSpot, LineNode] = field(default_factory=dict)

    @property
    def instructions(self) -> Iterator[AnnotatedInstruction]:
        for line in self.lines.values():
            yield from line.instructions


@dataclass(frozen=True)
class Annotation:
    """A function with the results of a trace.

    Attributes:
        code: the function's instructions and basic blocks.
        flow: counts of instructions and edges.
        reasons: why instructions were not planted, by address.
        sources: lines of source text by file; a file that is not available is missing.
        measure_name: heading of the --by values; "" without --by.
        measure_unit: unit of the --by values, such as "ns"; "" if it is not known.
        measures: --by values by address of the instruction.
        edges: for --by latency, average time from the start of a block to the start of the next
            block, in nanoseconds, by (number of the block, number of the next block). OUTSIDE as
            the next block means that the function ended.
    """

    code: FunctionCode
    flow: FlowCounts
    reasons: Mapping[int, str] = field(default_factory=dict)
    sources: Mapping[str, Sequence[str]] = field(default_factory=dict)
    measure_name: str = ""
    measure_unit: str = ""
    measures: Mapping[int, Measure] = field(default_factory=dict)
    edges: Mapping[tuple[int, int], int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.code.function.name

    @cached_property
    def executed(self) -> int:
        """Sum of the counts of all instructions of the function."""
        return sum(self.flow.instructions.values())

    @cached_property
    def hottest(self) -> int:
        """The greatest count of an instruction; 0 if nothing was counted."""
        return max(self.flow.instructions.values(), default=0)

    @cached_property
    def instructions(self) -> Sequence[AnnotatedInstruction]:
        """The function's instructions with their results, in address order."""
        return tuple(
            self._annotated(number, one)
            for number, block in enumerate(self.code.blocks)
            for one in block.instructions
        )

    def _annotated(self, number: int, one: CodeInstruction) -> AnnotatedInstruction:
        count = self.flow.instructions.get(one.address)
        share = (count or 0) / self.executed if self.executed else 0.0
        reason = "" if count is not None else self.reasons.get(one.address, "it cannot be planted")
        spot, within = position(one.place)
        branch = None
        ran = self.flow.exits[number]
        last = one is self.code.blocks[number].last
        if last and one.flow.kind == "branch" and ran is not None:
            shares = taken_share(self.flow, self.code, number)
            branch = BranchCounts(shares[0] if shares else None, ran)
        return AnnotatedInstruction(
            one, number, count, share, reason, self._text(one), spot, within, branch,
            self.measures.get(one.address),
        )  # fmt: skip

    def _text(self, one: CodeInstruction) -> str:
        if one.target is None:
            return one.text
        name = one.target_name or self.label(one.target)
        return one.text.replace(f"#{one.target:#x}", name).replace(f"{one.target:#x}", name)

    def label(self, address: int) -> str:
        """Return the text for an address of the function: "+OFFSET", or "PART+OFFSET" in a part
        that the compiler moved away (such as F.cold). Return an address outside of the function in
        hexadecimal."""
        for part in self.code.parts:
            if part.address <= address < part.address + part.size:
                offset = f"+{address - part.address}"
                return offset if part is self.code.function else part.name + offset
        return f"{address:#x}"

    @cached_property
    def file(self) -> str:
        """Source file of the function; "" if it is not known."""
        return beginning(self.code).file

    @cached_property
    def lines(self) -> CopyNode:
        """Tree of the function's source lines with their instructions."""
        top = CopyNode("")
        for row in self.instructions:
            copy = top
            for level in row.within:
                line = copy.lines.setdefault(level.call, LineNode(level.call))
                copy = line.inlined.setdefault(level.function, CopyNode(level.function))
            copy.lines.setdefault(row.spot, LineNode(row.spot)).own.append(row)
        return top

    def source(self, spot: SourceSpot) -> str:
        """Return the text of a source line; "" if its file is not available."""
        lines = self.sources.get(spot.file, ())
        return lines[spot.line - 1].rstrip() if 0 < spot.line <= len(lines) else ""


def position(source: SourcePlace | None) -> tuple[SourceSpot, tuple[InlinedAt, ...]]:
    """Return the source line of an instruction, and the inlined functions that the instruction
    belongs to, outermost first.

    Args:
        source: the instruction's source position. None if the debug information has none, which
            gives (SourceSpot("", 0), ()).
    """
    if source is None:
        return SourceSpot("", 0), ()
    spot = SourceSpot(source.file, source.line)
    within = []
    for frame in reversed(source.inlined):
        within.append(InlinedAt(frame.function, spot))
        spot = SourceSpot(frame.file, frame.line)
    return spot, tuple(within)


def beginning(code: FunctionCode) -> SourceSpot:
    """Return the first source line of a function: that of its first instruction with a known line.
    SourceSpot("", 0) if no instruction has one. (On some instruction sets a function begins with
    padding for a tracer, which has no line.)
    """
    places = (one.place for one in code.blocks[code.root].instructions)
    first = next((place for place in places if place is not None and place.file), None)
    return SourceSpot(first.file, first.line) if first is not None else SourceSpot("", 0)


def files_of(codes: Iterable[FunctionCode]) -> list[str]:
    """Return the source files that instructions of these functions come from, each once."""
    places = [one.place for code in codes for one in code.instructions if one.place is not None]
    files = [[place.file, *(frame.file for frame in place.inlined)] for place in places]
    return list(dict.fromkeys(name for names in files for name in names if name))


def fits(sources: Mapping[str, Sequence[str]], codes: Iterable[FunctionCode]) -> bool:
    """Return whether source text is likely to be the text of these functions: at least one
    function's name occurs near the line where the function's code begins. Also return True if no
    source file of the functions is available.

    Args:
        sources: lines of source text by file.
        codes: functions.
    """
    seen = False
    for code in codes:
        start = beginning(code)
        if start.file not in sources:
            continue
        stem = code.function.name.partition(".")[0].partition("@")[0]
        lines = sources[start.file][max(0, start.line - NEAR) : start.line + 1]
        if any(stem in line or stem.rpartition("sys_")[2] in line for line in lines):
            return True
        seen = True
    return not seen
