"""Clock of a guest whose kernel has no clock yet: the time for which QEMU has let it run.

Tested by tests/machines/vm/test_run_clock.py and tests/vm/boot.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kinst.wire.qmp import OwnMonitor


class RunClock:
    """Time for which a guest has run, by QEMU's events STOP and RESUME.

    Each of these events has the host's time, in microseconds, at which QEMU stopped or started the
    guest's own clocks. So this time does not pass while the guest is stopped. It does not depend on
    when kinst learns of a stop.
    """

    def __init__(self, monitor: OwnMonitor) -> None:
        """Begin with a guest that has never run."""
        self._monitor = monitor
        self._ran = 0  # ns up to the last stop
        self._since: int | None = (
            None  # when the guest was resumed, in ns; None while it is stopped
        )
        monitor.on_event = self._take
        monitor.agree()

    def now(self) -> int:
        """Return for how many ns the guest has run."""
        # QEMU answers commands and sends events in the order in which they happen.
        self._monitor.execute("query-status")
        return self._ran + (0 if self._since is None else max(0, time.time_ns() - self._since))

    def _take(self, event: Mapping[str, Any]) -> None:
        stamp = event.get("timestamp", {})
        at = 1000 * (1_000_000 * stamp.get("seconds", 0) + stamp.get("microseconds", 0))
        if event.get("event") == "RESUME" and self._since is None:
            self._since = at
        elif event.get("event") == "STOP" and self._since is not None:
            self._ran += max(0, at - self._since)
            self._since = None
