"""The words that kinst takes as its first: a file for each, found by its name.

A module NAME here has HELP, and run(words, interrupts) -> exit status.

Tested by tests/cli/test_commands.py.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache
from typing import Protocol, cast

from kinst.cli.interrupts import Interrupts


class Command(Protocol):
    """A module of this package."""

    HELP: str

    def run(self, words: Sequence[str], interrupts: Interrupts) -> int:
        """Do what the words behind the name say; the exit status.  Raises KinstError."""


@cache
def commands() -> tuple[str, ...]:
    """The names of all of them."""
    found = (info.name for info in pkgutil.iter_modules(__path__))
    return tuple(name for name in found if not name.startswith("_"))


def command(name: str) -> Command:
    """The command of that name, which is one of commands()."""
    return cast(Command, importlib.import_module(f"{__name__}.{name}"))
