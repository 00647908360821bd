"""Finding the debug file of a stripped file, and checking that it belongs to it.

The two ways of GDB's manual, "Debugging Information in Separate Files": by build-id below
.build-id/, and by the name and checksum in .gnu_debuglink.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.image.elf_file import ElfFile, open_file

SYSTEM = (Path("/usr/lib/debug"),)
PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class FoundDebug:
    """The file with the debug information (None: there is none), and what was wrong with others.

    warnings: one line for each file that was there and was not taken, naming both files.
    """

    file: ElfFile | None
    warnings: tuple[str, ...] = ()


def find_debug(file: ElfFile, folders: Sequence[Path] = SYSTEM) -> FoundDebug:
    """The debug information of a file: its own, or that of its separate debug file.

    folders: where separate debug files are kept, besides next to the file and in .debug there.
    A file that is there but damaged, or belongs to another image, gives a warning.
    """
    if file.has_debug:
        return FoundDebug(file)
    warnings = []
    tried = {file.path.resolve()}
    for path in _places(file, folders):
        if not path.is_file() or path.resolve() in tried:
            continue
        tried.add(path.resolve())
        try:
            found = open_file(path)
        except KinstError as error:
            warnings.append(str(error))
            continue
        wrong = mismatch(file, found)
        if wrong:
            warnings.append(wrong)
        elif found.has_debug:
            return FoundDebug(found, tuple(warnings))
    return FoundDebug(None, tuple(warnings))


def mismatch(file: ElfFile, debug: ElfFile) -> str:
    """Why a debug file does not belong to a file, in one line that names both; "" if it does.

    Build-ids decide where both have one, else the checksum of .gnu_debuglink.  Where there is
    neither there is nothing to compare, and the debug file is not taken.
    """
    both = f"{debug.path} is not the debug file of {file.path}"
    if file.build_id and debug.build_id:
        if file.build_id == debug.build_id:
            return ""
        return f"{both}: its build-id is {debug.build_id}, not {file.build_id}"
    name, checksum = debug_link(file)
    if not name:
        return f"{both}: no build-id and no .gnu_debuglink to tell by"
    found = 0
    for at in range(0, len(debug.mapped), PIECE):
        found = zlib.crc32(debug.mapped[at : at + PIECE], found)
    return "" if found == checksum else f"{both}: its checksum is {found:08x}, not {checksum:08x}"


def debug_link(file: ElfFile) -> tuple[str, int]:
    """Name and CRC-32 in .gnu_debuglink; ("", 0) when there is none."""
    section = file.section(".gnu_debuglink")
    data = file.data(section) if section else b""
    name, nul, _ = data.partition(b"\0")
    # The checksum follows the name's NUL at a multiple of four.
    at = len(name) + 4 & -4
    if not nul or at + 4 > len(data):
        return "", 0
    return name.decode("utf-8", "surrogateescape"), int.from_bytes(data[at : at + 4], "little")


def _places(file: ElfFile, folders: Sequence[Path]) -> Iterator[Path]:
    if len(file.build_id) > 2:
        for folder in folders:
            yield folder / ".build-id" / file.build_id[:2] / f"{file.build_id[2:]}.debug"
    here = file.path.resolve().parent
    name, _ = debug_link(file)
    # Only a name: a path in it would lead anywhere.
    names = [name] if name and "/" not in name else []
    for each in [*names, file.path.name, f"{file.path.name}.debug"]:
        if each == name:
            yield here / each
            yield here / ".debug" / each
        for folder in folders:
            yield folder / here.relative_to("/") / each
            yield folder / each
