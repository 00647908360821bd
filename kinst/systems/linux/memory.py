"""Reading a running Linux kernel's memory, by address and by symbol.

Tested by tests/systems/linux/test_modules.py.
"""

from __future__ import annotations

from kinst.core.errors import KinstError
from kinst.core.machine import KernelMemory
from kinst.core.words import MASK, PAGE
from kinst.image.elf import Elf


class LinuxMemory:
    """A running kernel's memory, with the symbols of its vmlinux file.

    Reads raise KinstError if nothing is mapped; symbol() and per_cpu() raise it if the file has no
    such symbol.

    Attributes:
        slide: running address minus linked address.
    """

    def __init__(self, memory: KernelMemory, elf: Elf, slide: int) -> None:
        self.memory = memory
        self.elf = elf
        self.slide = slide

    def has(self, symbol: str) -> bool:
        return self.elf.address(symbol) is not None

    def symbol(self, name: str) -> int:
        """Return the running address of a symbol."""
        linked = self.elf.address(name)
        if linked is None:
            raise KinstError(f"{self.elf.path}: the kernel has no symbol {name}")
        return linked + self.slide & MASK

    def per_cpu(self, name: str) -> int:
        """Return the offset of a per-CPU variable. A CPU's per-CPU base plus this offset is the
        address of the CPU's copy of the variable.

        Usually the offset is the variable's running address, and a CPU's base is the distance from
        there to the CPU's copy. But if per-CPU variables are linked at 0 (x86), the offset is the
        variable's linked address, whatever the slide is.
        """
        linked = self.elf.address(name)
        if linked is None:
            raise KinstError(f"{self.elf.path}: the kernel has no per-CPU variable {name}")
        section = self.elf.section(".data..percpu")
        slides = section is not None and section.address != 0
        return linked + self.slide & MASK if slides else linked

    def read(self, address: int, size: int) -> bytes:
        return self.memory.read(address, size)

    def number(self, address: int, size: int = 8) -> int:
        """Read an unsigned little-endian integer of `size` bytes from memory."""
        return int.from_bytes(self.memory.read(address, size), "little")

    def text(self, address: int, limit: int) -> str:
        """Read a NUL-terminated string of at most `limit` bytes from memory. Memory after the NUL
        need not be mapped."""
        raw = b""
        while len(raw) < limit and b"\0" not in raw:
            at = address + len(raw)
            raw += self.memory.read(at, min(limit - len(raw), PAGE - at % PAGE))
        return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
