"""Debug files from debuginfod servers, fetched by the client library of elfutils.

The library handles servers (DEBUGINFOD_URLS), proxies, time limits, and a cache that other programs
share (debuginfod_find_debuginfo(3), debuginfod-client-config(7)). kinst loads it only when needed.
It is usually installed, since gdb and other packages depend on it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinst.core.errors import KinstError

URLS = "DEBUGINFOD_URLS"
_LIBRARY = "libdebuginfod.so.1"
# int (*)(debuginfod_client *, long done, long all); any result but 0 ends the transfer.
_PROGRESS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_long, ctypes.c_long)


def is_set() -> bool:
    """Return whether DEBUGINFOD_URLS names any server."""
    return bool(os.environ.get(URLS, "").split())


def find_debuginfo(build_id: str, say: Callable[[str, float | None], None]) -> Path | None:
    """Return the path of the debug file with this build-id, from the library's cache or from a
    server; None if no server has the file.

    Args:
        build_id: hexadecimal.
        say: called with the name of the work and the fraction that is done; the fraction is None if
            it is not known.

    Raises:
        KinstError: the library is not installed, or no server answers.
    """
    library = _library()
    work = "fetching debug information"
    ended: list[BaseException] = []

    def on_progress(client: object, done: int, total: int) -> int:
        try:
            say(work, done / total if 0 < done <= total else None)
        except BaseException as error:  # an exception cannot pass through C code
            ended.append(error)
        return len(ended)

    client = library.debuginfod_begin()
    if not client:
        raise KinstError("the client of debuginfod cannot be started")
    callback = _PROGRESS(on_progress)
    path = ctypes.c_void_p()
    try:
        library.debuginfod_set_progressfn(client, callback)
        status = library.debuginfod_find_debuginfo(client, build_id.encode(), 0, ctypes.byref(path))
    finally:
        library.debuginfod_end(client)
    if ended:
        raise ended[0]
    if status >= 0:
        os.close(status)
        return Path(os.fsdecode(_taken(path)))
    if -status in _NOT_THERE:
        return None
    raise KinstError(
        f"no debug information from {os.environ.get(URLS, '').strip()}: {os.strerror(-status)}",
        f"unset {URLS}, or install the kernel's debug package",
    )


_NOT_THERE = (2,)  # ENOENT: no server has it


def _taken(path: ctypes.c_void_p) -> bytes:
    """Return a string that the library has allocated with malloc(), and free it."""
    assert path.value is not None
    text = ctypes.string_at(path.value)
    free = ctypes.CDLL(None).free
    free.argtypes, free.restype = [ctypes.c_void_p], None
    free(path)
    return text


def _library() -> Any:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise KinstError(
            f"{URLS} is set, but {_LIBRARY}, which fetches from it, is not installed",
            f"apt-get install libdebuginfod1, or unset {URLS}",
        ) from None
    library.debuginfod_begin.restype = ctypes.c_void_p
    library.debuginfod_end.argtypes = [ctypes.c_void_p]
    library.debuginfod_end.restype = None
    library.debuginfod_set_progressfn.argtypes = [ctypes.c_void_p, _PROGRESS]
    library.debuginfod_set_progressfn.restype = None
    library.debuginfod_find_debuginfo.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p,
    ]  # fmt: skip
    return library
