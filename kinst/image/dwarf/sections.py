"""The debug sections of an ELF file as bytes: mapped, decompressed, relocated.

Formats: System V ABI, chapter 4 (compressed sections, relocation); the psABI documents of
x86-64, AArch64 and RISC-V for the relocations that debug sections have.
"""

from __future__ import annotations

import importlib
import importlib.util
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kinst.core.errors import KinstError
from kinst.image.dwarf.file import SHT_NOBITS, SHT_RELA, DebugFile, FileSection, layout
from kinst.image.elf import Elf

U8: TypeAlias = npt.NDArray[Any]

NAMES = (
    "info", "abbrev", "str", "line_str", "str_offsets", "addr", "ranges", "rnglists", "line",
    "loc", "loclists",
)  # fmt: skip
SHF_COMPRESSED = 0x800
SHF_GROUP = 0x200
COMPRESSION_HEADER = 24
ZLIB, ZSTD = 1, 2
# deflate codes at most 258 bytes in 2 bits or so; whoever says more is wrong.
MOST = 1040

RELOCATION = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
X86_64, AARCH64, RISCV = 62, 183, 243
# What a relocation does: (bytes, how).  "set" writes symbol + addend, "add" and "sub" change
# what is there; "set6" and "sub6" touch six bits, "leb" a ULEB128 number of fixed length.
KINDS: dict[int, dict[int, tuple[int, str]]] = {
    X86_64: {1: (8, "set"), 10: (4, "set"), 11: (4, "set"), 17: (8, "set")},
    AARCH64: {257: (8, "set"), 258: (4, "set"), 259: (2, "set")},
    RISCV: {
        1: (4, "set"), 2: (8, "set"), 33: (1, "add"), 34: (2, "add"), 35: (4, "add"),
        36: (8, "add"), 37: (1, "sub"), 38: (2, "sub"), 39: (4, "sub"), 40: (8, "sub"),
        52: (1, "sub6"), 53: (1, "set6"), 54: (1, "set"), 55: (2, "set"), 56: (4, "set"),
        60: (0, "leb"), 61: (0, "subleb"),
    },
}  # fmt: skip


@dataclass(frozen=True)
class DebugSections:
    """Bytes of the debug sections by their names without ".debug_"; read-only arrays."""

    where: str
    arrays: dict[str, U8]

    def text(self, section: str, offset: int) -> bytes:
        """The NUL-terminated string at an offset.  Raises KinstError when there is none."""
        array = self.arrays[section]
        for room in (128, 4096, len(array)):
            piece = array[offset : offset + room].tobytes()
            end = piece.find(b"\0")
            if end >= 0:
                return piece[:end]
        raise KinstError(f"{self.where}: damaged: no string at {offset:#x} of .debug_{section}")


def debug_sections(file: DebugFile, elf: Elf) -> DebugSections:
    """The debug sections of a file; absent ones are empty.  elf: the same file, for symbols.

    Raises KinstError when they are truncated, compressed in a way that cannot be read, or have
    relocations that are not known.
    """
    return DebugSections(str(file.path), {name: debug_section(file, elf, name) for name in NAMES})


def debug_section(file: DebugFile, elf: Elf, name: str) -> U8:
    """The section .debug_NAME alone, as debug_sections() has it."""
    bases, section = layout(file), section_of(file, name)
    array = np.zeros(0, dtype=np.uint8)
    if section is not None and section.kind != SHT_NOBITS:
        array = _bytes_of(file, section)
        if bases:
            array = _relocated(file, elf, section, array, bases)
    array.flags.writeable = False
    return array


def section_of(file: DebugFile, name: str) -> FileSection | None:
    """The section .debug_NAME of a file; None when there is none.

    In a relocatable file made with -fdebug-types-section every type unit has a .debug_info of its
    own, in a section group; the functions are in the one that is in no group.
    """
    found = [s for s in file.sections if s.name in (f".debug_{name}", f".zdebug_{name}")]
    return min(found, key=lambda s: (s.flags & SHF_GROUP, s.index), default=None)


