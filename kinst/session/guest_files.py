"""Checks of the files that --copy and --root give to a guest that kinst boots.

The guest has busybox and no libraries, so a copied program must be able to run without them. The
folder of --root must hold programs for the guest's ISA.

Source: elf(5): PT_INTERP, the dynamic section; execve(2) for interpreters of scripts.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.image.elf_file import ElfFile, open_file
from kinst.isa import name_of_machine

_PT_INTERP = 3
_DT_NULL, _DT_NEEDED = 0, 1
_ENTRY = struct.Struct("<qQ")  # Elf64_Dyn
_MOST_LINKS = 40
_ABSENT = ("bash", "dash", "zsh", "ksh")  # shells that busybox does not replace
_INSTEAD = "--root / runs programs of the host with all that they need"


def check_copy(path: Path, isa: Isa, beside: Collection[str]) -> None:
    """Raise KinstError if a guest of this ISA could not run a file of --copy.

    A file that is neither a script nor an ELF program is data, and always accepted.

    Args:
        beside: names of all files that are copied; a script's interpreter may be one of them.
    """
    try:
        with path.open("rb") as file:
            start = file.read(256)
    except OSError as error:
        raise KinstError(f"--copy {path}: {error.strerror}") from error
    if start.startswith(b"#!"):
        _check_script(path, start, beside)
    elif start.startswith(b"\x7fELF"):
        _check_program(path, isa)


def check_root(root: Path, isa: Isa) -> None:
    """Raise KinstError if the folder of --root has no shell that a guest of this ISA can run."""
    shell = root / "bin/sh"
    for _ in range(_MOST_LINKS):
        if not shell.is_symlink():
            break
        # An absolute link starts at the tree, which is to be the guest's root.
        link = shell.readlink()
        shell = root / link.relative_to("/") if link.is_absolute() else shell.parent / link
    if not shell.is_file():
        raise KinstError(f"--root {root}: it has no /bin/sh, which runs commands")
    machine = open_file(shell).machine
    if machine != isa.elf_machine:
        raise KinstError(
            f"--root {root}: its programs are for {_machine_name(machine)},"
            f" and the guest is {isa.name}",
            f"a tree for {isa.name}, as debootstrap --foreign makes it",
        )


def _machine_name(machine: int) -> str:
    return name_of_machine(machine) or f"ELF machine {machine}"


def _check_script(path: Path, start: bytes, beside: Collection[str]) -> None:
    words = start[2:].split(b"\n")[0].decode("utf-8", "replace").split()
    program = Path(words[0]) if words else Path("/bin/sh")
    missing = str(program.parent) != "/bin" or program.name in _ABSENT
    if missing and not (str(program.parent) == "/bin" and program.name in beside):
        raise KinstError(
            f"--copy {path}: it is run by {program}, which is not in the guest",
            f"busybox's /bin/sh is; {_INSTEAD}",
        )


def _check_program(path: Path, isa: Isa) -> None:
    file = open_file(path)
    if file.relocatable:
        return
    if file.machine != isa.elf_machine:
        kind = _machine_name(file.machine)
        raise KinstError(f"--copy {path}: a program for {kind}, and the guest is {isa.name}")
    if any(segment.kind == _PT_INTERP for segment in file.segments):
        libraries = ", ".join(_libraries(file)) or "a loader"
        raise KinstError(
            f"--copy {path}: it needs {libraries}, and the guest has no libraries",
            f"link it with -static; {_INSTEAD}",
        )


def _libraries(file: ElfFile) -> list[str]:
    """Return the names of the shared libraries that an ELF file needs."""
    dynamic, strings = file.section(".dynamic"), file.section(".dynstr")
    if dynamic is None or strings is None:
        return []
    names, found = file.data(strings), []
    data = file.data(dynamic)
    for tag, value in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]):
        if tag == _DT_NULL:
            break
        if tag == _DT_NEEDED:
            found.append(names[value : names.index(b"\0", value)].decode("utf-8", "replace"))
    return found
