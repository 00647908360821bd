"""Source text and the places in it."""

from __future__ import annotations

import re
from bisect import bisect_right

from kinst.core.errors import Span


class Source:
    """D text of one file (or one command-line argument), and spans of it.

    text: any characters at all.  file: what error messages call it.
    """

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self._starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self._lines = [line.rstrip("\r") for line in text.split("\n")]

    def span(self, start: int, end: int) -> Span:
        """The characters start..end (offsets from 0), cut at the end of the first line."""
        line = bisect_right(self._starts, start) - 1
        text = self._lines[line]
        column = start - self._starts[line]
        length = max(1, min(end - start, len(text) - column))
        return Span(self.file, line + 1, column + 1, length, text)


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
