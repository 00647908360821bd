"""Timers of probes: when each is due next, and how many of its firings were missed."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from kinst.core.probe import Probe
from kinst.session.values import EnabledSite

DueTimer = tuple[int, EnabledSite]  # (when it was due, the probe)


class Timers:
    """Timers of probes such as tick-N, all fired by one loop; times are ns of the caller's clock.

    If a timer cannot be fired in one of its periods, that firing is counted as missed, and not made
    up for: a loop that makes up for missed firings might never end.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, EnabledSite]] = []
        self._earliest = 0  # no timer is due before
        self._missed: dict[Probe, int] = {}

    def start(self, enabled: Iterable[EnabledSite], now: int) -> None:
        """Start the timers of these probes; each is first due one period after `now`."""
        for site in enabled:
            assert site.timer is not None
            heapq.heappush(self._heap, (now + site.timer.period_ns, site.probe.id, site))

    def due(self, now: int) -> list[DueTimer]:
        """Remove and return the timers that are due, each once, in the order of their times.

        fired() schedules them again.
        """
        found: list[DueTimer] = []
        while now >= self._earliest and self._heap and self._heap[0][0] <= now:
            when, _, site = heapq.heappop(self._heap)
            found.append((when, site))
        return found

    def fired(self, timers: Sequence[DueTimer], earliest: int) -> None:
        """Schedule timers again, after due() has returned them and the caller has fired them.

        A timer is due again when one of its periods ends, but not before `earliest`. The periods
        that end before `earliest` count as missed firings.

        Args:
            timers: as due() returned them.
            earliest: time before which due() returns no timer at all.
        """
        self._earliest = earliest
        for when, site in timers:
            assert site.timer is not None
            period = site.timer.period_ns
            missed = max(0, -((when - earliest) // period) - 1)
            if missed:
                self._missed[site.probe] = self._missed.get(site.probe, 0) + missed
            heapq.heappush(self._heap, (when + (missed + 1) * period, site.probe.id, site))

    def next(self) -> int | None:
        """Return the time at which the next timer is due; None if there are no timers."""
        return max(self._heap[0][0], self._earliest) if self._heap else None

    def take_missed(self) -> list[tuple[Probe, int]]:
        """Return how many firings each probe has missed since the last call."""
        missed, self._missed = list(self._missed.items()), {}
        return missed
