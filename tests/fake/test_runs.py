"""Runs are not planted while a CPU or thread may continue inside one.

This is tested for each kind of place that can hold a program counter.  The code at the site goes
on and is counted exactly.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kinst.core.machine import Stopped
from kinst.core.return_addresses import EndedCode
from kinst.patch.patches import Patch, patches_of
from kinst.patch.plan import Plan, PlannedRuns
from kinst.patch.runs import Run
from kinst.session import apply, place
from kinst.session.apply import PlantedStopped
from tests.fake.fake_machine import RAM, SCRATCH, STACKS, Call, FakeMachine
from tests.fake.fake_reference import steps
from tests.fake.fake_system import FakeSystem
from tests.fake.fake_tracing import Traced, trace

FUNCTIONS = ("leaf", "work", "fibonacci", "choose", "exercise")
PROGRAM = (
    ", ".join(f"kinst::{name}:" for name in FUNCTIONS) + " { @[probefunc, probename] = count(); }"
)
WORK = [Call("exercise", (n,), n % 2) for n in range(6)]


@pytest.fixture(scope="module", params=["amd64", "riscv64"])
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def inside(isa: str) -> int:
    """Return an address inside a run of work()'s loop."""
    found: list[Run] = []
    real = PlantedStopped.plant

    def spy(self: PlantedStopped) -> str:
        found.extend(self._plan.sites.runs)  # type: ignore[arg-type]
        return real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply.PlantedStopped, "plant", spy)
        machine = FakeMachine(isa)
        trace(machine, PROGRAM, [])
    low, size = machine.kernel.symbols["work"]
    passed = {step.address for step in steps(isa, WORK, ["work"])}
    insides = [at for run in found for at in run.insides if low <= at < low + size]  # type: ignore[attr-defined]
    return next(at for at in insides if at in passed)


def planted_in(machine: FakeMachine, plan: Plan, text: tuple[int, int]) -> PlantedStopped:
    """Return a plan of patches alone, for a machine whose planting needs nothing more."""
    whole = SimpleNamespace(
        hooks=Plan(), sites=plan, ended=(), placement=SimpleNamespace(planted=(), stopped=())
    )
    started = SimpleNamespace(
        isa=machine.isa, target=machine, system=FakeSystem(machine), text=text,
        facts=SimpleNamespace(trap_pc_delta=0, only_counts=False),
    )  # fmt: skip
    return PlantedStopped(cast(Any, whole), cast(Any, started))


def counts(traced: Traced) -> Counter[tuple[str, int]]:
    words = traced.out.split()
    return Counter(
        {(f, int(o)): int(n) for f, o, n in zip(words[::3], words[1::3], words[2::3], strict=True)}
    )


def single(traced: Traced) -> int:
    """Return how many runs a message reports as planted one by one."""
    found = [re.search(r"(\d+) of (\d+) runs are planted one by one", line) for line in traced.said]
    numbers = [(int(m[1]), int(m[2])) for m in found if m]
    assert len(numbers) <= 1 and all(some <= all_ for some, all_ in numbers)
    return numbers[0][0] if numbers else 0


def expected(isa: str) -> Counter[tuple[str, int]]:
    machine = FakeMachine(isa)
    found: Counter[tuple[str, int]] = Counter()
    for step in steps(isa, WORK, FUNCTIONS):
        for name in FUNCTIONS:
            low, size = machine.kernel.symbols[name]
            if low <= step.address < low + size:
                found[name, step.address - low] += 1
    return found


