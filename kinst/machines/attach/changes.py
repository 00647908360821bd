"""Guardian's record of what kinst has changed in an attached machine, byte by byte.

Tested by tests/machines/attach/test_guardian.py and tests/machines/attach/test_journal.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field

import numpy as np
import numpy.typing as npt

from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError
from kinst.core.words import PAGE
from kinst.machines.attach.near_reads import read_ranges

Read = Callable[[int, int], bytes]
Bytes = npt.NDArray[np.uint8]
Addresses = npt.NDArray[np.uint64]


def changed_bytes(
    writes: Sequence[tuple[int, bytes]], read: Read
) -> tuple[Addresses, Bytes, Bytes]:
    """Return the addresses, the old values and the new values of the bytes that writes will change.

    A byte that a write does not change is not in the result. The kernel may change such a byte
    later, and kinst must not restore it.

    Args:
        writes: (address, bytes) of each write.
        read: reads memory before the writes.
    """
    if not writes:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint8), np.zeros(0, np.uint8)
    old = b"".join(read_ranges(read, [(address, len(data)) for address, data in writes]))
    before, now = (
        np.frombuffer(old, np.uint8),
        np.frombuffer(b"".join(d for _, d in writes), np.uint8),
    )
    sizes = np.array([len(data) for _, data in writes], np.int64)
    starts = np.array([address for address, _ in writes], np.uint64)
    ends = np.cumsum(sizes)
    inside = np.arange(len(before)) - np.repeat(ends - sizes, sizes)
    differs = np.flatnonzero(before != now)
    addresses = np.repeat(starts, sizes)[differs] + inside[differs].astype(np.uint64)
    return addresses, before[differs], now[differs]


@dataclass(slots=True)
class Changes:
    """Changes that kinst has made in an attached machine, or was about to make.

    Attributes:
        text: map from the address of each changed byte of code to (original value, values that
            kinst may have written). There are several such values if it is not known whether a
            write was made.
        noted: map from the address of each byte of the last write to its new value; empty after
            that write is known to have been made.
        ever: addresses of all bytes of code that were ever changed.
        tables: (physical address, old bytes, new bytes) of page-table entries, in the order of the
            changes.
        mapped: ranges [start, end) of virtual addresses that these entries map.
    """

    text: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    noted: dict[int, int] = field(default_factory=dict)
    ever: list[Addresses] = field(default_factory=list)
    tables: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    mapped: list[tuple[int, int]] = field(default_factory=list)

    def note_text(self, addresses: Addresses, before: Bytes, now: Bytes) -> None:
        """Record bytes of code that are about to be written.

        Args:
            addresses: their addresses; all arguments are as changed_bytes() returns them.
            before: their old values.
            now: their new values.
        """
        self.noted = dict(zip(addresses.tolist(), now.tolist(), strict=True))
        for at, old, new in zip(addresses.tolist(), before.tolist(), now.tolist(), strict=True):
            first, ours = self.text.get(at, (old, b""))
            self.text[at] = first, ours if new == first or new in ours else ours + bytes((new,))
        self.ever.append(addresses)

    def note_written(self) -> None:
        """Record that the last write was made, and forget bytes that have their original value
        again.
        """
        for at, new in self.noted.items():
            first, _ = self.text[at]
            if new == first:
                del self.text[at]
            else:
                self.text[at] = first, bytes((new,))
        self.noted = {}

    def note_kept(self) -> None:
        """Record that the last write was made, and is not to be undone."""
        for at in self.noted:
            del self.text[at]
        self.noted = {}

    def sites(self) -> Addresses:
        """Return the addresses of all bytes of code that were ever changed, each once,
        ascending.
        """
        return np.unique(np.concatenate([np.zeros(0, np.uint64), *self.ever]))

    def restored(self, read: Read, last: Sequence[tuple[int, int]] = ()) -> list[tuple[int, bytes]]:
        """Return writes that restore the original code. Bytes that are no longer kinst's, since the
        kernel has changed them, are left out.

        The caller makes these writes, and then calls undone().

        Args:
            read: reads memory.
            last: ranges [start, end) of code to leave out, since it is restored later (hooks).
        """
        writes: list[tuple[int, bytearray]] = []
        page, live = -1, b""
        excluded = self._inside(last)
        for at, (first, ours) in sorted(self.text.items()):
            if at in excluded:
                continue
            if page != at & -PAGE:
                page, live = at & -PAGE, b""
                with suppress(TargetError):  # a module that was unloaded meanwhile
                    live = read(page, PAGE)
            if not live or live[at - page] not in ours:
                continue
            if writes and writes[-1][0] + len(writes[-1][1]) == at:
                writes[-1][1].append(first)
            else:
                writes.append((at, bytearray([first])))
        return [(at, bytes(data)) for at, data in writes]

    def undone(self, last: Sequence[tuple[int, int]] = ()) -> None:
        """Record that the writes of restored() were made: only code in `last` is still changed.

        Args:
            last: the ranges [start, end) of code that restored() has left out.
        """
        self.text, self.noted = self._inside(last), {}

    def _inside(self, ranges: Sequence[tuple[int, int]]) -> dict[int, tuple[int, bytes]]:
        return {
            at: self.text[at] for low, high in ranges for at in range(low, high) if at in self.text
        }
