"""Loading a module into the kernel of the host, and unloading it.

Tested by tests/machines/live/test_parts.py and tests/vm/live."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

# Numbers of finit_module(2) and delete_module(2), for which the C library has no functions.
_CALLS = {"x86_64": (313, 176)}


def _call(which: int, *arguments: object) -> None:
    """Make a system call, given by its index in _CALLS. Raises OSError if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(_CALLS[platform.machine()][which]), *arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def load_module(path: Path) -> None:
    """Load a kernel module from its file.

    Raises:
        OSError: EPERM (not root, or the kernel is locked down), EKEYREJECTED (bad signature),
            ENOEXEC (built for another kernel), EEXIST (already loaded), or the error of the
            module's init function.
    """
    with open(path, "rb") as file:
        _call(0, ctypes.c_int(file.fileno()), ctypes.c_char_p(b""), ctypes.c_int(0))


def unload_module(name: str) -> None:
    """Unload a kernel module, without waiting for its users. Raises OSError; EWOULDBLOCK if the
    module is in use."""
    _call(1, ctypes.c_char_p(name.encode()), ctypes.c_int(os.O_NONBLOCK))
