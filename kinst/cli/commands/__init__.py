"""The words that kinst takes as its first: a file for each, found by its name.

A module NAME here has HELP, OPTIONS, and run(words, interrupts) -> exit status.  It loads what does
its work once its words are understood (kinst.cli.later).

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
    """A module of this package."""

    HELP: str
    # For --help, completion and options.own_options(); those that kinst takes as well are its own.
    OPTIONS: Sequence[Option]

    def run(self, words: Sequence[str], interrupts: Interrupts) -> int:
        """Do what the words after the command's name say, and return the exit status.  Raises
        KinstError."""


@cache
def commands() -> tuple[str, ...]:
    """Return the names of all commands."""
    found = (info.name for info in pkgutil.iter_modules(__path__))
    return tuple(name for name in found if not name.startswith("_"))


def command(name: str) -> Command:
    """Return the command of a name, which is one of commands()."""
    return cast(Command, importlib.import_module(f"{__name__}.{name}"))
