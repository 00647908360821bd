"""Find the debug file of a stripped file, and check that it belongs to it.

By build-id below .build-id/, and by the name and checksum in .gnu_debuglink: GDB's manual,
"Debugging Information in Separate Files".
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
    """Result of a search for debug information.

    Attributes:
        file: the file with the debug information, None if there is none.
        warnings: one line for each file that exists and was rejected, naming both files.
    """

    file: ElfFile | None
    warnings: tuple[str, ...] = ()


def find_debug(file: ElfFile, folders: Sequence[Path] = SYSTEM) -> FoundDebug:
    """Find the debug information of a file: its own, or that of its separate debug file.

    A file that exists but is damaged, or belongs to another image, gives a warning.

    Args:
        folders: where separate debug files are kept, besides next to the file and in .debug there.
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
    """Return why a debug file does not belong to a file, in one line that names both; "" if it
    does.

    Build-ids decide if both files have one, otherwise the checksum of .gnu_debuglink.  If there is
    neither, nothing can be compared, and the debug file is rejected.
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
    """Return the name and CRC-32 in .gnu_debuglink; ("", 0) if there is none."""
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
