"""Kinds of machines: one file or folder for each way to reach a kernel (rank 3).

Each file or folder has a value MACHINE, a MachineKind (core/machine_kind.py). It is found by its
name: to add a kind of machine, add a file.

Tested by tests/test_contracts.py.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

from kinst.core.errors import KinstError

if TYPE_CHECKING:
    from kinst.core.machine_kind import MachineKind

DEFAULT = "vm"  # the kind that needs no option


@cache
def kinds() -> tuple[MachineKind, ...]:
    """Return every kind of machine, the default kind first."""
    return tuple(load(name) for name in sorted(names(), key=lambda name: (name != DEFAULT, name)))


@cache
def names() -> tuple[str, ...]:
    """Return the names of all kinds of machines, sorted."""
    modules = (info.name for info in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in modules if hasattr(_module(name), "MACHINE")))


def _module(name: str) -> object:
    return importlib.import_module(f"{__name__}.{name}")


def load(name: str) -> MachineKind:
    """Return the kind of machine called `name`.  Raises KinstError for an unknown name."""
    if name not in (info.name for info in pkgutil.iter_modules(__path__)):
        raise KinstError(f"no machine is called {name!r}", f"there are: {', '.join(names())}")
    kind: MachineKind = getattr(_module(name), "MACHINE")  # noqa: B009 - of a module found by name
    return kind
