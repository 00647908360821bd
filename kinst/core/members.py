"""Members of a package: the modules and subpackages that lie in its folders.

Machines, systems, ISAs, providers and renderers are found by their names. kinst asks for them some
eighty times at a start, so the folders are listed once.

Tested by tests/test_extending.py, which adds folders.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from functools import cache


def members(path: Iterable[str]) -> tuple[pkgutil.ModuleInfo, ...]:
    """Return the members of a package in the order of their names.

    Args:
        path: the package's __path__.
    """
    return _in_folders(tuple(path))


def member_names(path: Iterable[str]) -> tuple[str, ...]:
    """Return the names of a package's members, sorted.

    Args:
        path: the package's __path__.
    """
    return tuple(info.name for info in members(path))


@cache
def _in_folders(folders: tuple[str, ...]) -> tuple[pkgutil.ModuleInfo, ...]:
    return tuple(sorted(pkgutil.iter_modules(folders), key=lambda info: info.name))
