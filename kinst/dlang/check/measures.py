"""What aggregations measure: the expression that each is given, its unit, and its keys.

A unit is known only where the program says so: D's clocks count nanoseconds, and what is computed
from them by sums, differences and divisions by a power of thousand is a time as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from kinst.core.units import UNITS, scaled
from kinst.dlang.syntax import tree
from kinst.dlang.syntax.unparse import unparse_expression
from kinst.dlang.typed import Measure

CLOCKS = ("timestamp", "vtimestamp", "walltimestamp")
_UNKNOWN = ""


def measures_of(program: tree.Program) -> Mapping[str, Measure]:
    """Return what each aggregation of a program measures, by its name.

    Statements that differ in their expression leave it unknown, and so with units and keys."""
    statements = [one for clause in program.clauses for one in clause.statements]
    units = _variables(statements)
    found: dict[str, Measure] = {}
    for one in statements:
        if not isinstance(one, tree.Assignment) or not isinstance(one.right, tree.Call):
            continue
        name, keys = _aggregation(one.left)
        if name is None:
            continue
        value = one.right.arguments[0] if one.right.arguments else None
        measure = Measure(
            unparse_expression(value) if value is not None else "",
            _unit(value, units) if value is not None else _UNKNOWN,
            tuple(map(unparse_expression, keys)),
        )
        found[name] = _both(found[name], measure) if name in found else measure
    return found


def _both(one: Measure, other: Measure) -> Measure:
    return Measure(
        one.expression if one.expression == other.expression else "",
        one.unit if one.unit == other.unit else _UNKNOWN,
        one.keys if one.keys == other.keys else (),
    )


def _aggregation(node: tree.Expr) -> tuple[str | None, tuple[tree.Expr, ...]]:
    """The name of @name or @name[keys], None for anything else, and the keys."""
    keys: tuple[tree.Expr, ...] = ()
    if isinstance(node, tree.Index):
        keys, node = node.arguments, node.base
    return (node.name, keys) if isinstance(node, tree.Aggregation) else (None, ())


def _variables(statements: list[tree.Expr]) -> dict[str, str]:
    """The units of variables: of all that is assigned to them, which a constant does not change."""
    given: dict[str, list[tree.Expr]] = {}
    for statement in statements:
        for node in _within(statement):
            if isinstance(node, tree.Assignment) and _aggregation(node.left)[0] is None:
                given.setdefault(_variable(node.left), []).append(node.right)
    units: dict[str, str] = {}
    while True:
        before = dict(units)
        for name, values in given.items():
            those = [one for one in values if not isinstance(one, tree.Integer)]
            all_units = {_unit(one, units) for one in those}
            units[name] = all_units.pop() if len(all_units) == 1 else _UNKNOWN
        if units == before:
            return units


def _variable(node: tree.Expr) -> str:
    """A variable's name, whatever its keys."""
    return unparse_expression(node.base if isinstance(node, tree.Index) else node)


def _within(node: tree.Expr) -> Iterator[tree.Expr]:
    yield node
    for field in fields(node):
        value = getattr(node, field.name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, tree.Expr):
                yield from _within(one)


def _unit(node: tree.Expr, units: Mapping[str, str]) -> str:
    match node:
        case tree.Name(_, name) if name in CLOCKS:
            return UNITS[0]
        case tree.Infix(_, "+" | "-", left, right):
            found = {_unit(left, units), _unit(right, units)}
            # A time since what is not known to be one is a time: that variable's is from elsewhere.
            found.discard(_UNKNOWN)
            return found.pop() if len(found) == 1 else _UNKNOWN
        case tree.Infix(_, "/", left, tree.Integer() as divisor):
            return scaled(_unit(left, units), divisor.literal.value)
        case tree.CastTo() | tree.Typed():
            return _unit(node.operand, units)
        case tree.Ternary():
            both = [one for one in (node.then, node.otherwise) if not isinstance(one, tree.Integer)]
            found = {_unit(one, units) for one in both}
            return found.pop() if len(found) == 1 else _UNKNOWN
        case tree.Name() | tree.Member() | tree.Index():
            return units.get(_variable(node), _UNKNOWN)
    return _UNKNOWN
