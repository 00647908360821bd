"""The named commands of kinst, such as `kinst flame`: a module for each, found by its name.

A module NAME has HELP, OPTIONS, and run(words, interrupts), which returns the exit status. Modules
that do the command's work are imported after its words have been parsed (kinst.cli.later).

Tested by tests/cli/test_commands.py.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache
from typing import Protocol, cast

from kinst.api import Option
from kinst.cli.interrupts import Interrupts


class Command(Protocol):
    """What each module of this package has.

    Attributes:
        HELP: text of --help.
        OPTIONS: the command's options, for --help, completion and options.own_options(). An option
            that kinst has as well is parsed by kinst's own parser.
    """

    HELP: str
    OPTIONS: Sequence[Option]

    def run(self, words: Sequence[str], interrupts: Interrupts) -> int:
        """Run the command and return its exit status.

        Args:
            words: the words of the command line after the command's name.
            interrupts: handlers that end a trace.

        Raises:
            KinstError: the work cannot be done.
        """


@cache
def commands() -> tuple[str, ...]:
    """Return the names of all named commands."""
    found = (info.name for info in pkgutil.iter_modules(__path__))
    return tuple(name for name in found if not name.startswith("_"))


def command(name: str) -> Command:
    """Return the module of a command.

    Args:
        name: one of commands().
    """
    return cast(Command, importlib.import_module(f"{__name__}.{name}"))
