"""Places for trampolines that a machine with a table of code addresses finds as quickly as it can.

An emulator finds translated code in a small table by a hash of its address (CodeTable).  A
trampoline whose entry in that table is also that of a block that runs with it costs a slow look-up
at every hit, and another one for that block.  So each of a few trampolines is put at the next
address whose entry is free: it differs from those of the other trampolines, of the sites, of where
trampolines lead, and of the code near the sites that is known to be looked up.

Not known here: what else runs when a site is hit, as the callers of its function.  Of many sites
the table would be full, and trampolines lie as close as they can.
"""

from __future__ import annotations

import numpy as np

from kinst.core.columns import U64
from kinst.core.machine import CodeTable

_WINDOW = 1 << 12  # bytes whose entries are worked out at once
_FURTHEST = 4  # windows that are looked through for a free entry
_SHARE = 4  # a table may be filled to one part in so many


class Apart:
    """Hands out places, each with an entry of its own."""

    def __init__(self, table: CodeTable, taken: U64, align: int) -> None:
        """taken: addresses whose entries are in use.  align: of places, in bytes."""
        self._table = table
        self._align = align
        self._used = set(table.entry(taken).tolist())
        self._low = 0  # start of the window that was worked out last
        self._window: list[int] = []

    def place(self, at: int) -> int:
        """The first place from `at` on whose entry is free, which it is not from now on; the
        first place of all if there is none near."""
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
    """Whether so few trampolines can be put apart from each other, and from so many addresses."""
    return trampolines + taken <= table.entries // _SHARE
