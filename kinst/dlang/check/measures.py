"""What aggregations measure, for their output: the aggregated expression, the unit of its values,
and the expressions of the keys.

D's clocks count nanoseconds. The unit of a value is found from its expression: sums and differences
keep the unit, and a division by a power of a thousand makes a greater unit of time. The unit of any
other value is unknown.
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


def measures_of(program: tree.ProgramNode) -> Mapping[str, Measure]:
    """Return the measure of each aggregation of a program, by the aggregation's name.

    An aggregation may have several statements. If they differ in the expression, the unit or the
    keys, this part of the measure is unknown: "", or () for the keys.
    """
    statements = [statement for clause in program.clauses for statement in clause.statements]
    units = _variables(statements)
    measures: dict[str, Measure] = {}
    for statement in statements:
        if not isinstance(statement, tree.AssignmentNode) or not isinstance(
            statement.right, tree.CallNode
        ):
            continue
        name, keys = _aggregation(statement.left)
        if name is None:
            continue
        value = statement.right.arguments[0] if statement.right.arguments else None
        measure = Measure(
            unparse_expression(value) if value is not None else "",
            _unit(value, units) if value is not None else _UNKNOWN,
            tuple(map(unparse_expression, keys)),
        )
        measures[name] = _both(measures[name], measure) if name in measures else measure
    return measures


def _both(one: Measure, other: Measure) -> Measure:
    return Measure(
        one.expression if one.expression == other.expression else "",
        one.unit if one.unit == other.unit else _UNKNOWN,
        one.keys if one.keys == other.keys else (),
    )


def _aggregation(node: tree.ExprNode) -> tuple[str | None, tuple[tree.ExprNode, ...]]:
    """Return name and keys of @name or @name[keys]; (None, ()) for any other expression."""
    keys: tuple[tree.ExprNode, ...] = ()
    if isinstance(node, tree.IndexNode):
        keys, node = node.arguments, node.base
    return (node.name, keys) if isinstance(node, tree.AggregationNode) else (None, ())


def _variables(statements: list[tree.ExprNode]) -> dict[str, str]:
    """Return the unit of each variable, by name: the unit that all values assigned to the variable
    have; "" if their units differ or are unknown. Assigned integer constants are ignored.
    """
    assigned: dict[str, list[tree.ExprNode]] = {}
    for statement in statements:
        for node in _within(statement):
            if isinstance(node, tree.AssignmentNode) and _aggregation(node.left)[0] is None:
                assigned.setdefault(_variable(node.left), []).append(node.right)
    units: dict[str, str] = {}
    while True:
        before = dict(units)
        for name, values in assigned.items():
            those = [one for one in values if not isinstance(one, tree.IntegerNode)]
            all_units = {_unit(one, units) for one in those}
            units[name] = all_units.pop() if len(all_units) == 1 else _UNKNOWN
        if units == before:
            return units


def _variable(node: tree.ExprNode) -> str:
    """Return a variable's name in D, without its keys."""
    return unparse_expression(node.base if isinstance(node, tree.IndexNode) else node)


def _within(node: tree.ExprNode) -> Iterator[tree.ExprNode]:
    yield node
    for field in fields(node):
        value = getattr(node, field.name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, tree.ExprNode):
                yield from _within(one)


def _unit(node: tree.ExprNode, units: Mapping[str, str]) -> str:
    match node:
        case tree.NameNode(_, name) if name in CLOCKS:
            return UNITS[0]
        case tree.InfixNode(_, "+" | "-", left, right):
            both_units = {_unit(left, units), _unit(right, units)}
            # The difference of a time and a value of unknown unit is a time: the value is probably
            # a time as well.
            both_units.discard(_UNKNOWN)
            return both_units.pop() if len(both_units) == 1 else _UNKNOWN
        case tree.InfixNode(_, "/", left, tree.IntegerNode() as divisor):
            return scaled(_unit(left, units), divisor.literal.value)
        case tree.CastNode() | tree.TypedNode():
            return _unit(node.operand, units)
        case tree.TernaryNode():
            both = [
                one for one in (node.then, node.otherwise) if not isinstance(one, tree.IntegerNode)
            ]
            both_units = {_unit(one, units) for one in both}
            return both_units.pop() if len(both_units) == 1 else _UNKNOWN
        case tree.NameNode() | tree.MemberNode() | tree.IndexNode():
            return units.get(_variable(node), _UNKNOWN)
    return _UNKNOWN
