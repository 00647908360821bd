"""A bound on the height of typed trees, so that what comes after may recurse over them.

Parsing bounds the syntax tree (exprparser.MAX_DEPTH), but pointer arithmetic makes several
typed nodes of one operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from kinst.core.errors import DError
from kinst.dlang import typed

MAX_HEIGHT = 200  # at three Python frames a level, still within Python's 1,000


def children(node: object) -> Iterator[typed.Expr]:
    """The expressions directly below a clause, an action or an expression."""
    if isinstance(node, tuple):
        for item in node:
            if isinstance(item, typed.Action):
                yield from children(item)
            elif isinstance(item, typed.Expr):
                yield item
    elif isinstance(node, typed.Clause | typed.Action | typed.Expr):
        for field in fields(node):
            value = getattr(node, field.name)
            if isinstance(value, typed.Expr):
                yield value
            elif isinstance(value, tuple):
                yield from children(value)


def check_height(clause: typed.Clause) -> None:
    """Raise DError D_SYNTAX when an expression of the clause is higher than MAX_HEIGHT."""
    waiting = [(child, 1) for child in children(clause)]
    while waiting:
        node, height = waiting.pop()
        if height > MAX_HEIGHT:
            message = "expression is nested too deeply"
            raise DError(message, node.span, "D_SYNTAX", "use a variable for a part of it")
        waiting += [(child, height + 1) for child in children(node)]
