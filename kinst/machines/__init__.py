"""Kinds of machines: one file or folder for each way to reach a kernel (rank 3).

Each file or folder has a value MACHINE, a MachineKind (core/machine_kind.py). It is found by its
name: to add a kind of machine, add a file.

Tested by tests/test_contracts.py.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

from kinst.core.errors import KinstError
from kinst.core.members import member_names

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
    return tuple(name for name in member_names(__path__) if hasattr(_module(name), "MACHINE"))


def _module(name: str) -> object:
    return importlib.import_module(f"{__name__}.{name}")


def load(name: str) -> MachineKind:
    """Return the kind of machine called `name`.  Raises KinstError for an unknown name."""
    if name not in member_names(__path__):
        raise KinstError(f"no machine is called {name!r}", f"there are: {', '.join(names())}")
    kind: MachineKind = getattr(_module(name), "MACHINE")  # noqa: B009 - of a module found by name
    return kind
