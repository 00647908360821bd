"""Rank 3: one file or folder for each way to reach a kernel.

Each has a value MACHINE (MachineKind of core/machine.py), and is found by its name: to add a kind
of machine, add a file.

Tested by tests/test_contracts.py.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from kinst.core.errors import KinstError

if TYPE_CHECKING:
    from kinst.core.machine import MachineKind

DEFAULT = "vm"  # the kind that needs no option; the others have an option with their name


def kind_of(asked: Callable[[str], bool]) -> MachineKind:
    """Return the kind of machine whose option was given, or DEFAULT.

    Args:
        asked: returns whether the option with a name was given.
    """
    modules = sorted(info.name for info in pkgutil.iter_modules(__path__))
    return load(next((name for name in modules if asked(name)), DEFAULT))


@cache
def names() -> tuple[str, ...]:
    """Return the names of all kinds of machines, sorted."""
    modules = (info.name for info in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in modules if hasattr(_module(name), "MACHINE")))


def _module(name: str) -> object:
    return importlib.import_module(f"{__name__}.{name}")


def load(name: str) -> MachineKind:
    """Return the kind of machine called `name`.  Raises KinstError if there is none."""
    if name not in (info.name for info in pkgutil.iter_modules(__path__)):
        raise KinstError(f"no machine is called {name!r}", f"there are: {', '.join(names())}")
    kind: MachineKind = getattr(_module(name), "MACHINE")  # noqa: B009 - of a module found by name
    return kind
