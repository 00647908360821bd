"""Reads numbers of DWARF data one after another, in plain Python; and makes the paths of source
files.

For data that are read lazily; the scan of a whole .debug_info is compiled (scan/read.py).

Tested by tests/image/dwarf/test_dies.py.
"""

from __future__ import annotations

_LONGEST = 126  # bits of a LEB128 number; the compiled scan takes as many


class Reader:
    """Reads from data at `at`, which it advances.

    Every method raises IndexError if the data end too early, and ValueError for a LEB128 number
    (DWARF 5, 7.6) longer than 18 bytes, which no compiler writes.
    """

    __slots__ = ("at", "data")

    def __init__(self, data: bytes | memoryview, at: int = 0) -> None:
        self.data = data
        self.at = at

    def left(self) -> bool:
        return self.at < len(self.data)

    def take(self, size: int) -> bytes:
        piece = bytes(self.data[self.at : self.at + size])
        if len(piece) != size:
            raise IndexError
        self.at += size
        return piece

    def number(self, size: int, signed: bool = False) -> int:
        """Read a number of `size` bytes, the lowest first."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift >= _LONGEST:
                raise ValueError

    def sleb(self) -> int:
        start = self.at
        value = self.uleb()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value


def source_path(home: bytes, folder: bytes | None, name: bytes) -> bytes:
    """Return a source file's path: its name, below its folder, below the folder in which the
    compiler ran.

    A relative home (kernels are built with -ffile-prefix-map) is one of two names that were made
    relative to the same folder, and is not put in front of the other.

    Args:
        home: the folder in which the compiler ran.
        folder: of the file; None for home itself.
        name: of the file.
    """
    if name.startswith(b"/"):
        return name
    if folder is None:
        folder = home
    elif home.startswith(b"/") and not folder.startswith(b"/"):
        folder = home + b"/" + folder if folder else home
    return folder + b"/" + name if folder else name
