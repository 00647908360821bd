"""Coverage as one self-contained page for a browser: a table of files with the share of each that
ran, and their source with the count of each line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from kinst.views.coverage import Coverage, FileCoverage, total
from kinst.views.html_page import interactive_page

NEAR = 3  # lines to show around each line with code, in a file whose code was only inlined
Source = Mapping[str, Sequence[str]]


def coverage_html(
    coverage: Coverage, sources: Source, title: str, notes: Sequence[str], no_source: str = ""
) -> str:
    """Return an HTML page that shows a coverage.

    Args:
        coverage: the coverage of a trace.
        sources: lines of source text by file; a file that is not available is missing.
        title: what was traced, for the heading.
        notes: details for the heading, such as the kernel's release.
        no_source: why the page has no source text, and what to do; "" if the page has source text.
    """
    paths = sorted(coverage.files, key=lambda path: (not coverage.files[path].own, path))
    data = {"files": [_file(path, coverage.files[path], sources.get(path)) for path in paths]}
    parts = {
        "NOTES": escape(" · ".join([*_figures(coverage.files.values()), *notes])),
        "FILES": _table(paths, coverage.files),
    }
    return interactive_page("cover", "coverage", title, parts, data, no_source)


def _figures(covered: Iterable[FileCoverage]) -> list[str]:
    """Return how many lines, functions and branches of files were reached, as texts such as "5 of 9
    lines (55.6%)"."""
    rows = list(covered)
    parts = {
        "lines": total(count for one in rows for count in one.lines.values()),
        "functions": total(count for one in rows for count in one.functions.values()),
        "branches": total(one.taken for row in rows for one in row.branches),
    }
    return [
        f"{one.seen:,} of {one.all:,} {name} ({one.share})"
        for name, one in parts.items()
        if one.all
    ]


def _table(paths: Sequence[str], covered: Mapping[str, FileCoverage]) -> str:
    """Return an HTML table of files with the share of each that ran. The files that declare
    functions that were traced come first. The files whose code was only inlined follow.

    Args:
        paths: the files in the order of the table.
        covered: coverage by path.
    """
    rows = ['<table><tr><th>file</th><th colspan="2">lines</th><th>functions</th>'
            '<th class="branches">branches</th></tr>']  # fmt: skip
    own = True
    for number, path in enumerate(paths):
        file = covered[path]
        if own and not file.own:
            own = False
            rows.append('<tr class="group"><td colspan="5">inlined from</td></tr>')
        lines = total(file.lines.values())
        functions = total(file.functions.values())
        branches = total(one.taken for one in file.branches)
        named = escape(path).replace("/", "/<wbr>")
        share = 100 * lines.seen / lines.all if lines.all else 0
        rows.append(
            f'<tr class="file" data-file="{number}"><td>{named}</td>'
            f'<td><span class="bar"><i style="width:{share:.1f}%"></i></span></td>'
            f'<td title="{lines.seen} of {lines.all} lines">{lines.share}</td>'
            f"<td>{functions.share}</td>"
            f'<td class="branches">{branches.share}</td></tr>'
        )
    return "".join([*rows, "</table>"])


def _file(path: str, file: FileCoverage, source: Sequence[str] | None) -> dict[str, Any]:
    ways: dict[int, list[int]] = {}
    for one in file.branches:
        row = ways.setdefault(one.line, [0, 0])
        row[0] += bool(one.taken)
        row[1] += 1
    functions = sorted((line, name, count) for (line, name), count in file.functions.items())
    fields: dict[str, Any] = {
        "path": path,
        "figures": " · ".join(_figures([file])),
        "lines": file.lines,
        "functions": functions,
        "branches": ways,
        "source": [[first, texts] for first, texts in _pieces(file, source)],
    }
    if not source:
        fields["note"] = "Its source text is not here: lines with code have only their counts."
    return fields


def _pieces(file: FileCoverage, source: Sequence[str] | None) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, texts of the lines) for each group of consecutive lines to
    show.

    Of a file that declares traced functions, all lines are shown. Of any other file, only the lines
    near a counted line are shown. If the source text is not available, the counted lines are shown
    with empty texts.
    """
    counted_lines = {*file.lines, *(line for line, _ in file.functions)}
    if source and file.own:
        shown_lines = set(range(1, len(source) + 1))
    elif source:
        shown_lines = {
            near for line in counted_lines for near in range(line - NEAR, line + NEAR + 1)
        }
        shown_lines &= set(range(1, len(source) + 1))
    else:
        shown_lines = counted_lines
    piece: list[str] = []
    first = 0
    for line in sorted(shown_lines):
        if piece and line != first + len(piece):
            yield first, piece
            piece = []
        if not piece:
            first = line
        text = source[line - 1] if source and line <= len(source) else ""
        piece.append(text.rstrip().expandtabs(4))
    if piece:
        yield first, piece
