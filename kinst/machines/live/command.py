"""What a trace of the machine that kinst runs on ends with: the -c command, a process that waits
until it may begin, or the process of -p, which runs already.

Tested by tests/machines/live/test_parts.py.
"""

from __future__ import annotations

import errno
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

from kinst.core.errors import TargetError

_PIECE = 1 << 16  # bytes of its output that are read at once
# The shell stops itself; who goes on in it is the command, with the same process id.
_HELD = 'kill -STOP $$; exec /bin/sh -c "$0"'
# What a shell would only start: the shell becomes that, so that its process id is $target.
_PLAIN = re.compile(r"[\w@%+:,./-]+( +[\w@%+=:,./-]+)*")
_SETTLE = 0.2  # seconds in which what it has written still arrives, when it has ended


class HeldCommand:
    """A command of the shell's, in a process group of its own.

    What it writes goes through one pipe, its standard error too; its input is empty."""

    def __init__(self, command: str, on_output: Callable[[bytes], None]) -> None:
        """Raises TargetError."""
        self._on_output = on_output
        words = command.strip()
        if _PLAIN.fullmatch(words) and shutil.which(words.split()[0]):
            command = f"exec {words}"
        try:
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", _HELD, command], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0,
            )  # fmt: skip
        except OSError as error:
            raise TargetError(f"the command cannot be started: {error.strerror}") from error
        self.pid = self._child.pid
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert self._child.stdout is not None
        self._output = self._child.stdout.fileno()
        os.set_blocking(self._output, False)
        self._open = True

    def start(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def wait(self, timeout: float) -> int | None:
        """Its exit status when it has ended, as a shell has it; None after timeout (seconds)."""
        deadline = time.monotonic() + timeout
        while True:
            self._read(0.0)
            status = self._child.poll()
            if status is not None:
                self._drain()
                return status if status >= 0 else 128 - status
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            # Its end closes the pipe, unless others have it.
            if self._open:
                self._read(min(left, 0.05))
            else:
                time.sleep(min(left, 0.01))

    def _read(self, timeout: float) -> None:
        if not self._open or not select.select([self._output], [], [], timeout)[0]:
            return
        with suppress(BlockingIOError):
            data = os.read(self._output, _PIECE)
            self._open = bool(data)
            if data:
                self._on_output(data)

    def _drain(self) -> None:
        """What it has written, but not all that its children may write for ever."""
        deadline = time.monotonic() + _SETTLE
        while self._open and time.monotonic() < deadline:
            if not select.select([self._output], [], [], 0.0)[0]:
                return
            self._read(0.0)

    def end(self) -> None:
        """Kill it and what it has started, and wait for it."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()
        self._open = False


class FollowedProcess:
    """A process that is not kinst's.  Nothing is done to it."""

    def __init__(self, pid: int) -> None:
        """Raises TargetError."""
        try:
            self._fd = os.pidfd_open(pid)
        except OSError as error:
            # Of a thread that is not its process's first, the kernel says so, or ENOENT.
            thread = error.errno in (errno.EINVAL, errno.ENOENT)
            why = "a thread of a process" if thread else "no such process"
            raise TargetError(f"-p {pid}: {why}", "ps -e lists them") from error

    def wait(self, timeout: float) -> bool:
        """Whether it has ended, for which so many seconds are waited."""
        return bool(select.select([self._fd], [], [], timeout)[0])

    def close(self) -> None:
        os.close(self._fd)
