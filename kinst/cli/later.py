"""Modules that are imported when they are first used: a command answers --help and a wrong command
line without loading what does its work.

Tested by tests/cli/test_start_times.py.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LaterModule:
    """A module by its name.  Name it under TYPE_CHECKING, too, so that its types are known."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
