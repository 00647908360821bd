"""Relocations of relocatable files (.o, .ko), and of images that relocate themselves at boot.

In a relocatable file every section starts at address 0, and a reference to another section is only
a relocation. ElfFile.layout gives each section an address. This module adjusts debug sections,
symbols and branches to these addresses, so that the file is read as if it were linked. In an image
that relocates itself, tables of pointers may be empty: pointers() reads them from the relocations.

Formats: System V ABI, chapter 4; the psABI documents of x86-64, AArch64 and RISC-V.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kinst.core.errors import KinstError
from kinst.image.elf import SHN_UNDEF, U64, Elf, SymbolTable
from kinst.image.elf_file import (
    AARCH64,
    RISCV,
    SHF_EXECINSTR,
    SHT_RELA,
    X86_64,
    ElfFile,
    ElfSection,
)

U8: TypeAlias = npt.NDArray[Any]

# Elf64_Rela.
RELOCATION = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])


def _table_of(elf: ElfFile, section: ElfSection) -> npt.NDArray[np.void]:
    """Return the relocations (Elf64_Rela) that apply to a section; empty if there are none."""
    tables = [s for s in elf.sections if s.kind == SHT_RELA and s.info == section.index]
    raw = elf.data(tables[0]) if tables else b""
    return np.frombuffer(raw, dtype=RELOCATION, count=len(raw) // RELOCATION.itemsize)


# Debug sections

# (bytes, operation) of each type of data relocation, by e_machine.  "set" writes symbol + addend,
# "add" and "sub" change the present value; "set6" and "sub6" change six bits, "leb" and "subleb" a
# ULEB128 number, which keeps its length.
DATA_KINDS: dict[int, dict[int, tuple[int, str]]] = {
    X86_64: {
        1: (8, "set"), 10: (4, "set"), 11: (4, "set"), 17: (8, "set"), 21: (4, "set"),
    },
    AARCH64: {257: (8, "set"), 258: (4, "set"), 259: (2, "set")},
    RISCV: {
        1: (4, "set"), 2: (8, "set"), 33: (1, "add"), 34: (2, "add"), 35: (4, "add"),
        36: (8, "add"), 37: (1, "sub"), 38: (2, "sub"), 39: (4, "sub"), 40: (8, "sub"),
        52: (1, "sub6"), 53: (1, "set6"), 54: (1, "set"), 55: (2, "set"), 56: (4, "set"),
        60: (0, "leb"), 61: (0, "subleb"),
    },
}  # fmt: skip


def relocated(elf: Elf, section: ElfSection, array: U8) -> U8:
    """Return the bytes of a debug section with the file's relocations applied. A linked file has no
    relocations: its bytes are returned unchanged.

    Args:
        array: the section's bytes, decompressed; not changed.

    Raises:
        KinstError: a relocation is damaged, or of an unknown type.
    """
    rows = _table_of(elf, section) if elf.relocatable else np.zeros(0, dtype=RELOCATION)
    if not len(rows):
        return array
    kinds = DATA_KINDS.get(elf.machine)
    if kinds is None:
        raise KinstError(f"{elf.path}: relocations of ELF machine {elf.machine} are not known")
    where = f"{elf.path}: the relocations of {section.name}"
    if int(rows["symbol"].max()) >= len(elf.symbols):
        raise KinstError(f"{where} are damaged: they name symbols that do not exist")
    values = elf.placed_addresses[rows["symbol"]] + rows["addend"].astype(np.uint64)
    out = array.copy()
    # Relocations that set a value come first: the others change it.
    for subtract in (False, True):
        for kind in np.unique(rows["type"]).tolist():
            if kind == 0:
                continue
            if kind not in kinds:
                raise KinstError(f"{where}: type {kind} is not known")
            size, how = kinds[kind]
            if subtract == how.startswith(("sub", "add")):
                of_kind = rows["type"] == kind
                offsets = rows["offset"][of_kind]
                if len(offsets) and int(offsets.max()) + max(size, 1) > len(out):
                    raise KinstError(f"{where} are damaged: they lie outside of the section")
                _apply(out, offsets.astype(np.int64), values[of_kind], size, how)
    return out


def _apply(
    out: U8, offsets: npt.NDArray[np.int64], values: npt.NDArray[np.uint64], size: int, how: str
) -> None:
    if how in ("leb", "subleb"):
        _apply_leb(out, offsets.tolist(), values.tolist(), how == "subleb")
        return
    places = offsets[:, None] + np.arange(size)
    if how != "set":
        wide = np.zeros((len(offsets), 8), dtype=np.uint8)
        wide[:, :size] = out[places]
        old = wide.view("<u8")[:, 0]
        if how == "set6":
            values = old & np.uint64(0xC0) | values & np.uint64(0x3F)
        elif how == "sub6":
            values = old & np.uint64(0xC0) | (old - values) & np.uint64(0x3F)
        else:
            values = old + values if how == "add" else old - values
    out[places] = np.ascontiguousarray(values).view(np.uint8).reshape(-1, 8)[:, :size]


def _apply_leb(out: U8, offsets: Sequence[int], values: Sequence[int], subtract: bool) -> None:
    """Apply relocations of ULEB128 numbers to `out`; each number keeps the length that the
    assembler gave it.

    Args:
        offsets: where the numbers start.
        values: symbol + addend of each relocation.
        subtract: whether to subtract the value from the present number instead of writing it.
    """
    for offset, value in zip(offsets, values, strict=True):
        end = offset
        while end < len(out) - 1 and out[end] & 0x80:
            end += 1
        if subtract:
            old = sum((int(out[at]) & 0x7F) << 7 * (at - offset) for at in range(offset, end + 1))
            value = old - value
        for at in range(offset, end + 1):
            out[at] = (value >> 7 * (at - offset)) & 0x7F | (0x80 if at < end else 0)


# Code

Resolve = Callable[[bytearray, int, int], None]


def _relative(code: bytearray, at: int, distance: int) -> None:
    """Apply R_X86_64_PC32 or PLT32 at `at`: write the distance from the field to its target as 32
    bits."""
    code[at : at + 4] = (distance & 0xFFFFFFFF).to_bytes(4, "little")


def _branch(code: bytearray, at: int, distance: int) -> None:
    """Apply R_AARCH64_JUMP26 or CALL26 at `at`: write the distance to the target, in words, to the
    lower 26 bits of the instruction."""
    word = int.from_bytes(code[at : at + 4], "little") & 0xFC000000
    code[at : at + 4] = (word | distance >> 2 & 0x3FFFFFF).to_bytes(4, "little")


# By e_machine and type; no other relocation says where control goes.
BRANCHES: dict[int, dict[int, Resolve]] = {
    X86_64: {2: _relative, 4: _relative},
    AARCH64: {282: _branch, 283: _branch},
}


class PlacedElf(Elf):
    """A relocatable file whose sections, symbols and branches are adjusted to the addresses of its
    layout."""

    def __init__(self, elf: Elf) -> None:
        moved = [replace(s, address=elf.layout.get(s.index, s.address)) for s in elf.sections]
        super().__init__(elf.path, elf.mapped, elf.machine, elf.kind, moved)
        self._unplaced = elf
        self._code: dict[int, bytes] = {}

    @cached_property
    def symbols(self) -> SymbolTable:
        return replace(self._unplaced.symbols, address=self._unplaced.placed_addresses)

    @cached_property
    def placed_addresses(self) -> U64:
        return self.symbols.address

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes at an address of the file's layout, with branches in code resolved.
        Raises UnmappedError if no section contains all of these bytes."""
        for section in self.sections:
            mine = section.index in self.layout and section.flags & SHF_EXECINSTR
            if mine and section.address <= address and address + size <= section.end:
                start = address - section.address
                return self._resolved(section)[start : start + size]
        return super().read(address, size)

    def _resolved(self, section: ElfSection) -> bytes:
        if section.index not in self._code:
            self._code[section.index] = self._branches(section)
        return self._code[section.index]

    def _branches(self, section: ElfSection) -> bytes:
        branches = BRANCHES.get(self.machine, {})
        code = bytearray(self.data(section))
        rows = _table_of(self, section)
        if len(rows) and not branches:
            raise KinstError(
                f"{self.path}: relocations of the code of ELF machine {self.machine} are not known",
                "link the file",
            )
        symbols = self.symbols
        for offset, kind, symbol, addend in rows.tolist():
            resolve = branches.get(kind)
            if resolve is None or symbol >= len(symbols) or offset + 4 > len(code):
                continue
            if int(symbols.section[symbol]) != SHN_UNDEF:
                target = int(symbols.address[symbol]) + addend
                resolve(code, offset, target - section.address - offset)
        return bytes(code)


