"""Reports of a session besides events: messages, progress, and the time that each stage took.

Tested by tests/cli/test_progress.py and tests/failures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import field

from kinst.core.dataclass import dataclass

_LONG = 1.0  # seconds of work after which its progress is reported
MANY_PROBES = 10_000  # work on so many probes takes seconds, so its progress is reported


@dataclass(slots=True)
class Report:
    """Receivers of a session's messages.

    Attributes:
        say: called with one message for the user.
        progress: called with the name of a piece of long work, and the fraction of it that is done:
            0 to 1, None if not known.
        started: monotonic seconds when the command began.
        verbose: whether details are reported (-v).
        stages: name and end, in monotonic seconds, of each stage so far.
        left_out: called with a message about probes that a program matches and kinst cannot trace;
            None to call `say`.
        on_stage: called with the name of each stage that has ended; None to call nothing.
        confirm: called to ask whether to download something of so many bytes; None to download
            without asking.
    """

    say: Callable[[str], None]
    progress: Callable[[str, float | None], None]
    started: float
    verbose: bool = False
    stages: list[tuple[str, float]] = field(default_factory=list)
    left_out: Callable[[str], None] | None = None
    confirm: Callable[[str, int], bool] | None = None
    on_stage: Callable[[str], None] | None = None

    def begin(self) -> None:
        """Forget the stages, and start the time anew for another program on an open machine."""
        self.started = time.monotonic()
        self.stages.clear()

    def stage(self, name: str) -> None:
        """Record that a stage has just ended."""
        self.stages.append((name, time.monotonic()))
        if self.on_stage is not None:
            self.on_stage(name)

    def tell_stages(self) -> None:
        """Report how long each stage took so far, if details are reported (-v)."""
        if not self.verbose:
            return
        before, parts = self.started, []
        for name, ended in self.stages:
            parts.append(f"{name} {ended - before:.2f} s")
            before = ended
        total = self.stages[-1][1] - self.started if self.stages else 0.0
        self.say(f"kinst: {total:.2f} s to the {self.stages[-1][0]}: {', '.join(parts)}")

    def part(self, work: str, start: float, end: float) -> Callable[[float], None]:
        """Return a function that reports progress during one part of some work.

        The returned function takes how much of the part is done, 0 to 1. It reports how much of the
        whole work is done.

        Args:
            work: name of the whole work.
            start: how much of the whole work is done when the part begins, 0 to 1.
            end: how much of the whole work is done when the part ends.
        """
        return lambda done: self.progress(work, start + (end - start) * done)

    def if_long(self, work: str) -> Callable[[float], None]:
        """Return a function that reports how much of some work is done, 0 to 1, once the work has
        taken a second.

        Args:
            work: name of the work.
        """
        begun, shown = time.monotonic(), False

        def report(done: float) -> None:
            nonlocal shown
            if shown or (done < 1 and time.monotonic() - begun > _LONG):
                shown = True
                self.progress(work, done)

        return report

    def leave_out(self, text: str) -> None:
        """Report probes that a program matches and that are not traced."""
        (self.left_out or self.say)(text)

    def detail(self, text: str) -> None:
        """Report a message if details are reported (-v)."""
        if self.verbose:
            self.say(text)
