"""Memory that kinst shares with other processes or devices, and functions that free memory. Shared
memory has no name in a file system, so the host's kernel frees it after its last use.

Tested by tests/wire/test_memory.py, tests/wire/test_child_process.py and tests/machines/live."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import Self

from kinst.core.errors import KinstError, TargetError
from kinst.wire.native import address_of

_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_READ_AND_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MADVISE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)(
    ("madvise", ctypes.CDLL(None))
)
_MUNMAP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t)(
    ("munmap", ctypes.CDLL(None))
)
# Where private_memory() maps memory if nothing is there. On 64-bit hosts, neither programs nor
# libraries are loaded there.
_USUAL = 0x6000_0000_0000
_USUAL_SIZE = 1 << 40


def private_memory(size: int) -> memoryview:
    """Return zeroed memory of this process, which is unmapped after the last view of it is gone.

    The first such memory of a process has the same address in each process, so that code that
    contains the address can be used again (has_usual_address()). Raises OSError.
    """
    return _mapped_view(size, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1)


def has_usual_address(address: int) -> bool:
    """Return whether an address is in memory of private_memory() or SharedMemory that has the same
    address in each process."""
    return _USUAL <= address < _USUAL + _USUAL_SIZE


class CodeMemory:
    """Machine code that this process can run, mapped while the object exists.

    The code comes from a file in memory. So no page is ever both writable and executable, and the
    host's kernel makes the instruction cache coherent when it maps the file.

    Attributes:
        address: native address of the code's first byte.
    """

    def __init__(self, code: bytes) -> None:
        """Map the code. Raises KinstError if the host allows no executable memory."""
        try:
            with AnonymousFile("kinst-code") as file:
                file.write(code)
                rights = mmap.PROT_READ | mmap.PROT_EXEC
                self.address = _map(0, len(code), mmap.MAP_PRIVATE, file.fd, rights)
        except OSError as error:
            raise KinstError(
                f"failed to map code for BEGIN, END and timers: {error.strerror}",
                "the host must allow kinst to run code from files in memory",
            ) from error
        weakref.finalize(self, _unmap, self.address, len(code))


def available_memory() -> int:
    """Return how many bytes of the host's memory can be allocated without swapping: MemAvailable of
    proc(5), meminfo."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


class SharedMemory:
    """Memory that a child process inherits as the file descriptor `fd`, mapped into this process.

    It is sparse: a page takes memory only once it is written."""

    def __init__(self, name: str, size: int, used: int = 0) -> None:
        """Create and map the memory.

        Args:
            name: what messages call the memory.
            size: bytes.
            used: how many of the bytes will be used, to compare with the host's available memory; 0
                for all.

        Raises:
            TargetError: the host has too little available memory.
        """
        self.fd = -1
        available, wanted = available_memory(), used or size
        if wanted > available:
            raise TargetError(
                f"not enough memory: {name} needs {wanted >> 20} MB and {available >> 20} MB "
                "are available",
                "give the guest less",
            )
        try:
            self.fd = os.memfd_create(name, os.MFD_CLOEXEC)
            os.ftruncate(self.fd, size)
            self.view = _mapped_view(size, mmap.MAP_SHARED, self.fd)
        except (OSError, ValueError) as error:
            if self.fd >= 0:
                os.close(self.fd)
            raise TargetError(
                f"not enough memory for {size >> 20} MB of {name}: {error}"
            ) from error
        self.size = size

    @property
    def path(self) -> str:
        """Path of this memory in a process that has inherited the descriptor."""
        return f"/proc/self/fd/{self.fd}"

    def extents(self) -> list[tuple[int, int]]:
        """Return (offset, bytes) of each part of the memory that has data, ascending (lseek(2),
        SEEK_DATA). All memory outside of these parts is zero."""
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
        """Zero a range of whole pages of the memory and free them (madvise(2), MADV_REMOVE)."""
        if _MADVISE(address_of(self.view) + offset, size, mmap.MADV_REMOVE):
            raise TargetError("failed to free memory of the guest")

    def close(self) -> None:
        """Close the descriptor. The mapping stays until the last view of the memory is gone."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class AnonymousFile:
    """A file in memory without a name, whose descriptor `fd` can be sent to another process. A
    context manager."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def read(self) -> bytes:
        """Return the whole content of the file."""
        return os.pread(self.fd, os.fstat(self.fd).st_size, 0)

    def write(self, data: bytes) -> None:
        """Write data at the start of the file."""
        os.pwrite(self.fd, data, 0)


