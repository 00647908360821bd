"""How long a benchmark may take, and what it says of where it is."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Budget:
    """seconds: of all.  Parts of it are asked for by the fraction at which they have to end."""

    seconds: float
    started: float = field(default_factory=time.monotonic)
    failures: list[str] = field(default_factory=list)  # of what was left out

    def used(self) -> float:
        return time.monotonic() - self.started

    def over(self, part: float, more: float = 0.0) -> bool:
        """Whether `part` of the time will be over in `more` seconds."""
        return self.used() + more > part * self.seconds

    def say(self, what: str) -> None:
        """On stderr, with the time, so that whoever waits sees what it is that takes so long."""
        print(f"{self.used():6.0f} s  {what}", file=sys.stderr, flush=True)

    def failed(self, what: str) -> None:
        """Something is not measured: it is told at the end, too."""
        self.failures.append(what)
        self.say(f"FAILED {what}")


def go_first(guests: bool = False) -> str:
    """Give this process, and the guests it starts, priority over whatever else the machine does: a
    round must not share its CPU.  guests: those that it has started already as well.  What to say
    of it; "" where the host does not allow it."""
    try:
        for task in _tasks(os.getpid()) if guests else [0]:
            os.sched_setscheduler(task, os.SCHED_RR, os.sched_param(1))
    except ProcessLookupError:  # one has ended meanwhile
        pass
    except OSError:
        return ""
    return "real-time priority, "


def _tasks(process: int) -> list[int]:
    """Threads of a process and of its children, and so on."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        found.append(int(task.name))
        for child in (task / "children").read_text().split():
            found += _tasks(int(child))
    return found
