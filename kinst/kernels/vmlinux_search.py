"""Search for the vmlinux with symbols that belongs to a running kernel, by the kernel's
build-id."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.kernel_package import KernelBuild
from kinst.core.paths import cache_folder
from kinst.image.elf_file import open_file
from kinst.kernels.host_kernel import debug_paths
from kinst.wire import debuginfod


def find_vmlinux(
    build: KernelBuild, progress: Callable[[str, float | None], None], root: Path = Path("/")
) -> Path:
    """Find the vmlinux with symbols of a running kernel, and return its path. kinst searches its
    cache, the folders of installed debug packages, and the debuginfod servers of DEBUGINFOD_URLS.

    Args:
        build: release and build-id of the running kernel.
        progress: called while a server sends the file.
        root: root of the file system to search.

    Raises:
        KinstError: the file is in none of these places; the message names every place that was
            searched.
    """
    searched: list[str] = []
    for path in _paths(build, root):
        if not path.is_file():
            searched.append(str(path))
        elif _build_id(path) == build.build_id:
            return path
        else:
            searched.append(f"{path} (which is another build)")
    if debuginfod.is_set():
        fetched = debuginfod.find_debuginfo(build.build_id, progress)
        if fetched is not None:
            return fetched
        searched.append(f"{os.environ[debuginfod.URLS]} ({debuginfod.URLS})")
    else:
        searched.append(f"and {debuginfod.URLS} names no server")
    raise KinstError(
        f"no vmlinux with symbols of the kernel that runs there ({build.release}, build-id"
        f" {build.build_id}) was found; searched: {', '.join(searched)}",
        f"--kernel VMLINUX or --build DIR; Debian has it in linux-image-{build.release}-dbg",
    )


def _paths(build: KernelBuild, root: Path) -> Iterator[Path]:
    """Yield the paths at which the vmlinux may be, the likeliest first."""
    name = f"usr/lib/debug/boot/vmlinux-{build.release}"
    cached = sorted((cache_folder() / "kernels").glob(f"*/{build.release}/{name}"))
    yield from cached or [cache_folder() / f"kernels/ISA/{build.release}/{name}"]
    by_id = f"usr/lib/debug/.build-id/{build.build_id[:2]}/{build.build_id[2:]}.debug"
    yield root / by_id
    yield from debug_paths(root, build.release)


def _build_id(file: Path) -> str:
    try:
        return open_file(file).build_id
    except KinstError:
        return ""  # not an ELF file
