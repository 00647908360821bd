"""One file for each target and each personality; found by file name."""

from __future__ import annotations

import importlib
from types import ModuleType

from kinst.core.errors import KinstError


def load(name: str) -> ModuleType:
    """The module kinst.targets.<name>.  Raises KinstError when there is no such file."""
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise KinstError(f"{name}: no such target") from error
