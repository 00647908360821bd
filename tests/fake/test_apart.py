"""Trampolines on a machine that translates code keep away from the code around sites, and
count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kinst.core.columns import I64, U64
from kinst.core.machine import CodeTable
from kinst.patch.plan import Plan, plan_sites
from kinst.session import plan as session_plan
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_tracing import trace
from tests.tiers import ISAS

PROGRAM = "kinst::exercise:0 { @ = count(); }"
WORK = [Call("exercise", (n,), n % 2) for n in range(6)]
NEAR = 1 << 21


@pytest.mark.parametrize("isa", ISAS)
def test_a_trampoline_gives_way_to_where_calls_return(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []

    def spy(*args: Any, **settings: Any) -> Plan:
        plans.append(plan_sites(*args, **settings))
        return plans[-1]

    monkeypatch.setattr(session_plan, "plan_sites", spy)
    machine = FakeMachine(isa)
    start, size = machine.kernel.symbols["exercise"]
    function = machine.isa.decode(machine.read(start, size), start)
    call = next(one for one in function if machine.isa.flow(one.code, one.address).kind == "call")
    close = trace(machine, PROGRAM, WORK)
    place, _ = plans[-1].text[0]

    def entry(addresses: U64) -> I64:
        """The first address for a trampoline is also the address to which the first call
        returns."""
        scratch = addresses - np.uint64(place & -NEAR) < NEAR
        origin = np.where(scratch, np.uint64(place), np.uint64(call.end))
        return ((addresses - origin) % np.uint64(4096)).astype(np.int64)

    machine = FakeMachine(isa)
    machine.abilities = replace(machine.abilities, code_table=CodeTable(4096, entry))
    apart = trace(machine, PROGRAM, WORK)
    at, _ = plans[-1].text[0]
    assert place < at < place + 4096
    assert apart.out == close.out != ""
