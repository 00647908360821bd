"""Relocatable files (.o, .ko) as if they were linked: sections side by side, branches resolved.

In such a file every section starts at address 0, and a branch to another section is only a
relocation.  Sections are put where layout() says, as the index of debug information has them.
Formats: System V ABI, chapter 4; the psABI documents of x86-64 and AArch64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np

from kinst.core.errors import KinstError
from kinst.image.dwarf.file import ET_REL, SHT_RELA, DebugFile, layout, open_file
from kinst.image.dwarf.sections import AARCH64, RELOCATION, X86_64
from kinst.image.elf import SHF_EXECINSTR, SHN_UNDEF, Elf, Section, Symbols, open_elf


def _relative(code: bytearray, at: int, distance: int) -> None:
    """R_X86_64_PC32 and PLT32: 32 bits, from the field."""
    code[at : at + 4] = (distance & 0xFFFFFFFF).to_bytes(4, "little")


def _branch(code: bytearray, at: int, distance: int) -> None:
    """R_AARCH64_JUMP26 and CALL26: the lower 26 bits, in words."""
    word = int.from_bytes(code[at : at + 4], "little") & 0xFC000000
    code[at : at + 4] = (word | distance >> 2 & 0x3FFFFFF).to_bytes(4, "little")


Resolve = Callable[[bytearray, int, int], None]
# By e_machine and type; what is not here does not say where control goes.
BRANCHES: dict[int, dict[int, Resolve]] = {
    X86_64: {2: _relative, 4: _relative},
    AARCH64: {282: _branch, 283: _branch},
}


class PlacedElf(Elf):
    """An Elf whose sections, symbols and code are where layout() puts them."""

    def __init__(self, elf: Elf, file: DebugFile) -> None:
        self._bases = layout(file)
        sections = [
            replace(s, address=self._bases.get(s.index, s.address)) for s in elf.sections
        ]  # fmt: skip
        super().__init__(elf.path, file.data, elf.machine, sections)
        self._file = file
        self._code: dict[int, bytes] = {}

    @cached_property
    def symbols(self) -> Symbols:
        """As in Elf, with addresses moved."""
        own = Elf.symbols.func(self)  # type: ignore[attr-defined]
        base = np.zeros(1 << 16, dtype=np.uint64)
        for index, address in self._bases.items():
            base[index & 0xFFFF] = address
        found: Symbols = replace(own, address=own.address + base[own.section])
        return found

    def read(self, address: int, size: int) -> bytes:
        """As in Elf, with branches in code resolved."""
        for section in self.sections:
            mine = section.index in self._bases and section.flags & SHF_EXECINSTR
            if mine and section.address <= address and address + size <= section.end:
                start = address - section.address
                return self._resolved(section)[start : start + size]
        return super().read(address, size)

    def _resolved(self, section: Section) -> bytes:
        if section.index in self._code:
            return self._code[section.index]
        known = BRANCHES.get(self.machine)
        code = bytearray(self.data(section))
        tables = [s for s in self._file.sections if s.kind == SHT_RELA and s.info == section.index]
        table = tables[0] if tables else None
        raw = self._file.bytes_of(table) if table else b""
        if raw and known is None:
            raise KinstError(
                f"{self.path}: relocations of the code of ELF machine {self.machine} are not known",
                "link the file",
            )
        rows = np.frombuffer(raw, dtype=RELOCATION, count=len(raw) // RELOCATION.itemsize)
        symbols = self.symbols
        for offset, kind, symbol, addend in rows.tolist():
            resolve = (known or {}).get(kind)
            if resolve is None or symbol >= len(symbols) or offset + 4 > len(code):
                continue
            if int(symbols.section[symbol]) != SHN_UNDEF:
                target = int(symbols.address[symbol]) + addend
                resolve(code, offset, target - section.address - offset)
        self._code[section.index] = bytes(code)
        return self._code[section.index]


def open_placed(path: str) -> Elf:
    """An ELF file, with a relocatable one laid out.  Raises KinstError as open_elf() does."""
    elf, file = open_elf(path), open_file(path)
    return PlacedElf(elf, file) if file.kind == ET_REL else elf
