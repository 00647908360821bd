"""Steps of long work on stderr: each when it begins, and again while it goes on.

Tested by tests/cli/test_steps.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

AGAIN = 4.0  # seconds without a message until a step is said again
_LOOKS = 8  # in that time


class Steps:
    """Says which step is being done.  A context manager: a thread repeats the step until exit."""

    def __init__(self, say: Callable[[str], None], again: float = AGAIN) -> None:
        """Begin without a step.

        Args:
            say: takes one message, from any thread.
            again: seconds after which a step that goes on is said again.
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
        """Say a step that begins now."""
        self._step = step
        self._began = self._said = time.monotonic()
        self._say(f"kinst: {step}")

    def _repeat(self) -> None:
        while not self._over.wait(self._again / _LOOKS):
            now = time.monotonic()
            if self._step and now - self._said >= self._again:
                self._said = now
                self._say(f"kinst: {self._step}: {now - self._began:.0f} s so far")
