"""Reports of a session besides events: messages, progress, and how long each stage took.

Tested by tests/cli/test_progress.py and tests/failures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """Receivers of a session's messages.

    Attributes:
        say: takes one message for the user.
        progress: takes the name of long work and the part of it that is done, None if unknown.
        started: monotonic seconds when the command began.
        verbose: whether details are said, too.
        left_out: takes probes that a program matches and that cannot be traced; None: say does.
        confirm: asks whether to download something of so many bytes; None: download it.
    """

    say: Callable[[str], None]
    progress: Callable[[str, float | None], None]
    started: float
    verbose: bool = False
    stages: list[tuple[str, float]] = field(default_factory=list)
    left_out: Callable[[str], None] | None = None
    confirm: Callable[[str, int], bool] | None = None

    def begin(self) -> None:
        """Begin anew for another program on an open machine."""
        self.started = time.monotonic()
        self.stages.clear()

    def stage(self, name: str) -> None:
        """Note the name of the stage that has just ended, and the time."""
        self.stages.append((name, time.monotonic()))

    def tell_stages(self) -> None:
        """Say how long each stage took until now (-v)."""
        if not self.verbose:
            return
        before, parts = self.started, []
        for name, ended in self.stages:
            parts.append(f"{name} {ended - before:.2f} s")
            before = ended
        total = self.stages[-1][1] - self.started if self.stages else 0.0
        self.say(f"kinst: {total:.2f} s to the {self.stages[-1][0]}: {', '.join(parts)}")

    def leave_out(self, text: str) -> None:
        """Say what a program matches and is not traced."""
        (self.left_out or self.say)(text)

    def detail(self, text: str) -> None:
        """Say a message only with -v."""
        if self.verbose:
            self.say(text)
