"""Installed files of the kernel that kinst itself runs on.

Tested by tests/machines/live/test_parts.py.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.paths import cache_folder
from kinst.wire import debuginfod

_DEBUG = Path("/usr/lib/debug")
_MODULES = Path("/lib/modules")
_NOTES = Path("/sys/kernel/notes")
_KALLSYMS = Path("/proc/kallsyms")


@dataclass(frozen=True, slots=True)
class RunningFiles:
    """Files of one release.

    Attributes:
        release: as uname -r says it.
        debug: the vmlinux with symbols, None if none is installed.
        boot: the image that was booted, None if none is known.
        folders: where debug files of modules may be.
    """

    release: str
    debug: Path | None
    boot: Path | None
    folders: tuple[Path, ...]


def files(root: Path = Path("/"), release: str = "") -> RunningFiles:
    """Return the files of the kernel that runs, or of another release below another root."""
    name = release or platform.release()
    modules = root / _MODULES.relative_to("/") / name
    debug = root / _DEBUG.relative_to("/")
    images = (root / "boot" / f"vmlinuz-{name}", modules / "vmlinuz")
    folders = (debug / "lib/modules" / name, modules)
    return RunningFiles(
        name,
        _first(debug_places(root, name)),
        _first(images),
        tuple(one for one in folders if one.is_dir()),
    )


def debug_places(root: Path, release: str) -> tuple[Path, ...]:
    """Return where the vmlinux with symbols of a release may be installed: by Debian's packages, by
    Fedora's and others', or by a kernel that was built here."""
    modules = root / _MODULES.relative_to("/") / release
    debug = root / _DEBUG.relative_to("/")
    return (
        debug / "boot" / f"vmlinux-{release}",
        debug / "lib/modules" / release / "vmlinux",
        modules / "build/vmlinux",
        modules / "vmlinux",
        root / "boot" / f"vmlinux-{release}",
    )


def _first(places: tuple[Path, ...]) -> Path | None:
    return next((place for place in places if place.is_file()), None)


def vmlinux(found: RunningFiles, say: Callable[[str, float | None], None]) -> Path:
    """Return a vmlinux with symbols: the installed one, otherwise the one of debuginfod servers if
    the user has any, otherwise one without DWARF, made from the boot image and the symbols that the
    kernel shows.

    Raises:
        KinstError: there is none of them.
    """
    if found.debug is not None:
        return found.debug
    without = import_module("kinst.kernels.rebuilt_vmlinux")
    if debuginfod.is_set():
        fetched = debuginfod.find_debuginfo(without.running_build_id(_NOTES), say)
        if fetched is not None:
            return fetched
    if found.boot is None:
        raise KinstError(
            f"neither the vmlinux with symbols of kernel {found.release} is installed nor its boot"
            f" image, /boot/vmlinuz-{found.release}",
            f"apt-get install linux-image-{found.release}-dbg, or --debug VMLINUX",
        )
    rebuilt: Path = without.make_vmlinux(
        found.boot, _KALLSYMS, _NOTES, cache_folder() / "running", say
    )
    return rebuilt
