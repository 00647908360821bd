"""Reader of numbers in DWARF data, in plain Python; and the paths of source files.

It serves data that are read on demand; the scan of a whole .debug_info is compiled (scan/read.py).

Tested by tests/image/dwarf/test_dies.py.
"""

from __future__ import annotations

_LONGEST = 126  # bits of a LEB128 number; the compiled scan takes as many


class Reader:
    """Reads values one after another from bytes; `at` is the offset of the next value.

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
        """Read a little-endian integer of `size` bytes."""
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
    """Return a source file's path: home/folder/name.

    If the name is absolute, it is the path; if the folder is absolute, the path is folder/name. The
    path is folder/name too if the home is relative: a kernel's build (-ffile-prefix-map) makes both
    the home and the folder relative to one folder.

    Args:
        home: the folder in which the compiler ran.
        folder: the folder of the source file; None for `home` itself.
        name: name of the source file.
    """
    if name.startswith(b"/"):
        return name
    if folder is None:
        folder = home
    elif home.startswith(b"/") and not folder.startswith(b"/"):
        folder = home + b"/" + folder if folder else home
    return folder + b"/" + name if folder else name
