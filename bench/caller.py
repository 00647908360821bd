"""The guest's process that makes a benchmark's calls (tests/programs/rounds.c, `rounds serve`).

QEMU finds pages of memory in small direct-mapped tables.  Which of a call's pages meet there is
decided by the addresses of a process's stacks, and so anew by each exec: a read(2) of one process
took 0.85 us and that of the next one 1.2 us, with nothing planted.  So all takes of a boot are of
one process; and where its calls cost more than they do elsewhere, another one is tried.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.guest import Guest
from bench.hit_tools import Effort, rounds_of

_TRIAL = Effort(200, 600)  # long enough to have a stretch in which the machine is not slow
_ALIKE = 1.1  # times the least call so far: no more pages meet than there
_FIRST, _TRIES = 4, 8  # processes that are tried when none is known yet, and at most


@dataclass(slots=True)
class Callers:
    """Starts such processes.  least: ns of a call of the best one that there was in any guest."""

    least: float = float("inf")

    def begin(self, guest: Guest) -> None:
        """Leave one in this guest whose calls cost what they cost in the best of the others, or
        the last that was tried."""
        known = self.least < float("inf")
        for tried in range(1, _TRIES + 1):
            guest.run("rounds serve")
            took = min(rounds_of(guest.run(_TRIAL.command)))
            self.least = min(self.least, took)
            if took <= _ALIKE * self.least and (known or tried >= _FIRST):
                break
