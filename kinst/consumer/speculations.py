"""Speculated records, kept until their speculation is committed or discarded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

REMEMBERED = 4096  # ended speculations, for records of other CPUs that arrive late


class Speculations:
    """Rows by the number of their speculation's use (core/layout.py HEADER_NSPEC)."""

    def __init__(self) -> None:
        self._kept: dict[int, list[Callable[[], None]]] = {}
        self._ended: OrderedDict[int, bool] = OrderedDict()  # use -> whether it was committed

    def keep(self, use: int, show: Callable[[], None]) -> None:
        """A speculated record; show prints it.  One whose speculation is over is printed or
        forgotten at once."""
        committed = self._ended.get(use)
        if committed is None:
            self._kept.setdefault(use, []).append(show)
        elif committed:
            show()

    def commit(self, use: int) -> None:
        """Print what was kept; 0 is no speculation."""
        for show in self._end(use, True):
            show()

    def discard(self, use: int) -> None:
        """Forget what was kept."""
        self._end(use, False)

    def _end(self, use: int, committed: bool) -> list[Callable[[], None]]:
        if not use:
            return []
        self._ended[use] = committed
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        return self._kept.pop(use, [])
