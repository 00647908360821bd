"""ELF files: headers, sections, segments and notes, read with the standard library alone.

This is the only reader of the format. Files are mapped, not read: a kernel's debug file has
hundreds of megabytes, and kinst needs a few megabytes of it. elf.py adds symbols, as numpy arrays.
Importing numpy takes longer than finding a function in a saved index (dwarf/index.py), so code that
needs only sections imports this module.

Only 64-bit little-endian files are opened: every ISA of kinst uses them. Format: System V ABI,
chapter 4 (ELF header, sections) and 5 (program headers, notes).

Tested by tests/image/test_elf.py and tests/image/test_segments_and_lines.py.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError, UnmappedError

ET_REL = 1
SHT_SYMTAB, SHT_RELA, SHT_NOTE, SHT_NOBITS = 2, 4, 7, 8
SHF_ALLOC, SHF_EXECINSTR, SHF_TLS = 2, 4, 0x400
PT_LOAD, PT_NOTE, PF_X = 1, 4, 1
NT_GNU_BUILD_ID = 3
X86_64, AARCH64, RISCV = 62, 183, 243  # e_machine

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
SEGMENT = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
# Least bytes between sections in a layout: the end of a section is not the start of another one.
GAP = 4096
MOST_MEMORY = 1 << 47  # bytes: half of an address space of 48 bits
MANY = 0xFFFF  # SHN_XINDEX and PN_XNUM: the real number is in the first section's header


@dataclass(frozen=True, slots=True)
class ElfSection:
    """A section header of an ELF file.

    Attributes:
        name: from the table of section names.
        index: the section's number.
        kind: SHT_*.
        flags: SHF_*.
        address: as linked.
        offset: bytes from the start of the file.
        size: bytes.
        link: sh_link, the number of a related section; its meaning depends on `kind`.
        info: sh_info, whose meaning depends on `kind`.
        align: bytes.
    """

    name: str
    index: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass(frozen=True, slots=True)
class ElfSegment:
    """A program header of an ELF file.

    Attributes:
        kind: PT_*.
        flags: PF_*.
        offset: bytes from the start of the file.
        address: p_vaddr, the linked address at which the segment is loaded.
        file_size: bytes in the file.
        size: bytes in memory.
    """

    kind: int
    flags: int
    offset: int
    address: int
    file_size: int
    size: int


class ElfFile:
    """An opened ELF file: its headers and its mapped bytes. open_file() makes it.

    Attributes:
        path: path of the file.
        mapped: the bytes of the whole file.
        machine: e_machine.
        kind: e_type.
        sections: all section headers, in the file's order.
    """

    def __init__(
        self,
        path: Path,
        mapped: mmap.mmap,
        machine: int,
        kind: int,
        sections: Sequence[ElfSection],
    ) -> None:
        self.path = path
        self.mapped = mapped
        self.machine = machine
        self.kind = kind
        self.sections = tuple(sections)
        self._by_name: dict[str, ElfSection] = {}
        for section in sections:
            self._by_name.setdefault(section.name, section)
        # Only sections that occupy memory contain addresses.  .tbss occupies none: each thread's
        # zeros are elsewhere, and the next section begins at the address of .tbss.
        self._loaded = sorted(
            (s for s in sections if s.flags & SHF_ALLOC and not _is_tbss(s)),
            key=lambda s: s.address,
        )

    @property
    def relocatable(self) -> bool:
        """Whether the file is a .o or .ko, whose sections all start at address 0."""
        return self.kind == ET_REL

    @property
    def has_debug(self) -> bool:
        """Whether the file has a .debug_info section that is not empty."""
        return any(
            s.size and s.kind != SHT_NOBITS and s.name in (".debug_info", ".zdebug_info")
            for s in self.sections
        )

    def section(self, name: str) -> ElfSection | None:
        """Return the first section with this name; None if the file has no such section."""
        return self._by_name.get(name)

    def data(self, section: ElfSection) -> bytes:
        """Return the bytes of a section as the file stores them; b"" for SHT_NOBITS. Raises
        KinstError if the file ends before the section does."""
        if section.kind == SHT_NOBITS:
            return b""
        return self._slice(section.offset, section.size, section.name)

    def view(self, section: ElfSection) -> memoryview:
        """Return the bytes that data() returns, without a copy."""
        if section.kind == SHT_NOBITS:
            return memoryview(b"")
        self._check(section.offset + section.size, section.name)
        return memoryview(self.mapped)[section.offset : section.offset + section.size]

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes at a linked address, as the file has them. Raises UnmappedError if no
        section of the file contains all of these bytes."""
        for section in self._loaded:
            # Per-CPU sections are linked at 0 and do not collide with kernel addresses.
            if section.address <= address and address + size <= section.end:
                if section.kind == SHT_NOBITS:
                    return bytes(size)
                return self._slice(section.offset + address - section.address, size, section.name)
        raise UnmappedError(f"{self.path}: no section has {size} bytes at {address:#x}")

    def _slice(self, offset: int, size: int, name: str) -> bytes:
        self._check(offset + size, name)
        return self.mapped[offset : offset + size]

    def _check(self, end: int, name: str) -> None:
        """Raise KinstError if the file ends before an offset in the section `name`."""
        if end > len(self.mapped):
            raise KinstError(f"{self.path}: truncated: the file ends inside section {name}")

    @cached_property
    def layout(self) -> Mapping[int, int]:
        """Address that kinst gives to each section of a relocatable file, by section index; {} for
        a linked file.

        .text stays at 0. The other sections that will be in memory follow it in the file's order.

        Raises:
            KinstError: a section is larger than any memory.
        """
        if not self.relocatable:
            return {}
        layout, at = {}, 0
        loaded = [s for s in self.sections if s.flags & SHF_ALLOC]
        for section in sorted(loaded, key=lambda s: (s.name != ".text", s.index)):
            layout[section.index] = at
            at += (section.size + 2 * GAP - 1) & -GAP
            if at >= MOST_MEMORY:
                raise KinstError(f"{self.path}: damaged: section {section.name} is too large")
        return layout

    def place(self, address: int) -> tuple[str, int] | None:
        """Return (section name, offset in the section) of an address in a relocatable file's
        layout; None for a linked file, or if the address is in no section."""
        for index, base in self.layout.items():
            section = self.sections[index]
            if base <= address < base + section.size:
                return section.name, address - base
        return None

    @cached_property
    def segments(self) -> tuple[ElfSegment, ...]:
        """The program headers of the file. Raises KinstError if they are damaged or cut off."""
        header = HEADER.unpack_from(self.mapped)
        table, size, count = header[5], header[9], header[10]
        if count == MANY and self.sections:
            count = self.sections[0].info
        if not count:
            return ()
        if size != SEGMENT.size or table + size * count > len(self.mapped):
            raise KinstError(f"{self.path}: damaged program headers")
        rows = SEGMENT.iter_unpack(self.mapped[table : table + size * count])
        return tuple(
            ElfSegment(kind, flags, offset, start, in_file, length)
            for kind, flags, offset, start, _, in_file, length, _ in rows
        )

    @cached_property
    def code_segments(self) -> tuple[tuple[int, int], ...]:
        """(start, end) of each segment that is loaded to be executed, as linked, in ascending
        order. Raises KinstError if the program headers are damaged."""
        code = [s for s in self.segments if s.kind == PT_LOAD and s.flags & PF_X]
        return tuple(sorted((s.address, s.address + s.size) for s in code))

    @cached_property
    def build_id(self) -> str:
        """The file's GNU build-id in hexadecimal; "" if the file has none."""
        return next(filter(None, map(build_id_in, self._notes())), "")

    def _notes(self) -> Iterator[bytes]:
        """Yield the bytes of each note section or, if the file has no sections at all, of each note
        segment."""
        where = [(s.offset, s.size) for s in self.sections if s.kind == SHT_NOTE]
        if not self.sections:
            where = [(s.offset, s.file_size) for s in self.segments if s.kind == PT_NOTE]
        for offset, size in where:
            yield self.mapped[offset : offset + size]


