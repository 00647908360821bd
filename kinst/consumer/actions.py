"""Classification of D's actions: those that only show data, and those that make the consumer act
when it gets their record.

Tested by tests/consumer/test_interpreter.py.
"""

from __future__ import annotations

from kinst.dlang.typed import (
    Action,
    AggregateAction,
    ChillAction,
    Clause,
    EvaluateAction,
    PanicAction,
    PerformAction,
    PerturbAction,
    PrintAction,
    PrintfAction,
    RaiseAction,
    TraceAction,
)

_WITHOUT_RECORD = (
    EvaluateAction | AggregateAction | ChillAction | PerturbAction | PanicAction | RaiseAction
)


def shows_data(action: Action) -> bool:
    """Return whether an action only records values to be shown: trace(), printf(), print(),
    tracemem()."""
    if isinstance(action, PerformAction):
        return action.name == "tracemem"
    return isinstance(action, TraceAction | PrintfAction | PrintAction)


def acts(action: Action) -> bool:
    """Return whether an action makes the consumer act when it gets the record: printa(), clear(),
    exit(), system() and so on.

    The consumer shows the data of earlier actions of the clause before it acts, and the data of
    later actions after it has acted.
    """
    return not (shows_data(action) or isinstance(action, _WITHOUT_RECORD))


def is_silent(clause: Clause) -> bool:
    """Return whether the records of a clause print nothing, not even the CPU and the probe. This is
    so if only commit() and discard() among its actions write records."""
    performed = [a for a in clause.actions if not isinstance(a, _WITHOUT_RECORD)]
    return bool(performed) and all(
        isinstance(a, PerformAction) and a.name in ("commit", "discard") for a in performed
    )
