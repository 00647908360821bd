"""Calls between Python and native code in this process: clauses that run on the host.

Nothing here depends on what the code does.

Tested by tests/codegen, which runs code in this process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)
_READ = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
FAILED = -14  # what the callback returns for bytes that cannot be read, as the kernel's -EFAULT


@dataclass(frozen=True, slots=True)
class NativeRead:
    """A C function (dst, src, size) -> 0 or an error, which reads memory.

    Attributes:
        address: of the function; valid while this object lives.
    """

    address: int
    keep: Any = field(repr=False)


def native_read(read: Callable[[int, int], bytes | None]) -> NativeRead:
    """Make read(address, size), which returns None for a bad address, callable from C.

    An exception in read counts as a bad address: it cannot pass through native code.
    """

    def callback(dst: int, src: int, size: int) -> int:
        try:
            data = read(src, size)
        except Exception:
            return FAILED
        if data is None or len(data) != size:
            return FAILED
        ctypes.memmove(dst, data, size)
        return 0

    keep = _READ(callback)
    return NativeRead(ctypes.cast(keep, ctypes.c_void_p).value or 0, keep)


def entry(address: int) -> Callable[[int, int], None]:
    """Return the native void(u64, u64) function at this address as a Python callable."""
    return _ENTRY(address)


def address_of(buffer: memoryview | bytearray) -> int:
    """Return the native address of a writable buffer's first byte; the caller keeps the buffer
    alive.

    The buffer stays exported only during this call: a bytearray must not be resized, a mapping not
    closed, while native code uses the address.
    """
    view = (ctypes.c_char * 0).from_buffer(buffer)
    return ctypes.addressof(view)


def call_c(address: int, *args: int) -> int:
    """Call the C function u64(u64...) at this address."""
    kind = ctypes.CFUNCTYPE(ctypes.c_uint64, *([ctypes.c_uint64] * len(args)))
    return int(kind(address)(*args))
