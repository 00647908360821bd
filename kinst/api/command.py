"""The command that runs in the guest during a trace.

Its process is made before the trace, so that its id is known, and starts with the trace. It is
ended if no trace takes it.

Tested by tests/d, through the command.
"""

from __future__ import annotations

from contextlib import suppress

from kinst.core.errors import TargetError
from kinst.core.machine import Target


class GuestCommand:
    """The shell command that a trace runs in a guest. A guest can have one command at a time."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._prepared = False  # whether there is a command that no trace has taken

    def prepare(self, command: str) -> int:
        """Make a process in the guest for a shell command, and return its id. The process waits
        until start() before it runs the command."""
        self.drop()
        self._target.stop()
        pid = self._target.prepare_command(command)
        self._prepared = True
        return pid

    def start(self) -> None:
        """Let the prepared process run its command."""
        self._target.start_command()
        self._target.resume()

    def hand_over(self) -> None:
        """Note that a trace has taken the prepared command, so that drop() does not end it."""
        self._prepared = False

    def take_back(self) -> None:
        """End a command that has not ended by itself during the trace that took it."""
        self._prepared = True
        self.drop()

    def drop(self) -> None:
        """End the prepared command if no trace has taken it."""
        if self._prepared:
            self._prepared = False
            with suppress(TargetError):  # the guest has ended; the next use of it says why
                self._target.end_command()
