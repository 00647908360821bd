"""ELF files: sections, symbols as arrays, build-id, bytes at linked addresses.

The file is mapped, not read: a kernel's debug file has hundreds of megabytes and kinst needs
a few of them.  Formats: System V ABI, chapters 4 (ELF header, sections, symbol table) and 5
(notes).  Only 64-bit little-endian files are opened: that is what every ISA of kinst runs.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt
from elftools.elf.elffile import ELFFile

from kinst.core.errors import KinstError

U64 = npt.NDArray[np.uint64]

SHF_ALLOC = 2
SHF_EXECINSTR = 4
SHT_NOBITS = 8
SHT_SYMTAB = 2
SHN_UNDEF = 0
SHN_ABS = 0xFFF1
STT_NOTYPE = 0
STT_OBJECT = 1
STT_FUNC = 2
STB_LOCAL = 0
STB_GLOBAL = 1
STB_WEAK = 2
NT_GNU_BUILD_ID = 3

# Elf64_Ehdr: e_machine at 18, e_shoff at 40, e_shentsize, e_shnum at 58, 60.
HEADER_SIZE = 64
PROGRAM_HEADER_SIZE = 56
PT_LOAD, PF_X = 1, 1
SECTION_HEADER_SIZE = 64

# Elf64_Sym.
SYMBOL = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("value", "<u8"),
        ("size", "<u8"),
    ]
)


@dataclass(frozen=True, slots=True)
class Section:
    """One section: address as linked, offset and size in bytes in the file."""

    name: str
    index: int
    kind: int  # sh_type
    flags: int
    address: int
    offset: int
    size: int
    link: int

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass(frozen=True)
class Symbols:
    """A symbol table, one array entry for each symbol, in the file's order.

    address, size: bytes, as linked.  kind: STT_*.  binding: STB_*.  section: section index.
    name: offset in strings.
    """

    address: U64
    size: U64
    kind: npt.NDArray[np.uint8]
    binding: npt.NDArray[np.uint8]
    section: npt.NDArray[np.uint16]
    name: npt.NDArray[np.uint32]
    strings: bytes = field(repr=False)

    def __len__(self) -> int:
        return len(self.address)

    def name_of(self, index: int) -> str:
        """The name of one symbol; "" when its offset lies outside the string table."""
        start = int(self.name[index])
        end = self.strings.find(b"\0", start)
        return self.strings[start : end if end >= 0 else None].decode("utf-8", "replace")

    def names_of(self, indexes: Sequence[int] | npt.NDArray[np.int64]) -> list[str]:
        """The names of many symbols."""
        find, strings = self.strings.find, self.strings
        text = strings.decode("latin-1")
        starts: list[int] = self.name[np.asarray(indexes, dtype=np.int64)].tolist()
        return [text[at : find(b"\0", at)] for at in starts]

    def indexes(self, name: str) -> list[int]:
        """Indexes of every defined symbol of this name, in the file's order.

        The linker may let one name be the tail of another (System V ABI, "String Table"), so
        every place where the text ends with a NUL is tried as a name offset.
        """
        wanted = name.encode() + b"\0"
        offsets, at = [], self.strings.find(wanted)
        while at >= 0:
            offsets.append(at)
            at = self.strings.find(wanted, at + 1)
        found = np.isin(self.name, np.array(offsets, dtype=np.uint32)) & (self.section != SHN_UNDEF)
        return [int(i) for i in np.flatnonzero(found)]


class Elf:
    """An opened ELF file.  Made by open_elf()."""

    def __init__(self, path: Path, data: mmap.mmap, machine: int, sections: list[Section]) -> None:
        self.path = path
        self.machine = machine
        self.sections = tuple(sections)
        self._data = data
        self._by_name: dict[str, Section] = {}
        for section in sections:
            self._by_name.setdefault(section.name, section)
        # Only what has bytes in the file and a place in memory can answer for an address.
        self._mapped = sorted(
            (s for s in sections if s.flags & SHF_ALLOC and s.size),
            key=lambda s: s.address,
        )

    def section(self, name: str) -> Section | None:
        """The first section of this name, or None."""
        return self._by_name.get(name)

    def data(self, section: Section) -> bytes:
        """The bytes of a section (empty for SHT_NOBITS).

        Raises KinstError when the file ends before the section does.
        """
        if section.kind == SHT_NOBITS:
            return b""
        return self._slice(section.offset, section.size, section.name)

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes at a linked address, as the file has them.

        Raises KinstError where no section of the file has those bytes.
        """
        for section in self._mapped:
            # Per-CPU sections are linked at 0 and do not collide with kernel addresses.
            if section.address <= address and address + size <= section.end:
                if section.kind == SHT_NOBITS:
                    return bytes(size)
                return self._slice(section.offset + address - section.address, size, section.name)
        raise KinstError(f"{self.path}: no section has {size} bytes at {address:#x}")

    def _slice(self, offset: int, size: int, what: str) -> bytes:
        if offset < 0 or size < 0 or offset + size > len(self._data):
            raise KinstError(f"{self.path}: truncated: the file ends inside section {what}")
        return self._data[offset : offset + size]

    @cached_property
    def symbols(self) -> Symbols:
        """.symtab.  Raises KinstError when the file has none (stripped) or it is damaged."""
        table = next((s for s in self.sections if s.kind == SHT_SYMTAB), None)
        if table is None:
            raise KinstError(
                f"{self.path}: no symbol table (stripped)", "give the unstripped file with --debug"
            )
        if not 0 < table.link < len(self.sections):
            raise KinstError(f"{self.path}: damaged: the symbol table names no string table")
        strings = self.data(self.sections[table.link])
        raw = self.data(table)
        rows = np.frombuffer(raw, dtype=SYMBOL, count=len(raw) // SYMBOL.itemsize)
        if len(rows) and (not strings or int(rows["name"].max()) >= len(strings)):
            raise KinstError(f"{self.path}: damaged: symbol names lie outside the string table")
        return Symbols(
            np.ascontiguousarray(rows["value"]),
            np.ascontiguousarray(rows["size"]),
            (rows["info"] & 15).astype(np.uint8),
            (rows["info"] >> 4).astype(np.uint8),
            np.ascontiguousarray(rows["section"]),
            np.ascontiguousarray(rows["name"]),
            strings if strings.endswith(b"\0") else strings + b"\0",
        )

    @cached_property
    def symbol_addresses(self) -> dict[str, int]:
        """Names already looked up by address(); filled by it."""
        return {}

    def address(self, name: str) -> int | None:
        """The linked address of the first symbol of this name, or None."""
        known = self.symbol_addresses
        if name not in known:
            found = self.symbols.indexes(name)
            if not found:
                return None
            known[name] = int(self.symbols.address[found[0]])
        return known[name]

    @cached_property
    def code_segments(self) -> tuple[tuple[int, int], ...]:
        """Start and end of what is loaded to be executed, as linked, the lowest first (System V
        ABI, "Program Header").  Raises KinstError when the file ends before its headers."""
        (table,) = struct.unpack_from("<Q", self._data, 32)
        size, count = struct.unpack_from("<HH", self._data, 54)
        if count and (size < PROGRAM_HEADER_SIZE or table + size * count > len(self._data)):
            raise KinstError(f"{self.path}: damaged program headers")
        found = []
        for at in range(table, table + size * count, size or 1):
            kind, flags, _, start, _, _, length = struct.unpack_from("<IIQQQQQ", self._data, at)
            if kind == PT_LOAD and flags & PF_X:
                found.append((start, start + length))
        return tuple(sorted(found))

    @cached_property
    def build_id(self) -> str:
        """The GNU build-id in hexadecimal, or "" when the file has none."""
        for name in (".note.gnu.build-id", ".notes"):
            section = self.section(name)
            if section is not None:
                found = build_id_in(self.data(section))
                if found:
                    return found
        return ""


def build_id_in(notes: bytes) -> str:
    """The GNU build-id (hexadecimal) in the bytes of a note section, or ""."""
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = (
            int.from_bytes(notes[at + i : at + i + 4], "little") for i in (0, 4, 8)
        )
        name_at = at + 12
        data_at = name_at + (name_size + 3 & -4)
        if (
            kind == NT_GNU_BUILD_ID
            and notes[name_at : name_at + name_size] == b"GNU\0"
            and data_at + size <= len(notes)
        ):
            return notes[data_at : data_at + size].hex()
        at = data_at + (size + 3 & -4)
    return ""


def _check_header(path: Path, head: bytes, file_size: int, machine: int | None) -> int:
    """Check the ELF header before pyelftools sees it; returns e_machine."""
    if head[:4] != b"\x7fELF":
        kind = "a compressed kernel image" if head[:2] == b"MZ" else "not an ELF file"
        raise KinstError(f"{path}: {kind}", "the uncompressed vmlinux is needed")
    if len(head) < HEADER_SIZE:
        raise KinstError(f"{path}: truncated: the file ends inside its ELF header")
    if head[4] != 2 or head[5] != 1:
        raise KinstError(f"{path}: not a 64-bit little-endian ELF file")
    its_machine = int.from_bytes(head[18:20], "little")
    if machine is not None and its_machine != machine:
        raise KinstError(
            f"{path}: made for ELF machine {its_machine}, not for {machine} as the target"
        )
    table = int.from_bytes(head[40:48], "little")
    entry_size = int.from_bytes(head[58:60], "little")
    count = int.from_bytes(head[60:62], "little")
    if table and entry_size != SECTION_HEADER_SIZE:
        raise KinstError(f"{path}: damaged: section headers of {entry_size} bytes")
    if table + max(count, 1 if table else 0) * SECTION_HEADER_SIZE > file_size:
        raise KinstError(f"{path}: truncated: the file ends before its section headers")
    return its_machine


def open_elf(path: str | Path, machine: int | None = None) -> Elf:
    """Open an ELF file.

    machine: the e_machine it must have (Isa.elf_machine), or None for any.  Raises KinstError
    when the file is missing, unreadable, not ELF, truncated, or for another machine.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            file_size = file.seek(0, 2)
            if file_size == 0:
                raise KinstError(f"{path}: empty file")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise KinstError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise KinstError(f"{path}: cannot be read: {error}") from None
    its_machine = _check_header(path, data[:HEADER_SIZE], file_size, machine)
    try:
        sections = [
            Section(
                str(s.name),
                index,
                # pyelftools gives unknown types as numbers and known ones as names.
                SECTION_KINDS.get(s["sh_type"], 0),
                int(s["sh_flags"]),
                int(s["sh_addr"]),
                int(s["sh_offset"]),
                int(s["sh_size"]),
                int(s["sh_link"]),
            )
            for index, s in enumerate(ELFFile(cast(IO[bytes], data)).iter_sections())
        ]
    except Exception as error:
        # pyelftools lets struct, decoding and assertion errors of damaged files through.
        raise KinstError(f"{path}: damaged section headers ({type(error).__name__})") from None
    return Elf(path, data, its_machine, sections)


# The section types that kinst treats specially; any other is just bytes (type 0).
SECTION_KINDS = {"SHT_SYMTAB": SHT_SYMTAB, "SHT_NOBITS": SHT_NOBITS}
