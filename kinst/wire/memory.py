"""Memory that kinst shares with other processes, with devices and with itself: it has no name in a
file system, and is given back to the system when it is no longer used.

Tested by tests/wire/test_child_process.py and tests/machines/live.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from pathlib import Path
from typing import Self

from kinst.core.errors import TargetError
from kinst.wire.native import address_of

_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_READ_AND_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MADVISE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)(
    ("madvise", ctypes.CDLL(None))
)


def available_memory() -> int:
    """Return how many bytes can be taken without swapping: MemAvailable of proc(5), meminfo."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


class SharedMemory:
    """Memory without a name, mapped here and inherited by a child as file descriptor fd.

    It is sparse: a page takes memory only once it is written.
    """

    def __init__(self, name: str, size: int, used: int = 0) -> None:
        """Make the memory.

        Args:
            name: what messages call it.
            size: bytes.
            used: how many of them will be written to; 0 for all.

        Raises:
            TargetError: the machine has too little memory available.
        """
        self.fd = -1
        available, wanted = available_memory(), used or size
        if wanted > available:
            raise TargetError(
                f"no room: {name} needs {wanted >> 20} MB of memory and {available >> 20} MB "
                "are available",
                "give the guest less",
            )
        try:
            self.fd = os.memfd_create(name, os.MFD_CLOEXEC)
            os.ftruncate(self.fd, size)
            self.map = mmap.mmap(self.fd, size)
        except (OSError, ValueError) as error:
            if self.fd >= 0:
                os.close(self.fd)
            raise TargetError(f"no room for {size >> 20} MB of {name}: {error}") from error
        self.size = size
        self.view = memoryview(self.map)

    @property
    def path(self) -> str:
        """Path of the same memory in a process that inherited fd."""
        return f"/proc/self/fd/{self.fd}"

    def extents(self) -> list[tuple[int, int]]:
        """Return (offset, bytes) of the pages that are not holes; all the rest is zeros (lseek(2),
        SEEK_DATA)."""
        extents, at = [], 0
        while at < self.size:
            try:
                start = os.lseek(self.fd, at, os.SEEK_DATA)
            except OSError:  # ENXIO: only holes follow
                break
            at = os.lseek(self.fd, start, os.SEEK_HOLE)
            extents.append((start, at - start))
        return extents

    def clear(self, offset: int, size: int) -> None:
        """Zero a range of whole pages and free them (madvise(2), MADV_REMOVE)."""
        self.map.madvise(mmap.MADV_REMOVE, offset, size)

    def close(self) -> None:
        """Close the descriptor.  The mapping stays until the last view of it is gone."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class AnonymousFile:
    """A file in memory, for a descriptor to be handed to another process.  For a with block."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def read(self) -> bytes:
        """Return the whole content."""
        return os.pread(self.fd, os.fstat(self.fd).st_size, 0)

    def write(self, data: bytes) -> None:
        """Write the content from the start of the file."""
        os.pwrite(self.fd, data, 0)


class ForeignMemory:
    """Memory that another process made, mapped here."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Map the memory and close the descriptor.  Raises TargetError if there is no room."""
        try:
            self.map = mmap.mmap(descriptor, size)
        except (OSError, ValueError) as error:
            raise TargetError(f"no room for {size >> 20} MB of the guest's memory") from error
        finally:
            os.close(descriptor)
        self.view = memoryview(self.map)

    def close(self) -> None:
        """Unmap the memory; the mapping stays until the last view of it is gone."""
        self.view.release()
        with contextlib.suppress(BufferError):
            self.map.close()


class DeviceMemory:
    """The first bytes of a device's file, mapped shared and writable until close().

    A view that is read after close() shows zeros.  mmap.mmap cannot be closed while a view of it
    exists, and keeps the file open until then: a driver that waits for its last user would wait for
    Python's garbage collector.
    """

    def __init__(self, fd: int, size: int) -> None:
        """Map `size` bytes.  Raises OSError."""
        self._size = size
        self._address = _map(0, size, mmap.MAP_SHARED, fd)
        self._open = True

    def view(self) -> memoryview:
        return memoryview((ctypes.c_ubyte * self._size).from_address(self._address)).cast("B")

    def close(self) -> None:
        """Let go of the file.  Safe to call twice.

        Plain memory replaces it, and is never unmapped, since views may still exist.
        """
        if self._open:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
            _map(self._address, self._size, flags, -1)
            self._open = False


def _map(address: int, size: int, flags: int, fd: int) -> int:
    """Map memory with mmap(2) and return its address.  Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    kinds = (ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.mmap.argtypes = (ctypes.c_void_p, *kinds)
    mapped = libc.mmap(address or None, size, _READ_AND_WRITE, flags, fd, 0)
    if mapped == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(mapped)


def discard(view: memoryview) -> None:
    """Zero memory, and free its pages if it is mapped from a file, as guest memory is (madvise(2),
    MADV_REMOVE)."""
    start = address_of(view)
    low, high = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + len(view)) & -mmap.PAGESIZE
    advised = high > low and not _MADVISE(low, high - low, mmap.MADV_REMOVE)
    if not advised:
        low = high = start + len(view)
    ctypes.memset(start, 0, low - start)
    ctypes.memset(high, 0, start + len(view) - high)


def trim_heap() -> None:
    """Return freed memory that the C library keeps to the system (malloc_trim(3)).

    Without malloc's heap less would be kept, but every large piece would be made of new pages:
    planning 40,000 sites took twice the time.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
