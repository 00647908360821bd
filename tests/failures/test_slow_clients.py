"""A client that stays at an event, like a terminal on hold: the kernel's text is still restored in
time, and waiting data are bounded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile

import pytest

from kinst import api
from kinst.core.machine import MachineEvent
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
SECONDS = 60.0  # long enough for a busy machine


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
    end = time.monotonic() + SECONDS
    while machine.text != before and time.monotonic() < end:
        time.sleep(0.005)
    return machine.text == before


def until_records(events: Iterator[Event]) -> list[Event]:
    """Trace up to the first records, at which the client stays."""
    found = list(takewhile(lambda one: not isinstance(one, Batch), events))
    assert any(isinstance(one, Arrived) for one in found)
    return found


class ShortCommandMachine(FakeMachine):
    """A machine whose command ends before kinst looks for records again, and whose text is restored
    only after the client has seen a record, or if it sees none.

    Attributes:
        before: the text without patches.
        seen: set by the client.
        waited_in_vain: whether the text was restored although the client had seen no record.
    """

    def __init__(self) -> None:
        super().__init__("amd64")
        self.before = self.text
        self.seen = threading.Event()
        self.waited_in_vain = False

    def wait(self, timeout: float) -> MachineEvent | None:
        event = super().wait(60.0)
        time.sleep(0.1)  # the records are taken from the rings meanwhile
        return event

    def write_text(self, writes: Sequence[tuple[int, bytes]]) -> None:
        if self.text != self.before and not self.seen.wait(SECONDS):
            self.waited_in_vain = True
        super().write_text(writes)


def test_records_of_a_short_command_are_shown_before_the_text_is_restored() -> None:
    machine = ShortCommandMachine()
    with tracing(machine, f"{PROBE} {{ trace(1); }}", command=True) as running:
        for event in running.events():
            if isinstance(event, Arrived):
                machine.seen.set()
    assert machine.seen.is_set()
    assert not machine.waited_in_vain
    assert machine.text == machine.before


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
        end = time.monotonic() + SECONDS
        while not machine.idle and time.monotonic() < end:
            time.sleep(0.005)
        running.stop()
        found += events
    assert sum(one.count for one in found if isinstance(one, Lost)) > 0
