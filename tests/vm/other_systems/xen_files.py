"""Debian's Xen 4.17 for amd64, a kernel that is not of this project.

The hypervisor and its symbols (it has no DWARF) are fetched by apt into the cache, by package
name.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from pathlib import Path

from kinst.core.paths import cache_folder
from kinst.kernels.apt import Apt
from kinst.kernels.fetch import alone

PACKAGES = ("xen-hypervisor-4.17-amd64", "xen-hypervisor-4.17-amd64-dbg")
_KERNEL, _SYMBOLS = "boot/xen-4.17-amd64", "usr/lib/debug/boot/xen-syms-4.17-amd64"


def xen_files() -> tuple[Path, Path]:
    """Return (the file that a Multiboot loader starts, the ELF file with symbols).

    The files are cached, so that later calls are offline.
    """
    place = cache_folder() / "tests" / "xen-4.17"
    place.parent.mkdir(parents=True, exist_ok=True)
    with alone(place.with_suffix(".lock"), lambda what, part: None):
        if not place.exists():
            _fetch(place)
    return place / _KERNEL, place / _SYMBOLS


def _fetch(place: Path) -> None:
    work = place.with_suffix(f".{os.getpid()}")
    apt = Apt(work / "apt", "bookworm", "amd64")
    apt.update(lambda what, part: None)
    packages = apt.download(list(PACKAGES), work / "packages", lambda what, part: None)
    tree = work / "tree"
    for package in packages:
        subprocess.run(["dpkg", "-x", str(package.file), str(tree)], check=True)
    with gzip.open(tree / f"{_KERNEL}.gz") as packed, (tree / _KERNEL).open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    assert (tree / _SYMBOLS).stat().st_size > 0
    tree.rename(place)
    shutil.rmtree(work)
