"""Storage for speculated records until their speculation is committed or discarded."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

REMEMBERED = 4096  # ended speculations to remember, for records of other CPUs that arrive late

Item = TypeVar("Item")


class Speculations(Generic[Item]):
    """Speculated records that are neither committed nor discarded yet.

    A speculation is known by its use number, which is in its records. D programs use the same
    speculation id again after a commit() or discard(), but each time with another use number
    (core/layout.py, HEADER_NSPEC)."""

    def __init__(self) -> None:
        self._kept: dict[int, list[Item]] = {}
        self._ended: OrderedDict[int, bool] = OrderedDict()  # use -> whether it was committed

    def keep(self, use: int, record: Item) -> bool:
        """Handle a record of a speculation. If the speculation was committed, return True: the
        caller must show the record now. Otherwise return False.

        The record is stored while the speculation is neither committed nor discarded, and dropped
        if the speculation was discarded.

        Args:
            use: use number of the speculation.
        """
        committed = self._ended.get(use)
        if committed is None:
            self._kept.setdefault(use, []).append(record)
        return bool(committed)

    def commit(self, use: int) -> list[Item]:
        """Mark a speculation as committed. Return its stored records, for the caller to show now,
        and remove them from here. The use number 0 means no speculation and has no records."""
        return self._end(use, True)

    def discard(self, use: int) -> None:
        """Mark a speculation as discarded and drop its stored records. The use number 0 means no
        speculation."""
        self._end(use, False)

    def _end(self, use: int, committed: bool) -> list[Item]:
        if not use:
            return []
        self._ended[use] = committed
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        return self._kept.pop(use, [])
