"""Which actions of a clause only show data, and which do something when their record arrives.

Tested by tests/consumer/test_interpreter.py.
"""

from __future__ import annotations

from kinst.dlang.typed import (
    Action,
    AggregateAction,
    ChillAction,
    Clause,
    EvaluateAction,
    PerformAction,
    PrintAction,
    PrintfAction,
    TraceAction,
)


def shows_data(action: Action) -> bool:
    """trace(), printf(), print(), tracemem(): their values are all that the record brings."""
    if isinstance(action, PerformAction):
        return action.name == "tracemem"
    return isinstance(action, TraceAction | PrintfAction | PrintAction)


def acts(action: Action) -> bool:
    """printa(), clear(), exit(), system() and all else that happens when the record arrives, so
    that what stands before it in the clause is shown before, and what stands behind it after."""
    return not (
        shows_data(action) or isinstance(action, EvaluateAction | AggregateAction | ChillAction)
    )


def is_silent(clause: Clause) -> bool:
    """Whether its records are only about speculations, and show no row of their own."""
    performed = [
        a
        for a in clause.actions
        if not isinstance(a, EvaluateAction | AggregateAction | ChillAction)
    ]
    return bool(performed) and all(
        isinstance(a, PerformAction) and a.name in ("commit", "discard") for a in performed
    )
