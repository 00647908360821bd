"""The guest's command: prepared before a trace, started with it, and ended if no trace needs it.

Tested by tests/d, through the command.
"""

from __future__ import annotations

from contextlib import suppress

from kinst.core.errors import TargetError
from kinst.core.machine import Target


class GuestCommand:
    """The command of a guest, which has one at a time."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._prepared = False  # and left to no trace

    def prepare(self, command: str) -> int:
        """Make a process for a shell command, held before it runs, and return its id."""
        self.drop()
        self._target.stop()
        pid = self._target.prepare_command(command)
        self._prepared = True
        return pid

    def start(self) -> None:
        """Let the command run."""
        self._target.start_command()
        self._target.resume()

    def give(self) -> None:
        """Leave the command to a trace, which starts it."""
        self._prepared = False

    def take_back(self) -> None:
        """End the command after a trace that ended before it."""
        self._prepared = True
        self.drop()

    def drop(self) -> None:
        """End the command if it was prepared and left to no trace."""
        if self._prepared:
            self._prepared = False
            with suppress(TargetError):  # the guest has ended: its next use reports why
                self._target.end_command()
