"""Class names of kinst are unique, so that a search for a name finds one class."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests import ROOT
from tests.syntax_trees import nodes_of


def test_every_class_name_is_used_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted((ROOT / "kinst").rglob("*.py")):
        for node in nodes_of(file):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert len(places) > 500, "are the classes still found?"
    assert not {name: where for name, where in places.items() if len(where) > 1}
