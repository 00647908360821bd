"""Layout of everything that a program writes: records, aggregation tables, variables.

Tested by tests/codegen/layout/test_layout.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.codegen.analysis import string_table
from kinst.codegen.layout.aggregation_tables import Probed, capacities, entry_shapes
from kinst.codegen.layout.variable_places import (
    lay_out_dynamic,
    lay_out_values,
    place_variables,
    round_up,
)
from kinst.core.layout import RECORD_HEADER, RECORD_TIME
from kinst.core.records import AggregationLayout, ClauseLayout, Field, ProgramLayout
from kinst.dlang import typed


def recorded(action: typed.Action) -> tuple[typed.Expr, ...] | None:
    """Return the expressions whose values the action records; None if it records nothing."""
    if isinstance(action, typed.TraceAction | typed.PrintAction):
        return (action.expr,)
    if isinstance(action, typed.PrintfAction):
        return action.args
    if isinstance(action, typed.ExitAction):
        return (action.status,)
    if isinstance(action, typed.PerformAction):
        return action.args
    if isinstance(action, (typed.PrintaAction, typed.ClearAction)):
        return ()
    if isinstance(action, typed.TruncAction):
        return () if action.count is None else (action.count,)
    if isinstance(action, typed.NormalizeAction):
        return () if action.divisor is None else (action.divisor,)
    return None


def _lay_out_clause(clause: typed.Clause, strsize: int) -> ClauseLayout:
    at = RECORD_HEADER
    records = not clause.actions
    fields = []
    for action in clause.actions:
        values = recorded(action)
        records = records or values is not None
        placed, at = _lay_out_recorded(values or (), at, strsize)
        fields.append(placed)
    return ClauseLayout(clause.index, round_up(at, 8) if records else 0, tuple(fields))


def _lay_out_recorded(
    values: Sequence[typed.Expr], at: int, strsize: int
) -> tuple[tuple[Field, ...], int]:
    """Return the fields of the values that one action records, in order, and the offset where they
    end.

    `timestamp` gets no bytes of its own: its field is the time in the record's header.

    Args:
        at: offset in the record of the first field.
        strsize: bytes of a string with its NUL.
    """
    fields = list[Field]()
    for value in values:
        if isinstance(value, typed.Builtin) and value.name == "timestamp":
            fields.append(Field(RECORD_TIME, 8, value.type))
        else:
            placed, at = lay_out_values([value.type], at, strsize)
            fields += placed
    return tuple(fields), at


def lay_out_program(
    program: typed.TypedProgram,
    probes: Sequence[Probed],
    strsize: int,
    agg_size: int,
    dynvarsize: int = 1 << 20,
) -> ProgramLayout:
    """Return the layout of everything that a program's clauses write.

    Args:
        probes: every probe that will run a clause, with its id and clause indexes.
        strsize: bytes of a string with its NUL.
        agg_size: bytes of one half of one CPU's aggregation area.
        dynvarsize: bytes for the dynamic variables.

    Raises:
        KinstError: the aggregations do not fit in agg_size.
    """
    shapes = entry_shapes(program, probes, strsize, agg_size)
    sizes = capacities(shapes, agg_size)
    aggregations = []
    site_keys: dict[tuple[int, int], int] = {}
    variables = place_variables(program, strsize)
    area = counters = 0
    globals_end = round_up(variables.globals_size, 8)
    for shape, capacity in zip(shapes, sizes, strict=True):
        counted = shape.constant is not None and shape.aggregation.function.name == "count"
        slots = shape.slots(program)
        aggregations.append(
            AggregationLayout(
                shape.aggregation.index, area, shape.entry_size, capacity, shape.keys,
                shape.data_offset, shape.data_size,
                shape.constant.keys if shape.constant else None,
                counters if counted or slots else -1, slots, globals_end,
            )
        )  # fmt: skip
        area += capacity * shape.entry_size
        counters += 8 * slots or (8 * capacity if counted else 0)
        globals_end += 8 * slots
        if shape.constant:
            site_keys.update(shape.constant.entries)
    constants = tuple(s.aggregation.index for s in shapes if s.constant)
    return ProgramLayout(
        tuple(_lay_out_clause(clause, strsize) for clause in program.clauses),
        tuple(aggregations), variables.offsets, variables.globals_size, agg_size, strsize,
        constants, site_keys, counters, variables.clause_size,
        lay_out_dynamic(program, strsize, dynvarsize), string_table(program),
    )  # fmt: skip
