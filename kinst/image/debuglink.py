"""Search for the separate debug file of a stripped ELF file, and a check that the two files belong
together.

A debug file is found by build-id below .build-id/, or by the name and checksum in .gnu_debuglink:
GDB's manual, "Debugging Information in Separate Files".
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.image.elf_file import ElfFile, open_file

SYSTEM = (Path("/usr/lib/debug"),)
PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class FoundDebug:
    """Result of a search for debug information.

    Attributes:
        file: the file with the debug information, None if none was found.
        warnings: one line for each debug file that exists but was rejected; it names both files.
    """

    file: ElfFile | None
    warnings: tuple[str, ...] = ()


def find_debug(file: ElfFile, folders: Sequence[Path] = SYSTEM) -> FoundDebug:
    """Find the file with an ELF file's debug information: the file itself, or its separate debug
    file.

    A debug file that is damaged or belongs to another image is skipped with a warning.

    Args:
        folders: where separate debug files are kept. The name in .gnu_debuglink is also searched
            for next to the ELF file and in the folder .debug there.
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
            debug = open_file(path)
        except KinstError as error:
            warnings.append(str(error))
            continue
        wrong = mismatch(file, debug)
        if wrong:
            warnings.append(wrong)
        elif debug.has_debug:
            return FoundDebug(debug, tuple(warnings))
    return FoundDebug(None, tuple(warnings))


def mismatch(file: ElfFile, debug: ElfFile) -> str:
    """Return why a debug file does not belong to an ELF file, in one line that names both files; ""
    if it belongs to it.

    If both files have a build-id, the build-ids decide. Otherwise the checksum in .gnu_debuglink
    decides. If the ELF file has neither, nothing can be compared, and the debug file is rejected.
    """
    both = f"{debug.path} is not the debug file of {file.path}"
    if file.build_id and debug.build_id:
        if file.build_id == debug.build_id:
            return ""
        return f"{both}: its build-id is {debug.build_id}, not {file.build_id}"
    name, checksum = debug_link(file)
    if not name:
        return f"{both}: no build-id and no .gnu_debuglink to tell by"
    actual = 0
    for at in range(0, len(debug.mapped), PIECE):
        actual = zlib.crc32(debug.mapped[at : at + PIECE], actual)
    return "" if actual == checksum else f"{both}: its checksum is {actual:08x}, not {checksum:08x}"


def debug_link(file: ElfFile) -> tuple[str, int]:
    """Return the debug file's name and CRC-32 in .gnu_debuglink; ("", 0) if the file has no such
    section or it is damaged."""
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
    own_folder = file.path.resolve().parent
    name, _ = debug_link(file)
    # Ignore a name with a slash: it could lead anywhere.
    names = [name] if name and "/" not in name else []
    for each in [*names, file.path.name, f"{file.path.name}.debug"]:
        if each == name:
            yield own_folder / each
            yield own_folder / ".debug" / each
        for folder in folders:
            yield folder / own_folder.relative_to("/") / each
            yield folder / each