@pytest.fixture(autouse=True)
def found_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have memory searched only when the machine is planted."""
    monkeypatch.setattr(place, "FEW_FUNCTIONS", 0)


def test_a_run_is_chosen_that_nobody_is_in(
    isa: str, inside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "FEW_FUNCTIONS", 99)
    machine = FakeMachine(isa)
    machine._ram.write(RAM + STACKS, inside.to_bytes(8, "little"))
    traced = trace(machine, PROGRAM, WORK)
    assert single(traced) == 0
    assert counts(traced) == expected(isa)


def test_nobody_is_there(isa: str) -> None:
    machine = FakeMachine(isa)
    before = machine.text
    traced = trace(machine, PROGRAM, WORK)
    assert single(traced) == 0 and machine.text == before
    assert counts(traced) == expected(isa)
    # The kernel has seen few breakpoints: kinst's hook takes them before the kernel counts them.
    assert not machine.word("breakpoints")


@pytest.mark.parametrize("where", [STACKS + 0x1230, SCRATCH - 8])
def test_a_saved_word_points_there(isa: str, inside: int, where: int) -> None:
    machine = FakeMachine(isa)
    machine._ram.write(RAM + where, inside.to_bytes(8, "little"))
    traced = trace(machine, PROGRAM, WORK)
    assert single(traced) == 1
    assert counts(traced) == expected(isa)


@pytest.mark.parametrize("cpu", [0, 1])
def test_a_register_points_there(isa: str, inside: int, cpu: int) -> None:
    """A return address that was just read from the stack is in a register."""
    machine = FakeMachine(isa)
    machine.processors[cpu].set({"amd64": "r12", "riscv64": "s4"}[isa], inside)
    traced = trace(machine, PROGRAM, WORK)
    assert single(traced) == 1
    assert counts(traced) == expected(isa)


def test_a_word_that_points_beside_it_is_nobody(isa: str, inside: int) -> None:
    machine = FakeMachine(isa)
    for at, value in ((0x1230, inside + 1), (0x1244, inside)):  # the second is not aligned
        machine._ram.write(RAM + STACKS + at, value.to_bytes(8, "little"))
    assert single(trace(machine, PROGRAM, WORK)) == 0


def test_what_kinst_itself_has_written_is_nobody(isa: str, inside: int) -> None:
    machine = FakeMachine(isa)
    machine.scratch_view()[0x5000:0x5008] = inside.to_bytes(8, "little")
    assert single(trace(machine, PROGRAM, WORK)) == 0


@pytest.mark.parametrize("word", [0, 0x7F_0008, 0x7F_1000])
def test_somebody_in_code_of_a_trace_that_has_ended(isa: str, inside: int, word: int) -> None:
    """Code of an ended trace may lead back into a run; only the runs that it can lead to are left
    out."""
    machine = FakeMachine(isa)
    machine._ram.write(RAM + STACKS, word.to_bytes(8, "little"))
    others = [Patch(at, b"\xe9" * 5, b"\x90" * 5) for at in (inside - 2, inside + 10)]
    runs = PlannedRuns(
        patches_of(others), np.array([inside, inside + 12], np.uint64), np.array([0, 1, 2]),
        patches_of([]), np.array([0, 0, 0]), np.array([0, 0], np.uint64),
    )  # fmt: skip
    ended = EndedCode((0x7F_0000, 0x7F_1000), np.array([inside, inside + 99], np.uint64))
    other = EndedCode((0x7F_1000, 0x7F_2000), np.array([inside + 12], np.uint64))
    planted = planted_in(machine, Plan(), (inside - 64, inside + 64))
    entered = planted._entered(runs, (ended, other))
    assert entered.tolist() == [word == 0x7F_0008, word == 0x7F_1000]


@pytest.mark.parametrize("cpu", [0, 1])
def test_a_cpu_stands_there(isa: str, inside: int, cpu: int) -> None:
    """The CPU continues, when the trace has begun, after the patches that were written instead of
    the run."""
    machine = FakeMachine(isa)
    before = machine.text
    machine.begin([Call(c.function, c.arguments, cpu) for c in WORK])
    machine.insert_breakpoint(inside)
    machine.resume()
    event = machine.wait(10)
    assert event == Stopped(cpu, inside)
    machine.stop()
    machine.remove_breakpoint(inside)
    traced = trace(machine, PROGRAM, [])
    assert single(traced) == 1
    assert machine.idle and machine.text == before
    plain = FakeMachine(isa)
    plain.run_all([Call(c.function, c.arguments, cpu) for c in WORK])
    assert machine.results(cpu) == plain.results(cpu)
    assert counts(traced) <= expected(isa) and counts(traced)["work", 0] == len(WORK) - 1


def test_a_machine_whose_memory_cannot_be_looked_through(isa: str) -> None:
    machine = FakeMachine(isa)
    machine.can_scan = False
    traced = trace(machine, PROGRAM, WORK)
    assert single(traced) == 0
    assert counts(traced) == expected(isa)


def test_what_lies_under_a_jump_is_claimed(
    isa: str, inside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes under a jump are claimed like bytes with a patch: the kernel's tracer may have a nop
    there."""
    claimed = set[int]()

    def claims(_: FakeSystem, addresses: Sequence[int]) -> Sequence[tuple[int, bytes]]:
        claimed.update(addresses)
        return ()

    monkeypatch.setattr(FakeSystem, "claims", claims)
    machine = FakeMachine(isa)
    traced = trace(machine, PROGRAM, [])
    assert single(traced) == 0
    assert inside in claimed and inside - 1 not in claimed


