"""This terminal as the terminal of a shell in the guest: typed text, Ctrl-], sizes, and its state
afterwards."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinst.cli.guard import UsageError
from kinst.cli.terminal import HostTerminal, shell_command


class Ends:
    """Both ends of a terminal, and the text that was passed on."""

    def __init__(self) -> None:
        self.person, self.kinst = pty.openpty()
        self.typed = b""
        self.sizes: list[tuple[int, int]] = []
        self.stopped = False

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.person, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def take(self, data: bytes) -> None:
        self.typed += data

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    made.resize(33, 99)
    yield made
    os.close(made.person)
    os.close(made.kinst)


def wait_for(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_what_is_typed_is_passed_on_as_it_is(ends: Ends) -> None:
    """Typed text is passed on unchanged, Ctrl-C too; Ctrl-] ends it.

    The terminal is as before afterwards.
    """
    before = termios.tcgetattr(ends.kinst)
    with HostTerminal(ends.kinst) as terminal:
        assert terminal.size() == (33, 99)
        terminal.stop = ends.stop
        terminal.connect(ends.take, lambda rows, columns: ends.sizes.append((rows, columns)))
        os.write(ends.person, b"ls\r\x03\x04\xff")
        assert wait_for(lambda: ends.typed == b"ls\r\x03\x04\xff")
        ends.resize(44, 111)
        assert wait_for(lambda: ends.sizes == [(44, 111)])
        terminal.show(b"shown\r\n")
        assert os.read(ends.person, 100).startswith(b"shown")  # nothing is echoed
        assert not ends.stopped
        os.write(ends.person, b"x\x1dy")
        assert wait_for(lambda: ends.stopped)
        assert ends.typed.endswith(b"x")
    assert termios.tcgetattr(ends.kinst) == before


def test_a_guest_that_takes_nothing_ends_the_trace(ends: Ends) -> None:
    def fail(data: bytes) -> None:
        raise OSError("gone")

    with HostTerminal(ends.kinst) as terminal:
        terminal.stop = ends.stop
        terminal.connect(fail, lambda rows, columns: None)
        os.write(ends.person, b"x")
        assert wait_for(lambda: ends.stopped)


def test_no_terminal(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file, pytest.raises(UsageError, match="a terminal"):
        HostTerminal(file.fileno())


def test_the_shell_that_is_run(tmp_path: Path) -> None:
    """The user's own shell if it exists, otherwise /bin/sh."""
    for shell in ("/bin/bash", str(tmp_path / "nosuch"), ""):
        text = shell_command({"TERM": "odd kind"})
        done = subprocess.run(
            ["/bin/sh", "-c", text], env={"SHELL": shell}, input=b'echo "$TERM" $0',
            capture_output=True, check=True,
        )  # fmt: skip
        expected = shell if shell == "/bin/bash" else "/bin/sh"
        assert done.stdout.decode().split("\n")[0] == f"odd kind {expected}"
