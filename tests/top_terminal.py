"""kinst top on a pseudo-terminal (pty), for tests."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

KINST = Path(sys.executable).with_name("kinst")
SECONDS = 240.0  # long enough for a busy machine


class Terminal:
    """kinst top on a pty of 20 lines.

    Attributes:
        written: all output so far.
    """

    def __init__(self, *words: str) -> None:
        self.pid, self._file = pty.fork()
        if not self.pid:
            os.environ["TERM"] = "xterm-256color"
            os.execv(KINST, ["kinst", "top", *words])
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 100, 0, 0))
        self.before = termios.tcgetattr(self._file)
        self.written = ""

    def until(self, true: Callable[[str], object]) -> None:
        """Wait until a condition on the last screen is true."""
        end = time.monotonic() + SECONDS
        while not true(self.screen):
            assert time.monotonic() < end, self.written
            assert self._take(), self.written

    def _take(self) -> bool:
        ready, _, _ = select.select([self._file], [], [], 1.0)
        try:
            data = os.read(self._file, 1 << 16) if ready else b"\0"
        except OSError:
            return False
        self.written += data.decode("utf-8", "replace").replace("\0", "")
        return bool(data)

    @property
    def screen(self) -> str:
        text = self.written.split("\x1b[H")[-1] if "\x1b[H" in self.written else ""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def status(self) -> int:
        """Wait until kinst ends, check that the terminal is restored, and return the exit
        status."""
        assert "\x1b[?1049h" in self.written
        after = self.before
        while self._take():
            with_it = termios.tcgetattr(self._file)
            after = with_it
        assert after == self.before
        assert self.written.rindex("\x1b[?1049l") > self.written.rindex("\x1b[?1049h")
        assert self.written.rindex("\x1b[?25h") > self.written.rindex("\x1b[?25l")
        _, status = os.waitpid(self.pid, 0)
        os.close(self._file)
        return os.waitstatus_to_exitcode(status)


def keys_of(screen: str) -> list[str]:
    """Return the keys of the rows, from the top."""
    rows = [line for line in screen.splitlines() if re.match(r"\S+ +[\d,]+ ", line)]
    return [row.split()[0] for row in rows]
