"""Rank 3: one file or folder for each way to reach a kernel.

Each offers a value MACHINE (MachineKind of core/machine.py) and is found by its name: adding a kind
of machine is adding one file.

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

DEFAULT = "vm"  # the one that needs no option; others are asked for by an option of their name


def kind_of(asked: Callable[[str], bool]) -> MachineKind:
    """The kind of machine that a user means: the one whose option was given, else the one that
    needs none.  asked: whether an option was given."""
    there = (info.name for info in pkgutil.iter_modules(__path__))
    return load(next((name for name in sorted(there) if asked(name)), DEFAULT))


@cache
def names() -> tuple[str, ...]:
    """Names of every kind of machine there is, sorted."""
    found = (info.name for info in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in found if hasattr(_module(name), "MACHINE")))


def _module(name: str) -> object:
    return importlib.import_module(f"{__name__}.{name}")


def load(name: str) -> MachineKind:
    """The kind of machine called `name`.  Raises KinstError when there is none."""
    if name not in (info.name for info in pkgutil.iter_modules(__path__)):
        raise KinstError(f"no machine is called {name!r}", f"there are: {', '.join(names())}")
    kind: MachineKind = getattr(_module(name), "MACHINE")  # noqa: B009 - of a module found by name
    return kind
