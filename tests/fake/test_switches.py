"""Tracepoints of the fake kernel: sites whose arguments are expressions, and a switch that is on
while they are planted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from kinst.core.errors import KinstError
from kinst.core.layout import ARGUMENT_NONE, ARGUMENT_SLOT
from kinst.core.probe import Argument
from kinst.core.system import Tracepoint, TracepointSite
from kinst.session import apply
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_system import FakeSystem
from tests.fake.fake_tracing import trace
from tests.tiers import ISAS

WORK = [Call("work", (n,), 0) for n in (2, 5, 5)]
SWITCH = 0x77
PROGRAM = """
sdt:::point { @[probename, arg0, arg1] = count(); }
fbt::work:entry { @["entry", arg0, arg0 * 2 + 1] = count(); }
fbt::fibonacci:entry { @["other", arg0, 0] = count(); }
END { printa("%s %d %d %@d\\n", @); }
"""


class Switching(FakeSystem):
    """A system with one tracepoint: at the entries of work() and of fibonacci().

    Attributes:
        told: each call of switched(), and whether the machine was planted then.
        busy: calls that are told to come again.
    """

    def __init__(self, machine: FakeMachine) -> None:
        super().__init__(machine)
        self.told: list[tuple[bool, bool]] = []
        self.busy = 0
        self._original = machine.text

    def tracepoints(self, name: str = "*") -> Sequence[Tracepoint]:
        return [Tracepoint("part", "point")]

    def tracepoint_sites(self, name: str) -> Sequence[TracepointSite]:
        isa = self._machine.isa
        slot = isa.argument_slots[0]
        register = next(r.d_name for r in isa.registers if r.slot == slot)
        first = Argument(ARGUMENT_SLOT, slot)
        sites = []
        for function, text in (
            ("work", f"regs[{register}] * 2 + 1"),
            ("fibonacci", f"(uint64_t)(regs[{register}] != 0)"),
        ):  # fmt: skip
            (one,) = self.lookup(function)
            arguments = first, Argument(ARGUMENT_NONE, expression=text)
            sites.append(TracepointSite(one, b"", one.address, arguments, SWITCH))
        return sites

    def switched(
        self, switches: Collection[int], *, on: bool
    ) -> Sequence[tuple[int, bytes]] | None:
        assert set(switches) == {SWITCH}
        if self.busy:
            self.busy -= 1
            return None
        self.told.append((on, self._machine.text != self._original))
        return ()


@pytest.fixture(params=ISAS)
def machine(request: pytest.FixtureRequest) -> FakeMachine:
    return FakeMachine(str(request.param))


@pytest.mark.parametrize("way", ["auto", "trap", "stop"])
def test_arguments_and_the_switch(machine: FakeMachine, way: str) -> None:
    before, system = machine.text, Switching(machine)
    work = [*WORK, Call("fibonacci", (1,), 1), Call("fibonacci", (0,), 1)]
    traced = trace(machine, PROGRAM, work, system=system, settings={"plant": way})
    rows = sorted(line.split() for line in traced.lines)
    own = [row[1:] for row in rows if row[0] == "point"]
    entries = [row[1:] for row in rows if row[0] == "entry"]
    others = [[value, str(int(value != "0")), n] for name, value, _, n in rows if name == "other"]
    assert entries and others and sorted(own) == sorted(entries + others)
    planted = way != "stop"
    assert system.told == [(True, planted), (False, planted)]
    assert machine.text == before


def test_a_busy_system_is_asked_again(machine: FakeMachine) -> None:
    system = Switching(machine)
    system.busy = 3
    traced = trace(machine, "sdt:::point { @ = count(); }", WORK, system=system)
    assert traced.status == 0 and [on for on, _ in system.told] == [True, False]


def test_a_system_that_stays_busy_is_left_as_it_was(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "SWITCHING", 0.05)
    before, system = machine.text, Switching(machine)
    system.busy = 1 << 30
    with pytest.raises(KinstError, match="has not finished switching on the code of tracepoints"):
        trace(machine, "sdt:::point { @ = count(); }", WORK, system=system)
    assert not system.told and machine.text == before


def test_without_a_probe_there_nothing_is_switched(machine: FakeMachine) -> None:
    system = Switching(machine)
    trace(machine, "fbt::work:entry { @ = count(); }", WORK, system=system)
    assert not system.told


def test_a_machine_without_switches_refuses(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "abilities", replace(machine.abilities, switches=False))
    with pytest.raises(KinstError, match="only in a VM"):
        trace(machine, "sdt:::point { @ = count(); }", WORK, system=Switching(machine))
