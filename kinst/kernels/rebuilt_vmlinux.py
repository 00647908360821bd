"""Making a vmlinux with symbols for a running kernel whose debug package is not installed. It is
the stripped vmlinux from the kernel's boot image, with the symbols of /proc/kallsyms added.

The boot image has BTF, and tables of code that boot rewrites, which the running kernel has freed.
It has no DWARF and no symbols. kallsyms does not tell the sizes of symbols: kinst takes the
distance to the next symbol and, for a function, subtracts the padding at its end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kinst.core.errors import KinstError
from kinst.image.elf import (
    SHN_ABS,
    STB_GLOBAL,
    STB_LOCAL,
    STB_WEAK,
    STT_FUNC,
    STT_NOTYPE,
    STT_OBJECT,
    SYMBOL,
    Elf,
)
from kinst.image.elf_file import (
    HEADER,
    SECTION,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHT_SYMTAB,
    ElfSection,
    build_id_in,
    open_file,
)
from kinst.image.function_table import MARKERS
from kinst.image.variable_table import PER_CPU_SECTION
from kinst.kernels.boot_image import elf_in

_TEXT = "_text"  # the first byte of the kernel's code
_STRTAB = 3  # SHT_STRTAB
_ALIGN = 8
# Names of the symbols by which the linker marks the bounds of tables, besides MARKERS.
_BOUNDS = re.compile(r"__(start|stop)_")
_LONGEST_PADDING = 64  # bytes at a function's end to search for padding
# int3, and the no-operations by which gas and the linker pad, up to 15 bytes each.
_PADDING = re.compile(
    rb"(?:\xcc|\x90|\x66\x90|\x0f\x1f\x00|\x0f\x1f\x40\x00|\x66?\x0f\x1f\x44\x00\x00"
    rb"|\x0f\x1f\x80\x00{4}|\x66{0,8}\x2e?\x0f\x1f\x84\x00{5})+\Z",
    re.S,
)
_SHORT_JUMP, _ONE_BYTE = 0xEB, b"\xcc\x90"  # the distance of a short jump may look like padding

Rows = npt.NDArray[np.void]


def make_vmlinux(
    boot: Path, kallsyms: Path, notes: Path, folder: Path, say: Callable[[str, float | None], None]
) -> Path:
    """Make the vmlinux with symbols of the running kernel, and return its path. The file is made
    once for each build-id, in `folder`.

    Args:
        boot: the kernel's boot image.
        kallsyms: the running kernel's list of symbols (/proc/kallsyms).
        notes: the running kernel's notes (/sys/kernel/notes).
        folder: folder for the vmlinux.
        say: called with the name of a piece of work, and the fraction of it that is done (0 to 1,
            None if not known).

    Raises:
        KinstError: the boot image is another kernel's or cannot be unpacked, or the kernel hides
            its symbols.
    """
    running = running_build_id(notes)
    kept = folder / f"vmlinux-{running}"
    if kept.is_file():
        return kept
    say("unpacking the kernel's boot image", None)
    folder.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(f".{os.getpid()}")
    try:
        part.write_bytes(elf_in(boot))
        elf = open_file(part)
        if elf.build_id != running:
            raise KinstError(
                f"{boot} is not the kernel that runs (build-id {elf.build_id or 'none'}, not"
                f" {running})",
                "reboot, if it was upgraded; or --debug VMLINUX",
            )
        say("reading the kernel's symbols", None)
        data = with_symbols(
            Elf(elf.path, elf.mapped, elf.machine, elf.kind, elf.sections), kallsyms
        )
        part.write_bytes(data)
        part.replace(kept)
    finally:
        part.unlink(missing_ok=True)
    return kept


def running_build_id(notes: Path) -> str:
    """Return the build-id of the running kernel.

    Args:
        notes: the running kernel's notes (/sys/kernel/notes).

    Raises KinstError if the kernel has no build-id.
    """
    try:
        build_id = build_id_in(notes.read_bytes())
    except OSError as error:
        raise KinstError(f"{notes}: cannot be read: {error.strerror}") from error
    if not build_id:
        raise KinstError("the kernel that runs has no build-id", "--debug VMLINUX")
    return build_id


def with_symbols(elf: Elf, kallsyms: Path) -> bytes:
    """Return the bytes of an ELF file with a symbol table appended, which has the symbols of
    kallsyms at their linked addresses.

    Args:
        elf: the stripped vmlinux of the running kernel.
        kallsyms: the running kernel's list of symbols (/proc/kallsyms).

    Raises KinstError if the kernel hides the addresses of its symbols.
    """
    address, kinds, names = _read(kallsyms)
    if _TEXT not in names or not address[names.index(_TEXT)]:
        raise KinstError(
            "the kernel hides the addresses of its symbols",
            "sysctl -w kernel.kptr_restrict=1 shows them to root",
        )
    code = [s for s in elf.sections if s.flags & SHF_EXECINSTR and s.address]
    slide = address[names.index(_TEXT)] - np.uint64(min(s.address for s in code))
    rows = np.zeros(len(names) + 1, SYMBOL)
    rows["value"][1:] = address - slide
    _place_per_cpu(elf, rows[1:], address)
    for section in elf.sections:
        _place_in(elf, section, rows)
    kind = rows["info"][1:]
    kind[_marks(elf, names)] = STT_NOTYPE
    letters = np.frombuffer(kinds, np.uint8)
    upper = (letters >= ord("A")) & (letters <= ord("Z"))
    binding = np.where(upper, STB_GLOBAL, STB_LOCAL)
    binding[np.isin(letters, np.frombuffer(b"WwVv", np.uint8))] = STB_WEAK
    rows["info"][1:] = kind | binding.astype(np.uint8) << 4
    strings = b"\0" + b"\0".join(name.encode() for name in names) + b"\0"
    lengths = [len(name.encode()) + 1 for name in names]
    rows["name"][1:] = np.cumsum([1, *lengths[:-1]])
    return _appended(elf, rows, strings)


def _read(kallsyms: Path) -> tuple[npt.NDArray[np.uint64], bytes, list[str]]:
    """Return three columns about the kernel's own symbols: address, letter of the kind (as in
    nm(1)), and name.

    Symbols of modules, and of code that the kernel has generated, are left out: kallsyms has a
    fourth column for them.
    """
    lines = [line.split(" ", 2) for line in kallsyms.read_text().splitlines() if "\t" not in line]
    address = np.array([int(words[0], 16) for words in lines], np.uint64)
    return address, "".join(words[1] for words in lines).encode(), [words[2] for words in lines]


def _marks(elf: Elf, names: Sequence[str]) -> list[int]:
    """Return the indexes in `names` of symbols that only mark an address, such as the start of a
    table; they are no functions or variables.

    kinst recognizes them by their names (__start_..., ..._end and the like). A symbol with such a
    name is a function or variable all the same if BTF has its name.
    """
    section = elf.section(".BTF")
    btf = elf.data(section) if section is not None else b""
    found = [i for i, name in enumerate(names) if MARKERS.match(name) or _BOUNDS.match(name)]
    return [i for i in found if b"\0" + names[i].encode() + b"\0" not in btf]


def _place_per_cpu(elf: Elf, rows: Rows, address: npt.NDArray[np.uint64]) -> None:
    """Correct the values of per-CPU variables in a symbol table, in place.

    If the per-CPU section is linked at address 0, KASLR does not move it. Then kallsyms shows the
    linked addresses of per-CPU variables, from which no slide must be subtracted.

    Args:
        rows: the symbol table, whose values are running addresses minus the slide.
        address: each symbol's address in kallsyms.
    """
    section = elf.section(PER_CPU_SECTION)
    if section is not None and not section.address:
        inside = address < np.uint64(section.end)
        rows["value"][inside] = address[inside]


def _place_in(elf: Elf, section: ElfSection, rows: Rows) -> None:
    """Set the section number, type and size of each symbol that lies in an ELF section, in place.

    Args:
        rows: the symbol table, whose values are linked addresses.
    """
    if not section.flags & SHF_ALLOC or not section.size:
        return
    start, end = np.uint64(section.address), np.uint64(section.end)
    inside = np.flatnonzero((rows["value"] >= start) & (rows["value"] < end))
    if section.index == 0 or not len(inside):
        return
    inside = inside[inside > 0]
    code = bool(section.flags & SHF_EXECINSTR)
    rows["section"][inside] = section.index
    rows["info"][inside] = STT_FUNC if code else STT_OBJECT
    addresses, _, group = np.unique(
        rows["value"][inside], return_index=True, return_inverse=True
    )  # with the index, unique() sorts stably (tests/image/test_string_index.py says why)
    sizes = np.append(addresses[1:], end) - addresses
    if code:
        data = elf.data(section)
        begins = (addresses - start).tolist()
        sizes = np.array(
            [_unpadded(data, at, size) for at, size in zip(begins, sizes.tolist(), strict=True)],
            np.uint64,
        )
    rows["size"][inside] = sizes[group]


def _unpadded(data: bytes, at: int, size: int) -> int:
    """Return the size in bytes of a function without the padding at its end.

    Args:
        data: bytes of the section.
        at: offset of the function in the section.
        size: size of the function with its padding.
    """
    low = max(at, at + size - _LONGEST_PADDING)
    padding = _PADDING.search(data[low : at + size])
    if padding is None:
        return size
    begin = low + padding.start()
    if begin > at and data[begin - 1] == _SHORT_JUMP and data[begin] in _ONE_BYTE:
        begin += 1
    return begin - at or size


def _appended(elf: Elf, rows: Rows, strings: bytes) -> bytes:
    """Return the bytes of the file with a symbol table, the symbols' names and new section headers
    appended.

    Args:
        rows: the symbol table.
        strings: names of the symbols.
    """
    data = bytearray(elf.mapped[:])
    headers = _headers(data, elf.sections)
    data += bytes(-len(data) % _ALIGN)
    count = len(headers)
    rows["section"][(rows["section"] == 0) & (np.arange(len(rows)) > 0)] = SHN_ABS
    # The file's table of section names has no ".symtab": the two sections stay without a name.
    table_at = len(data)
    data += rows.tobytes()
    strings_at = len(data)
    data += strings
    data += bytes(-len(data) % _ALIGN)
    headers.append(
        SECTION.pack(
            0, SHT_SYMTAB, 0, 0, table_at, rows.nbytes, count + 1, 1, _ALIGN, SYMBOL.itemsize
        )
    )
    headers.append(SECTION.pack(0, _STRTAB, 0, 0, strings_at, len(strings), 0, 0, 1, 0))
    header = list(HEADER.unpack_from(data))
    header[6], header[12] = len(data), len(headers)
    HEADER.pack_into(data, 0, *header)
    return bytes(data) + b"".join(headers)


def _headers(data: bytearray, sections: Sequence[ElfSection]) -> list[bytes]:
    """Return the bytes of each section header in the file."""
    header = HEADER.unpack_from(data)
    start, size = header[6], header[11]
    if size != SECTION.size:
        raise KinstError(f"the kernel in the boot image has section headers of {size} bytes")
    return [bytes(data[start + i * size : start + i * size + size]) for i in range(len(sections))]
