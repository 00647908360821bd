"""Finding the files of kernel modules: the file of a module, and those of all modules that it
depends on.

A module's file lists the modules that it depends on in its section .modinfo, as the string
depends=NAME,... (modinfo(8)). Names of modules have "_" where the names of their files may have
"-". Since Debian 13 the files are compressed by xz(1).
"""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.whole_files import write_whole
from kinst.image.elf import open_elf


def module_name(file: Path) -> str:
    """Return the name of a module as lsmod(8) shows it, from its file's name."""
    return file.name.removesuffix(".xz").removesuffix(".ko").replace("-", "_")


def unpacked(file: Path) -> Path:
    """Return the path of a module's file in uncompressed form. For NAME.ko.xz, this is NAME.ko in
    the same folder, which is written if it does not exist. For any other file, it is `file`.

    Raises:
        KinstError: the file is damaged, or its folder cannot be written.
    """
    if file.suffix != ".xz":
        return file
    plain = file.with_suffix("")
    if plain.exists():
        return plain
    try:
        data = lzma.decompress(file.read_bytes())
    except lzma.LZMAError as error:
        raise KinstError(f"{file}: cannot be unpacked: {error}") from error
    except OSError as error:
        raise KinstError(f"cannot unpack {file}: {error.strerror}") from error
    if not write_whole(plain, [data]):
        raise KinstError(f"cannot unpack {file}: {file.parent} is full or read-only")
    return plain


def depends(file: Path) -> tuple[str, ...]:
    """Return the names of the modules that a module depends on directly, as its file lists them.

    Raises KinstError if the file is not a kernel module.
    """
    elf = open_elf(file)
    section = elf.section(".modinfo")
    if section is None:
        raise KinstError(f"{file}: not a kernel module (no .modinfo)")
    for entry in bytes(elf.data(section)).split(b"\0"):
        if entry.startswith(b"depends="):
            return tuple(n for n in entry[8:].decode("ascii", "replace").split(",") if n)
    return ()


def resolve(folder: Path, names: Sequence[str], *, absent: bool = False) -> list[Path]:
    """Return the files of some modules, and of all modules that they depend on, in the order in
    which to load them.

    Args:
        folder: lib/modules/RELEASE. Compressed files are unpacked into the folder that they are in.
        names: names of the modules to load, or paths of module files (with a /, or ending in .ko).
        absent: whether to ignore names without a file, which may be built into the kernel;
            otherwise such a name is an error.

    Raises:
        KinstError: a module has no file.
    """
    if not names:
        return []
    found = [*folder.rglob("*.ko.xz"), *folder.rglob("*.ko")]
    files = {module_name(file): file for file in found}
    own = {name: Path(name) for name in names if "/" in name or name.endswith(".ko")}
    for name, file in own.items():
        if not file.is_file():
            raise KinstError(f"--module {name}: no such file")
        files[module_name(file)] = file
    ordered: list[Path] = []

    def add(name: str, trail: tuple[str, ...]) -> None:
        file = files.get(name.replace("-", "_"))
        if file is None:
            close = get_close_matches(name, files, 1)
            hint = f"did you mean {close[0]}?" if close else f"modules are in {folder}"
            raise KinstError(f"no module is called {name}", hint)
        file = unpacked(file)
        if file in ordered or name in trail:
            return
        for needed in depends(file):
            add(needed, (*trail, name))
        ordered.append(file)

    for name in names:
        name = module_name(own[name]) if name in own else name
        if not absent or name in files:
            add(name, ())
    return ordered
