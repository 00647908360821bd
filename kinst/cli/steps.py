"""Messages about the steps of long work: one when a step begins, and another one every few seconds
until it ends.

Tested by tests/cli/test_steps.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

AGAIN = 4.0  # seconds after which a step that goes on is said again
_LOOKS = 8  # how often the thread checks in that time


class Steps:
    """Reporter of the steps of long work: it prints a message when a step begins, and again while
    the step goes on. A context manager: a thread repeats messages until the with block ends."""

    def __init__(self, say: Callable[[str], None], again: float = AGAIN) -> None:
        """Make a reporter without a step.

        Args:
            say: prints a message; called from several threads.
            again: seconds after which the message of a step that goes on is repeated.
        """
        self._say, self._again = say, again
        self._step = ""
        self._began = self._said = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="steps", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def begin(self, step: str) -> None:
        """Begin a step, and print its message."""
        self._step = step
        self._began = self._said = time.monotonic()
        self._say(f"kinst: {step}")

    def _repeat(self) -> None:
        while not self._over.wait(self._again / _LOOKS):
            now = time.monotonic()
            if self._step and now - self._said >= self._again:
                self._said = now
                self._say(f"kinst: {self._step}: {now - self._began:.0f} s so far")
