"""Bounds of functions, and landing pads of exceptions, from .eh_frame and the tables that it names.

A stripped program still has these tables, since exceptions need them. Each function has an entry
(FDE) with its addresses. A function that catches exceptions, or has destructors to run, also has a
language-specific data area (LSDA) in .gcc_except_table; the entry gives its address. The LSDA lists
the landing pads: addresses inside the function at which the unwinder lets the program continue.

Source: Linux Standard Base 5.0, "Exception Frames"; GCC's libgcc/unwind-pe.h for the encodings and
libstdc++-v3/libsupc++/eh_personality.cc for the LSDA.

Tested by tests/image/test_exception_tables.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kinst.core.errors import KinstError
from kinst.core.words import MASK
from kinst.image.dwarf.reader import Reader
from kinst.image.elf_file import SHT_NOBITS, ElfFile

_OMITTED, _FROM_HERE, _FORM, _BASE = 0xFF, 0x10, 0x0F, 0x70
_SIZES = {0x0: (8, False), 0x2: (2, False), 0x3: (4, False), 0x4: (8, False), 0x8: (8, True),
          0xA: (2, True), 0xB: (4, True), 0xC: (8, True)}  # fmt: skip
_ULEB, _SLEB = 0x1, 0x9
_64_BITS = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class FrameEntry:
    """An entry (FDE) of .eh_frame.

    Attributes:
        low: linked address at which the function, or a part of it, starts.
        high: address after the last byte of the function or part.
        lsda: linked address of the language-specific data area; 0 if there is none.
    """

    low: int
    high: int
    lsda: int


@dataclass(frozen=True, slots=True)
class _Common:
    """A common information entry (CIE) of .eh_frame: it says how addresses are encoded in the
    entries (FDEs) that refer to it.

    Attributes:
        address: encoding of the function's address (DW_EH_PE_*).
        lsda: encoding of the LSDA's address; _OMITTED if the entries have none.
        augmented: whether the entries have augmentation data.
    """

    address: int
    lsda: int
    augmented: bool


def frame_entries(elf: ElfFile) -> list[FrameEntry]:
    """Return the entries of a file's .eh_frame, by address; [] if it has no such section. Raises
    KinstError if the section is damaged."""
    section = elf.section(".eh_frame")
    if section is None or section.kind == SHT_NOBITS:
        return []
    try:
        found = _entries(elf.data(section), section.address)
        return sorted(found, key=lambda entry: (entry.low, entry.high))
    except (IndexError, ValueError, KeyError) as error:
        raise KinstError(f"{elf.path}: damaged .eh_frame") from error


def _entries(data: bytes, address: int) -> Iterator[FrameEntry]:
    read = Reader(data)
    commons: dict[int, _Common] = {}
    while read.left():
        length = read.number(4)
        start = read.at
        if length == _64_BITS or start + length > len(data):
            raise ValueError
        back = read.number(4) if length else 0
        if back:
            at = start - back
            common = commons.get(at) or commons.setdefault(at, _common(data, at))
            low = _address(read, common.address, address)
            size = _address(read, common.address & _FORM, address)
            lsda = 0
            if common.augmented and read.uleb() and common.lsda != _OMITTED:
                lsda = _address(read, common.lsda, address)
            if low and size:
                yield FrameEntry(low, low + size, lsda)
        read.at = start + length


def _common(data: bytes, at: int) -> _Common:
    read = Reader(data, at + 8)
    version, letters = read.number(1), ""
    while code := read.number(1):
        letters += chr(code)
    if letters and not letters.startswith("z"):
        raise ValueError
    read.uleb()
    read.sleb()
    if version == 1:
        read.number(1)
    else:
        read.uleb()
    address, lsda = 0, _OMITTED
    if letters:
        read.uleb()
    for letter in letters[1:]:
        if letter == "R":
            address = read.number(1)
        elif letter == "L":
            lsda = read.number(1)
        elif letter == "P":
            _address(read, read.number(1), 0)
    return _Common(address, lsda, bool(letters))


def _address(read: Reader, encoding: int, section: int) -> int:
    """Read an encoded address (or a size, in the same encoding) and return it; 0 if the entry gives
    no address.

    Args:
        read: reader at the start of the address.
        encoding: DW_EH_PE_*.
        section: linked address of the first byte of the reader's data.
    """
    here = section + read.at if encoding & _BASE == _FROM_HERE else 0
    form = encoding & _FORM
    if form == _ULEB:
        value = read.uleb()
    elif form == _SLEB:
        value = read.sleb()
    else:
        value = read.number(*_SIZES[form])
    return value + here & MASK if value else 0


def landing_pads(elf: ElfFile) -> list[int]:
    """Return the linked addresses of all landing pads of a file, each once, ascending. Raises
    KinstError if the tables are damaged."""
    section = elf.section(".gcc_except_table")
    if section is None or section.kind == SHT_NOBITS:
        return []
    data, pads = elf.data(section), set[int]()
    try:
        for entry in frame_entries(elf):
            if section.address <= entry.lsda < section.end:
                at = entry.lsda - section.address
                pads.update(_pads(Reader(data, at), entry.low, section.address))
    except (IndexError, ValueError, KeyError) as error:
        raise KinstError(f"{elf.path}: damaged .gcc_except_table") from error
    return sorted(pads)


def _pads(read: Reader, function: int, section: int) -> Iterator[int]:
    """Yield the linked addresses of the landing pads that an LSDA lists.

    Args:
        read: reader at the start of the LSDA.
        function: linked address of the LSDA's function.
        section: linked address of the first byte of the reader's data.
    """
    encoding = read.number(1)
    start = function if encoding == _OMITTED else _address(read, encoding, section)
    if read.number(1) != _OMITTED:  # encoding of the types that are caught
        read.uleb()
    encoding = read.number(1)
    length = read.uleb()
    end = read.at + length
    while read.at < end:
        _address(read, encoding, section)
        _address(read, encoding, section)
        pad = _address(read, encoding, section)
        read.uleb()
        if pad:
            yield start + pad & MASK
