"""Choice of trampoline addresses for a machine that finds translated code in a small table (QEMU's
TCG).

Such an emulator finds translated code by a hash of its address (CodeTable). Two pieces of code with
the same table entry evict each other. If both run at a hit, each hit pays two slow look-ups. If
there are few trampolines, kinst puts each of them at the next address whose table entry is free. An
entry is in use if it belongs to another trampoline or to other code that is known to run at hits,
such as the sites and the addresses to which trampolines lead.

kinst does not know what else runs when a site is hit, such as the callers of its function. The
trampolines of many sites would fill the table, so kinst puts many trampolines as close together as
possible.
"""

from __future__ import annotations

import numpy as np

from kinst.core.columns import U64
from kinst.core.machine import CodeTable

_WINDOW = 1 << 12  # bytes whose entries are computed at once
_FURTHEST = 4  # windows that are searched for a free entry
_SHARE = 4  # a quarter of the table's entries may be used


class Apart:
    """Allocator of addresses for trampolines. Each address has its own entry in the machine's table
    of translated code."""

    def __init__(self, table: CodeTable, taken: U64, align: int) -> None:
        """Begin with an empty allocator: only the table entries of the addresses `taken` are in
        use.

        Args:
            table: the machine's table of translated code.
            taken: addresses of code that runs at hits.
            align: alignment in bytes of the addresses to allocate.
        """
        self._table = table
        self._align = align
        self._used = set(table.entry(taken).tolist())
        self._low = 0  # start of the window that was computed last
        self._window: list[int] = []

    def place(self, at: int) -> int:
        """Allocate and return the first aligned address from `at` on whose table entry is free. If
        no address nearby has a free entry, return the first aligned address."""
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
            addresses = np.arange(0, _WINDOW, self._align, dtype=np.uint64) + np.uint64(low)
            self._window = self._table.entry(addresses).tolist()
        return self._window[(address - low) // self._align]


def fits(table: CodeTable, trampolines: int, taken: int) -> bool:
    """Return whether the machine's table of translated code is large enough to give each trampoline
    an entry of its own.

    Args:
        trampolines: number of trampolines.
        taken: number of other addresses whose entries are in use.
    """
    return trampolines + taken <= table.entries // _SHARE
