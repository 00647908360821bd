"""Walks over typed trees.

No tree is higher than MAX_HEIGHT, so recursion over one is safe.  Parsing bounds the syntax tree
(type_parser.MAX_DEPTH), but pointer arithmetic makes several typed nodes of one operator."""

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


def _nodes(value: object) -> Iterator[typed.Expr]:
    if isinstance(value, tuple):
        for item in value:
            yield from _nodes(item)
    elif isinstance(value, (typed.Expr, typed.Action)):
        if isinstance(value, typed.Expr):
            yield value
        for field in fields(value):
            yield from _nodes(getattr(value, field.name))


def expressions(clause: typed.Clause) -> Iterator[typed.Expr]:
    """Every expression of a clause, outer ones first, in program order."""
    yield from _nodes(clause.predicate)
    yield from _nodes(clause.actions)


def within(expr: typed.Expr) -> Iterator[typed.Expr]:
    """An expression and all in it."""
    yield from _nodes(expr)
