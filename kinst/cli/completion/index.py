"""Index of a kernel's names: a file that is mapped and searched in place.

The first line is a checksum (8 hexadecimal digits) and JSON about the kernel. The checksum covers
the JSON, which contains a checksum of all other lines. Each other line describes a function; these
lines are sorted by their bytes:

    NAME <TAB> KIND <TAB> OFFSET <TAB> SIZE <TAB> ADDRESS

KIND is f for a function that has only code of its own, i for one that has only inlined copies, and
b for one that has both. OFFSET is the offset of the function's own code in the kernel's
file, SIZE the bytes of this code, and ADDRESS its linked address. All three are 0 for i.

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
class FunctionRow:
    """A function of an index: the fields of its line."""

    name: str
    kind: str
    offset: int
    size: int
    address: int


class NameIndex:
    """An index file that is open for searching.

    Attributes:
        about: the JSON of its first line.
    """

    def __init__(self, path: Path) -> None:
        """Open an index file.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is not an index, or is damaged.
        """
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

    def begin_with(self, prefix: str) -> Iterator[FunctionRow]:
        """Yield each function whose name begins with `prefix`, in the order of the index."""
        wanted = prefix.encode()
        at = self._lower_bound(wanted)
        while self._text[at : at + len(wanted)] == wanted and at < len(self._text):
            end = self._text.find(b"\n", at)
            yield _row(self._text[at:end])
            at = end + 1

    def names(self, prefix: str, kinds: str) -> list[str]:
        """Return the names that begin with `prefix` and have one of these kinds. This is faster
        than begin_with() for many names.

        Args:
            prefix: beginning of the names.
            kinds: letters of KIND, such as "fb".
        """
        wanted = prefix.encode()
        rows = self._text[self._lower_bound(wanted) : self._lower_bound(wanted + b"\xff")]
        return [
            name.decode() for name in re.findall(rb"(?m)^([^\t\n]+)\t[%b]" % kinds.encode(), rows)
        ]

    def find(self, name: str) -> FunctionRow | None:
        """Return the function with this name; None if the index does not have it."""
        return next((row for row in self.begin_with(f"{name}\t") if row.name == name), None)

    def _lower_bound(self, wanted: bytes) -> int:
        """Return the file offset of the first line that does not sort before `wanted`."""
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
    """Return the JSON of a line that has a checksum before its JSON. Raises ValueError if the
    checksum is wrong."""
    if b"%08x" % crc32(line[SUM:]) != line[:SUM]:
        raise ValueError("damaged")
    found: dict[str, Any] = json.loads(line[SUM:])
    return found


def _row(line: bytes) -> FunctionRow:
    name, kind, offset, size, address = line.decode().split("\t")
    return FunctionRow(name, kind, int(offset), int(size), int(address, 16))
