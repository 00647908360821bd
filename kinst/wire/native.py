"""Calls between Python and native code in this process: clauses that run on the host.

Nothing here knows what the code does.

Tested by tests/codegen, which runs code in this process.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)
_READ = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
_MADVISE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)(
    ("madvise", ctypes.CDLL(None))
)
FAILED = -14  # what the callback returns for bytes that cannot be read, as the kernel's -EFAULT


@dataclass(frozen=True, slots=True)
class NativeRead:
    """address: of a C function (dst, src, size) -> 0 or an error; valid while this lives."""

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
    """The native void(u64, u64) function at this address as a Python callable."""
    return _ENTRY(address)


def address_of(buffer: memoryview | bytearray) -> int:
    """Native address of a writable buffer's first byte; the caller keeps the buffer alive.

    The buffer stays exported only during this call: a bytearray must not be resized, a mapping
    not closed, while native code uses the address.
    """
    view = (ctypes.c_char * 0).from_buffer(buffer)
    return ctypes.addressof(view)


def give_back() -> None:
    """Have memory that was freed go back to the system, where it is the C library that keeps it.

    (Without its heap for large pieces less would be kept, but every new piece is then made of new
    pages: planning 40,000 entries took twice the time.)"""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def discard(view: memoryview) -> None:
    """Make memory zero and give its pages back, where it is mapped from a file as guest memory
    is (madvise(2), MADV_REMOVE); else by writing."""
    start = address_of(view)
    low, high = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + len(view)) & -mmap.PAGESIZE
    advised = high > low and not _MADVISE(low, high - low, mmap.MADV_REMOVE)
    if not advised:
        low = high = start + len(view)
    ctypes.memset(start, 0, low - start)
    ctypes.memset(high, 0, start + len(view) - high)


def call_c(address: int, *args: int) -> int:
    """Call the C function u64(u64...) at this address."""
    kind = ctypes.CFUNCTYPE(ctypes.c_uint64, *([ctypes.c_uint64] * len(args)))
    return int(kind(address)(*args))
