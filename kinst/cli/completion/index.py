"""The index of a kernel's names, which is mapped and searched where it lies.

A sum of the first line's rest, 8 hexadecimal digits, and a line of JSON about the kernel, with the
sum of all behind it; then a line for each function, in order of their bytes:

    NAME <TAB> KIND <TAB> OFFSET <TAB> SIZE <TAB> ADDRESS

KIND: f is a function, i one that is inlined only, b both.  OFFSET: of its code in the file.  SIZE
and ADDRESS: of its code, as linked; all three are 0 for i.

Tested by tests/cli/test_completion.py and tests/fuzz/test_caches.py.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

FORMAT = "kinst-names-2"
SUM = 8  # digits of a CRC-32


@dataclass(frozen=True, slots=True)
class Row:
    """A function; see above."""

    name: str
    kind: str
    offset: int
    size: int
    address: int


class NameIndex:
    """An index file.  about: what its first line says.  Raises OSError, and ValueError for a file
    that is none."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        end = self._text.find(b"\n")
        self.about: dict[str, Any] = summed(self._text[: max(end, 0)])
        if self.about.get("format") != FORMAT:
            raise ValueError("another format")
        self._start = end + 1
        with memoryview(self._text) as text, text[self._start :] as rows:
            if crc32(rows) != self.about["sum"]:
                raise ValueError("damaged")

    def begin_with(self, prefix: str) -> Iterator[Row]:
        """Every function whose name begins so, in order."""
        wanted = prefix.encode()
        at = self._lower_bound(wanted)
        while self._text[at : at + len(wanted)] == wanted and at < len(self._text):
            end = self._text.find(b"\n", at)
            yield _row(self._text[at:end])
            at = end + 1

    def names(self, prefix: str, kinds: str) -> list[str]:
        """The names alone of those that begin so and are of these kinds: many at once."""
        wanted = prefix.encode()
        rows = self._text[self._lower_bound(wanted) : self._lower_bound(wanted + b"\xff")]
        return [
            name.decode() for name in re.findall(rb"(?m)^([^\t\n]+)\t[%b]" % kinds.encode(), rows)
        ]

    def find(self, name: str) -> Row | None:
        """The function of this name, or None."""
        return next((row for row in self.begin_with(f"{name}\t") if row.name == name), None)

    def _lower_bound(self, wanted: bytes) -> int:
        """Where the first line is that is not before `wanted`."""
        low, high = self._start, len(self._text)
        while low < high:
            middle = self._text.rfind(b"\n", self._start - 1, (low + high) // 2) + 1
            end = self._text.find(b"\n", middle)
            if self._text[middle:end] < wanted:
                low = end + 1
            else:
                high = middle
        return low


def summed(line: bytes) -> dict[str, Any]:
    """JSON with its sum before it.  Raises ValueError where that is not its sum."""
    if b"%08x" % crc32(line[SUM:]) != line[:SUM]:
        raise ValueError("damaged")
    found: dict[str, Any] = json.loads(line[SUM:])
    return found


def _row(line: bytes) -> Row:
    name, kind, offset, size, address = line.decode().split("\t")
    return Row(name, kind, int(offset), int(size), int(address, 16))
