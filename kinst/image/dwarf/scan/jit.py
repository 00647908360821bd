"""Compilation of the scan by numba, and a cache of the compiled code.

This module is imported only when an index is built (importing numba takes a quarter of a second).
Compiled code is cached in a subfolder of kinst's cache. The subfolder's name is a checksum of all
sources of the scan, so a change of any of them makes kinst compile again. By itself numba would
recompile a function only if the function's own file changes, not if a function that it calls does.
Each cache file has a checksum, which covers the file's name too, because numba runs what it reads.
If a cache file is damaged, or was made for another function, the function is compiled again. If the
folder cannot be written, every process compiles.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import pickle
import platform
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.core import caching

from kinst.core.paths import cache_folder

# To the compiled code elements of arrays are plain numbers, not numpy scalars.
U8: TypeAlias = npt.NDArray[Any]
I64: TypeAlias = npt.NDArray[Any]
# The files with compiled functions, or with constants that they use.
SOURCES = (
    "abbrev", "entry", "files", "jit", "ranges", "read", "scan", "space", "units",
)  # fmt: skip
F = TypeVar("F", bound=Callable[..., Any])

# Numbers in compiled code are all int64: mixed with uint64 they would become float64.
signed: Callable[[Any], int] = cast(Callable[[Any], int], np.int64)


UNUSED = 30 * 86400  # seconds after which the code of other sources is deleted


def _code_folder() -> Path:
    """Return the cache folder of code compiled from the present sources; delete the folders of
    other sources that have not been used for UNUSED seconds."""
    folder = Path(__file__).parent
    digest = hashlib.sha256(f"{folder} {numba.__version__} {platform.python_version()}".encode())
    for path in [*(folder / f"{name}.py" for name in SOURCES), folder.parent / "numbers.py"]:
        digest.update(path.read_bytes())
    kept = cache_folder() / "compiled"
    folder_of_sources = kept / digest.hexdigest()[:16]
    with contextlib.suppress(OSError):
        for old_folder in kept.iterdir():
            if (
                old_folder != folder_of_sources
                and time.time() - old_folder.stat().st_mtime > UNUSED
            ):
                shutil.rmtree(old_folder, ignore_errors=True)
    return folder_of_sources


_CODE = _code_folder()
# As Any: numba's own type annotations lack the flags below.
_numba: Any = numba
_CacheFile: Any = caching.IndexDataCacheFile
_FunctionCache: Any = caching.FunctionCache

# Without reference counts (nothing is allocated), exceptions, and unused wrappers: each of them
# costs more compile time than it gains.
_FLAGS = {"nogil": True, "_nrt": False, "error_model": "numpy", "no_cfunc_wrapper": True}
_INNER: list[Any] = []
_EXAMPLES: dict[str, Any] = {}


class _CheckedFile(_CacheFile):  # type: ignore[misc]
    """numba's cache files of one function, each preceded by the CRC-32 of its name and content."""

    def _load_index(self) -> dict[Any, str]:
        try:
            stamp, names = pickle.loads(self._content(Path(self._index_path)))
        except OSError:
            return {}
        return names if stamp == self._source_stamp else {}

    def _save_index(self, overloads: dict[Any, str]) -> None:
        self._write(self._index_path, (self._source_stamp, overloads))

    def _load_data(self, name: str) -> Any:
        return pickle.loads(self._content(Path(self._data_path(name))))

    def _save_data(self, name: str, data: Any) -> None:
        self._write(self._data_path(name), data)

    def _content(self, path: Path) -> bytes:
        """Return the content of a cache file without its checksum. Raises OSError if the file is
        missing or damaged."""
        data = path.read_bytes()
        if len(data) < 4 or _sum(path, data[4:]) != int.from_bytes(data[:4], "little"):
            raise OSError(f"{path}: damaged")
        return data[4:]

    def _write(self, path: str, content: Any) -> None:
        data = self._dump(content)
        with self._open_for_write(path) as file:
            file.write(_sum(Path(path), data).to_bytes(4, "little") + data)


def _sum(path: Path, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(path.name.encode()))


class _CodeCache(_FunctionCache):  # type: ignore[misc]
    """numba's cache of the compiled code of one entry point, in kinst's cache folder."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Open the cache of a function. Raises RuntimeError if no cache folder can be written."""
        before = _numba.config.CACHE_DIR
        _numba.config.CACHE_DIR = str(_CODE)
        try:
            super().__init__(function)
        finally:
            _numba.config.CACHE_DIR = before
        impl = self._impl
        self._cache_file = _CheckedFile(
            self._cache_path, impl.filename_base, impl.locator.get_source_stamp()
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        overload = super().load_overload(sig, target_context)
        if overload is None:
            _compile_inner()
        return overload

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)


def compiled(function: F) -> F:
    """Prepare a function for compilation by numba, for calls from compiled functions only. It is
    compiled before the first entry point."""
    dispatcher = _numba.njit(no_cpython_wrapper=True, **_FLAGS)(function)
    _INNER.append(dispatcher)
    return cast(F, dispatcher)


def entry_point(function: F) -> F:
    """Prepare a function for compilation by numba, for calls from Python. It is compiled at its
    first call, and its code is cached for later processes."""
    dispatcher = _numba.njit(**_FLAGS)(function)
    try:
        dispatcher._cache = _CodeCache(function)
    except RuntimeError:
        dispatcher._cache = _NoCache()
    return cast(F, dispatcher)


class _NoCache(caching.NullCache):
    """Replacement for _CodeCache if no cache folder can be written."""

    def load_overload(self, sig: Any, target_context: Any) -> None:
        _compile_inner()


def prepare(examples: dict[str, Any]) -> None:
    """Say which types the annotations of compiled functions mean. Call this before any entry point.

    Args:
        examples: an example value for each annotation, by the annotation's text; int, bool and
            tuples of int need no example.
    """
    _EXAMPLES.update(examples)


def _compile_inner() -> None:
    """Compile the functions with the decorator compiled(), each for the types of its annotations.

    Without this, numba would compile a function again for every constant that is passed to it.
    """
    types = {"int": _numba.int64, "bool": _numba.boolean, "None": _numba.none}
    types |= {name: _numba.typeof(example) for name, example in _EXAMPLES.items()}
    for count in range(2, 5):
        types[f"tuple[{', '.join(['int'] * count)}]"] = _numba.types.UniTuple(_numba.int64, count)
    for dispatcher in _INNER:
        if not dispatcher.signatures:
            *arguments, result = dispatcher.py_func.__annotations__.values()
            dispatcher.compile(types[result](*(types[argument] for argument in arguments)))
            dispatcher.disable_compile()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Suspend garbage collection while the with block runs: compiling makes many objects and drops
    few."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
