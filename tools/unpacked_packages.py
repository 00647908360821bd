"""Debian packages that belong to a kernel release, unpacked into the cache for tests. The apt that
fetched the kernel fetches them on first use."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from kinst.core.paths import cache_folder
from kinst.kernels.fetch import alone, apt_with


def _place(name: str) -> Path:
    return cache_folder() / "tests" / name


def is_unpacked(name: str) -> bool:
    """Return whether the packages with this folder name have been unpacked."""
    return _place(name).is_dir()


def unpacked(
    name: str, isa: str, release: str, packages: Sequence[str],
    finish: Callable[[Path], None] = lambda folder: None,
) -> Path:  # fmt: skip
    """Return the folder in which packages are unpacked, with the paths that their files have below
    /; fetch them on first use.

    Args:
        name: name of the folder.
        isa: name of the instruction set.
        release: release of the kernel.
        packages: names of the packages.
        finish: called once with the folder after the packages have been unpacked.

    Raises:
        KinstError: the packages cannot be fetched.
    """
    place = _place(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    with alone(place.with_suffix(".lock"), lambda text, part: None):
        if not place.is_dir():
            part = place.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            apt = apt_with(isa, release, part / "apt", lambda text, part: None)
            for package in apt.download(packages, part / "apt", lambda text, part: None):
                subprocess.run(["dpkg-deb", "-x", package.file, part], check=True)
            shutil.rmtree(part / "apt")
            finish(part)
            part.rename(place)
    return place
