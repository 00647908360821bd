"""A trace as a generator of events: its state after stop(), close() and a client's error."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import kinst
from kinst.api.trace import Trace
from kinst.events import Batch, Closing, End, Lost, TracingOver

TICKS = "tick-1ms { trace(1); @ = count(); }"


def drains() -> bool:
    return any(thread.name == "kinst-drain" for thread in threading.enumerate())


def test_a_client_that_stops_looking_leaves_nothing() -> None:
    with kinst.host() as machine:
        with machine.trace(TICKS) as trace:
            for event in trace.events():
                if isinstance(event, Batch):
                    assert drains()
                    break
        assert not drains()
        with machine.trace("BEGIN { exit(4); }") as trace:
            assert [event for event in trace if isinstance(event, End)] == [End("exit", 4)]


def test_a_clients_error_flies_when_all_is_undone() -> None:
    with kinst.host() as machine:
        with pytest.raises(ValueError, match="mine"), machine.trace(TICKS) as trace:
            for _ in trace:
                raise ValueError("mine")
        assert not drains()


def test_stop_from_another_thread() -> None:
    with kinst.host() as machine, machine.trace(TICKS + " END { @ends = count(); }") as trace:
        events = []
        for event in trace.events():
            events.append(event)
            if isinstance(event, Batch) and trace.aggregations():
                thread = threading.Thread(target=trace.stop)
                thread.start()
                thread.join()
        kinds = [type(event) for event in events]
        assert kinds.index(TracingOver) < kinds.index(Closing)
        assert events[kinds.index(TracingOver)] == TracingOver("interrupted")
        assert events[-1] == End("interrupted", 0)
        assert trace.aggregations()["ends"][()] == 1
        assert not drains()


def test_losses_are_told_at_most_as_often_as_statusrate_says() -> None:
    program = "tick-5ms { @[i++] = count(); } tick-800ms { exit(0); }"
    options = {"aggsize": "512", "statusrate": "60s"}
    with kinst.host() as machine, machine.trace(program, options=options) as trace:
        lost = [e for e in trace.events() if isinstance(e, Lost) and e.kind == "aggregation"]
    # The first at once, and the others at the end.
    assert len(lost) == 2 and lost[1].count > lost[0].count


@pytest.mark.parametrize(
    ("reason", "over"),
    [
        ("command", True), ("panic", True), ("hang", True), ("gone", True),
        ("exit", False), ("timeout", False), ("interrupted", False),
    ],
)  # fmt: skip
def test_a_command_is_ended_only_where_it_can_still_run(reason: str, over: bool) -> None:
    """A guest that panicked, hangs or is gone cannot end a command, nor one that has ended."""
    ended: list[bool] = []
    running: Any = SimpleNamespace(events=lambda *_: (event for event in [End(reason, 0)]))
    plan: Any = SimpleNamespace(compiled=SimpleNamespace(options=SimpleNamespace(fail="")))
    with Trace(running, plan, "sleep 1000", ended.append) as trace:
        assert [event.reason for event in trace.events() if isinstance(event, End)] == [reason]
    assert ended == [over]
