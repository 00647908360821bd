"""The command that runs in the guest during a trace: prepared before the trace, started with it,
and ended if no trace needs it.

Tested by tests/d, through the command.
"""

from __future__ import annotations

from contextlib import suppress

from kinst.core.errors import TargetError
from kinst.core.machine import Target


class GuestCommand:
    """The shell command that a trace runs in a guest: prepared, then started or dropped. A guest
    can have one command at a time."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._prepared = False  # whether there is a command that no trace has taken

    def prepare(self, command: str) -> int:
        """Make a process in the guest that waits before it runs a shell command, and return its
        process id."""
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
        """Note that a trace has taken the prepared command. The trace starts it, and drop() does
        not end it."""
        self._prepared = False

    def take_back(self) -> None:
        """End the command that a trace has taken: the trace has ended, and the command has not."""
        self._prepared = True
        self.drop()

    def drop(self) -> None:
        """End the prepared command if no trace has taken it."""
        if self._prepared:
            self._prepared = False
            with suppress(TargetError):  # the guest has ended; the next use of it says why
                self._target.end_command()
