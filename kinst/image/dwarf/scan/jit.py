"""numba, as the scan of debug information uses it.

Imported only where an index is built (importing numba takes a quarter of a second).  Compiled
code is kept beside the other things kinst can make again, in a folder named by the sources:
numba itself recompiles a function only when its own file changes, not when one it calls does.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from kinst.core.paths import cache_folder

# Elements of arrays are plain numbers to the compiled code, whatever numpy calls them.
U8: TypeAlias = npt.NDArray[Any]
I64: TypeAlias = npt.NDArray[Any]
# The files with compiled functions, or with constants of theirs.
SOURCES = (
    "abbrev", "entry", "files", "jit", "ranges", "read", "scan", "space", "units",
)  # fmt: skip
F = TypeVar("F", bound=Callable[..., Any])

# Numbers in compiled code are all int64: mixed with uint64 they would become float64.
signed: Callable[[Any], int] = cast(Callable[[Any], int], np.int64)


def _code_folder() -> Path:
    """The folder of compiled code for these sources; those of other versions are deleted."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in [*(folder / f"{name}.py" for name in SOURCES), folder.parent / "numbers.py"]:
        digest.update(path.read_bytes())
    kept = cache_folder() / "compiled"
    mine = kept / digest.hexdigest()[:16]
    if not mine.exists():
        with contextlib.suppress(OSError):
            for other in kept.iterdir():
                shutil.rmtree(other, ignore_errors=True)
    return mine


_CODE = _code_folder()
_COMPLETE = _CODE / "complete"
# Without numba's own types: they do not know the flags below.
_numba: Any = numba
_numba.config.CACHE_DIR = str(_CODE)

# Without reference counts (nothing is allocated), exceptions, and wrappers that nobody calls:
# each of them makes compiling slower than it makes anything else better.
_FLAGS = {"nogil": True, "_nrt": False, "error_model": "numpy", "no_cfunc_wrapper": True}
_INNER: list[Any] = []


def compiled(function: F) -> F:
    """A function that compiled functions call.  prepare() compiles it."""
    dispatcher = _numba.njit(no_cpython_wrapper=True, **_FLAGS)(function)
    _INNER.append(dispatcher)
    return cast(F, dispatcher)


def entry_point(function: F) -> F:
    """A function that Python calls: compiled then, and kept for later processes."""
    return cast(F, _numba.njit(cache=True, **_FLAGS)(function))


def prepare(examples: dict[str, Any]) -> None:
    """Compile all inner functions, each once, for the types of its annotations.

    Left to itself numba compiles a function anew for every constant that it is called with.
    examples: values for the annotations (as text) other than int, bool and tuples of int.  Does
    nothing when the entry points are there already.
    """
    if _COMPLETE.exists():
        return
    known = {"int": _numba.int64, "bool": _numba.boolean, "None": _numba.none}
    known |= {name: _numba.typeof(example) for name, example in examples.items()}
    for count in range(2, 5):
        known[f"tuple[{', '.join(['int'] * count)}]"] = _numba.types.UniTuple(_numba.int64, count)
    for dispatcher in _INNER:
        if not dispatcher.signatures:
            *arguments, result = dispatcher.py_func.__annotations__.values()
            dispatcher.compile(known[result](*(known[argument] for argument in arguments)))
            dispatcher.disable_compile()


def completed() -> None:
    """Say that the entry points have been compiled and kept."""
    with contextlib.suppress(OSError):
        _COMPLETE.touch()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection: compiling makes many objects and drops few."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
