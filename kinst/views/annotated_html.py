"""Page for a browser that shows annotated functions: source, instructions and flow graph side by
side. Selecting an item in one pane shows it in the other panes.

The page is one self-contained file with data (JSON), the script that shows the data, and the graphs
(SVG).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from kinst.core.probe import gap_text
from kinst.views.annotated_text import measured, per_cent
from kinst.views.annotation import (
    AnnotatedInstruction,
    Annotation,
    CopyNode,
    LineNode,
    SourceSpot,
    beginning,
)
from kinst.views.flow_svg import flow_svg, heat_class
from kinst.views.html_page import interactive_page


def annotated_html(annotations: Sequence[Annotation], title: str, no_source: str = "") -> str:
    """Return an HTML page that shows annotated functions.

    Args:
        annotations: the functions with their results, in the order of the page.
        title: what was traced, for the heading.
        no_source: why the page has no source text, and what to do; "" if the page has source text.
    """
    data = [_Function(one, f"f{number}").data() for number, one in enumerate(annotations)]
    graphs = "".join(
        f'<div class="graph" data-function="{number}">{flow_svg(one, f"f{number}")}</div>'
        for number, one in enumerate(annotations)
    )
    return interactive_page("annotate", "annotated", title, {"GRAPHS": graphs}, data, no_source)


class _Function:
    """Builder of the page's JSON data for one function. Each source line gets a number, by which
    the instructions of the line refer to it."""

    def __init__(self, annotation: Annotation, name: str) -> None:
        self._one, self._name = annotation, name
        self._numbers = count()
        self._files: dict[str, int] = {}
        self._line_of: dict[int, int] = {}  # instruction's address -> its line's number

    def data(self) -> dict[str, Any]:
        one = self._one
        source = [row for row in self._copy(one.lines, 0, one.file) if row]
        rows = {row.instruction.address: k for k, row in enumerate(one.instructions)}
        return {
            "name": one.name,
            "spot": str(beginning(one.code)),
            "entered": one.flow.entered,
            "ran": one.executed,
            "measure": one.measure_name,
            "most": one.hottest,
            "odd": [*one.flow.mismatches, *map(gap_text, one.code.gaps)],
            "file": one.file,
            "files": list(self._files),
            "source": source,
            "code": [self._instruction(row, rows) for row in one.instructions],
        }

    def _instruction(self, row: AnnotatedInstruction, rows: dict[int, int]) -> dict[str, Any]:
        one, code = self._one, row.instruction
        fields = {
            "at": one.label(code.address),
            "bytes": code.code.hex(),
            "text": row.text,
            "count": "-" if row.count is None else f"{row.count:,}",
            "heat": heat_class(row.count, one.hottest),
            "block": row.block,
            "line": self._line_of[code.address],
        }
        if row.within:
            fields["depth"] = len(row.within)
        if row.count:
            fields["share"] = per_cent(row.share)
        if row.reason:
            fields["reason"] = row.reason
        if row.branch is not None:
            taken, ran = row.branch.taken, row.branch.ran
            fields["taken"] = (
                "?" if taken is None else f"{per_cent(taken / ran)} of {ran:,}" if ran else ""
            )
        if code.target in rows:
            fields["target"] = rows[code.target]
        if row.measure is not None:
            fields["measure"] = measured(row.measure, one.measure_unit)
        return fields

    def _copy(self, copy: CopyNode, depth: int, own: str) -> Iterator[dict[str, Any]]:
        spots = sorted(copy.lines, key=lambda s: (s.file != own, s.file, s.line))
        here = [spot.line for spot in spots if spot.file == own]
        between = range(min(here), max(here) + 1) if here and depth == 0 else ()
        for number in between:
            spot = SourceSpot(own, number)
            if spot in copy.lines:
                yield from self._line(copy.lines[spot], depth)
            elif self._one.source(spot) or self._one.sources.get(own):
                yield self._row(spot, depth, None)
        for spot in spots:
            if spot.file != own or depth:
                yield from self._line(copy.lines[spot], depth)

    def _line(self, line: LineNode, depth: int) -> Iterator[dict[str, Any]]:
        row = self._row(line.spot, depth, line)
        for one in line.own:
            self._line_of[one.instruction.address] = row["id"]
        yield row
        for copy in line.inlined.values():
            first = next(copy.instructions).spot.file
            yield {"id": next(self._numbers), "depth": depth, "inlined": copy.function}
            yield from self._copy(copy, depth + 1, first)

    def _row(self, spot: SourceSpot, depth: int, line: LineNode | None) -> dict[str, Any]:
        text = self._one.source(spot).expandtabs(4)
        fields: dict[str, Any] = {
            "id": next(self._numbers), "depth": depth, "line": spot.line,
            "text": text if spot.file == self._one.file and not depth else text.strip(),
        }  # fmt: skip
        if spot.file and (spot.file != self._one.file or not self._one.sources.get(spot.file)):
            fields["file"] = self._files.setdefault(spot.file, len(self._files))
        if line is not None:
            fields["count"] = "-" if line.count is None else f"{line.count:,}"
            if line.share:
                fields["share"] = per_cent(line.share)
            fields["heat"] = heat_class(line.count, self._one.hottest)
        return fields
