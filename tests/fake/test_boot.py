"""A boot that is traced, and then the command: the probes first stop the machine and are then
planted anew, in the middle of what the CPUs do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from kinst.core.machine import CommandReady, KernelLocation, MachineEvent, Stopped
from tests.fake.fake_machine import Call, FakeMachine
from tests.fake.fake_reference import instructions, steps
from tests.fake.fake_system import FakeSystem, FakeSystemKind
from tests.fake.fake_tracing import Traced, trace
from tests.tiers import ISAS

FUNCTIONS = ("leaf", "work", "fibonacci", "choose", "exercise")
PROBES = ", ".join(f"kinst::{name}:" for name in FUNCTIONS)
PROGRAM = (
    f"{PROBES} {{ @[probefunc, probename] = count(); self->own++; by[probefunc]++; }}"
    f"{PROBES} /cpu == 0/ {{ total++; }}"
    ' kinst::exercise:0 { last = timestamp; } END { printf("total %d", total); }'
)
WORK = [Call("exercise", (n,), n % 2) for n in range(4)]


class BootingMachine(FakeMachine):
    """A machine whose work begins with the trace, as a boot does.

    Attributes:
        switched: number of the stop after which the kernel is up and the command is ready.
        stops: how often the machine has stopped at each address while the kernel booted.
        ended: reason for each function that cannot be traced once the kernel is up.
    """

    abilities = replace(FakeMachine.abilities, traces_boot=True)

    def __init__(self, isa: str, switched: int) -> None:
        super().__init__(isa)
        self.switched = switched
        self.stops: Counter[int] = Counter()
        self.ended: dict[str, str] = {}
        self.is_up = self._is_ready = False

    def system(self) -> FakeSystem:
        system = FakeSystem(self)
        system.forbidden |= self.ended if self.is_up else {}
        return system

    def boot_over(self) -> KernelLocation:
        assert not self.running and self.stops.total() == self.switched
        self.abilities, self.is_up = FakeMachine.abilities, True
        return KernelLocation(self.address("text_start"), time=self.run_time())

    def run_time(self) -> int:
        return self.stops.total()

    def map_scratch(
        self,
        size: int,
        near: tuple[int, int],
        reach: tuple[int, int] | None = None,
        data: int = 0,
    ) -> int | None:
        return super().map_scratch(size, near, reach, data) if self.is_up else None

    def pointers(self, ranges: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint64] | None:
        return super().pointers(ranges) if self.is_up else None

    def start_command(self) -> None:
        if not self._started:
            self.begin()
        else:
            assert self._is_ready

    def wait(self, timeout: float) -> MachineEvent | None:
        if self.running and not self._is_ready and self.stops.total() == self.switched:
            self.running, self._is_ready = False, True
            return CommandReady()
        event = super().wait(timeout)
        if isinstance(event, Stopped) and not self.is_up:
            self.stops[event.pc] += 1
        return event


def traced(machine: BootingMachine, program: str = PROGRAM) -> Traced:
    def attach(_kind: object, target: BootingMachine, *_: object) -> FakeSystem:
        return target.system()

    with mock.patch.object(FakeSystemKind, "attach", attach):
        return trace(machine, program, WORK)


def counted(out: str) -> Counter[tuple[str, int]]:
    rows = re.findall(r"^ *([a-z]+) +(\d+) +(\d+)$", out, re.M)
    return Counter({(function, int(offset)): int(count) for function, offset, count in rows})


def expected(isa: str) -> Counter[tuple[str, int]]:
    symbols = FakeMachine(isa).kernel.symbols
    starts = {name: symbols[name] for name in FUNCTIONS}
    return Counter(
        (name, step.address - low)
        for step in steps(isa, WORK, FUNCTIONS)
        for name, (low, size) in starts.items()
        if low <= step.address < low + size
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("switched", [1, 100, 777])
def test_each_hit_is_counted_once(isa: str, switched: int) -> None:
    """Variables and aggregations have what was counted before, and the text is restored."""
    machine = BootingMachine(isa, switched)
    before = machine.text
    done = traced(machine)
    truth = expected(isa)
    assert machine.stops.total() == switched < truth.total()
    assert counted(done.out) == truth
    on_first = sum(step.cpu == 0 for step in steps(isa, WORK, FUNCTIONS))
    assert 0 < on_first < truth.total() and f"total {on_first}\n" in done.out
    assert machine.text == before and not machine.breakpoints
    (told,) = (line for line in done.said if "the kernel is up" in line)
    assert f"probes: {len(instructions(machine, FUNCTIONS))} planted with jumps" in told


def test_what_only_a_boot_allows_ends_or_stays_as_it_is() -> None:
    """A function that is freed is counted no more; at a site that the kernel rewrites the machine
    goes on to stop."""
    machine = BootingMachine("amd64", 500)
    machine.ended = {"fibonacci": "it is freed"}
    low, _ = machine.kernel.symbols["work"]

    def refusals(system: FakeSystem, sites: Sequence[tuple[int, int]]) -> list[str]:
        return ["the kernel rewrites it" if at == low and machine.is_up else "" for at, _ in sites]

    with mock.patch.object(FakeSystem, "site_refusals", refusals):
        done = traced(machine)
    found, truth = counted(done.out), expected("amd64")
    freed = Counter({key: count for key, count in found.items() if key[0] == "fibonacci"})
    start, size = machine.kernel.symbols["fibonacci"]
    assert freed.total() == sum(n for at, n in machine.stops.items() if start <= at < start + size)
    others = {key: count for key, count in truth.items() if key[0] != "fibonacci"}
    assert {key: count for key, count in found.items() if key[0] != "fibonacci"} == others
    (told,) = (line for line in done.said if "the kernel is up" in line)
    assert ", 1 at which the machine stops, " in told and "freed with the kernel's init" in told
