"""Calls between Python and native code in this process, for clauses that run on the host.

Tested by tests/codegen, which runs code in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import field
from typing import Any

from kinst.core.dataclass import dataclass

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)
_READ = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
FAILED = -14  # what the callback returns for bytes that cannot be read, as the kernel's -EFAULT


@dataclass(frozen=True, slots=True)
class NativeRead:
    """A C function (dst, src, size) that copies memory by calling a Python function. It returns 0,
    or FAILED for memory that cannot be read or written.

    native_read() and native_write() make such functions.

    Attributes:
        address: address of the C function; valid while this object exists.
        keep: the ctypes object that keeps the C function in existence.
    """

    address: int
    keep: Any = field(repr=False)


def native_read(read: Callable[[int, int], bytes | None]) -> NativeRead:
    """Return a C function (dst, src, size) that reads the machine's memory: `size` bytes at the
    machine's address `src`, to the address `dst` of this process.

    Args:
        read: the Python function that reads: (address, size) -> bytes, or None for a bad address.
            An exception counts as a bad address, since it cannot pass through native code.
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


def native_write(write: Callable[[int, bytes], bool]) -> NativeRead:
    """Return a C function (dst, src, size) that writes the machine's memory: `size` bytes from the
    address `src` of this process, to the machine's address `dst`.

    Args:
        write: the Python function that writes: (address, bytes) -> whether it has written them. An
            exception counts as False, since it cannot pass through native code.
    """

    def callback(dst: int, src: int, size: int) -> int:
        try:
            return 0 if write(dst, ctypes.string_at(src, size)) else FAILED
        except Exception:
            return FAILED

    keep = _READ(callback)
    return NativeRead(ctypes.cast(keep, ctypes.c_void_p).value or 0, keep)


def entry(address: int) -> Callable[[int, int], None]:
    """Return the native function void(u64, u64) at this address as a Python callable."""
    return _ENTRY(address)


def address_of(buffer: memoryview | bytearray) -> int:
    """Return the native address of the first byte of a writable buffer.

    As long as native code uses the address, the caller must keep the buffer alive, and must not
    resize a bytearray or close a mapping. Python does not prevent it.
    """
    view = (ctypes.c_char * 0).from_buffer(buffer)
    return ctypes.addressof(view)


def call_c(address: int, *args: int) -> int:
    """Call the C function u64(u64, ...) at this address with any number of arguments, and return
    its result."""
    kind = ctypes.CFUNCTYPE(ctypes.c_uint64, *([ctypes.c_uint64] * len(args)))
    return int(kind(address)(*args))
