"""Fetching the debug files of single kernel modules. The debug files of all modules take 1.2 GB
together, and a trace needs few of them.

Tested by tests/kernels/test_fetch.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from kinst.core.errors import KinstError
from kinst.core.paths import cache_folder
from kinst.kernels import fetch
from kinst.kernels.apt import Confirm, unpack
from kinst.kernels.fetch import Prepared, Progress


def _path_of(ready: Prepared, module: Path) -> str:
    """Return the path that a module's debug file has in Debian's debug package."""
    inside = module.relative_to(ready.modules)
    return f"usr/lib/debug/lib/modules/{ready.release}/{inside}"


def module_debug(
    isa: str,
    ready: Prepared,
    modules: Sequence[Path],
    progress: Progress,
    confirm: Confirm | None = None,
) -> Path:
    """Return the folder that contains the debug files of modules. Fetch those debug files that are
    not in the cache yet.

    Args:
        isa: name of the ISA.
        ready: the fetched kernel.
        modules: module files below ready.modules.
        progress: called with the name of a piece of work, and the fraction of it that is done (0 to
            1, None if not known).
        confirm: asks the user before the package is downloaded; None to download without asking.

    Raises:
        KinstError: as fetch.prepare() does, and if the package of this release has no debug file
            for one of the modules.
    """
    tree = ready.modules.parents[2]
    paths = [_path_of(ready, module) for module in modules]
    missing = [path for path in paths if not (tree / path).exists()]
    folder = tree / f"usr/lib/debug/lib/modules/{ready.release}"
    if not missing:
        return folder
    work = cache_folder() / "fetching" / f"{isa}-modules"
    work.mkdir(parents=True, exist_ok=True)
    with fetch.alone(work.with_suffix(".lock"), progress):
        apt = fetch.apt_with(isa, ready.release, work, progress)
        name = f"linux-image-{ready.release}-dbg"
        for package in apt.download([name], work / "packages", progress, confirm):
            done = unpack(package, missing, work / "tree", progress)
        lost = [path for path in missing if path not in done]
        if lost:
            raise KinstError(f"Debian's {name} has no {lost[0]}")
        for path in missing:
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (work / "tree" / path).replace(tree / path)
        shutil.rmtree(work)
    return folder
