"""Cleaning of dynamic variables: making freed entries of associative arrays usable again.

A clause may find an entry just before another CPU frees it, and read or write the entry after that.
So a freed entry has two states before it is free again, as in DTrace: first dirty, then rinsing. No
clause finds such an entry. One step after the rinsing began, the cleaner notes which CPUs are in a
clause. When all these clauses have ended, the rinsing entries become free.

Only this code changes the tag of a dirty or rinsing entry. On x86 a CPU's stores become visible in
their order and within far less time than passes between two calls of clean().
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from kinst.consumer.rings import words
from kinst.core.layout import STATE_SEQUENCE, Scratch
from kinst.core.records import (
    DYNAMIC_DIRTY,
    DYNAMIC_LINE,
    DYNAMIC_RINSING,
    DYNAMIC_STATE,
    DynamicLayout,
)

Tags = npt.NDArray[np.uint64]


class Cleaner:
    """Cleaner of the tables of a program's associative arrays, whose entries all CPUs share. Only
    one thread at a time may call clean()."""

    def __init__(
        self,
        view: memoryview | npt.NDArray[np.uint8],
        scratch: Scratch,
        layouts: tuple[DynamicLayout, ...],
        rate: int,
    ) -> None:
        """
        Args:
            view: the scratch, writable.
            scratch: layout of the scratch.
            layouts: layouts of the tables of all dynamic variables. Tables of thread-local
                variables are not cleaned, because their freed entries are usable at once.
            rate: ns from one step of cleaning to the next (option cleanrate).
        """
        self._state = words(view, scratch.size)
        self._sequences = [
            (scratch.state_of(slot) + STATE_SEQUENCE) >> 3 for slot in range(scratch.cpus + 1)
        ]
        self._tables: list[Tags] = []
        for layout in layouts:
            if layout.shared:
                start = (scratch.dynamic + layout.area) >> 3
                size = layout.buckets * layout.stride >> 3
                table = self._state[start : start + size].reshape(layout.buckets, -1)
                self._tables.append(table[:, 1 : DYNAMIC_LINE // 8])
        self._rate = rate
        self._due = 0
        self._running: list[tuple[int, int]] | None = None

    def clean(self, now: int | None = None) -> None:
        """Do one step of cleaning if it is due: let dirty entries rinse, or free the entries that
        have rinsed.

        Args:
            now: monotonic time in ns; by default the time now.
        """
        if not self._tables:
            return
        now = time.monotonic_ns() if now is None else now
        if now < self._due:
            return
        self._due = now + self._rate
        if self._running is None:
            if self._change(DYNAMIC_DIRTY, DYNAMIC_RINSING):
                self._running = []
            return
        if not self._running:
            # A clause that runs now may still use an entry that is rinsing.
            seen = [(at, int(self._state[at])) for at in self._sequences]
            self._running = [(at, value) for at, value in seen if value & 1]
        self._running = [(at, v) for at, v in self._running if int(self._state[at]) == v]
        if not self._running:
            self._change(DYNAMIC_RINSING, 0)
            self._running = None

    def _change(self, before: int, after: int) -> int:
        """Change the tags of all entries in state `before` to state `after`, and return the number
        of these entries. If `after` is 0, clear the whole tag: the entry is free.

        Args:
            before: state as in a tag's low bits: DYNAMIC_DIRTY or DYNAMIC_RINSING.
            after: DYNAMIC_RINSING or 0.
        """
        count = 0
        for table in self._tables:
            rows, columns = np.nonzero((table & np.uint64(DYNAMIC_STATE)) == before)
            tags = table[rows, columns]
            keep = ~np.uint64(DYNAMIC_STATE) if after else np.uint64(0)
            table[rows, columns] = (tags & keep) | np.uint64(after)
            count += len(rows)
        return count
