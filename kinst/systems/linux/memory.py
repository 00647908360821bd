"""Reading the running kernel's memory, and addressing it by symbol.

Tested by tests/systems/linux/test_modules.py.
"""

from __future__ import annotations

from kinst.core.errors import KinstError
from kinst.core.machine import KernelMemory
from kinst.core.words import MASK, PAGE
from kinst.image.elf import Elf


class LinuxMemory:
    """A running kernel: its vmlinux file and its memory, slide bytes apart.

    Every read raises KinstError where nothing is mapped, and symbol() where the file has no
    such symbol.
    """

    def __init__(self, memory: KernelMemory, elf: Elf, slide: int) -> None:
        self.memory = memory
        self.elf = elf
        self.slide = slide

    def has(self, symbol: str) -> bool:
        return self.elf.address(symbol) is not None

    def symbol(self, name: str) -> int:
        """The running address of a symbol."""
        linked = self.elf.address(name)
        if linked is None:
            raise KinstError(f"{self.elf.path}: the kernel has no symbol {name}")
        return linked + self.slide & MASK

    def per_cpu(self, name: str) -> int:
        """A per-CPU variable's offset from the per-CPU base.

        Where the variables are linked at 0 (x86) they do not slide; elsewhere the base is the
        distance of a CPU's copy from the variable as it was linked, and slid.
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
        """An unsigned little-endian integer of `size` bytes."""
        return int.from_bytes(self.memory.read(address, size), "little")

    def text(self, address: int, limit: int) -> str:
        """A NUL-terminated string of at most limit bytes; what follows it need not be mapped."""
        raw = b""
        while len(raw) < limit and b"\0" not in raw:
            at = address + len(raw)
            raw += self.memory.read(at, min(limit - len(raw), PAGE - at % PAGE))
        return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
