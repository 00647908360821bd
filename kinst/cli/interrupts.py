"""Handlers of the signals that end a trace, or kinst itself.

Tested by tests/vm/endings/test_signals.py and tests/vm/endings/test_endings.py.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from kinst.cli.guard import Interrupted

if TYPE_CHECKING:
    from kinst.api import Trace


class Interrupts:
    """Handlers of SIGINT (Ctrl-C), SIGTERM and SIGHUP.

    While a trace runs, the first signal asks the trace to end, and the second one ends kinst at
    once. Without a trace (while kinst boots, compiles or lists), the first signal ends kinst at
    once. SIGHUP stays ignored if kinst was started with nohup(1).
    """

    def __init__(self) -> None:
        self._arrivals = 0
        self._trace: Trace | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._arrived)

    def _arrived(self, number: int, frame: object) -> None:
        self._arrivals += 1
        if self._arrivals > 1 or self._trace is None:
            raise Interrupted(number)
        self._trace.stop()

    def end(self, trace: Trace) -> None:
        """Let the next signal ask this trace to end."""
        self._trace = trace

    def over(self) -> None:
        """Let the next signal end kinst, because the trace has ended."""
        self._trace = None
