"""Walks over D's trees: the syntax tree (syntax/tree.py) and the typed tree (typed.py).

Both are dataclasses whose fields hold nodes, tuples of nodes, or values that are no nodes. No tree
is higher than MAX_HEIGHT, so recursion over one is safe. Parsing bounds the syntax tree
(type_parser.MAX_DEPTH), but pointer arithmetic turns one operator into several typed nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from kinst.core.errors import DError
from kinst.dlang import typed
from kinst.dlang.syntax import tree

MAX_HEIGHT = 200  # at three Python frames a level, still within Python's 1,000

# Annotations of fields that never hold nodes; such fields are skipped for speed.
_LEAVES = frozenset({"DType", "IntLiteral", "Span", "bool", "bytes", "int", "str"})

_Kind = TypeVar("_Kind")


class _Parts(dict[type, tuple[str, ...] | None]):
    """For each class of nodes the fields that may hold other nodes; None for what is no node
    (types, variables, spans)."""

    def __missing__(self, kind: type) -> tuple[str, ...] | None:
        nodes = (typed.Expr, typed.Action, typed.Clause, typed.TypedProgram)
        known = kind.__module__ == tree.__name__ or issubclass(kind, nodes)
        self[kind] = None
        if known and is_dataclass(kind):
            self[kind] = tuple(f.name for f in fields(kind) if f.type not in _LEAVES)
        return self[kind]


_parts = _Parts()


def _below(value: object, found: list[object]) -> None:
    if isinstance(value, tuple):
        for item in value:
            _below(item, found)
    elif _parts[type(value)] is not None:
        found.append(value)


def children(node: object) -> list[object]:
    """The nodes directly below a node, or the nodes in a tuple, in program order."""
    found: list[object] = []
    if isinstance(node, tuple):
        _below(node, found)
    else:
        for name in _parts[type(node)] or ():
            _below(getattr(node, name), found)
    return found


def walk(node: object) -> Iterator[object]:
    """A node (or the nodes in a tuple) and everything below, outer nodes first, in program
    order."""
    waiting = children(node)[::-1] if isinstance(node, tuple) else [node]
    while waiting:
        here = waiting.pop()
        yield here
        waiting += reversed(children(here))


def find(node: object, kind: type[_Kind]) -> Iterator[_Kind]:
    """Every node of a class, or of its subclasses, in the order of walk()."""
    return (found for found in walk(node) if isinstance(found, kind))


def expressions(
    node: typed.TypedProgram | typed.Clause | typed.Action | typed.Expr,
) -> Iterator[typed.Expr]:
    """Every expression in a piece of a typed tree, including itself."""
    return find(node, typed.Expr)


def replaced(node: _Kind, one: Callable[[Any], Any]) -> _Kind:
    """The tree with each node replaced for which one() gives another one, and not None.

    Outer nodes come first, and replacements are not looked into. What does not change stays the
    same object.
    """
    return _replaced(node, one)  # type: ignore[no-any-return]


def _replaced(value: Any, one: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple):
        items = tuple(_replaced(item, one) for item in value)
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    names = _parts[type(value)]
    if names is None:
        return value
    found = one(value)
    if found is not None:
        return found
    changed = {}
    for name in names:
        old = getattr(value, name)
        new = _replaced(old, one)
        if new is not old:
            changed[name] = new
    return replace(value, **changed) if changed else value


def check_height(clause: typed.Clause) -> None:
    """Raise DError D_SYNTAX if an expression of the clause is higher than MAX_HEIGHT."""
    waiting = [(child, 1) for child in children(clause)]
    while waiting:
        node, height = waiting.pop()
        if isinstance(node, typed.Action):
            waiting += [(child, height) for child in children(node)]
            continue
        if height > MAX_HEIGHT:
            assert isinstance(node, typed.Expr)
            message = "expression is nested too deeply"
            raise DError(message, node.span, "D_SYNTAX", "use a variable for a part of it")
        waiting += [(child, height + 1) for child in children(node)]
