"""Fetch Debian 13's QEMU 10, for tests that need a CPU model that Debian 12's QEMU lacks.

Debian's packages are unpacked into the cache; nothing is installed. The programs need a newer C
library than that of Debian 12, so the libraries of Debian 13 are unpacked as well, and each program
is changed to start with their dynamic loader. In the cache folder:

    tests/qemu-10/bin/      scripts with the programs' names, for PATH
    tests/qemu-10/usr/      the programs, firmware and libraries
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.paths import cache_folder
from kinst.kernels.apt import Apt, Package
from kinst.kernels.fetch import Progress, alone

SUITE = "trixie"
PROGRAMS = ("qemu-system-x86_64", "qemu-system-aarch64", "qemu-system-riscv64")
_PACKAGES = (
    "qemu-system-x86", "qemu-system-arm", "qemu-system-riscv",
    "qemu-system-data", "seabios", "ipxe-qemu", "opensbi",  # firmware
)  # fmt: skip
_UNUSED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/lib/systemd")
_NEEDED = re.compile(r"\(NEEDED\).*\[(.*)\]")
_PT_INTERP = 3
_PROGRAM_HEADERS = 32  # offset of e_phoff in an ELF64 file header; e_phentsize is at 54
_SCRIPT = """\
#!/bin/sh
LD_LIBRARY_PATH='{libraries}' exec '{program}' {firmware} "$@"
"""
# Debian's QEMU searches the system's folders for firmware, and would find that of another version.
_FIRMWARE = ("usr/share/qemu", "usr/share/seabios")


def _place() -> Path:
    return cache_folder() / "tests/qemu-10"


def newer_qemu(progress: Progress = lambda what, part: None) -> Path:
    """Return the folder with the programs, to be put first in PATH; fetch them on first use (42
    MB). Raises KinstError if they cannot be fetched."""
    place = _place()
    place.parent.mkdir(parents=True, exist_ok=True)
    with alone(place.with_suffix(".lock"), progress):
        if not place.is_dir():
            part = place.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            _unpack_all(part, progress)
            _make_scripts(part, place)
            part.rename(place)
    return place / "bin"


def _unpack_all(tree: Path, progress: Progress) -> None:
    """Unpack the packages of the programs, then those of the libraries that they need, and so on
    until no library is missing."""
    done = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True)
    apt = Apt(tree / "apt", SUITE, done.stdout.strip())
    trouble = apt.update(progress)
    if missing := set(_PACKAGES) - apt.names(""):
        raise KinstError(
            f"no {', '.join(sorted(missing))} of Debian {SUITE} found by apt",
            trouble or "tests that need a newer QEMU cannot run",
        )
    unpacked: set[str] = set()
    packages = set(_PACKAGES)
    owners: dict[Path, str] = {}  # each program or library -> its package
    while packages:
        for package in apt.download(sorted(packages), tree / "apt/packages", progress):
            progress(f"unpacking {package.name}", None)
            owners |= dict.fromkeys(_unpack(package, tree), package.name)
        unpacked |= packages
        # A package depends on the packages with the libraries that its files need.
        incomplete = {owners[file] for file in _with_missing_libraries(tree, owners)}
        packages = {
            name
            for owner in incomplete
            for name in apt.dependencies(owner)
            if name.startswith(("lib", "zlib"))
        } - unpacked
    if missing_of := _with_missing_libraries(tree, owners):
        raise KinstError(f"Debian {SUITE} has not all libraries of {missing_of[0]}")
    shutil.rmtree(tree / "apt")
    for folder in _UNUSED:
        shutil.rmtree(tree / folder, ignore_errors=True)


def _unpack(package: Package, tree: Path) -> list[Path]:
    """Unpack a package and return its programs and shared libraries."""
    subprocess.run(["dpkg-deb", "-x", package.file, tree], check=True)
    command = ["dpkg-deb", "--contents", str(package.file)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = re.findall(r"^-\S+ +\S+ +\d+ +\S+ +\S+ \./(.*)$", shown, re.M)
    programs = [f"usr/bin/{program}" for program in PROGRAMS]
    return [
        tree / name
        for name in names
        # Plug-ins lie in subfolders, and are not loaded.
        if name in programs or re.fullmatch(r"usr/lib/[^/]+/[^/]+\.so(\.\d+)*", name)
    ]


def _with_missing_libraries(tree: Path, files: Iterable[Path]) -> list[Path]:
    """Return those of the files that need a library which is not in the tree."""
    libraries = {file.name: file for file in (tree / "usr/lib").glob("*/*.so*")}
    incomplete = []
    todo = [file for file in files if file.name in PROGRAMS]
    seen = set(todo)
    while todo:
        file = todo.pop()
        command = ["readelf", "-dW", str(file)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for name in _NEEDED.findall(shown):
            if name not in libraries:
                incomplete.append(file)
            elif (library := libraries[name].resolve()) not in seen:
                seen.add(library)
                todo.append(library)
    return incomplete


def _make_scripts(tree: Path, installed: Path) -> None:
    """Make scripts that start the programs, and make the programs use the loader and the libraries
    in the folder `installed`.
    """
    (tree / "bin").mkdir()
    for name in PROGRAMS:
        program = tree / "usr/bin" / name
        loader = _give_loader(program, lambda usual: f"{installed}/usr{usual}")
        target = (tree / loader.removeprefix(f"{installed}/")).resolve()
        script = tree / "bin" / name
        libraries = installed / target.parent.relative_to(tree.resolve())
        firmware = " ".join(f"-L '{installed / folder}'" for folder in _FIRMWARE)
        text = _SCRIPT.format(
            libraries=libraries, program=installed / "usr/bin" / name, firmware=firmware
        )
        script.write_text(text)
        script.chmod(0o755)


def _give_loader(program: Path, chosen: Callable[[str], str]) -> str:
    """Change the dynamic loader that the system uses to start a program, and return the loader's
    new path.

    The path is put at the end of the file, and the program header refers to it: Linux reads the
    path from the file (fs/binfmt_elf.c, load_elf_binary). The alternative, to start the loader with
    the program as argument, would make /proc/PID/exe name the loader; QEMU itself reads
    /proc/PID/exe.

    Args:
        program: the file to change.
        chosen: returns the new path of the loader for the present one.
    """
    content = bytearray(program.read_bytes())
    (at,) = struct.unpack_from("<Q", content, _PROGRAM_HEADERS)
    size, count = struct.unpack_from("<HH", content, 54)
    for header in range(at, at + size * count, size):
        # p_type, p_flags, p_offset, p_vaddr, p_paddr, p_filesz
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", content, header)
        if kind == _PT_INTERP:
            path = chosen(content[offset : offset + length].rstrip(b"\0").decode())
            text = path.encode() + b"\0"
            struct.pack_into("<Q", content, header + 8, len(content))
            struct.pack_into("<Q", content, header + 32, len(text))
            program.write_bytes(content + text)
            return path
    raise KinstError(f"{program.name} of Debian {SUITE} is not linked dynamically")


def main() -> int:
    """Fetch QEMU unless that has been done, and return the exit status."""
    try:
        newer_qemu()
    except KinstError as error:
        print(f"kinst: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
