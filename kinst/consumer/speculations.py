"""Keep speculated records until their speculation is committed or discarded."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

REMEMBERED = 4096  # ended speculations, for records of other CPUs that arrive late

Item = TypeVar("Item")


class Speculations(Generic[Item]):
    """Records by the number of their speculation's use (core/layout.py HEADER_NSPEC)."""

    def __init__(self) -> None:
        self._kept: dict[int, list[Item]] = {}
        self._ended: OrderedDict[int, bool] = OrderedDict()  # use -> whether it was committed

    def keep(self, use: int, record: Item) -> bool:
        """Keep a speculated record, or forget it if its speculation was discarded.  Return True if
        its speculation was committed already: it is to be shown at once."""
        committed = self._ended.get(use)
        if committed is None:
            self._kept.setdefault(use, []).append(record)
        return bool(committed)

    def commit(self, use: int) -> list[Item]:
        """Return the records that were kept, to be shown now; use 0 is no speculation."""
        return self._end(use, True)

    def discard(self, use: int) -> None:
        """Forget the records that were kept."""
        self._end(use, False)

    def _end(self, use: int, committed: bool) -> list[Item]:
        if not use:
            return []
        self._ended[use] = committed
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        return self._kept.pop(use, [])
