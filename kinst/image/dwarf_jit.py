"""numba, as the scan of debug information uses it.

Imported only where an index is built (importing numba takes a quarter of a second).  Compiled
code is kept beside the other things kinst can make again, in a folder named by the sources:
numba itself recompiles a function only when its own file changes, not when one it calls does.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

from kinst.image.btf import cache_folder

F = TypeVar("F", bound=Callable[..., Any])

# Numbers in compiled code are all int64: mixed with uint64 they would become float64.
signed: Callable[[Any], int] = cast(Callable[[Any], int], np.int64)


def _code_folder() -> Path:
    """The folder of compiled code for these sources; those of other versions are deleted."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("dwarf*.py")):
        digest.update(path.read_bytes())
    folder = cache_folder() / "compiled"
    mine = folder / digest.hexdigest()[:16]
    if not mine.exists():
        with contextlib.suppress(OSError):
            for other in folder.iterdir():
                shutil.rmtree(other, ignore_errors=True)
    return mine


numba.config.CACHE_DIR = str(_code_folder())


def compiled(function: F) -> F:
    """Compile a function to machine code when it is first called; kept for later processes."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))
