"""Saved states of booted guests, as files in the cache.

A file has all pages of RAM that are not zero, and QEMU's state of CPUs and devices:

    magic, SHA-256 of the key and the rest of the header | number of runs, bytes of device state |
    runs: offset in RAM, bytes, CRC-32 | device state | padding to a page | the runs' contents

Here a run is a sequence of neighbouring pages that are not zero.

A full disk may truncate a file in the cache, and a crash may zero it. A guest with such a state
would fail much later, so a file is checked as a whole when it is read. A plain sum of words would
take a tenth of the time, but would not detect words in the wrong order. A file is first written
under another name, so that readers see all of it or nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import time
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from importlib import import_module
from mmap import ACCESS_READ, mmap
from pathlib import Path

from kinst.core.errors import TargetError
from kinst.core.whole_files import PART, WRITING, whole_file
from kinst.core.words import PAGE

LIMIT = 1 << 30  # bytes of all states; the least recently used ones are deleted first
_MAGIC = b"kinst guest 3\n\0\0"
_DIGEST = hashlib.sha256().digest_size
_COUNTS = struct.Struct("<QQ")
_RUN = struct.Struct("<QQQ")  # of a run of pages: offset in RAM, bytes, CRC-32
_WORDS = PAGE // 8
_SUFFIX = ".guest"
_MOST_VECTORS = 512  # buffers of one preadv(2); the system's limit is 1024


class SavedStates:
    """Saved states of guests in a folder, each under a key."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        """Name the folder.

        Args:
            limit: the most bytes that all states together may take.
        """
        self._folder = folder
        self._limit = limit

    def has(self, key: str) -> bool:
        return self._file(key).is_file()

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}{_SUFFIX}"

    def delete(self, key: str) -> None:
        with contextlib.suppress(OSError):
            self._file(key).unlink()

    def load(self, key: str, ram: memoryview) -> bytes:
        """Read a saved state: fill RAM, which must be zero, and return the state of CPUs and
        devices.

        Raises TargetError if the saved state is damaged or missing.
        """
        try:
            with self._file(key).open("rb", buffering=0) as file:
                os.utime(file.fileno())  # mark it as used
                return _read(file.fileno(), key, ram)
        except OSError as error:
            raise TargetError(f"{self._file(key)}: {error.strerror}") from error

    def open(self, key: str, size: int) -> SavedRam:
        """Open a saved state to read parts of its RAM.

        Args:
            size: bytes of RAM that the guest has.

        Raises TargetError if the saved state is damaged or missing.
        """
        try:
            with self._file(key).open("rb", buffering=0) as file:
                os.utime(file.fileno())  # mark it as used
                runs, devices, data = _header(file.fileno(), key, size)
                return SavedRam(mmap(file.fileno(), 0, access=ACCESS_READ), runs, devices, data)
        except (OSError, ValueError) as error:
            raise TargetError(f"{self._file(key)}: {error}") from error

    def save(
        self, key: str, ram: memoryview, extents: list[tuple[int, int]], devices: bytes
    ) -> int:
        """Save a guest's state, and return the size of its file in bytes; 0 if it could not be
        saved.

        Args:
            ram: all RAM of the guest.
            extents: (offset, bytes) of the parts of RAM that may not be zero, in whole pages.
            devices: QEMU's state of CPUs and devices.
        """
        try:
            with whole_file(self._file(key)) as file:
                size = _write(file.fileno(), key, ram, extents, devices)
        except OSError:  # a full or read-only disk; the next guest boots, too
            return 0
        with contextlib.suppress(OSError):
            self._tidy(key)
        return size

    def _tidy(self, newest: str) -> None:
        """Delete saved states, the least recently used first, until all together take no more bytes
        than the limit.

        Also delete files that a killed process has left half-written.

        Args:
            newest: key of the state that was just saved, which is not deleted.
        """
        states = []
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                status = path.stat()
                if path.suffix == _SUFFIX and path != self._file(newest):
                    states.append((status.st_mtime, status.st_size, path))
                elif path.suffix == PART and status.st_mtime < time.time() - WRITING:
                    path.unlink()
        total = self._file(newest).stat().st_size
        for _, size, path in sorted(states, reverse=True):
            total += size
            if total > self._limit:
                with contextlib.suppress(OSError):
                    path.unlink()


class SavedRam:
    """RAM of a guest in a saved state, read from the state's file.

    Attributes:
        devices: QEMU's state of CPUs and devices.
    """

    def __init__(
        self, file: mmap, runs: Sequence[tuple[int, int, int]], devices: bytes, data: int
    ) -> None:
        """Check the contents of RAM in the file.  Raises TargetError if they are damaged.

        Args:
            file: the mapped file of the saved state.
            runs: (offset in RAM, bytes, CRC-32) of each run of pages, from the file's header.
            data: offset of the first run's contents in the file.
        """
        self.devices = devices
        self._file = file
        self._runs: list[tuple[int, int, int]] = []  # offset in RAM, bytes, where in the file
        for start, size, expected in runs:
            there = memoryview(file)[data : data + size]
            if len(there) != size or zlib.crc32(there) != expected:
                raise TargetError("the saved state of the guest is damaged")
            self._runs.append((start, size, data))
            data += size
        self._runs.sort()
        self._starts = [start for start, _, _ in self._runs]

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the guest's RAM; pages that are not in the file are zero.

        Args:
            offset: offset in RAM.
        """
        out = bytearray(size)
        first = max(bisect_right(self._starts, offset) - 1, 0)
        for start, length, at in self._runs[first:]:
            low, high = max(start, offset), min(start + length, offset + size)
            if start >= offset + size:
                break
            if low < high:
                out[low - offset : high - offset] = self._file[at + low - start : at + high - start]
        return bytes(out)


