"""Pairs of equal lines in two versions of a source tree, and their text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import takewhile

from kinst.events import Aggregation, Frame, KeyPart, Stack

Sources = Mapping[str, Sequence[str]]  # lines of text by file


@dataclass(frozen=True, slots=True)
class LineNames:
    """Names for the lines of one side, under which a line of A and the same line of B are equal.

    Attributes:
        text: the files of this side.
        others: by file and line: the number that a line has in A, None for a line that the other
            side lacks.  Files without text are compared by number.
        mark: of lines that only this side has.
        paths: of files, for people.
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
        """Return the text of a line, "" if the text of either side is not available."""
        lines = self.text[file] if file in self.others else ()
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""


NUMBERS = LineNames()  # lines with the same number are the same


def paired(
    a: Sources, b: Sources, paths: Mapping[str, str] | None = None
) -> tuple[LineNames, LineNames]:
    """Return how to name the lines of A and those of B: by A's numbers, with a plus for lines that
    only B has, and with a minus for lines that only A has.

    Args:
        a: lines of text by file.
        b: lines of text by file.
        paths: of files, if people know them by others.
    """
    pairs = {file: _pairs(a[file], b[file]) for file in a.keys() & b.keys()}
    in_a = {file: {b: a for a, b in found} for file, found in pairs.items()}
    both = {file: {a: a for a, _ in found} for file, found in pairs.items()}
    shown = paths or {}
    return LineNames(a, both, "-", shown), LineNames(b, in_a, "+", shown)


def _pairs(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int]]:
    """Return the numbers, from 1, of lines that are in both, in A and in B."""
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


def files_in(found: Iterable[Aggregation]) -> list[str]:
    """Return the source files of all stacks and symbols in keys."""
    parts = (part for one in found for key in one.rows for part in key)
    return list(dict.fromkeys(f.file for part in parts for f in _frames(part) if f.file))


def _frames(part: KeyPart) -> Sequence[Frame]:
    if isinstance(part, Stack):
        return part.frames
    return (part,) if isinstance(part, Frame) else ()
