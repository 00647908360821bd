"""An ELF file's sections, read with nothing but the standard library.

elf.py answers more and needs numpy and pyelftools; importing those takes longer than finding a
function in an index that is there (dwarf.py), which needs only this.  Format: System V ABI,
chapter 4; 64-bit little-endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kinst.core.errors import KinstError

ET_REL = 1
SHT_SYMTAB = 2
SHT_RELA = 4
SHT_NOBITS = 8
SHF_ALLOC = 2
SHF_EXECINSTR = 4
NT_GNU_BUILD_ID = 3

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")


@dataclass(frozen=True, slots=True)
class FileSection:
    """A section header.  offset, size: bytes in the file; address: as linked; kind: SHT_*."""

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


@dataclass(frozen=True)
class DebugFile:
    """An ELF file with, perhaps, debug information.  Made by open_file().

    data: the mapped file.  machine, kind: e_machine and e_type.  build_id: hexadecimal or "".
    """

    path: Path
    data: mmap.mmap
    machine: int
    kind: int
    sections: Sequence[FileSection]
    build_id: str

    def section(self, name: str) -> FileSection | None:
        """The first section of this name, or None."""
        return next((s for s in self.sections if s.name == name), None)

    def bytes_of(self, section: FileSection) -> bytes:
        """A section's bytes as the file has them.  Raises KinstError when the file is cut off."""
        if section.kind == SHT_NOBITS:
            return b""
        if section.offset + section.size > len(self.data):
            raise KinstError(f"{self.path}: truncated: the file ends inside section {section.name}")
        return self.data[section.offset : section.offset + section.size]

    @property
    def has_debug(self) -> bool:
        """Whether it has a .debug_info with anything in it."""
        return any(
            s.size and s.kind != SHT_NOBITS and s.name in (".debug_info", ".zdebug_info")
            for s in self.sections
        )


def open_file(path: str | Path) -> DebugFile:
    """Open an ELF file.

    Raises KinstError when it is missing, unreadable, not a 64-bit little-endian ELF file, or
    its section headers are damaged.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise KinstError(f"{path}: no such file") from None
    except ValueError:
        raise KinstError(f"{path}: empty file") from None
    except OSError as error:
        raise KinstError(f"{path}: cannot be read: {error.strerror}") from None
    if data[:4] != b"\x7fELF":
        raise KinstError(f"{path}: not an ELF file")
    if len(data) < HEADER.size:
        raise KinstError(f"{path}: truncated: the file ends inside its ELF header")
    if data[4] != 2 or data[5] != 1:
        raise KinstError(f"{path}: not a 64-bit little-endian ELF file")
    _, kind, machine, _, _, _, table, _, _, _, _, size, count, names = HEADER.unpack_from(data)
    sections = _sections(path, data, table, size, count, names)
    return DebugFile(path, data, machine, kind, sections, _build_id(data, sections))


def _sections(
    path: Path, data: mmap.mmap, table: int, size: int, count: int, names: int
) -> Sequence[FileSection]:
    if not table:
        return ()
    if size != SECTION.size or table + SECTION.size > len(data):
        raise KinstError(f"{path}: damaged: the section headers are not where they should be")
    first = SECTION.unpack_from(data, table)
    # Numbers that do not fit the ELF header are in the first section's.
    count = count or first[5]
    names = first[6] if names == 0xFFFF else names
    if table + count * SECTION.size > len(data):
        raise KinstError(f"{path}: truncated: the file ends before its section headers")
    rows = list(SECTION.iter_unpack(data[table : table + count * SECTION.size]))
    texts = b""
    if names < count:
        texts = data[rows[names][4] : rows[names][4] + rows[names][5]]
    found = []
    for index, (name, kind, flags, address, offset, length, link, info, align, _) in enumerate(
        rows
    ):
        text = texts[name : max(texts.find(b"\0", name), name)].decode("utf-8", "replace")
        found.append(
            FileSection(text, index, kind, flags, address, offset, length, link, info, align)
        )
    return tuple(found)


def _build_id(data: mmap.mmap, sections: Sequence[FileSection]) -> str:
    """The GNU build-id note: name size, description size, type, name, description."""
    for section in sections:
        if section.name not in (".note.gnu.build-id", ".notes") or section.kind == SHT_NOBITS:
            continue
        notes = data[section.offset : section.offset + section.size]
        at = 0
        while at + 12 <= len(notes):
            name_size, size, kind = struct.unpack_from("<III", notes, at)
            start = at + 12 + (name_size + 3 & -4)
            if kind == NT_GNU_BUILD_ID and notes[at + 12 : at + 16] == b"GNU\0":
                return notes[start : start + size].hex()
            at = start + (size + 3 & -4)
    return ""


def layout(file: DebugFile) -> dict[int, int]:
    """Where the sections of a relocatable file (.o, .ko) are taken to lie: index -> address.

    {} for linked files.  All sections of a relocatable file start at address 0; to tell them
    apart .text stays there and the others that will be in memory follow it, in their order.
    """
    if file.kind != ET_REL:
        return {}
    found, at = {}, 0
    loaded = [s for s in file.sections if s.flags & SHF_ALLOC]
    for section in sorted(loaded, key=lambda s: (s.name != ".text", s.index)):
        found[section.index] = at
        # A page between them, so that no address is the end of one and the start of another.
        at += (section.size + 8191) & -4096
    return found


def place(file: DebugFile, address: int) -> tuple[str, int] | None:
    """The section of a relocatable file that an address of layout() is in, and the offset there.

    None for linked files and for addresses in no section.
    """
    for index, base in layout(file).items():
        section = file.sections[index]
        if base <= address < base + section.size:
            return section.name, address - base
    return None


def source_path(home: bytes, folder: bytes | None, name: bytes) -> bytes:
    """A source file's path: its name, below its folder, below where the compiler ran (home).

    folder: None for home itself.  A relative home (kernels are built with -ffile-prefix-map)
    is one of two names that were made relative to the same place, and not put before the other.
    """
    if name.startswith(b"/"):
        return name
    if folder is None:
        folder = home
    elif home.startswith(b"/") and not folder.startswith(b"/"):
        folder = home + b"/" + folder if folder else home
    return folder + b"/" + name if folder else name
