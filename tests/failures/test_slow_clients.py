"""A client that stays at an event, like a terminal on hold: the kernel's text is still restored in
time, and waiting data are bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile

import pytest

from kinst import api
from kinst.core.options import MachineOptions
from kinst.core.probe import ProgramText
from kinst.events import Arrived, Batch, End, Event, Lost
from kinst.session.report import Report
from kinst.session.request import Request
from tests.fake.fake_kernel_file import kernel_file
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_tracing import found_by_name
from tests.tiers import ISAS

WORK = [Call("exercise", (n,), n % 2) for n in range(6)]
PROBE = "kinst::work:entry"


@contextmanager
def tracing(
    machine: FakeMachine, program: str, *, command: bool, **options: str
) -> Iterator[api.Trace]:
    machine.workload = tuple(WORK)
    settings = {"quiet": "", "bufsize": "64k", "aggsize": "64k", **options}
    asked = Request(MachineOptions(debug=str(kernel_file(machine.isa.name))))
    report = Report(lambda _text: None, lambda _what, _part: None, time.monotonic())
    with found_by_name(machine), api.Machine(asked, report=report) as opened:
        made = opened.compile([ProgramText("n", program, "<program>")], settings)
        opened.start(made)
        with opened.trace(made, "workload" if command else "") as running:
            if not command:
                machine.begin()
            yield running


def restored(machine: FakeMachine, before: bytes) -> bool:
    end = time.monotonic() + 20
    while machine.text != before and time.monotonic() < end:
        time.sleep(0.005)
    return machine.text == before


def until_records(events: Iterator[Event]) -> list[Event]:
    """Trace up to the first records, at which the client stays."""
    found = list(takewhile(lambda one: not isinstance(one, Batch), events))
    assert any(isinstance(one, Arrived) for one in found)
    return found


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("why", "program", "reason"),
    [
        ("stop", f"{PROBE} {{ trace(1); }}", "interrupted"),
        ("exit", f"{PROBE} {{ trace(1); }} kinst::work:return /n++ == 3/ {{ exit(3); }}", "exit"),
        ("command", f"{PROBE} {{ trace(1); }}", "command"),
    ],
)
def test_the_text_is_restored_though_the_client_sleeps(
    isa: str, why: str, program: str, reason: str
) -> None:
    machine = FakeMachine(isa)
    before = machine.text
    with tracing(machine, program, command=why == "command") as running:
        events = running.events()
        until_records(events)
        if why == "stop":
            assert machine.text != before
            running.stop()
        assert restored(machine, before)
        *_, end = events
    assert isinstance(end, End) and end.reason == reason
    assert end.status == (3 if why == "exit" else 0)


def test_what_waits_for_the_client_is_bounded_and_what_is_lost_is_told() -> None:
    machine = FakeMachine("amd64")
    program = (
        "kinst::exercise:, kinst::work:, kinst::fibonacci:, kinst::many: { trace(timestamp); }"
    )
    with tracing(machine, program, command=False, queuesize="1k", bufsize="4k") as running:
        events = running.events()
        found = until_records(events)
        end = time.monotonic() + 20
        while not machine.idle and time.monotonic() < end:
            time.sleep(0.005)
        running.stop()
        found += events
    assert sum(one.count for one in found if isinstance(one, Lost)) > 0
