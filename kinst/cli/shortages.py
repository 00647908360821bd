"""One-line errors for shortages of the system: memory, file descriptors, processes, disk space.

Tested by tests/vm/endings/test_starved.py.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from kinst.errors import KinstError

_MEMORY = "out of memory", "ulimit -v says how much kinst may have"
_FILES = "out of file descriptors", "ulimit -n says how many kinst may have"
_PROCESSES = "out of processes or threads", "ulimit -u says how many this user may have"
_ROOM = "no room left on a disk", "df shows which; --output and $XDG_CACHE_HOME choose another"
_BY_NUMBER = {
    errno.ENOMEM: _MEMORY,
    errno.EMFILE: _FILES,
    errno.ENFILE: ("out of file descriptors", "the whole system has no more of them"),
    errno.EAGAIN: _PROCESSES,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
}
# Parts of the messages of libraries that raise errors without an errno.
_BY_TEXT = {
    "start new thread": _PROCESSES,
    "allocate memory": _MEMORY,
    "map segment": _MEMORY,  # by the dynamic linker
    "Out of memory": _MEMORY,
    "open files": _FILES,
}


def shortage(error: BaseException) -> KinstError | None:
    """Return an error for the user if memory, file descriptors, processes or disk space ran out;
    None if neither the exception nor one of its causes says so."""
    for one in _causes(error):
        found = _of(one)
        if found is not None:
            message, hint = found
            name = getattr(one, "filename", None)
            return KinstError(f"{name}: {message}" if isinstance(name, str) else message, hint)
    return None


def _of(error: BaseException) -> tuple[str, str] | None:
    if isinstance(error, MemoryError):
        return _MEMORY
    if isinstance(error, OSError) and error.errno in _BY_NUMBER:
        return _BY_NUMBER[error.errno]
    if isinstance(error, OSError | ImportError | RuntimeError | SystemError):
        text = str(error)
        return next((found for part, found in _BY_TEXT.items() if part in text), None)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, then its cause, the cause of that cause, and so on."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
