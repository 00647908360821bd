"""Loading a module into the kernel that kinst runs on, and taking it out.

Tested by tests/machines/live/test_parts.py and tests/vm/live.
"""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

# finit_module(2) and delete_module(2) have no function of the C library's: numbers by machine.
_CALLS = {"x86_64": (313, 176)}


def _call(which: int, *arguments: object) -> None:
    """Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(_CALLS[platform.machine()][which]), *arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def load_module(path: Path) -> None:
    """Load a module's file.  Raises OSError: EPERM (not root, or locked down), EKEYREJECTED (its
    signature), ENOEXEC (of another kernel), EEXIST, or what its init function has returned."""
    with open(path, "rb") as file:
        _call(0, ctypes.c_int(file.fileno()), ctypes.c_char_p(b""), ctypes.c_int(0))


def unload_module(name: str) -> None:
    """Unload a module, at once or not at all.  Raises OSError: EWOULDBLOCK while it is used."""
    _call(1, ctypes.c_char_p(name.encode()), ctypes.c_int(os.O_NONBLOCK))
