"""Steps are said when they begin, and again while they go on."""

from __future__ import annotations

import time

from kinst.cli.steps import Steps


def test_a_step_that_goes_on_is_said_again() -> None:
    told: list[str] = []
    with Steps(told.append, again=0.05) as steps:
        steps.begin("planting")
        until = time.monotonic() + 10
        while len(told) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        steps.begin("running the command")
    assert told[0] == "kinst: planting"
    assert told[1].startswith("kinst: planting: ") and told[1].endswith(" s so far")
    assert "kinst: running the command" in told
    ended = len(told)
    time.sleep(0.15)
    assert len(told) == ended


def test_a_short_step_is_said_once() -> None:
    told: list[str] = []
    with Steps(told.append) as steps:
        steps.begin("planting")
    assert told == ["kinst: planting"]
