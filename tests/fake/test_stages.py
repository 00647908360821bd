"""Machine.dump(): the value after each stage as text, on the fake machine."""

from __future__ import annotations

import re

import pytest

import kinst
from kinst import api
from kinst.api.machine import DUMP_STAGES
from kinst.core.options import MachineOptions
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
