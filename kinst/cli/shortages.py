"""What the system has run out of, where that is why something failed: said in one line.

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
# What libraries say where the number of the error is lost.
_BY_TEXT = {
    "start new thread": _PROCESSES,
    "allocate memory": _MEMORY,
    "map segment": _MEMORY,  # the dynamic linker's
    "Out of memory": _MEMORY,
    "open files": _FILES,
}


def shortage(error: BaseException) -> KinstError | None:
    """The error for people where this one, or one behind it, says that there is no more memory, no
    file descriptor, process or room on a disk; None for any other."""
    for one in _behind(error):
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


def _behind(error: BaseException) -> Iterator[BaseException]:
    """An error, and those it was raised from or while they were dealt with."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