def _runs(ram: memoryview, extents: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (offset, bytes) of each sequence of pages in RAM that are not zero.

    Args:
        extents: (offset, bytes) of the parts of RAM that are examined, in whole pages.
    """
    np = import_module("numpy")  # states are loaded before numpy is
    for start, size in extents:
        pages = np.frombuffer(ram[start : start + size], "<u8").reshape(-1, _WORDS)
        used = np.zeros(len(pages) + 2, np.int8)
        used[1:-1] = pages.any(axis=1)
        edges = np.flatnonzero(np.diff(used))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            yield start + first * PAGE, (last - first) * PAGE


def _write(
    file: int, key: str, ram: memoryview, extents: Sequence[tuple[int, int]], devices: bytes
) -> int:
    runs = [(at, size, zlib.crc32(ram[at : at + size])) for at, size in _runs(ram, extents)]
    body = _COUNTS.pack(len(runs), len(devices)) + b"".join(_RUN.pack(*run) for run in runs)
    body += devices
    head = _MAGIC + _digest(key, body) + body
    head += bytes(-len(head) % PAGE)
    os.posix_fallocate(file, 0, len(head) + sum(size for _, size, _ in runs))
    for data in (memoryview(head), *(ram[at : at + size] for at, size, _ in runs)):
        while data:
            data = data[os.write(file, data) :]
    return os.fstat(file).st_size


def _read(file: int, key: str, ram: memoryview) -> bytes:
    runs, devices, data = _header(file, key, len(ram))
    for first in range(0, len(runs), _MOST_VECTORS):
        some = runs[first : first + _MOST_VECTORS]
        _fill(file, [ram[at : at + size] for at, size, _ in some], data)
        data += sum(size for _, size, _ in some)
    for at, size, expected in runs:
        if zlib.crc32(ram[at : at + size]) != expected:
            raise TargetError("the saved state of the guest is damaged")
    return devices


def _digest(key: str, body: bytes) -> bytes:
    """Return the digest of a file's header.

    The key is part of the digest, so that a file under the wrong name is detected.
    """
    return hashlib.sha256(key.encode() + b"\0" + body).digest()


def _fill(file: int, views: list[memoryview], offset: int) -> None:
    """Fill all views from a file, one after another, from `offset` on.

    One call of preadv(2) would read at most 2 GB. Raises TargetError if the file is too short.
    """
    while views:
        got = os.preadv(file, views, offset)
        if not got:
            raise TargetError("the saved state of the guest is truncated")
        offset += got
        while views and got >= len(views[0]):
            got -= len(views.pop(0))
        if views and got:
            views[0] = views[0][got:]


def _header(file: int, key: str, size: int) -> tuple[Sequence[tuple[int, int, int]], bytes, int]:
    """Read and check the header of a saved state's file.

    Returns (runs, state of CPUs and devices, offset of the first run's contents in the file).
    Raises TargetError if the header is damaged.

    Args:
        size: bytes of RAM that the guest has.
    """
    damaged = TargetError("the saved state of the guest is damaged")
    start = len(_MAGIC) + _DIGEST
    head = os.pread(file, start + _COUNTS.size, 0)
    if len(head) < start + _COUNTS.size or not head.startswith(_MAGIC):
        raise damaged
    count, length = _COUNTS.unpack(head[start:])
    end = start + _COUNTS.size + count * _RUN.size + length
    if end > os.fstat(file).st_size:
        raise damaged
    body = os.pread(file, end - start, start)
    if _digest(key, body) != head[len(_MAGIC) : start]:
        raise damaged
    table = memoryview(body)[_COUNTS.size : _COUNTS.size + count * _RUN.size]
    runs = [(at, length, crc) for at, length, crc in _RUN.iter_unpack(table)]
    if any(at + length > size for at, length, _ in runs):
        raise damaged
    return runs, body[len(body) - length :], -(-end // PAGE) * PAGE
