"""The debug sections of an ELF file as bytes: mapped, decompressed, relocated.

Format: System V ABI, chapter 4 (compressed sections).

Tested by tests/image/test_compressed_sections.py.
"""

from __future__ import annotations

import importlib
import importlib.util
import zlib
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kinst.core.errors import KinstError
from kinst.image.elf import Elf
from kinst.image.elf_file import SHT_NOBITS, ElfFile, ElfSection
from kinst.image.relocations import relocated

U8: TypeAlias = npt.NDArray[Any]

SHF_COMPRESSED = 0x800
SHF_GROUP = 0x200
COMPRESSION_HEADER = 24
ZLIB, ZSTD = 1, 2
# deflate codes at most 258 bytes in about 2 bits; a header that announces more is damaged.
MOST = 1040


class DebugSections:
    """The debug sections of an ELF file as read-only arrays of bytes.

    A section is decompressed and relocated when it is first needed; a section that the file lacks
    is empty.

    Attributes:
        where: the file's path, for messages.
    """

    def __init__(self, elf: Elf) -> None:
        self.where = str(elf.path)
        self._elf = elf
        self._arrays: dict[str, U8] = {}

    def array(self, name: str) -> U8:
        """Return the bytes of .debug_NAME, decompressed and relocated; empty if the file lacks the
        section.

        Raises:
            KinstError: the section is truncated, compressed in an unknown way, or has relocations
                of an unknown type.
        """
        if name not in self._arrays:
            section = section_of(self._elf, name)
            array = np.zeros(0, dtype=np.uint8)
            if section is not None and section.kind != SHT_NOBITS:
                array = relocated(self._elf, section, _unpacked(self._elf, section))
            array.flags.writeable = False
            self._arrays[name] = array
        return self._arrays[name]

    def text(self, name: str, offset: int) -> bytes:
        """Return the NUL-terminated string at an offset of .debug_NAME. Raises KinstError if there
        is no string."""
        array = self.array(name)
        for room in (128, 4096, len(array)):
            piece = array[offset : offset + room].tobytes()
            end = piece.find(b"\0")
            if end >= 0:
                return piece[:end]
        raise KinstError(f"{self.where}: damaged: no string at {offset:#x} of .debug_{name}")


def section_of(file: ElfFile, name: str) -> ElfSection | None:
    """Return the section .debug_NAME of a file; None if the file has none.

    A relocatable file made with -fdebug-types-section has several sections .debug_info. Those of
    type units are in section groups; the one with the functions is in no group, and is returned.
    """
    found = [s for s in file.sections if s.name in (f".debug_{name}", f".zdebug_{name}")]
    return min(found, key=lambda s: (s.flags & SHF_GROUP, s.index), default=None)


def _unpacked(file: ElfFile, section: ElfSection) -> U8:
    if section.offset + section.size > len(file.mapped):
        raise KinstError(f"{file.path}: truncated: the file ends inside section {section.name}")
    raw = np.frombuffer(file.mapped, dtype=np.uint8, offset=section.offset, count=section.size)
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


def _inflated(file: ElfFile, section: ElfSection, packed: bytes, size: int, kind: int) -> U8:
    where = f"{file.path}: {section.name}"
    if kind == ZSTD:
        return np.frombuffer(_unzstd(where, packed, size), dtype=np.uint8)
    if kind != ZLIB:
        raise KinstError(f"{where}: compressed in an unknown way ({kind})")
    if size > len(packed) * MOST:
        raise KinstError(f"{where}: damaged: {len(packed)} bytes cannot unpack to {size}")
    try:
        # One byte more than announced shows that there is more.
        unpacked = zlib.decompressobj().decompress(packed, size + 1)
    except zlib.error as error:
        raise KinstError(f"{where}: damaged: {error}") from None
    if len(unpacked) != size:
        raise KinstError(f"{where}: damaged: it does not unpack to {size} bytes")
    return np.frombuffer(unpacked, dtype=np.uint8)


def _unzstd(where: str, packed: bytes, size: int) -> bytes:
    if importlib.util.find_spec("zstandard") is None:
        raise KinstError(
            f"{where}: compressed with zstd, which needs the Python package zstandard",
            "or unpack the file: objcopy --decompress-debug-sections FILE",
        )
    zstandard: Any = importlib.import_module("zstandard")
    try:
        unpacked: bytes = zstandard.ZstdDecompressor().stream_reader(packed).read(size + 1)
    except zstandard.ZstdError as error:
        raise KinstError(f"{where}: damaged: {error}") from None
    if len(unpacked) != size:
        raise KinstError(f"{where}: damaged: it does not unpack to {size} bytes")
    return unpacked
