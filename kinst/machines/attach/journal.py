"""Journal of an attached machine: a file with the changes that must be undone.

kinst and its guardian may both be killed, such as by a lack of memory. Then the next start of kinst
undoes the changes in the journal. A journal belongs to one QEMU process and one boot of the host. A
record is written before its change is made; a change of code has a second record afterwards.
Records have checksums. The journal ends before the first record that is incomplete; the change of
that record was never made. The file need not be synced to disk, since the guest ends with the host.

A record: kind, 1 byte | size of the content | CRC-32 of kind and content | content
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np

from kinst.core.paths import cache_folder
from kinst.machines.attach.changes import Addresses, Bytes, Changes
from kinst.machines.attach.guest_allocation import GuestAllocation
from kinst.wire.child_process import boot_id

_FOLDER = "planted"
_HEAD = struct.Struct("<cII")
_TEXT, _WRITTEN, _KEPT, _TABLE, _MAPPED, _ALLOCATION = b"t", b"w", b"k", b"p", b"m", b"l"
_ENTRY = struct.Struct("<QI")  # physical address of a page-table entry, bytes
_RANGE = struct.Struct("<QQ")


class Journal:
    """Journal of one QEMU process, which its process id and start time identify."""

    def __init__(self, pid: int, started: str, folder: Path | None = None) -> None:
        """Name the journal's file, without opening it.

        Args:
            started: the process's start time.
            folder: the folder of journals; None for the folder of journals in the cache.
        """
        self._folder = folder or cache_folder() / _FOLDER
        self._path = self._folder / f"{boot_id()}-{pid}-{started}"

    @property
    def is_there(self) -> bool:
        """Whether the journal has records, so that an earlier kinst may have left changes."""
        with suppress(OSError):
            return self._path.stat().st_size > 0
        return False

    @property
    def is_begun(self) -> bool:
        """Whether the journal's file exists, so that an earlier kinst may have left the machine
        stopped.
        """
        return self._path.exists()

    def over(self) -> None:
        """Delete the journal, after all changes were undone."""
        with suppress(OSError):
            self._path.unlink()

    def begin(self) -> None:
        """Start an empty journal, and delete the journals of processes that have ended."""
        with suppress(OSError):
            for path in self._folder.glob("*-*-*"):
                boot, pid, _ = path.name.rsplit("-", 2)
                if boot != boot_id() or not os.path.exists(f"/proc/{pid}"):
                    path.unlink()
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._path.write_bytes(b"")
        except OSError:
            self.over()

    def text(self, addresses: Addresses, before: Bytes, now: Bytes) -> None:
        """Record bytes of code that are about to be changed, as changed_bytes() returns them.

        Args:
            addresses: address of each byte.
            before: the old values.
            now: the new values.
        """
        if len(addresses):
            arrays = addresses.astype("<u8"), before, now
            self._note(_TEXT, b"".join(array.tobytes() for array in arrays))

    def written(self) -> None:
        """Record that the last change of code was made."""
        self._note(_WRITTEN, b"")

    def kept(self) -> None:
        """Record that the last change of code was made, and is not to be undone."""
        self._note(_KEPT, b"")

    def table(self, address: int, before: bytes, now: bytes) -> None:
        """Record a page-table entry that is about to be changed.

        Args:
            address: physical address of the entry.
            before: its old bytes.
            now: its new bytes.
        """
        self._note(_TABLE, _ENTRY.pack(address, len(now)) + before + now)

    def mapped(self, start: int, end: int) -> None:
        """Record a range [start, end) of virtual addresses that is about to be mapped."""
        self._note(_MAPPED, _RANGE.pack(start, end))

    def allocation(self, allocation: GuestAllocation) -> None:
        """Record the present state of the memory that is allocated in the guest."""
        about = [allocation.pieces, allocation.tables, allocation.shared, allocation.was]
        self._note(_ALLOCATION, json.dumps(about).encode())

    def _note(self, kind: bytes, content: bytes) -> None:
        data = _HEAD.pack(kind, len(content), zlib.crc32(content, zlib.crc32(kind))) + content
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # abandoned, by kinst or its guardian
        except OSError:
            handle = -1
        written = 0
        if handle >= 0:
            with open(handle, "ab", buffering=0) as file, suppress(OSError):
                written = file.write(data)
        if written != len(data):
            # The disk is full or read-only.  An incomplete journal would restore only part of the
            # changes; the guardian has all of them.
            self.over()

    def read(self) -> tuple[Changes, GuestAllocation | None]:
        """Return the changes and the allocated memory that the journal says must be undone."""
        changes, allocation = Changes(), None
        try:
            data = self._path.read_bytes()
        except OSError:
            return changes, None
        at = 0
        while at + _HEAD.size <= len(data):
            kind, size, total = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            content = data[at : at + size]
            at += size
            if zlib.crc32(content, zlib.crc32(kind)) != total or len(content) != size:
                break
            if kind == _ALLOCATION:
                allocation = _allocation_of(content)
            else:
                _take(changes, kind, content)
        return changes, allocation


def _take(changes: Changes, kind: bytes, content: bytes) -> None:
    if kind == _TEXT:
        count = len(content) // 10
        addresses = np.frombuffer(content, "<u8", count).astype(np.uint64)
        before, now = np.frombuffer(content, np.uint8, 2 * count, 8 * count).reshape(2, count)
        changes.note_text(addresses, before, now)
    elif kind == _WRITTEN:
        changes.note_written()
    elif kind == _KEPT:
        changes.note_kept()
    elif kind == _TABLE:
        address, size = _ENTRY.unpack_from(content)
        values = content[_ENTRY.size :]
        changes.tables.append((address, values[:size], values[size:]))
    elif kind == _MAPPED:
        changes.mapped.append(_RANGE.unpack(content))


def _allocation_of(content: bytes) -> GuestAllocation:
    pieces, tables, shared, was = json.loads(content)
    places = [(one[0], one[1], one[2]) for one in pieces]
    files = None if was is None else [(one[0], one[1], one[2], one[3]) for one in was]
    return GuestAllocation(places, (tables[0], tables[1], tables[2]), bool(shared), files)
