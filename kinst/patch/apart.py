"""Choose addresses of trampolines for a machine that finds translated code in a small table.

An emulator finds translated code by a hash of its address (CodeTable).  Two pieces of code that
have one entry evict each other: if both run at a hit, each hit pays two slow look-ups.  So kinst
puts each of a few trampolines at the next address whose entry is free: not in use by another
trampoline, by a site, by an address that a trampoline leads to, or by code near the sites.

kinst does not know what else runs when a site is hit, such as the callers of its function.  The
trampolines of many sites would fill the table, so they lie as close together as they can.
"""

from __future__ import annotations

import numpy as np

from kinst.core.columns import U64
from kinst.core.machine import CodeTable

_WINDOW = 1 << 12  # bytes whose entries are computed at once
_FURTHEST = 4  # windows that are searched for a free entry
_SHARE = 4  # a quarter of the table's entries may be used


class Apart:
    """Allocator of places, each with a table entry of its own."""

    def __init__(self, table: CodeTable, taken: U64, align: int) -> None:
        """Begin with the entries of `taken` in use.

        Args:
            table: of the machine.
            taken: addresses of code that runs at hits.
            align: of places, in bytes.
        """
        self._table = table
        self._align = align
        self._used = set(table.entry(taken).tolist())
        self._low = 0  # start of the window that was computed last
        self._window: list[int] = []

    def place(self, at: int) -> int:
        """Take the first place from `at` on whose entry is free, or the first place of all if no
        entry near is free."""
        first = at + self._align - 1 & -self._align
        for where in range(first, first + _FURTHEST * _WINDOW, self._align):
            entry = self._entry(where)
            if entry not in self._used:
                self._used.add(entry)
                return where
        return first

    def _entry(self, address: int) -> int:
        low = address & -_WINDOW
        if low != self._low or not self._window:
            self._low = low
            places = np.arange(0, _WINDOW, self._align, dtype=np.uint64) + np.uint64(low)
            self._window = self._table.entry(places).tolist()
        return self._window[(address - low) // self._align]


def fits(table: CodeTable, trampolines: int, taken: int) -> bool:
    """Return whether the table has room for so many trampolines and addresses in use."""
    return trampolines + taken <= table.entries // _SHARE
