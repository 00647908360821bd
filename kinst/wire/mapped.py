"""Memory of a device, mapped for as long as it is wanted: whoever still looks at it afterwards sees
zeros.

mmap.mmap cannot be closed while a view of it is left, and keeps the file open until then; a driver
that waits for its last user would wait for Python's collector.

Tested by tests/wire/test_process.py.
"""

from __future__ import annotations

import ctypes
import mmap
import os

_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_BOTH = mmap.PROT_READ | mmap.PROT_WRITE


def _map(address: int, size: int, flags: int, fd: int) -> int:
    """Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    kinds = (ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.mmap.argtypes = (ctypes.c_void_p, *kinds)
    found = libc.mmap(address or None, size, _BOTH, flags, fd, 0)
    if found == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(found)


class Mapped:
    """The first bytes of a file, shared and writable."""

    def __init__(self, fd: int, size: int) -> None:
        """Raises OSError."""
        self._size = size
        self._address = _map(0, size, mmap.MAP_SHARED, fd)
        self._open = True

    def view(self) -> memoryview:
        return memoryview((ctypes.c_ubyte * self._size).from_address(self._address)).cast("B")

    def close(self) -> None:
        """Let go of the file: plain memory takes its place, which is never given back, since views
        may be left.  Safe to call twice."""
        if self._open:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
            _map(self._address, self._size, flags, -1)
            self._open = False