class ForeignMemory:
    """Memory that another process has created, mapped into this process."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Map the memory and close the descriptor. Raises TargetError if this process has no room
        for the mapping."""
        try:
            self.map = mmap.mmap(descriptor, size)
        except (OSError, ValueError) as error:
            raise TargetError(
                f"not enough memory for {size >> 20} MB of the guest's memory"
            ) from error
        finally:
            os.close(descriptor)
        self.view = memoryview(self.map)

    def close(self) -> None:
        """Unmap the memory. If a view of the memory still exists, the mapping stays until the view
        is gone."""
        self.view.release()
        with contextlib.suppress(BufferError):
            self.map.close()


class DeviceMemory:
    """The first bytes of a device's file, mapped shared and writable until close().

    close() unmaps the file at once; views that still exist then show zeros. mmap.mmap cannot do
    this: it keeps the file open as long as a view exists, and a driver that waits for its last user
    would wait for Python's garbage collector.
    """

    def __init__(self, fd: int, size: int) -> None:
        """Map the first `size` bytes of a device's file. Raises OSError."""
        self._size = size
        self._address = _map(0, size, mmap.MAP_SHARED, fd)
        self._open = True

    def view(self) -> memoryview:
        return memoryview((ctypes.c_ubyte * self._size).from_address(self._address)).cast("B")

    def close(self) -> None:
        """Unmap the device's file. Safe to call twice.

        Anonymous memory takes the place of the file, and stays mapped for ever, because views may
        still exist.
        """
        if self._open:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
            _map(self._address, self._size, flags, -1)
            self._open = False


def _mapped_view(size: int, flags: int, fd: int) -> memoryview:
    """Map memory at the usual address, or elsewhere if that is taken. It is unmapped after the last
    view of it is gone. Raises OSError."""
    address = _map(_USUAL, size, flags, fd)
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _unmap, address, size)
    return memoryview(memory).cast("B")


def _map(address: int, size: int, flags: int, fd: int, rights: int = _READ_AND_WRITE) -> int:
    """Map memory with mmap(2), and return its address. Raises OSError.

    Args:
        address: where to map, if the flags say so or nothing is there; 0 for any address.
        rights: what the memory may be used for, PROT_*.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    kinds = (ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.mmap.argtypes = (ctypes.c_void_p, *kinds)
    mapped = libc.mmap(address or None, size, rights, flags, fd, 0)
    if mapped == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(mapped)


def _unmap(address: int, size: int) -> None:
    _MUNMAP(address, size)


def discard(view: memoryview) -> None:
    """Zero memory. If the memory is mapped from a file, as guest memory is, also free its whole
    pages (madvise(2), MADV_REMOVE)."""
    start = address_of(view)
    low, high = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + len(view)) & -mmap.PAGESIZE
    advised = high > low and not _MADVISE(low, high - low, mmap.MADV_REMOVE)
    if not advised:
        low = high = start + len(view)
    ctypes.memset(start, 0, low - start)
    ctypes.memset(high, 0, start + len(view) - high)


def trim_heap() -> None:
    """Make the C library return freed memory to the host's kernel (malloc_trim(3)).

    The library can also be set to return memory at each free(). This is slow, since each large
    allocation then needs new pages: planning 40,000 sites took twice the time.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
