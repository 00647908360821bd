"""The process with which a trace of this host ends: the command of -c, or the process of -p.

kinst starts the command of -c, and lets it run when the trace begins. The process of -p runs
already.

Tested by tests/machines/live/test_parts.py.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

from kinst.core.errors import TargetError
from kinst.wire.child_process import PLAIN_COMMAND
from kinst.wire.sockets import wait_until_ready

_PIECE = 1 << 16  # bytes of output that are read at once
# The shell stops itself; after SIGCONT it executes the command, with the same process id.
_HELD = 'kill -STOP $$; exec /bin/sh -c "$0"'
_SETTLE = 0.2  # seconds for which output is read after the command has ended


class StoppedCommand:
    """Shell command that kinst has started in its own process group, stopped until start().

    Its standard output and standard error go to one pipe; its standard input is empty.
    """

    def __init__(self, command: str, on_output: Callable[[bytes], None]) -> None:
        """Start a shell for the command; the shell stops itself before it runs the command.

        Args:
            on_output: called with the command's output.

        Raises TargetError if the shell cannot be started.
        """
        self._on_output = on_output
        words = command.strip()
        if PLAIN_COMMAND.fullmatch(words) and shutil.which(words.split()[0]):
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
        self.ended_by = 0  # signal that has ended the command

    def start(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def wait(self, timeout: float) -> int | None:
        """Wait until the command ends, and return its exit status as a shell reports it.

        None if the command still runs after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            self._read(0.0)
            status = self._child.poll()
            if status is not None:
                self._drain()
                self.ended_by = max(0, -status)
                return status if status >= 0 else 128 - status
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            # The command's end closes the pipe, unless other processes have it open.
            if self._open:
                self._read(min(left, 0.05))
            else:
                time.sleep(min(left, 0.01))

    def _read(self, timeout: float) -> None:
        if not self._open or not wait_until_ready([self._output], seconds=timeout)[0]:
            return
        with suppress(BlockingIOError):
            data = os.read(self._output, _PIECE)
            self._open = bool(data)
            if data:
                self._on_output(data)

    def _drain(self) -> None:
        """Read the rest of the output of an ended command, for at most _SETTLE seconds.

        Processes that the command has started may write to the pipe for ever.
        """
        deadline = time.monotonic() + _SETTLE
        while self._open and time.monotonic() < deadline:
            if not wait_until_ready([self._output], seconds=0.0)[0]:
                return
            self._read(0.0)

    def end(self) -> None:
        """Kill the command with its process group, and wait until it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()
        self._open = False


class FollowedProcess:
    """Process that kinst did not start (-p), and only waits for."""

    def __init__(self, pid: int) -> None:
        """Open a running process.  Raises TargetError if there is no process with this id."""
        try:
            self._fd = os.pidfd_open(pid)
        except OSError as error:
            # For a thread that is not the first of its process, the kernel returns EINVAL or
            # ENOENT.
            thread = error.errno in (errno.EINVAL, errno.ENOENT)
            why = "a thread of a process" if thread else "no such process"
            raise TargetError(f"-p {pid}: {why}", "ps -e lists them") from error

    def wait(self, timeout: float) -> bool:
        """Wait for the end of the process for at most `timeout` seconds; return whether it has
        ended.
        """
        return bool(wait_until_ready([self._fd], seconds=timeout)[0])

    def close(self) -> None:
        os.close(self._fd)
