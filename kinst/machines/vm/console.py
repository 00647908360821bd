"""Console of a guest's kernel: its last lines, and the problems that the kernel reports there."""

from __future__ import annotations

import time
from collections import deque

from kinst.core.boot import ConsoleSigns
from kinst.core.machine import Complaint

_KEPT_LINES = 2000
_LAST_LINES = 30
_TROUBLE_LINES = 120  # last lines that are searched for problems


class Console:
    """Output of a guest's kernel on its console.

    Attributes:
        lines: the last whole lines.
        heard: time of the last output, by time.monotonic().
        panic: the message of a panic, "" before a panic.
        panic_at: time of the panic, by time.monotonic().
        warnings: problems other than a panic that take_warnings() has not returned yet.
        init_runs: whether the kernel has said that it starts init.
        lost_breakpoint: whether the kernel died because QEMU executed a breakpoint that is no
            longer in memory (retranslation.py).
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
        """Process output of the console, which may end in the middle of a line."""
        self.heard = time.monotonic()
        *lines, self._partial = (self._partial + data.decode("utf-8", "replace")).split("\n")
        for line in lines:
            line = line.rstrip("\r")
            self.lines.append(line)
            if not self.panic and (match := self._signs.panic.search(line)):
                self.panic, self.panic_at = match[0], time.monotonic()
            elif match := self._signs.trouble.search(line):
                self.warnings.append(Complaint(match.lastgroup or "oops", match[0]))
            if self._signs.lost_breakpoint and self._signs.lost_breakpoint in line:
                self.lost_breakpoint = True
            if self._signs.first_program.search(line):
                self.init_runs = True

    def last_lines(self) -> str:
        """Return the last lines for an error message: from the first recent problem on, if there is
        one.
        """
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
