"""Text of annotated functions: instructions with their counts on the left, source on the right.

Inlined code is indented below a line that names the function and the call. In address order, a
horizontal line separates basic blocks. In source order, the instructions of a source line are
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from kinst.core.code import OUTSIDE
from kinst.core.dataclass import dataclass
from kinst.core.probe import Gap, gap_text
from kinst.core.units import value_text
from kinst.events import Bucket
from kinst.views.annotation import (
    AnnotatedInstruction,
    Annotation,
    CopyNode,
    InlinedAt,
    LineNode,
    Measure,
    SourceSpot,
    beginning,
)
from kinst.views.flow import INSIDE

ORDERS = ("address", "source")
_RESET = "\x1b[0m"
_STYLES = {"hot": "\x1b[1;31m", "warm": "\x1b[33m", "cool": "\x1b[32m", "never": "\x1b[2m",
           "name": "\x1b[1m", "inlined": "\x1b[36m", "note": "\x1b[35m", "plain": ""}  # fmt: skip
_BARS = "▁▂▃▄▅▆▇█"
# Least and most columns for the disassembly; between these it gets the left half of the page.
_LEAST, _MARGIN = 40, 58
_NAME = 12  # columns of the name of the --by value
_NESTING = "│ "


@dataclass(frozen=True, slots=True)
class Page:
    """Layout of a printed annotation.

    Attributes:
        width: greatest number of characters in a line.
        colours: whether to colour the text with escape sequences.
        order: order of the instructions, one of ORDERS ("address" or "source").
    """

    width: int = 132
    colours: bool = False
    order: str = ORDERS[0]

    def paint(self, style: str, text: str) -> str:
        escape = _STYLES[style] if self.colours else ""
        return f"{escape}{text}{_RESET}" if escape and text.strip() else text


def annotated_text(annotations: Iterable[Annotation], page: Page) -> str:
    """Return text that shows annotated functions, one below the other."""
    return "\n".join(_Text(one, page).whole() for one in annotations)


def heat(count: int | None, most: int) -> str:
    """Return the name of the style for a count: "hot", "warm" or "cool" by its share of `most`,
    "never" for 0, "note" for None.

    Args:
        count: how often an instruction ran; None if it was not counted.
        most: the greatest count in the function.
    """
    if not count:
        return "never" if count == 0 else "note"
    part = count / most
    return "hot" if part > 0.75 else "warm" if part > 0.25 else "cool"


def per_cent(part: float) -> str:
    return f"{100 * part:.1f}%"


def measured(value: Measure | None, unit: str = "") -> str:
    """Return the --by value of an instruction as text. A number is shown with its unit. A
    distribution is shown as its lowest bound, a bar for each bucket, and its highest bound.

    Args:
        value: the --by value; None if the instruction has no value, which gives "".
        unit: unit of the value, such as "ns"; "" for a plain integer.
    """
    if value is None:
        return ""
    if isinstance(value, int):
        return value_text(value, unit) if unit else f"{value:,}"
    return _shape(value, unit)


def _shape(buckets: Sequence[Bucket], unit: str) -> str:
    if not buckets:
        return ""

    def shown(bound: int | None) -> str:
        return value_text(bound or 0, unit) if unit else f"{bound}"

    most = max(one.count for one in buckets)
    bars = "".join(_BARS[(len(_BARS) - 1) * one.count // most] for one in buckets)
    low, high = buckets[0].low, buckets[-1].high
    start = f"<{shown(buckets[0].high)}" if low is None else shown(low)
    end = f">={shown(buckets[-1].low)}" if high is None else shown(high)
    return f"{start} {bars} {end}"


class _Text:
    def __init__(self, annotation: Annotation, page: Page) -> None:
        self._one, self._page = annotation, page
        rows = annotation.instructions
        self._wide = max(5, *(len(self._count(row)) for row in rows))
        self._offsets = max((len(annotation.label(r.instruction.address)) for r in rows), default=1)
        shown = (len(self._measured(row)) for row in rows)
        name = annotation.measure_name
        self._measures = max((min(len(name), _NAME), *shown)) if name else 0
        fixed = self._wide + 8 + 2 + self._offsets + 2 + (self._measures + 2 if name else 0)
        self._code = min(_MARGIN, max(_LEAST, page.width // 2 - fixed))
        self._left = fixed + self._code

    def _measured(self, row: AnnotatedInstruction) -> str:
        return measured(row.measure, self._one.measure_unit)

    def whole(self) -> str:
        body = self._by_address() if self._page.order == ORDERS[0] else self._by_source()
        return "\n".join(line.rstrip() for line in (*self._head(), *body, *self._foot())) + "\n"

    def _head(self) -> Iterator[str]:
        one = self._one
        entered = one.flow.entered
        times = "entered ? times" if entered is None else _times(entered)
        spot = beginning(one.code)
        yield self._page.paint("name", f"{one.name}  {spot}") + (
            f"  {times}, executed {one.executed:,} instructions in"
            f" {_ran(one)} of {len(one.code.blocks)} blocks"
        )
        name = f"{_cut(one.measure_name, self._measures):>{self._measures}}"
        by = f"  {name}" if self._measures else ""
        yield self._page.paint(
            "name",
            f"{'count':>{self._wide}}   share{by}  {'':{self._offsets}}  "
            f"{'instruction':{self._code}} source",
        )

    def _foot(self) -> Iterator[str]:
        one = self._one
        inside = sum(n for key, n in one.flow.edges.items() if key[1] == INSIDE)
        inside += sum((a or 0) - (b or 0) for a, b in
                      zip(one.flow.entries, one.flow.exits, strict=True))  # fmt: skip
        if inside:
            said = "began" if inside < 0 else "ended, or did not come back from a call"
            yield f"{abs(inside)} more {_were(inside)} inside when the trace {said}"
        unknown = [
            (k, number)
            for number, block in enumerate(one.code.blocks)
            for k in range(len(block.edges))
            if (number, k) not in one.flow.edges
        ]
        if unknown:
            yield f"{len(unknown)} of the edges between blocks {_were(len(unknown))} not told"
        yield from (
            self._page.paint("note", f"does not add up: {odd}") for odd in one.flow.mismatches
        )

    def _by_address(self) -> Iterator[str]:
        within: tuple[InlinedAt, ...] = ()
        spot, block = None, 0
        gaps = sorted(self._one.code.gaps, key=lambda gap: gap.function.address + gap.offset)
        for row in self._one.instructions:
            while gaps and gaps[0].function.address + gaps[0].offset < row.instruction.address:
                yield self._gap(gaps.pop(0))
            if row.block != block:
                yield self._page.paint("never", self._rule(row.block))
            if row.within != within:
                yield from self._opened(within, row.within)
            fresh = row.block != block or row.within != within or row.spot != spot
            within, spot, block = row.within, row.spot, row.block
            yield self._row(row, len(row.within), self._line(row.spot) if fresh else "")
        yield from map(self._gap, gaps)

    def _gap(self, gap: Gap) -> str:
        """Return the line of text for a gap (bytes that are not decoded)."""
        label = self._one.label(gap.function.address + gap.offset)
        text = f"{'-':>{self._wide}} {'':>7}  "
        text += f"{'':{self._measures}}  " if self._measures else ""
        return self._page.paint("note", f"{text}{label:>{self._offsets}}  {gap_text(gap)}")

    def _rule(self, block: int) -> str:
        """Return the horizontal line above a basic block. The text on the line has the block's
        number and, for each edge into the block, the number of the block where the edge starts and
        the edge's count. The edge from the block directly above is left out.
        """
        callers = [
            f"{number}" + ("" if count is None else f" ({count:,})")
            for number, count in into(self._one, block)
            if number != block - 1
        ]
        text = f"-- {block} " + (f"from {', '.join(callers)} " if callers else "")
        return f"{'':{self._wide + 8}}  {text:-<{self._left - self._wide - 10}}"

    def _opened(self, before: tuple[InlinedAt, ...], now: tuple[InlinedAt, ...]) -> Iterator[str]:
        same = 0
        while same < min(len(before), len(now)) and before[same] == now[same]:
            same += 1
        for depth in range(same, len(now)):
            yield self._inlined(depth, now[depth].function, now[depth].call)

    def _inlined(self, depth: int, function: str, call: SourceSpot) -> str:
        blank = " " * (self._left - self._code)
        text = f"{_NESTING * depth}┌ {function}() inlined"
        return (
            blank
            + self._page.paint("inlined", f"{_cut(text, self._code):{self._code}}")
            + (" " + self._line(call))
        )

    def _by_source(self) -> Iterator[str]:
        yield from self._copy(self._one.lines, 0, self._one.file)
        yield from map(self._gap, self._one.code.gaps)

    def _copy(self, copy: CopyNode, depth: int, own: str) -> Iterator[str]:
        files = {
            name: k for k, name in enumerate(dict.fromkeys([own, *(s.file for s in copy.lines)]))
        }
        for spot in sorted(copy.lines, key=lambda spot: (files[spot.file], spot.line)):
            yield from self._source_line(copy.lines[spot], depth)

    def _source_line(self, line: LineNode, depth: int) -> Iterator[str]:
        blank = f"{'':{self._offsets}}  {'':{self._code}}"
        count = "" if line.count is None else f"{line.count:,}"
        style = heat(line.count, self._one.hottest)
        measures = f"  {'':{self._measures}}" if self._measures else ""
        yield (
            self._page.paint(style, f"{count:>{self._wide}} {per_cent(line.share):>7}")
            + f"{measures}  {blank} "
            + self._page.paint("name", self._line(line.spot))
        )
        for row in line.own:
            yield self._row(row, depth, "")
        for copy in line.inlined.values():
            yield self._inlined(depth, copy.function, line.spot)
            first = next(copy.instructions).spot.file
            yield from self._copy(copy, depth + 1, first)

    def _row(self, row: AnnotatedInstruction, depth: int, source: str) -> str:
        page = self._page
        style = heat(row.count, self._one.hottest)
        left = page.paint(style, f"{self._count(row):>{self._wide}} {self._share(row):>7}")
        if self._measures:
            left += f"  {self._measured(row):>{self._measures}}"
        label = self._one.label(row.instruction.address)
        nesting = page.paint("inlined", _NESTING * depth)
        text, note = row.text, self._note(row)
        room = max(8, self._code - len(_NESTING) * depth - (len(note) + 2 if note else 0))
        text = _cut(text, room)
        painted = page.paint("never" if row.count == 0 else "plain", text)
        if note:
            painted += "  " + page.paint("note", note)
            text += "  " + note
        if row.reason:
            why = page.paint("note", f"not planted: {row.reason}")
            source = f"{source}  {why}" if source else why
        fill = " " * max(0, self._code - len(_NESTING) * depth - len(text))
        return f"{left}  {label:>{self._offsets}}  {nesting}{painted}{fill} {source}"

    def _count(self, row: AnnotatedInstruction) -> str:
        return "-" if row.count is None else f"{row.count:,}"

    def _share(self, row: AnnotatedInstruction) -> str:
        return "" if row.count is None else per_cent(row.share)

    def _note(self, row: AnnotatedInstruction) -> str:
        if row.branch is None or row.count is None:
            return ""
        if row.branch.taken is None:
            return "taken ?"
        if not row.branch.ran:
            return ""
        return f"taken {per_cent(row.branch.taken / row.branch.ran)}"

    def _line(self, spot: SourceSpot) -> str:
        """Return a source line for the right column: "LINE TEXT", or "FILE:LINE TEXT" for a line of
        another file than the function's. "" if the line is not known."""
        if not spot.file:
            return ""
        text = self._one.source(spot)
        room = self._page.width - self._left - 1
        if spot.file == self._one.file and text:
            return _cut(f"{spot.line} {text.expandtabs(4)}", room)
        name = str(spot) if not text else f"{PurePosixPath(spot.file).name}:{spot.line}"
        return _cut(f"{name} {text.strip()}".rstrip(), room)


def into(annotation: Annotation, block: int) -> Iterator[tuple[int, int | None]]:
    """Yield (block, count) for each edge of the flow graph into a block: the number of the block
    where the edge starts, and how often the edge was taken (None if that is not known).
    """
    for number, one in enumerate(annotation.code.blocks):
        for k, edge in enumerate(one.edges):
            if edge.to == block and edge.to != OUTSIDE:
                yield number, annotation.flow.edges.get((number, k))


def _ran(one: Annotation) -> int:
    return sum(bool(count) for count in one.flow.entries)


def _times(number: int) -> str:
    few = {0: "never entered", 1: "entered once", 2: "entered twice"}
    return few.get(number, f"entered {number:,} times")


def _were(number: int) -> str:
    return "was" if abs(number) == 1 else "were"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 2)] + ".."
