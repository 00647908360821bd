"""Source text and the places in it."""

from __future__ import annotations

import re
from bisect import bisect_right

from kinst.core.errors import Span

LINE_MARKER = re.compile(
    r'#[ \t]*(?:(?:pragma[ \t]+)?line[ \t]+)?([0-9]{1,9})(?:[ \t]+"([^"]*)"[ 0-9]*)?[ \t\r]*$'
)


class Source:
    """D text of one file (or one command-line argument), and spans of it.

    text: any characters at all.  file: what error messages call it.
    """

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self._starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self._lines = [line.rstrip("\r") for line in text.split("\n")]
        # A line marker names the file and the number of the line behind it (ISO C, 6.10.4).
        self._markers: list[tuple[int, str, int]] = [(0, file, 1)]
        for index, line in enumerate(self._lines):
            if line.startswith("#") and (marker := LINE_MARKER.match(line)):
                name = marker[2] if marker[2] is not None else self._markers[-1][1]
                self._markers.append((index + 1, name, int(marker[1])))

    def span(self, start: int, end: int) -> Span:
        """The characters start..end (offsets from 0), cut at the end of the first line."""
        line = bisect_right(self._starts, start) - 1
        text = self._lines[line]
        column = start - self._starts[line]
        length = max(1, min(end - start, len(text) - column))
        at = bisect_right(self._markers, line, key=lambda marker: marker[0]) - 1
        first, file, number = self._markers[at]
        return Span(file, line - first + number, column + 1, length, text)


def to_bytes(text: str) -> bytes:
    """Source characters as the bytes they were read from (undecodable bytes come back)."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """The inverse of to_bytes, for any bytes."""
    return data.decode("utf-8", "surrogateescape")


def words(text: str) -> frozenset[str]:
    """The words of a text, for tables of names."""
    return frozenset(text.split())
