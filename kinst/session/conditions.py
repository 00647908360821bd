"""Sites that count only on a condition: their clauses, with the condition as a predicate.

A clause whose probe has such sites is there twice in the program that is compiled: as written,
and with the condition before its own predicate.  Everything behind this stage knows clauses
and no conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kinst.core.dtypes import INT
from kinst.core.isa import Isa
from kinst.dlang import typed
from kinst.dlang.api import Environment, compile_text
from kinst.session.probes import Enabled


def condition_of(text: str, isa: Isa) -> typed.Expr:
    """A D expression over regs[] and built-ins, typed.  Raises DError where it is none."""
    environment = Environment({r.d_name: r.index for r in isa.registers}, 8)
    _, program = compile_text(f"BEGIN/{text}/{{}}", "<condition>", None, environment)
    predicate = program.clauses[0].predicate
    assert predicate is not None
    return predicate


def with_conditions(
    program: typed.Program, enabled: Sequence[Enabled], isa: Isa
) -> tuple[typed.Program, tuple[Enabled, ...]]:
    """The program with a copy of each clause for each condition under which it runs, and the
    probes that run them; no Enabled of the result has a condition."""
    clauses = list(program.clauses)
    copies: dict[tuple[int, str], int] = {}
    conditions: dict[str, typed.Expr] = {}
    changed = []
    for e in enabled:
        if not e.condition:
            changed.append(e)
            continue
        if e.condition not in conditions:
            conditions[e.condition] = condition_of(e.condition, isa)
        own = []
        for index in e.clauses:
            key = (index, e.condition)
            if key not in copies:
                copies[key] = len(clauses)
                clauses.append(_copy(clauses[index], conditions[e.condition], len(clauses)))
            own.append(copies[key])
        changed.append(replace(e, clauses=tuple(own), condition=""))
    return replace(program, clauses=tuple(clauses)), tuple(changed)


def _copy(clause: typed.Clause, condition: typed.Expr, index: int) -> typed.Clause:
    predicate = condition
    if clause.predicate is not None:
        predicate = typed.Logical(INT, clause.span, "&&", condition, clause.predicate)
    return replace(clause, index=index, predicate=predicate)
