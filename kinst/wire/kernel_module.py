"""Load a module into the kernel that kinst runs on, and unload it.

Tested by tests/machines/live/test_parts.py and tests/vm/live.
"""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

# Numbers of finit_module(2) and delete_module(2), for which the C library has no functions.
_CALLS = {"x86_64": (313, 176)}


def _call(which: int, *arguments: object) -> None:
    """Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(_CALLS[platform.machine()][which]), *arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def load_module(path: Path) -> None:
    """Load a module's file.

    Raises:
        OSError: EPERM (not root, or locked down), EKEYREJECTED (its signature), ENOEXEC (of another
            kernel), EEXIST, or what its init function returned.
    """
    with open(path, "rb") as file:
        _call(0, ctypes.c_int(file.fileno()), ctypes.c_char_p(b""), ctypes.c_int(0))


def unload_module(name: str) -> None:
    """Unload a module at once.  Raises OSError, EWOULDBLOCK if it is in use."""
    _call(1, ctypes.c_char_p(name.encode()), ctypes.c_int(os.O_NONBLOCK))