@pytest.mark.parametrize("way", ["no-run", "no-chain", "no-gate"])
def test_counts_are_the_same_without(isa: str, way: str) -> None:
    traced = trace(FakeMachine(isa), PROGRAM, WORK, settings={"plant": way})
    assert counts(traced) == expected(isa)


def test_call_sites_are_left_alone(isa: str) -> None:
    """kinst neither plants call sites nor covers them with a jump if it is asked to leave them
    alone."""
    machine = FakeMachine(isa)
    system = FakeSystem(machine)
    address, size = machine.kernel.symbols["work"]
    first, second, *_ = machine.isa.decode(machine.read(address, size), address)
    system.call_sites = {(one.address, len(one.code)) for one in (first, second)}
    wanted = expected(isa)
    traced = trace(machine, PROGRAM, WORK, system=system, settings={"plant": "no-callsite"})
    left = {("work", at - address) for at, _ in system.call_sites}
    assert counts(traced) == Counter({key: n for key, n in wanted.items() if key not in left})
    traced = trace(FakeMachine(isa), PROGRAM, WORK)
    assert counts(traced) == wanted and all(wanted[key] for key in left)


def test_whoever_is_between_the_two_instructions_of_a_jump_is_moved() -> None:
    """When the jump is removed, a CPU's pc and a saved word in it are moved to the target of the
    jump."""
    machine = FakeMachine("riscv64")
    start, _ = machine.kernel.symbols["work"]
    before, goal = machine.text, start + 0x100000
    old = machine.read(start, 8)
    new = machine.isa.run_patch(old, start, goal, 1 << 28)
    assert new is not None and len(new) == 8
    runs = PlannedRuns(
        patches_of([Patch(start, new, old)]), np.array([start + 2], np.uint64), np.array([0, 1]),
        patches_of([]), np.array([0, 0]), np.array([goal], np.uint64),
    )  # fmt: skip
    text = (machine.address("text_start"), machine.address("text_end"))
    planted = planted_in(machine, Plan(runs=runs), text)
    assert not planted.plant()
    assert machine.read(start, 8) == new
    machine.processors[1].set("pc", start + 4)
    places = (STACKS, STACKS + 8, STACKS + 16)
    for at, value in zip(places, (start + 4, start, start + 4), strict=True):
        machine._ram.write(RAM + at, value.to_bytes(8, "little"))
    assert planted.unplant().startswith("kernel text is as before")
    assert machine.text == before
    assert machine.processors[1].get("pc") == goal
    words = [int.from_bytes(machine._ram.read(RAM + at, 8), "little") for at in places]
    assert words == [goal, start, goal]
