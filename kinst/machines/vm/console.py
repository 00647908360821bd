"""The kernel's console: its last lines, and what in them an error's reader should see."""

from __future__ import annotations

import re
import time
from collections import deque

from kinst.core.machine import Complaint

_KEPT_LINES = 2000
_LAST_LINES = 30
_TROUBLE_LINES = 120  # of the console's end in which trouble is looked for
_PANIC = re.compile(r"Kernel panic - not syncing: .*")
_TROUBLE = re.compile(
    # A CPU or a task that makes no progress (kernel/watchdog.c, rcu/tree_stall.h, hung_task.c).
    r"(?P<hang>(?:watchdog: )?BUG: soft lockup.*|.*hard LOCKUP.*|BUG: workqueue lockup.*|"
    r".*rcu.* (?:detected|self-detected) (?:expedited )?stalls?\b.*|.*hung_task: .*|"
    r"INFO: task .* blocked for more than .*)|"
    r"(?P<oops>BUG: .*|Oops: .*|general protection fault.*|PANIC: .*|"
    # What die() of an architecture says, whatever it died of: "int3: 0000 [#1] SMP".
    r"\w[\w: -]*: [0-9a-f]{4,16} \[#\d+\].*|\w[\w -]* \[#\d+\])|"
    # Of WARN() (with the place first since Linux 6.19) and of lockdep and its like.
    r"(?P<warn>WARNING: (?:CPU: |\S+:\d+ at |possible |suspicious |inconsistent |bad |held |"
    r"lock held |Nested ).*)"
)
_LOST_BREAKPOINT = "Oops: int3: 0000"
_INIT_RUNS = re.compile(r"Run \S+ as init process")


class Console:
    """What the kernel printed.

    lines: the last of them, whole.  heard: when something came last (time.monotonic()).
    panic, panic_at: its message, "" before there is one, and when it came.  warnings: lines of
    trouble that is not a panic.  init_runs: whether the kernel said that it starts init.
    lost_breakpoint: whether it died of a breakpoint that is not in memory any more, but in QEMU's
    translation (stale.py): 6.1 goes back to it for ever, 7.3 takes it for a fault.
    """

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.heard = time.monotonic()
        self.panic = ""
        self.panic_at = 0.0
        self.warnings: list[Complaint] = []
        self.init_runs = False
        self.lost_breakpoint = False
        self._partial = ""

    def take(self, data: bytes) -> None:
        """Some more of it, cut anywhere."""
        self.heard = time.monotonic()
        *lines, self._partial = (self._partial + data.decode("utf-8", "replace")).split("\n")
        for line in lines:
            line = line.rstrip("\r")
            self.lines.append(line)
            if not self.panic and (found := _PANIC.search(line)):
                self.panic, self.panic_at = found[0], time.monotonic()
            elif found := _TROUBLE.search(line):
                self.warnings.append(Complaint(found.lastgroup or "oops", found[0]))
            if _LOST_BREAKPOINT in line:
                self.lost_breakpoint = True
            if _INIT_RUNS.search(line):
                self.init_runs = True

    def last_lines(self) -> str:
        """From the first line of trouble on, or the end, for an error's reader."""
        lines = [*self.lines, self._partial.rstrip("\r")]
        recent = lines[-_TROUBLE_LINES:]
        bad = (k for k, line in enumerate(recent) if _PANIC.search(line) or _TROUBLE.search(line))
        start = next(bad, None)
        shown = lines[-_LAST_LINES:] if start is None else recent[start:]
        return "\n".join(shown).strip("\n")