def _bytes_of(file: DebugFile, section: FileSection) -> U8:
    if section.offset + section.size > len(file.data):
        raise KinstError(f"{file.path}: truncated: the file ends inside section {section.name}")
    raw = np.frombuffer(file.data, dtype=np.uint8, offset=section.offset, count=section.size)
    if section.flags & SHF_COMPRESSED:
        if len(raw) < COMPRESSION_HEADER:
            raise KinstError(f"{file.path}: damaged: {section.name} has no compression header")
        kind = int.from_bytes(raw[:4].tobytes(), "little")
        size = int.from_bytes(raw[8:16].tobytes(), "little")
        return _inflated(file, section, raw[COMPRESSION_HEADER:].tobytes(), size, kind)
    if section.name.startswith(".zdebug_"):
        size = int.from_bytes(raw[4:12].tobytes(), "big")
        if raw[:4].tobytes() != b"ZLIB":
            raise KinstError(f"{file.path}: damaged: {section.name} does not start with ZLIB")
        return _inflated(file, section, raw[12:].tobytes(), size, ZLIB)
    return raw


def _inflated(file: DebugFile, section: FileSection, packed: bytes, size: int, kind: int) -> U8:
    where = f"{file.path}: {section.name}"
    if kind == ZSTD:
        return np.frombuffer(_unzstd(where, packed, size), dtype=np.uint8)
    if kind != ZLIB:
        raise KinstError(f"{where}: compressed in an unknown way ({kind})")
    if size > len(packed) * MOST:
        raise KinstError(f"{where}: damaged: {len(packed)} bytes cannot unpack to {size}")
    try:
        # One byte more than is announced shows that there is more.
        found = zlib.decompressobj().decompress(packed, size + 1)
    except zlib.error as error:
        raise KinstError(f"{where}: damaged: {error}") from None
    if len(found) != size:
        raise KinstError(f"{where}: damaged: it does not unpack to {size} bytes")
    return np.frombuffer(found, dtype=np.uint8)


def _unzstd(where: str, packed: bytes, size: int) -> bytes:
    if importlib.util.find_spec("zstandard") is None:
        raise KinstError(
            f"{where}: compressed with zstd, which needs the Python package zstandard",
            "or unpack the file: objcopy --decompress-debug-sections FILE",
        )
    zstandard: Any = importlib.import_module("zstandard")
    try:
        found: bytes = zstandard.ZstdDecompressor().stream_reader(packed).read(size + 1)
    except zstandard.ZstdError as error:
        raise KinstError(f"{where}: damaged: {error}") from None
    if len(found) != size:
        raise KinstError(f"{where}: damaged: it does not unpack to {size} bytes")
    return found


def _relocated(
    file: DebugFile, elf: Elf, section: FileSection, array: U8, bases: dict[int, int]
) -> U8:
    """A copy of a section's bytes with the file's relocations of it applied."""
    table = next((s for s in file.sections if s.kind == SHT_RELA and s.info == section.index), None)
    if table is None or not table.size:
        return array
    known = KINDS.get(elf.machine)
    if known is None:
        raise KinstError(f"{elf.path}: relocations of ELF machine {elf.machine} are not known")
    raw = file.bytes_of(table)
    rows = np.frombuffer(raw, dtype=RELOCATION, count=len(raw) // RELOCATION.itemsize)
    symbols = elf.symbols
    if len(rows) and int(rows["symbol"].max()) >= len(symbols):
        raise KinstError(f"{elf.path}: damaged: {table.name} names symbols that do not exist")
    base = np.zeros(1 << 16, dtype=np.uint64)
    for index, address in bases.items():
        base[index & 0xFFFF] = address
    values = (symbols.address + base[symbols.section])[rows["symbol"]]
    values = values + rows["addend"].astype(np.uint64)
    out = array.copy()
    # Those that set a value come first: the others change it.
    for subtract in (False, True):
        for kind in np.unique(rows["type"]).tolist():
            if kind == 0:
                continue
            if kind not in known:
                raise KinstError(f"{elf.path}: {table.name}: relocation type {kind} is not known")
            size, how = known[kind]
            if subtract == how.startswith(("sub", "add")):
                mine = rows["type"] == kind
                offsets = rows["offset"][mine]
                if len(offsets) and int(offsets.max()) + max(size, 1) > len(out):
                    raise KinstError(f"{elf.path}: damaged: {table.name} leads out of its section")
                _apply(out, offsets.astype(np.int64), values[mine], size, how)
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
    """ULEB128 numbers keep the length that the assembler gave them."""
    for offset, value in zip(offsets, values, strict=True):
        end = offset
        while end < len(out) - 1 and out[end] & 0x80:
            end += 1
        if subtract:
            old = sum((int(out[at]) & 0x7F) << 7 * (at - offset) for at in range(offset, end + 1))
            value = old - value
        for at in range(offset, end + 1):
            out[at] = (value >> 7 * (at - offset)) & 0x7F | (0x80 if at < end else 0)
