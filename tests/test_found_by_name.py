"""The tests of a module are found by its name: tests/a/test_b.py tests kinst/a/b.py.

Otherwise the last line of the module's docstring says where its tests are ("Tested by tests/fake,
through the whole path.").  Modules that only declare (no function, no class) and the empty files
of packages need no tests.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT
from tests.syntax_trees import nodes_of

MODULES = sorted(path.relative_to(ROOT) for path in (ROOT / "kinst").rglob("*.py"))
_WHERE = re.compile(r"Tested by (tests/.+)\.")
_PATH = re.compile(r"\btests/[\w/.]*\w")
CODE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def told(tree: ast.Module) -> list[str]:
    """Return the paths that the last line of the docstring names."""
    lines = (ast.get_docstring(tree) or "").splitlines()
    found = _WHERE.fullmatch(lines[-1]) if lines else None
    return _PATH.findall(found[1]) if found else []


def mistakes(module: Path) -> Iterator[str]:
    tree, *nodes = nodes_of(ROOT / module)
    assert isinstance(tree, ast.Module)
    if not any(isinstance(node, CODE) for node in nodes):
        return
    beside = ROOT / "tests" / Path(*module.parts[1:-1]) / f"test_{module.name}"
    named = told(tree)
    if not beside.exists() and not named:
        yield (
            f"{beside.relative_to(ROOT)} is not there, and the last line of the docstring of"
            f' {module} is not "Tested by tests/WHERE."'
        )
    yield from (f"{module} names {path}" for path in named if not (ROOT / path).exists())


def test_the_tests_of_every_module_are_found() -> None:
    assert len(MODULES) > 500, "are the modules still found?"
    found = [mistake for module in MODULES for mistake in mistakes(module)]
    assert not found, "\n".join(found)
