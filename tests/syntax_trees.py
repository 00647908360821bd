"""Syntax trees of source files, parsed once in each test process."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree, the module first."""
    collects = gc.isenabled()
    gc.disable()  # the nodes all survive: looking through them again and again doubles the time
    try:
        return tuple(ast.walk(ast.parse(path.read_text())))
    finally:
        if collects:
            gc.enable()
