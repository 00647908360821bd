"""Times at which timers are due, and periods in which they could not be fired."""

from __future__ import annotations

from kinst.core.kernel import Timer
from kinst.core.probe import Probe, ProbeName
from kinst.session.timers import DueTimer, Timers
from kinst.session.values import EnabledSite


def timer(number: int, period: int) -> EnabledSite:
    probe = Probe(number, ProbeName("profile", "", "", f"tick-{period}ns"))
    return EnabledSite(probe, (0,), number, Timer(period, each_cpu=False))


def started(*enabled: EnabledSite, now: int = 0) -> Timers:
    timers = Timers()
    timers.start(enabled, now)
    return timers


def numbers(due: list[DueTimer]) -> list[int]:
    return [one.probe.id for _, one in due]


def test_a_timer_is_due_once_each_period() -> None:
    timers = started(timer(1, 100), now=5)
    assert timers.next() == 105
    assert timers.due(104) == []
    for when in (105, 205, 305):
        due = timers.due(when)
        assert numbers(due) == [1]
        timers.fired(due, when + 10)
    assert timers.take_missed() == []


def test_timers_that_are_due_come_in_the_order_of_their_times() -> None:
    timers = started(timer(1, 300), timer(2, 100), timer(3, 200))
    assert numbers(timers.due(300)) == [2, 3, 1]


def test_what_becomes_due_while_timers_are_fired_waits_for_the_next_turn() -> None:
    """Otherwise a firing that takes longer than its period would be followed by the next one for
    ever."""
    timers = started(timer(1, 100))
    due = timers.due(100)
    assert timers.due(1000) == []  # it is being fired
    timers.fired(due, 1050)
    assert timers.due(1049) == []
    assert timers.next() == 1100


def test_no_timer_is_due_before_the_rest_is_over() -> None:
    """The machine must run, whichever of several timers asks for a stop."""
    timers = started(timer(1, 100), timer(2, 110))
    timers.fired(timers.due(100), 500)
    assert timers.next() == 500
    assert timers.due(499) == []
    assert numbers(timers.due(500)) == [2, 1]


def test_each_period_is_fired_or_missed() -> None:
    """However long firings take, all periods that have ended are in one of the two counts."""
    period, now, fired, missed = 100, 0, 0, 0
    timers = started(timer(1, period))
    for took in (0, 1, 99, 100, 101, 250, 999, 1000, 1001, 7):
        now = max(now, timers.next() or 0)
        due = timers.due(now)
        fired += len(due)
        now += took
        timers.fired(due, now)
        missed += sum(count for _, count in timers.take_missed())
        ended = now // period
        # A period that ends at this very moment may still be fired.
        assert ended - (now % period == 0) <= fired + missed <= ended
