"""The kernel's console: its last lines, and what in them an error's reader should see."""

from __future__ import annotations

import time
from collections import deque

from kinst.core.boot import ConsoleSigns
from kinst.core.machine import Complaint

_KEPT_LINES = 2000
_LAST_LINES = 30
_TROUBLE_LINES = 120  # of the console's end in which trouble is looked for


class Console:
    """What the kernel printed.

    lines: the last of them, whole.  heard: when something came last (time.monotonic()).
    panic, panic_at: its message, "" before there is one, and when it came.  warnings: lines of
    trouble that is not a panic.  init_runs: whether the kernel said that it starts init.
    lost_breakpoint: whether it died of a breakpoint that is not in memory any more, but in QEMU's
    translation (retranslation.py).
    """

    def __init__(self, signs: ConsoleSigns) -> None:
        self._signs = signs
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
            if not self.panic and (found := self._signs.panic.search(line)):
                self.panic, self.panic_at = found[0], time.monotonic()
            elif found := self._signs.trouble.search(line):
                self.warnings.append(Complaint(found.lastgroup or "oops", found[0]))
            if self._signs.lost_breakpoint and self._signs.lost_breakpoint in line:
                self.lost_breakpoint = True
            if self._signs.first_program.search(line):
                self.init_runs = True

    def _is_bad(self, line: str) -> bool:
        signs = self._signs
        return bool(signs.panic.search(line) or signs.trouble.search(line))

    def last_lines(self) -> str:
        """From the first line of trouble on, or the end, for an error's reader."""
        lines = [*self.lines, self._partial.rstrip("\r")]
        recent = lines[-_TROUBLE_LINES:]
        bad = (
            k
            for k, line in enumerate(recent)
            if self._signs.panic.search(line) or self._signs.trouble.search(line)
        )
        start = next(bad, None)
        shown = lines[-_LAST_LINES:] if start is None else recent[start:]
        return "\n".join(shown).strip("\n")
