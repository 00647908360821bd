"""Walks over the trees of a D program: the syntax tree (syntax/tree.py) and the typed tree
(typed.py).

Nodes are dataclasses whose fields hold nodes, tuples of nodes, or other values. No typed tree is
higher than MAX_HEIGHT, so code may recurse on it. The syntax tree has a lower limit
(type_parser.MAX_DEPTH), because one operator on pointers becomes several typed nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from kinst.core.errors import DError
from kinst.dlang import typed
from kinst.dlang.syntax import tree

MAX_HEIGHT = (
    200  # a recursion with three Python frames a level stays within Python's limit of 1,000
)

# Annotations of fields that never hold nodes; such fields are skipped for speed.
_LEAVES = frozenset({"DType", "IntLiteral", "Prototype", "Span", "bool", "bytes", "int", "str"})

_Kind = TypeVar("_Kind")


class _Parts(dict[type, tuple[str, ...] | None]):
    """Map from each class to the names of its fields that may hold nodes; None for a class that is
    not a node (types, variables, spans).
    """

    def __missing__(self, kind: type) -> tuple[str, ...] | None:
        nodes = (typed.Expr, typed.Action, typed.Clause, typed.TypedProgram)
        is_node = kind.__module__ == tree.__name__ or issubclass(kind, nodes)
        self[kind] = None
        if is_node and is_dataclass(kind):
            self[kind] = tuple(f.name for f in fields(kind) if f.type not in _LEAVES)
        return self[kind]


_parts = _Parts()


def _add_nodes(value: object, nodes: list[object]) -> None:
    if isinstance(value, tuple):
        for item in value:
            _add_nodes(item, nodes)
    elif _parts[type(value)] is not None:
        nodes.append(value)


def children(node: object) -> list[object]:
    """Return the nodes directly below a node, or the nodes in a tuple, in program order."""
    nodes: list[object] = []
    if isinstance(node, tuple):
        _add_nodes(node, nodes)
    else:
        for name in _parts[type(node)] or ():
            _add_nodes(getattr(node, name), nodes)
    return nodes


def walk(node: object) -> Iterator[object]:
    """Yield a node (or the nodes in a tuple) and all nodes below it, outer nodes first, in program
    order.
    """
    pending = children(node)[::-1] if isinstance(node, tuple) else [node]
    while pending:
        current = pending.pop()
        yield current
        pending += reversed(children(current))


def find(node: object, kind: type[_Kind]) -> Iterator[_Kind]:
    """Yield every node of a class or its subclasses in a tree, the root included, in the order of
    walk().
    """
    return (part for part in walk(node) if isinstance(part, kind))


def expressions(
    node: typed.TypedProgram | typed.Clause | typed.Action | typed.Expr,
) -> Iterator[typed.Expr]:
    """Yield every expression in a part of a typed tree, including the part itself."""
    return find(node, typed.Expr)


def replaced(node: _Kind, replacement: Callable[[Any], Any]) -> _Kind:
    """Return a tree with nodes replaced by replacement(node).

    replacement() is called for outer nodes first. If it returns None, the node stays, and the nodes
    below it are replaced. If it returns another node, no nodes below that node are replaced. An
    unchanged part of the tree stays the same object.
    """
    return _replaced(node, replacement)  # type: ignore[no-any-return]


def _replaced(value: Any, replacement: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple):
        items = tuple(_replaced(item, replacement) for item in value)
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    names = _parts[type(value)]
    if names is None:
        return value
    instead = replacement(value)
    if instead is not None:
        return instead
    changed = {}
    for name in names:
        old = getattr(value, name)
        new = _replaced(old, replacement)
        if new is not old:
            changed[name] = new
    return replace(value, **changed) if changed else value


def check_height(clause: typed.Clause) -> None:
    """Check that no expression of a clause is higher than MAX_HEIGHT. Raises DError D_SYNTAX."""
    pending = [(child, 1) for child in children(clause)]
    while pending:
        node, height = pending.pop()
        if isinstance(node, typed.Action):
            pending += [(child, height) for child in children(node)]
            continue
        if height > MAX_HEIGHT:
            assert isinstance(node, typed.Expr)
            message = "expression is nested too deeply"
            raise DError(message, node.span, "D_SYNTAX", "use a variable for a part of it")
        pending += [(child, height + 1) for child in children(node)]


def symbols_in(program: typed.TypedProgram) -> set[tuple[str, str]]:
    """Return (module, name) of each symbol of the kernel that a program uses."""
    return {(symbol.module, symbol.name) for symbol in find(program, typed.SymbolAddress)}
