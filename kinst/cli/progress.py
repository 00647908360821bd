"""Progress of long work on stderr: downloads, unpacking, indexing of debug information.

On a terminal, progress is one line, which is rewritten in place and erased at the end. Without a
terminal it is a line when a piece of work begins, a line every few seconds, and a line at the end,
so that a log stays short. docs/decisions/0038-progress-is-shown-without-rich.md says why the
library rich is not used.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

WIDTH = 24  # characters of the bar
TERMINAL_SECONDS = 0.1  # between two drawings of the line
LOG_SECONDS = 10.0  # between two lines about the same work without a terminal
_ERASE = "\r\x1b[K"


class Progress:
    """Display of progress on stderr. Call it with the name of a piece of work and the part of it
    that is done: 0 to 1, or None if the part is not known. A part of 1 ends the work."""

    def __init__(
        self,
        name: str,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        log: bool = True,
    ) -> None:
        """Make a display for a command.

        Args:
            name: name of the command, which starts every line.
            out: file to write to; None for sys.stderr, which is looked up at each call.
            clock: returns the time in seconds.
            log: whether to write if there is no terminal.
        """
        self._name = name
        self._out = out
        self._clock = clock
        self._logs = log
        self._work = ""
        self._shown = -LOG_SECONDS

    def __call__(self, what: str, part: float | None) -> None:
        out = self._out or sys.stderr
        if out.isatty():
            self._draw(out, what, part)
        elif self._logs:
            self._log(out, what, part)

    def confirm(self, what: str, size: int) -> bool:
        """Ask on a terminal whether to download files, as apt-get does, and return the answer.

        Without a terminal, print what is downloaded and return True: a script or a CI job cannot
        answer.

        Args:
            what: name of the files.
            size: bytes to download.
        """
        out = self._out or sys.stderr
        text = f"{self._name}: to be downloaded, {size / 1e6:.0f} MB: {what}"
        if not out.isatty() or sys.stdin is None or not sys.stdin.isatty():
            if self._logs:
                _write(out, f"{text}\n")
            return True
        _write(out, f"{_ERASE}{text}\n{self._name}: download it? [Y/n] ")
        answer = sys.stdin.readline()
        return bool(answer) and answer.strip().lower() in ("", "y", "yes")

    def _draw(self, out: TextIO, what: str, part: float | None) -> None:
        now = self._clock()
        over = part is not None and part >= 1
        if not over and now - self._shown < TERMINAL_SECONDS:
            return
        self._shown = now
        text = f"{self._name}: {what}"
        if part is not None:
            full = round(part * WIDTH)
            text += f" [{'#' * full}{'.' * (WIDTH - full)}] {part:.0%}"
        # Leave the cursor at the start of the line, so that the next output overwrites the line.
        _write(out, _ERASE if over else f"{_ERASE}{text}\r")

    def _log(self, out: TextIO, what: str, part: float | None) -> None:
        now = self._clock()
        # "downloading 3 of 7 MB" and "downloading 4 of 7 MB" are the same work.
        work = re.split(r"\s*\(?\d", what)[0]
        over = part is not None and part >= 1
        if over:
            work += ": done"
        if work == self._work and (over or now - self._shown < LOG_SECONDS):
            return
        self._work, self._shown = work, now
        _write(out, f"{self._name}: {what}" + ("" if part is None else f" {part:.0%}") + "\n")


def _write(out: TextIO, text: str) -> None:
    with suppress(OSError):  # stderr is closed
        out.write(text)
        out.flush()
