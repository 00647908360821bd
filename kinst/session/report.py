"""What a session tells: data, messages, and how long each stage took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """write: data (stdout or -o).  say: one message for stderr.  progress: long work.

    stop_requested: Ctrl-C or SIGTERM came; until it is called once they end kinst at once.
    started: monotonic seconds when the command began.
    """

    write: Callable[[str], None]
    say: Callable[[str], None]
    progress: Callable[[str, float | None], None]
    stop_requested: Callable[[], bool]
    started: float
    verbose: bool = False
    stages: list[tuple[str, float]] = field(default_factory=list)

    def stage(self, name: str) -> None:
        """The stage that just ended."""
        self.stages.append((name, time.monotonic()))

    def tell_stages(self) -> None:
        """Say how the time until now was spent (-v)."""
        if not self.verbose:
            return
        before, parts = self.started, []
        for name, ended in self.stages:
            parts.append(f"{name} {ended - before:.2f} s")
            before = ended
        total = self.stages[-1][1] - self.started if self.stages else 0.0
        self.say(f"kinst: {total:.2f} s to the {self.stages[-1][0]}: {', '.join(parts)}")

    def detail(self, text: str) -> None:
        """Say it with -v only."""
        if self.verbose:
            self.say(text)
