"""kinst/dlang/walk.py: one walker for both trees."""

from __future__ import annotations

from kinst.dlang.api import parse_text
from kinst.dlang.walk import children, expressions, find, replaced, walk
from tests.dlang.dhelp import compile_, tree, typed

TEXT = 'BEGIN /pid > 1/ { x = arg0 + 2; printf("%d %s", x, execname); @a[x] = sum(3); }'


def test_program_order_outer_ones_first() -> None:
    kinds = [type(node).__name__ for node in expressions(compile_(TEXT).clauses[0])]
    assert kinds == [
        "Binary", "Builtin", "IntConst",
        "Assign", "Binary", "Builtin", "IntConst",
        "GlobalRead", "Builtin", "GlobalRead", "IntConst",
    ]  # fmt: skip


def test_children_are_nodes_alone() -> None:
    (clause,) = compile_(TEXT).clauses
    assert [type(node).__name__ for node in children(clause)] == [
        "Binary", "EvaluateAction", "PrintfAction", "AggregateAction",
    ]  # fmt: skip
    assert children(clause.actions) == list(clause.actions)
    assert children(typed.IntConst(clause.predicate.type, clause.span, 1)) == []  # type: ignore[union-attr]


def test_find_in_both_trees() -> None:
    names = [b.name for b in find(compile_(TEXT), typed.Builtin)]
    assert names == ["pid", "arg0", "execname"]
    syntax = parse_text(TEXT, "t.d")
    assert [n.name for n in find(syntax, tree.NameNode)] == [
        "pid", "x", "arg0", "printf", "x", "execname", "x", "sum",
    ]  # fmt: skip
    assert len(list(find(syntax, tree.DescriptionNode))) == 1


def test_replaced_keeps_what_does_not_change() -> None:
    syntax = parse_text(TEXT, "t.d")
    assert replaced(syntax, lambda node: None) is syntax

    def other(node: object) -> object:
        return tree.NameNode(node.span, "y") if node == tree.NameNode(node.span, "x") else None  # type: ignore[attr-defined]

    changed = replaced(syntax, lambda n: other(n) if isinstance(n, tree.NameNode) else None)
    assert [n.name for n in find(changed, tree.NameNode)].count("y") == 3
    (old,), (new,) = syntax.clauses, changed.clauses
    assert new.predicate is old.predicate and new.descriptions is old.descriptions
    assert len(list(walk(changed))) == len(list(walk(syntax)))
