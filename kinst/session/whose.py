"""Predicates that limit clauses to some processes: -x only=command, and the exclusion of kinst's
own process in the guest.

Tested by tests/session/test_whose.py and tests/vm/language/test_command_alone.py.
"""

from __future__ import annotations

from dataclasses import replace

from kinst.dlang.api import parse_option
from kinst.dlang.syntax import tree
from kinst.providers import load_all
from kinst.session.descriptions import wants_kernel


def in_command(program: tree.ProgramNode, pid: int) -> tree.ProgramNode:
    """Return the program with clauses that fire only in process `pid` and its descendants."""
    return _where(program, f"progenyof({pid})")


def not_in_process(program: tree.ProgramNode, pid: int) -> tree.ProgramNode:
    """Return the program with clauses that do not fire in process `pid`."""
    return _where(program, f"pid != {pid}")


def _where(program: tree.ProgramNode, condition: str) -> tree.ProgramNode:
    """Return the program with a condition before the predicate of each clause of a kernel's probes.

    Clauses of kinst's own probes (BEGIN, END, ERROR, tick-N) are not changed. A clause with
    descriptions of both kinds becomes two clauses.
    """
    (example,) = parse_option("n", f"BEGIN /{condition}/ {{ }}").clauses
    test, providers = example.predicate, load_all()
    assert test is not None
    items: list[tree.ItemNode] = []
    for item in program.items:
        if not isinstance(item, tree.ClauseNode):
            items.append(item)
            continue
        traced, own = list[tree.DescriptionNode](), list[tree.DescriptionNode]()
        for one in item.descriptions:
            is_traced = wants_kernel([one.pattern], providers, fired=True)
            (traced if is_traced else own).append(one)
        if own:
            items.append(replace(item, descriptions=tuple(own)))
        if traced:
            before = item.predicate
            both = test if before is None else tree.InfixNode(before.span, "&&", test, before)
            items.append(replace(item, descriptions=tuple(traced), predicate=both))
    return replace(program, items=tuple(items))