def _is_tbss(section: ElfSection) -> bool:
    return section.kind == SHT_NOBITS and bool(section.flags & SHF_TLS)


def build_id_in(notes: bytes) -> str:
    """Return the GNU build-id (hexadecimal) in the bytes of a note section; "" if they contain
    none."""
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
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


def open_file(path: str | Path, machine: int | None = None) -> ElfFile:
    """Open an ELF file and read its headers.

    Args:
        machine: the e_machine that the file must have (Isa.elf_machine), or None for any.

    Raises:
        KinstError: the file is missing, unreadable, not ELF, truncated, damaged or for another
            machine.
    """
    path = Path(path)
    return ElfFile(path, *read_headers(path, machine))


def read_headers(
    path: Path, machine: int | None
) -> tuple[mmap.mmap, int, int, Sequence[ElfSection]]:
    """Map an ELF file and read its headers. Return (mapped file, e_machine, e_type, sections).

    Args:
        machine: the e_machine that the file must have, None for any.

    Raises:
        KinstError: the file is missing, unreadable, not ELF, truncated, damaged or for another
            machine.
    """
    data = _mapped(path)
    if data[:4] != b"\x7fELF":
        # An EFI program, or a bzImage (Documentation/arch/x86/boot.rst, "The Real-Mode Kernel
        # Header").
        if data[:2] == b"MZ" or data[0x202:0x206] == b"HdrS":
            raise KinstError(
                f"{path}: a compressed kernel image", "the uncompressed vmlinux is needed"
            )
        raise KinstError(f"{path}: not an ELF file")
    if len(data) < HEADER.size:
        raise KinstError(f"{path}: truncated: the file ends inside its ELF header")
    if data[4] != 2 or data[5] != 1:
        raise KinstError(f"{path}: not a 64-bit little-endian ELF file")
    _, kind, elf_machine, _, _, _, table, _, _, _, _, size, count, names = HEADER.unpack_from(data)
    if machine is not None and elf_machine != machine:
        raise KinstError(
            f"{path}: made for ELF machine {elf_machine}, not for {machine} as the target"
        )
    return data, elf_machine, kind, _sections(path, data, table, size, count, names)


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise KinstError(f"{path}: no such file") from None
    except ValueError:
        raise KinstError(f"{path}: empty file") from None
    except OSError as error:
        raise KinstError(f"{path}: cannot be read: {error.strerror}") from None


def _sections(
    path: Path, data: mmap.mmap, table: int, size: int, count: int, names: int
) -> Sequence[ElfSection]:
    if not table:
        return ()
    if size != SECTION.size:
        raise KinstError(f"{path}: damaged: section headers of {size} bytes")
    if table + SECTION.size > len(data):
        raise KinstError(f"{path}: truncated: the file ends before its section headers")
    first = SECTION.unpack_from(data, table)
    # Numbers too large for the ELF header are in the first section header.
    count = count or first[5]
    names = first[6] if names == MANY else names
    if table + count * SECTION.size > len(data):
        raise KinstError(f"{path}: truncated: the file ends before its section headers")
    rows = list(SECTION.iter_unpack(data[table : table + count * SECTION.size]))
    texts = b""
    if names < count and rows[names][1] != SHT_NOBITS:
        texts = data[rows[names][4] : rows[names][4] + rows[names][5]]
    sections = []
    for index, (name, *fields, _) in enumerate(rows):
        text = texts[name : max(texts.find(b"\0", name), name)].decode("utf-8", "replace")
        kind, flags, address, offset, length, link, info, align = fields
        sections.append(
            ElfSection(text, index, kind, flags, address, offset, length, link, info, align)
        )
    return sections
