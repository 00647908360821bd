"""Files of the kernel that kinst itself runs on, where they are installed."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from kinst.core.errors import KinstError

_DEBUG = Path("/usr/lib/debug")
_MODULES = Path("/lib/modules")


@dataclass(frozen=True, slots=True)
class RunningFiles:
    """debug: the vmlinux with symbols, None where none is installed.  folders: where debug files of
    modules may be."""

    release: str
    debug: Path | None
    folders: tuple[Path, ...]


def files(root: Path = Path("/"), release: str = "") -> RunningFiles:
    """Of the kernel that runs.  root, release: other ones."""
    name = release or platform.release()
    own = root / _MODULES.relative_to("/") / name
    debug = root / _DEBUG.relative_to("/")
    # Debian's packages; Fedora's and others'; a kernel that was built here.
    places = (
        debug / "boot" / f"vmlinux-{name}",
        debug / "lib/modules" / name / "vmlinux",
        own / "build/vmlinux",
        own / "vmlinux",
        root / "boot" / f"vmlinux-{name}",
    )
    found = next((place for place in places if place.is_file()), None)
    folders = (debug / "lib/modules" / name, own)
    return RunningFiles(name, found, tuple(folder for folder in folders if folder.is_dir()))


def vmlinux(found: RunningFiles) -> Path:
    """Raises KinstError where no vmlinux with symbols is there."""
    if found.debug is None:
        raise KinstError(
            f"the vmlinux with symbols of kernel {found.release} is not installed",
            f"apt-get install linux-image-{found.release}-dbg, or --debug VMLINUX",
        )
    return found.debug
