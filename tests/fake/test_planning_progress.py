"""Planning of many probes is reported while it runs; planning of few is not."""

from __future__ import annotations

import time

import pytest

import kinst.api.machine
from kinst import api
from kinst.core.options import MachineOptions
from kinst.core.probe import ProgramText
from kinst.session.report import Report
from kinst.session.request import Request
from tests.fake.fake_machine import FakeMachine
from tests.fake.fake_tracing import found_by_name

SMALL = {"bufsize": "256k", "aggsize": "256k"}


def told_of(program: str) -> list[tuple[str, float | None]]:
    """Return the reports about the planning of a program."""
    told: list[tuple[str, float | None]] = []
    machine = FakeMachine("amd64")
    report = Report(lambda _: None, lambda what, part: told.append((what, part)), time.monotonic())
    with (
        found_by_name(machine),
        api.Machine(Request(MachineOptions(debug=str(machine.file))), report=report) as opened,
    ):
        made = opened.compile([ProgramText("n", program, "<program>")], SMALL)
        opened.start(made)
        opened.build(made)
    return [one for one in told if one[0].startswith("planning")]


def test_many_and_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinst.api.machine, "MANY_PROBES", 3)
    assert told_of("kinst::work:0 { @ = count(); }") == []
    told = told_of("kinst::work: { @ = count(); }")
    parts = [part for _, part in told]
    assert parts[0] == 0 and parts[-1] == 1 and len(parts) > 5
    assert parts == sorted(one for one in parts if one is not None)
    assert all("probes" in what for what, _ in told)
