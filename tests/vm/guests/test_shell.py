"""--shell, as a user at a terminal uses it."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import re
import select
import struct
import sys
import termios
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.vm

KINST = str(Path(sys.executable).with_name("kinst"))
SECONDS = 300.0
ROUNDS = 100  # of resizing and typing


class Person:
    """A user that starts kinst on a terminal, types, and reads."""

    def __init__(self, *arguments: str) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execv(KINST, [KINST, *arguments])
        self.shown = ""

    def reads(self, pattern: str) -> str:
        """Return the output up to this text."""
        end = time.monotonic() + SECONDS
        while not (found := re.search(pattern, self.shown)):
            assert time.monotonic() < end, f"no {pattern} in {self.shown!r}"
            if select.select([self.terminal], [], [], 1.0)[0]:
                self.shown += self._take()
        text, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return text

    def _take(self) -> str:
        data = os.read(self.terminal, 4096)
        assert data, f"it ended: {self.shown!r}"
        return data.decode()

    def types(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def resizes(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def end(self) -> int:
        """Read all output until the end (in `shown`); return the exit status."""
        while True:
            try:
                self.shown += self._take()
            except OSError:  # the other end is closed
                break
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_shell_while_the_trace_runs() -> None:
    """Job control works: Ctrl-C ends the program that runs in the shell, and nothing else.

    The exit status of the shell's last command is kinst's; the trace's output is on the same
    terminal.
    """
    person = Person("--shell", "-qn", 'kinst::ksys_read:0 /execname == "wc"/ { @ = count(); }')
    person.reads("ends the trace")
    person.reads("# ")
    person.types("tty; sleep 1000\r")
    person.reads("/dev/tty")
    time.sleep(1.0)
    person.types("\x03")
    person.reads("# ")
    person.types("echo status $?; cat /etc/group | wc -l\r")
    person.reads(r"status 130\r+\n2\r+\n")
    person.reads("# ")
    person.types("exit 5\r")
    assert person.end() == 5
    # wc reads the two lines, and the end of file.
    assert re.search(r"^ +2\r$", person.shown, re.M), person.shown


def test_the_key_that_ends_the_trace() -> None:
    person = Person("--shell", "-qn", "kinst::ksys_read:0 { @ = count(); } END { trace(42); }")
    person.reads("# ")
    person.types("\x1d")
    assert person.end() == 0
    assert "42" in person.shown


@pytest.mark.slow
def test_on_the_hosts_files_while_the_terminal_is_resized(tmp_path: Path) -> None:
    """All typed text arrives, and the last window size too, while the terminal is resized all the
    time.

    Every instruction of the functions that read the text is traced.
    """
    chosen = random.Random(1)
    trace = ["-qo", str(tmp_path / "out"), "-n", "kinst::vfs_read: { @[probename] = count(); }"]
    person = Person("--shell", "--root", "/", *trace)

    def drag() -> None:
        person.resizes(chosen.randrange(20, 80), chosen.randrange(60, 200))
        time.sleep(chosen.choice([0, 0.01, 0.3, 0.6]))

    person.reads("ends the trace")
    person.reads("[#$] ")
    for k in range(ROUNDS):
        for _ in range(chosen.choice([0, 1, 1, 2, 5])):
            drag()
        for letter in f"echo typed $(({k}+1000)) whole\r":
            person.types(letter)
            if chosen.random() < 0.1:
                drag()
        person.reads(f"typed {k + 1000} whole")
    person.resizes(47, 111)
    person.types("until stty size | grep '47 111'; do sleep 0.1; done; exit 3\r")
    person.reads("47 111\r+\n")
    assert person.end() == 3
    assert (tmp_path / "out").stat().st_size