def placed(elf: Elf) -> Elf:
    """Return a relocatable file with its sections at the addresses of its layout; return a linked
    file itself."""
    return PlacedElf(elf) if elf.relocatable else elf


# Images that relocate themselves

_RELATIVE = (8, 1027, 3)  # R_X86_64_RELATIVE, R_AARCH64_RELATIVE, R_RISCV_RELATIVE


def pointers(elf: Elf, address: int, raw: bytes) -> U64:
    """Return the pointers in a table of an image, as linked addresses (u64).

    The linker may put the pointers into .rela.dyn, and leave the table empty (ld's
    --no-apply-dynamic-relocs, as arm64's Linux is linked). These relocations have the type
    R_*_RELATIVE of the processor's ABI supplement.

    Args:
        elf: the image.
        address: linked address of the table.
        raw: bytes of the table in the file.
    """
    words = np.frombuffer(raw, dtype="<u8").astype(np.uint64)
    section = elf.section(".rela.dyn")
    if section is None or not len(words):
        return words
    data = elf.data(section)
    rows = np.frombuffer(data, dtype=RELOCATION, count=len(data) // RELOCATION.itemsize)
    end = np.uint64(address + len(raw))
    rows = rows[(rows["offset"] >= np.uint64(address)) & (rows["offset"] < end)]
    rows = rows[np.isin(rows["type"], _RELATIVE) & (rows["symbol"] == 0)]
    at = ((rows["offset"] - np.uint64(address)) // np.uint64(8)).astype(np.int64)
    words[at] = rows["addend"].astype(np.uint64)
    return words
