"""Pairs of equal lines in two versions of a source tree, A and B; names for the lines of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from difflib import SequenceMatcher
from itertools import takewhile

from kinst.core.dataclass import dataclass
from kinst.events import Aggregation, Frame, KeyPart, Stack

Sources = Mapping[str, Sequence[str]]  # lines of text by file


@dataclass(frozen=True, slots=True)
class LineNames:
    """Names for the source lines of one version, A or B, of a source tree. Equal lines of A and B
    get the same name.

    Attributes:
        text: lines of this version's source text, by file.
        others: for each file, a map from a line's number in this version to the equal line's number
            in A. The map lacks the lines that only this version has. The lines of a file without a
            map are named by their numbers in this version.
        mark: sign before the number of a line that only this version has: "-" in A, "+" in B.
        paths: path to show instead of a file's own path, by file; the own path is shown for a file
            that is missing here.
    """

    text: Sources = field(default_factory=dict)
    others: Mapping[str, Mapping[int, int | None]] = field(default_factory=dict)
    mark: str = ""
    paths: Mapping[str, str] = field(default_factory=dict)

    def name(self, file: str, line: int) -> str:
        path = self.paths.get(file, file)
        known = self.others[file].get(line) if file in self.others else line
        return f"{path}:{self.mark}{line}" if known is None else f"{path}:{known}"

    def source(self, file: str, line: int) -> str:
        """Return the text of a line; "" if the text of its file is missing in A or in B."""
        lines = self.text[file] if file in self.others else ()
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""


NUMBERS = LineNames()  # lines with equal numbers have equal names


def paired(
    a: Sources, b: Sources, paths: Mapping[str, str] | None = None
) -> tuple[LineNames, LineNames]:
    """Return names for the lines of A and names for the lines of B.

    A line is named by its number in A. A line that only A has is named "-NUMBER". A line that only
    B has is named "+NUMBER", with its number in B.

    Args:
        a: lines of A's text, by file.
        b: lines of B's text, by file.
        paths: path to show instead of a file's own path, by file; None to show all files' own
            paths.
    """
    pairs = {file: _pairs(a[file], b[file]) for file in a.keys() & b.keys()}
    in_a = {file: {b: a for a, b in found} for file, found in pairs.items()}
    both = {file: {a: a for a, _ in found} for file, found in pairs.items()}
    shown = paths or {}
    return LineNames(a, both, "-", shown), LineNames(b, in_a, "+", shown)


def _pairs(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """Return (line in A, line in B) for each line that both texts have, counted from 1."""
    # Skip the equal start and end: the matcher's time grows with the square of the length.
    before = _alike(a, b)
    after = _alike(a[before:][::-1], b[before:][::-1])
    inner_a, inner_b = a[before : len(a) - after], b[before : len(b) - after]
    pairs = [(k, k) for k in range(1, before + 1)]
    for start, other, size in SequenceMatcher(None, inner_a, inner_b, False).get_matching_blocks():
        pairs += [(before + start + k, before + other + k) for k in range(1, size + 1)]
    return pairs + [(len(a) - k, len(b) - k) for k in range(after)]


def _alike(a: Sequence[str], b: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(a, b, strict=False)))


def files_in(aggregations: Iterable[Aggregation]) -> list[str]:
    """Return the source files of all frames (in stacks and symbols) in the keys of aggregations,
    each once."""
    parts = (part for one in aggregations for key in one.rows for part in key)
    return list(dict.fromkeys(f.file for part in parts for f in _frames(part) if f.file))


def _frames(part: KeyPart) -> Sequence[Frame]:
    if isinstance(part, Stack):
        return part.frames
    return (part,) if isinstance(part, Frame) else ()
