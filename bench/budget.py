"""The time that a benchmark may take, and its progress messages."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Budget:
    """Time of a benchmark; a part of it ends at a fraction of all.

    Attributes:
        seconds: of the whole benchmark.
        started: time.monotonic() at its start.
        failures: measurements that were left out.
    """

    seconds: float
    started: float = field(default_factory=time.monotonic)
    failures: list[str] = field(default_factory=list)

    def used(self) -> float:
        return time.monotonic() - self.started

    def over(self, part: float, more: float = 0.0) -> bool:
        """Return whether the fraction `part` of the time will be over in `more` seconds."""
        return self.used() + more > part * self.seconds

    def say(self, what: str) -> None:
        """Print progress to stderr, with the time."""
        print(f"{self.used():6.0f} s  {what}", file=sys.stderr, flush=True)

    def failed(self, what: str) -> None:
        """Report that something is not measured, now and at the end."""
        self.failures.append(what)
        self.say(f"FAILED {what}")


def go_first(guests: bool = False) -> str:
    """Give this process and its later guests real-time priority, so that a round need not share
    its CPU.

    Returns the words for a report, "" if the host does not allow it.

    Args:
        guests: also for the guests that run already.
    """
    try:
        for task in _tasks(os.getpid()) if guests else [0]:
            os.sched_setscheduler(task, os.SCHED_RR, os.sched_param(1))
    except ProcessLookupError:  # a thread has ended meanwhile
        pass
    except OSError:
        return ""
    return "real-time priority, "


def _tasks(process: int) -> list[int]:
    """Return the threads of a process and of all its descendants."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        found.append(int(task.name))
        for child in (task / "children").read_text().split():
            found += _tasks(int(child))
    return found
