"""Processes whose end ends a trace of the machine that kinst runs on: the command of -c, held until
the trace begins, or the process of -p, which runs already.

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

_PIECE = 1 << 16  # bytes of output that are read at once
# The shell stops itself; after SIGCONT it executes the command, with the same process id.
_HELD = 'kill -STOP $$; exec /bin/sh -c "$0"'
# A simple command: the shell executes it in its own process, so that its process id is $target.
_PLAIN = re.compile(r"[\w@%+:,./-]+( +[\w@%+=:,./-]+)*")
_SETTLE = 0.2  # seconds for which output is read after the command has ended


class HeldCommand:
    """A shell command in a process group of its own, held until start().

    Its output and its standard error go to one pipe; its input is empty."""

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
        """Wait for the command's end.

        Returns:
            Its exit status, in the way of a shell; None after `timeout` seconds.
        """
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
            # The command's end closes the pipe, unless other processes hold it.
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
        """Read the rest of the output, but no longer than _SETTLE: its children may write for
        ever."""
        deadline = time.monotonic() + _SETTLE
        while self._open and time.monotonic() < deadline:
            if not select.select([self._output], [], [], 0.0)[0]:
                return
            self._read(0.0)

    def end(self) -> None:
        """Kill the command and its process group, and wait for its end."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()
        self._open = False


class FollowedProcess:
    """A process that kinst did not start.  kinst only waits for its end."""

    def __init__(self, pid: int) -> None:
        """Raises TargetError."""
        try:
            self._fd = os.pidfd_open(pid)
        except OSError as error:
            # For a thread that is not the first of its process, the kernel returns EINVAL or
            # ENOENT.
            thread = error.errno in (errno.EINVAL, errno.ENOENT)
            why = "a thread of a process" if thread else "no such process"
            raise TargetError(f"-p {pid}: {why}", "ps -e lists them") from error

    def wait(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the process's end; return whether it has ended."""
        return bool(select.select([self._fd], [], [], timeout)[0])

    def close(self) -> None:
        os.close(self._fd)
