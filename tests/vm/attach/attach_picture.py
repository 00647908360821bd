"""A picture of a guest's kernel, read from QEMU's memory without kinst.

It has the kernel's text and its page tables except their last level, which the kernel itself
changes all the time.  Addresses come from the guest's /proc/iomem and from nm(1).
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.vm.attach.attach_guest import AttachGuest

_PAGE = 4096


@dataclass(frozen=True)
class Layout:
    """Layout of an ISA's kernel in physical memory.

    Attributes:
        ram: where RAM begins.
        code, root: symbols at the start of /proc/iomem's "Kernel code", and of the kernel's page
            tables.
        first: index of the first root entry that is the kernel's.
        changing: bits that the CPU sets in entries (accessed, dirty).
        below: returns the table that an entry leads to.
    """

    ram: int
    code: str
    root: str
    first: int
    changing: int
    below: Callable[[int], int | None]


def _amd64(entry: int) -> int | None:
    return entry & 0xF_FFFF_FFFF_F000 if entry & 0x81 == 1 else None


def _arm64(entry: int) -> int | None:
    return entry & 0xFFFF_FFFF_F000 if entry & 3 == 3 else None


def _riscv64(entry: int) -> int | None:
    return (entry >> 10 & (1 << 44) - 1) << 12 if entry & 0xF == 1 else None


LAYOUTS = {
    "amd64": Layout(0, "_text", "init_top_pgt", 256, 0x60, _amd64),
    "arm64": Layout(0x4000_0000, "_stext", "swapper_pg_dir", 0, 1 << 10, _arm64),
    "riscv64": Layout(0x8000_0000, "_text", "swapper_pg_dir", 256, 0xC0, _riscv64),
}


@dataclass(frozen=True)
class Picture:
    """Text and page tables.

    Attributes:
        tables: entries by (path of indexes from the root).
    """

    text: bytes
    tables: dict[tuple[int, ...], int]

    def differences(self, later: Picture) -> tuple[list[int], list[str]]:
        """Return offsets in the text, and entries of tables, that differ."""
        text = [at for at, (a, b) in enumerate(zip(self.text, later.text, strict=True)) if a != b]
        paths = sorted(self.tables.keys() | later.tables.keys())
        tables = [
            f"{path}: {self.tables.get(path, 0):#x} {later.tables.get(path, 0):#x}"
            for path in paths
            if self.tables.get(path, 0) != later.tables.get(path, 0)
        ]
        return text, tables


class Photographer:
    """Takes pictures; made before the first attach, while the guest's RAM is one mapping of
    QEMU's."""

    def __init__(self, vm: AttachGuest, isa: str, megabytes: int) -> None:
        self._pid = vm.pid
        mmu = re.search(r"sv(\d\d)", vm.run("cat /proc/cpuinfo"))  # riscv64 tells its paging mode
        self._levels = (int(mmu[1]) - 12) // 9 if mmu else 4
        self._layout = layout = LAYOUTS[isa]
        span = re.search(r"([0-9a-f]+)-([0-9a-f]+) : Kernel code", vm.run("cat /proc/iomem"))
        assert span is not None
        self._code, self._end = (int(word, 16) for word in span.groups())
        found_at = symbols(vm.debug, {layout.code, layout.root, "linux_banner"})
        slide = self._code - found_at[layout.code]
        self._root = found_at[layout.root] + slide
        banner = found_at["linux_banner"] + slide
        release = f"Linux version {vm.run('uname -r')}".encode()
        found = []
        for line in Path(f"/proc/{vm.pid}/maps").read_text().splitlines():
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            start += -start % (2 << 20)
            if end - start >= megabytes << 20:
                self._host = start
                found += [start] if self._read(banner, len(release)) == release else []
        (self._host,) = found

    def _read(self, physical: int, size: int) -> bytes:
        memory = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY)
        try:
            out = b""
            while len(out) < size:
                at = self._host + physical - self._layout.ram + len(out)
                part = os.pread(memory, size - len(out), at)
                assert part, hex(at)
                out += part
            return out
        finally:
            os.close(memory)

    def text(self) -> bytes:
        return self._read(self._code, self._end + 1 - self._code)

    def take(self) -> Picture:
        return Picture(self.text(), dict(self._entries(self._root, (), self._layout.first)))

    def _entries(
        self, table: int, path: tuple[int, ...], first: int = 0
    ) -> Iterator[tuple[tuple[int, ...], int]]:
        for index, entry in enumerate(struct.unpack("<512Q", self._read(table, _PAGE))):
            if index >= first and entry:
                yield (*path, index), entry & ~self._layout.changing
                lower = self._layout.below(entry)
                if lower is not None and len(path) + 2 < self._levels:
                    yield from self._entries(lower, (*path, index))


def symbols(debug: Path, names: set[str]) -> dict[str, int]:
    listed = subprocess.run(["nm", str(debug)], capture_output=True, text=True, check=True)
    rows = (line.split() for line in listed.stdout.splitlines())
    return {row[-1]: int(row[0], 16) for row in rows if row[-1] in names and len(row) == 3}
