"""Files of the libraries that a user program loads.

Tested by tests/machines/process/test_libraries.py.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kinst.core.errors import KinstError, TargetError
from kinst.image.elf import open_elf
from kinst.image.program_elf import ProgramElf, program_elf
from kinst.machines.process.command import SimpleCommand
from kinst.wire.other_process import OtherProcess

_PT_INTERP = 3
_SECONDS = 20.0  # that the dynamic linker has to find the libraries


def loaded_by_process(process: OtherProcess) -> dict[str, str]:
    """Return the path of each library that a process has loaded when it started, by the library's
    name. Raises TargetError.

    Such a library is never unmapped. Others, which the process has loaded later, are left out. The
    names are read from the files: a program of another user must not choose what kinst executes.
    """
    paths = {one.path for one in process.mappings() if "x" in one.rights and one.inode}
    files = dict(_opened({*paths, process.file}))
    named = {files[path].own_name or Path(path).name: path for path in paths & files.keys()}
    found: dict[str, str] = {}
    to_see = [process.file]
    while to_see:
        file = files.get(to_see.pop())
        for name in file.needed if file is not None else ():
            if name in named and name not in found:
                found[name] = named[name]
                to_see.append(named[name])
    return found


def _opened(paths: set[str]) -> Iterator[tuple[str, ProgramElf]]:
    """Yield each of these files that is an ELF file, with its path."""
    for path in paths:
        with suppress(KinstError, OSError):
            yield path, program_elf(open_elf(path))


def loaded_by_command(command: SimpleCommand) -> dict[str, str]:
    """Return the path of each library that a program loads when it starts, by the library's name.
    Raises TargetError.

    The program's own dynamic linker lists them, without running the program (ld.so(8), --list).
    """
    elf = open_elf(command.path)
    linker = next((s for s in elf.segments if s.kind == _PT_INTERP), None)
    if linker is None:
        return {}
    path = elf.mapped[linker.offset : linker.offset + linker.file_size].rstrip(b"\0")
    try:
        done = subprocess.run(
            [path, b"--list", os.fsencode(command.path)],
            env={**os.environ, **command.variables}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise TargetError(f"{command.path}: its libraries cannot be listed: {error}") from error
    if done.returncode:
        raise TargetError(f"{command.path}: its libraries cannot be listed: {done.stderr.strip()}")
    return dict(_listed(done.stdout))


def _listed(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and path of each library in a list of the dynamic linker, whose lines are
    `NAME => PATH (ADDRESS)` or `PATH (ADDRESS)`."""
    for line in text.splitlines():
        words = line.strip().split(" (")[0].split(" => ")
        if words[-1].startswith("/"):
            yield Path(words[0]).name, words[-1]


def library_file(name: str, loaded: dict[str, str], program: str) -> str:
    """Return the path of the library that a name in a probe description means: libc.so.6, or libc
    or libc.so for short.

    Args:
        name: the name.
        loaded: paths of the program's libraries, by name.
        program: path of the program, for messages.

    Raises:
        TargetError: the program loads no such library, or several.
    """
    fits = sorted({path for one, path in loaded.items() if one == name}) or sorted(
        {path for one, path in loaded.items() if one.startswith(f"{name}.")}
    )
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise TargetError(f"{program} loads several libraries {name}: {', '.join(fits)}")
    raise TargetError(
        f"{program} loads no library {name} when it starts",
        ", ".join(sorted(loaded)) or "it is linked with -static",
    )
