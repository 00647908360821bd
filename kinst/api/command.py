"""The guest's command: prepared before a trace, started with it, ended when it is not wanted.

Tested by tests/d, through the command.
"""

from __future__ import annotations

from contextlib import suppress

from kinst.core.errors import TargetError
from kinst.core.machine import Target


class GuestCommand:
    """The one command that a guest has at a time."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._prepared = False  # and nothing else will end it

    def prepare(self, command: str) -> int:
        """Make a process for a shell command, held before it runs.  Returns its id."""
        self.drop()
        self._target.stop()
        pid = self._target.prepare_command(command)
        self._prepared = True
        return pid

    def start(self) -> None:
        """Let it run."""
        self._target.start_command()
        self._target.resume()

    def give(self) -> None:
        """Leave it to a trace, which starts it."""
        self._prepared = False

    def take_back(self) -> None:
        """End it after a trace that has ended before it."""
        self._prepared = True
        self.drop()

    def drop(self) -> None:
        """End it if it was prepared and has been left to no trace."""
        if self._prepared:
            self._prepared = False
            with suppress(TargetError):  # the guest has ended: the next use of it tells why
                self._target.end_command()
