"""Tell apart actions that only show data and actions that act when their record arrives.

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
    """Return whether an action only records values: trace(), printf(), print(), tracemem()."""
    if isinstance(action, PerformAction):
        return action.name == "tracemem"
    return isinstance(action, TraceAction | PrintfAction | PrintAction)


def acts(action: Action) -> bool:
    """Return whether the consumer acts when the record arrives: printa(), clear(), exit(), system()
    and so on.  Actions before it in the clause are shown before it acts, later ones after."""
    return not (
        shows_data(action) or isinstance(action, EvaluateAction | AggregateAction | ChillAction)
    )


def is_silent(clause: Clause) -> bool:
    """Return whether a clause's records are only about speculations, and show no row."""
    performed = [
        a
        for a in clause.actions
        if not isinstance(a, EvaluateAction | AggregateAction | ChillAction)
    ]
    return bool(performed) and all(
        isinstance(a, PerformAction) and a.name in ("commit", "discard") for a in performed
    )
