"""The value after each stage as text (Machine.dump()), and what a started machine says, on the fake
machine."""

from __future__ import annotations

import re
import time

import pytest

import kinst
from kinst import api
from kinst.api.machine import DUMP_STAGES
from kinst.core.options import MachineOptions
from kinst.session.report import Report
from kinst.session.request import Request
from tests.fake.fake_machine import FakeMachine
from tests.fake.fake_tracing import found_by_name
from tests.tiers import ISAS

# What the text of each stage names.
NAMES = {
    "tree": "ProgramNode",
    "typed": "TypedProgram",
    "probes": "leaf",
    "layout": "Layout",
    "ir": "define ",
    "code": "TargetCode(",
    "plan": "leaf+0",
}


@pytest.mark.parametrize("isa", ISAS)
def test_the_value_after_each_stage(isa: str) -> None:
    machine = FakeMachine(isa)
    before = machine.text
    asked = Request(MachineOptions(debug=str(machine.file)))
    with found_by_name(machine), api.Machine(asked) as opened:
        dumps = {
            stage: opened.dump("kinst::leaf:0 { @ = quantize(cpu); }", stage)
            for stage in DUMP_STAGES
        }
        assert set(dumps) == set(NAMES)
        for stage, text in dumps.items():
            assert NAMES[stage] in text, (stage, text[:1000])
        with pytest.raises(kinst.KinstError, match="no such stage: what"):
            opened.dump("BEGIN { exit(0); }", "what")
    assert machine.text == before


def test_the_plan_of_a_program_that_needs_no_kernel_is_empty() -> None:
    with kinst.host() as machine:
        assert machine.dump("BEGIN { exit(0); }", "plan") == ""
        assert re.search(r"define .*\(", machine.dump("BEGIN { exit(0); }", "ir"))


def test_a_listing_does_not_say_how_the_machine_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeMachine, "describe", lambda self: "how the machine runs")
    machine = FakeMachine("amd64")
    for list_probes in (True, False):
        said: list[str] = []
        asked = Request(MachineOptions(debug=str(machine.file)), list_probes=list_probes)
        report = Report(said.append, lambda _what, _part: None, time.monotonic(), verbose=True)
        with found_by_name(machine), api.Machine(asked, report=report) as opened:
            opened.start()
        assert ("kinst: how the machine runs" in said) is not list_probes
