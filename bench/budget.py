"""Time limit of a benchmark, and its progress messages."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Budget:
    """Time limit of a benchmark. Parts of the benchmark end at fractions of it.

    Attributes:
        seconds: limit for the whole benchmark.
        started: time.monotonic() at its start.
        failures: messages about measurements that were left out.
    """

    seconds: float
    started: float = field(default_factory=time.monotonic)
    failures: list[str] = field(default_factory=list)

    def used(self) -> float:
        return time.monotonic() - self.started

    def over(self, part: float, more: float = 0.0) -> bool:
        """Return whether a fraction of the time limit will have passed `more` seconds from now.

        Args:
            part: the fraction, 0 to 1.
            more: seconds.
        """
        return self.used() + more > part * self.seconds

    def say(self, what: str) -> None:
        """Print a progress message to stderr, with the time used so far."""
        print(f"{self.used():6.0f} s  {what}", file=sys.stderr, flush=True)

    def failed(self, what: str) -> None:
        """Report that something could not be measured, now and in the final report."""
        self.failures.append(what)
        self.say(f"FAILED {what}")


def go_first(guests: bool = False) -> str:
    """Give this process and its later guests real-time priority, so that other processes do not
    disturb a round.

    Return a phrase for the report; "" if the host does not allow real-time priority.

    Args:
        guests: whether to include the guests that run already.
    """
    try:
        for task in _tasks(os.getpid()) if guests else [0]:
            os.sched_setscheduler(task, os.SCHED_RR, os.sched_param(1))
    except ProcessLookupError:  # a thread has ended after it was listed
        pass
    except OSError:
        return ""
    return "real-time priority, "


def _tasks(process: int) -> list[int]:
    """Return the ids of the threads of a process and of all its descendants."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        found.append(int(task.name))
        for child in (task / "children").read_text().split():
            found += _tasks(int(child))
    return found
