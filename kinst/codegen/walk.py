"""Walks over typed trees: what codegen has to know of a clause before it lowers it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from kinst.codegen.machine import Machine
from kinst.dlang import typed


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


def string_table(program: typed.Program) -> tuple[dict[bytes, int], bytes]:
    """(offset of each literal in the strings area, the bytes of that area)."""
    offsets: dict[bytes, int] = {}
    text = bytearray()
    for clause in program.clauses:
        for expr in expressions(clause):
            if isinstance(expr, typed.StrConst) and expr.value not in offsets:
                offsets[expr.value] = len(text)
                text += expr.value + b"\0"
    return offsets, bytes(text)


def register_slot(machine: Machine, index: int) -> int | None:
    """Frame slot of regs[index]."""
    return next((r.slot for r in machine.registers if r.index == index), None)


def slots_read(clause: typed.Clause, machine: Machine) -> tuple[frozenset[int], bool]:
    """(frame slots that the clause reads, whether it reads `caller`).

    `caller` also needs the slot that the site's descriptor names (SITE_CFA_SLOT).
    """
    slots: set[int] = set()
    caller = False
    for expr in expressions(clause):
        if isinstance(expr, typed.RegisterRead):
            if isinstance(expr.index, typed.IntConst):
                slot = register_slot(machine, expr.index.value)
                slots |= set() if slot is None else {slot}
            else:
                slots |= {r.slot for r in machine.registers}
        elif isinstance(expr, typed.Builtin):
            if expr.name == "caller":
                caller = True
                slots.add(machine.sp_slot)
            elif expr.name[:3] == "arg" and expr.name[3:].isdigit():
                number = int(expr.name[3:])
                slots |= set(machine.arguments[number : number + 1])
    return frozenset(slots), caller
