"""Physical memory in which tests lay out page tables by hand."""

from __future__ import annotations

from kinst.core.errors import TargetError


class TableRam:
    """Physical memory of `size` bytes, from which pages are taken in order: the first is the
    root."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.next = 0x1000
        self.root = self.page()

    def page(self) -> int:
        self.next += 0x1000
        return self.next - 0x1000

    def get(self, at: int) -> int:
        return int.from_bytes(self.data[at : at + 8], "little")

    def put(self, at: int, value: int) -> None:
        self.data[at : at + 8] = value.to_bytes(8, "little")

    def read(self, at: int, size: int) -> bytes:
        """Read as the machine would; raise TargetError outside the memory."""
        if at + size > len(self.data):
            raise TargetError("outside")
        return bytes(self.data[at : at + size])
