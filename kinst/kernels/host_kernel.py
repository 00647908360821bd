"""Finding the installed files of the kernel that kinst itself runs on.

Tested by tests/machines/live/test_parts.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.paths import cache_folder
from kinst.wire import debuginfod

_DEBUG = Path("/usr/lib/debug")
_MODULES = Path("/lib/modules")
_NOTES = Path("/sys/kernel/notes")
_KALLSYMS = Path("/proc/kallsyms")


@dataclass(frozen=True, slots=True)
class RunningFiles:
    """The installed files of one kernel release.

    Attributes:
        release: the release as uname -r prints it.
        debug: the vmlinux with symbols; None if it is not installed.
        boot: the boot image; None if it is not found.
        folders: existing folders in which debug files of modules may be.
    """

    release: str
    debug: Path | None
    boot: Path | None
    folders: tuple[Path, ...]


def files(root: Path = Path("/"), release: str = "") -> RunningFiles:
    """Return the installed files of a kernel release.

    Args:
        root: root of the file system to search.
        release: the release; "" for that of the kernel that kinst runs on.
    """
    name = release or os.uname().release
    modules = root / _MODULES.relative_to("/") / name
    debug = root / _DEBUG.relative_to("/")
    images = (root / "boot" / f"vmlinuz-{name}", modules / "vmlinuz")
    folders = (debug / "lib/modules" / name, modules)
    return RunningFiles(
        name,
        _first(debug_paths(root, name)),
        _first(images),
        tuple(one for one in folders if one.is_dir()),
    )


def debug_paths(root: Path, release: str) -> tuple[Path, ...]:
    """Return the paths at which the vmlinux with symbols of a release may be: where Debian, Fedora
    and other distributions install it, and where it is if the kernel was built on this machine."""
    modules = root / _MODULES.relative_to("/") / release
    debug = root / _DEBUG.relative_to("/")
    return (
        debug / "boot" / f"vmlinux-{release}",
        debug / "lib/modules" / release / "vmlinux",
        modules / "build/vmlinux",
        modules / "vmlinux",
        root / "boot" / f"vmlinux-{release}",
    )


def _first(paths: tuple[Path, ...]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def vmlinux(installed: RunningFiles, say: Callable[[str, float | None], None]) -> Path:
    """Return the path of a vmlinux with symbols for the kernel that kinst runs on.

    If a vmlinux is installed, it is used. Otherwise kinst fetches one from the debuginfod servers
    that the user has set. If they have none, kinst makes one from the boot image and the symbols
    that the kernel shows; this one is without DWARF.

    Args:
        installed: the installed files of the kernel.
        say: called with the name of a piece of work, and the fraction of it that is done (0 to 1,
            None if not known).

    Raises:
        KinstError: no vmlinux is found, and none can be made.
    """
    if installed.debug is not None:
        return installed.debug
    without = import_module("kinst.kernels.rebuilt_vmlinux")
    if debuginfod.is_set():
        fetched = debuginfod.find_debuginfo(without.running_build_id(_NOTES), say)
        if fetched is not None:
            return fetched
    if installed.boot is None:
        raise KinstError(
            f"neither the vmlinux with symbols of kernel {installed.release} is installed nor its"
            f" boot image, /boot/vmlinuz-{installed.release}",
            f"apt-get install linux-image-{installed.release}-dbg, or --debug VMLINUX",
        )
    rebuilt: Path = without.make_vmlinux(
        installed.boot, _KALLSYMS, _NOTES, cache_folder() / "running", say
    )
    return rebuilt
