"""A machine that is never stopped, as the host that kinst runs on: which patches kinst hands it to
plant, and that each hit is counted while it runs."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Sequence

import capstone
import pytest

from kinst import api
from kinst.core.errors import TargetError
from kinst.core.machine import Abilities, CommandEnded, Gone, LivePatch
from kinst.core.options import MachineOptions
from kinst.session import run
from tests.fake.fake_kernel_file import kernel_file
from tests.fake.fake_machine import PER_CPU_SIZE, Call, FakeMachine
from tests.fake.fake_reference import steps
from tests.fake.fake_system import FakeSystem
from tests.fake.fake_tracing import Request, found_by_name, trace

FUNCTIONS = ("leaf", "work", "fibonacci", "choose", "exercise")
PROGRAM = (
    ", ".join(f"kinst::{name}:" for name in FUNCTIONS) + " { @[probefunc, probename] = count(); }"
)
WORK = [Call("exercise", (n,), n % 2) for n in range(6)]
JUMP = 5  # bytes of one on amd64
LENT = PER_CPU_SIZE // 2  # offset of unused bytes in each CPU's area


class RunningMachine(FakeMachine):
    """The Planter protocol (kinst/core/machine.py) over emulated CPUs that run on between any two
    requests; amd64 only.

    Attributes:
        handed: the patches that were planted.
        came_out: how often a CPU had to run on before a jump over several instructions was
            written.
    """

    abilities = Abilities(runs_commands=True, reads_running=True)

    def __init__(self) -> None:
        super().__init__("amd64")
        self.handed: Sequence[LivePatch] = ()
        self.samplers: Sequence[tuple[int, int]] = ()
        self.exits: Sequence[LivePatch] = ()
        self.came_out = self.gathered = self.emptied = 0
        self.before = self.text
        self.counters_at = -1

    @property
    def planter(self) -> RunningMachine:
        return self

    def stop(self) -> None:
        """Do nothing: this machine is never stopped."""

    def map_alias(self, virtual: int, scratch_offset: int, size: int) -> bool:
        raise AssertionError("page tables of a machine that runs are its own affair")

    def write_text(self, writes: Sequence[tuple[int, bytes]]) -> None:
        raise AssertionError("its text is written by its planter")

    def _write(self, writes: Sequence[tuple[int, bytes]]) -> None:
        for address, data in self.memory.physical_writes(writes):
            self._ram.write(address, data)
        self._flush()

    def plant(
        self,
        patches: Sequence[LivePatch],
        hook: int,
        code: tuple[int, int],
        active: int,
        exits: Sequence[LivePatch] = (),
        samplers: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.samplers = tuple(samplers)
        for patch in patches:
            if self.read(patch.address, len(patch.old)) != patch.old:
                raise TargetError(f"{patch.address:#x} has changed")
        for patch in patches:
            if patch.several:
                self._let_out(patch.address + 1, patch.address + JUMP)
        self._write([(p.address, p.new) for p in patches])
        entry = self.address("handle_break")
        if hook:
            jump = b"\xe9" + (hook - (entry + JUMP)).to_bytes(4, "little", signed=True)
            self._write([(entry, jump)])
        self.handed, self.exits = tuple(patches), tuple(exits)

    def take_missed(self) -> Sequence[int]:
        return [0] * len(self.samplers)

    def _let_out(self, low: int, high: int) -> None:
        for processor in self.processors:
            while low <= processor.get(processor.pc) < high:
                self.came_out += 1
                processor.step()

    def restore(self) -> int:
        entry = self.address("handle_break")
        start = self.address("text_start")
        old = self.before[entry - start : entry - start + JUMP]
        self._write([(p.address, p.old) for p in self.handed])
        self._write([*((p.address, p.new) for p in self.exits), (entry, old)])
        return 0

    def allocate_counters(self, offset: int, size: int) -> tuple[int, int]:
        self.counters_at = offset
        return PER_CPU_SIZE - LENT, min(size, LENT)

    def empty(self) -> None:
        self.emptied += 1
        for base in self.per_cpu_bases:
            self.virtual.write(base + PER_CPU_SIZE - LENT, bytes(LENT))

    def gather(self) -> None:
        self.gathered += 1
        for number, base in enumerate(self.per_cpu_bases):
            at = self.counters_at + number * LENT
            self.scratch_view()[at : at + LENT] = self.read(base + PER_CPU_SIZE - LENT, LENT)


def expected(functions: Sequence[str] = FUNCTIONS) -> Counter[tuple[str, int]]:
    symbols = FakeMachine("amd64").kernel.symbols
    found: Counter[tuple[str, int]] = Counter()
    for step in steps("amd64", WORK, functions):
        for name in functions:
            low, size = symbols[name]
            if low <= step.address < low + size:
                found[name, step.address - low] += 1
    return found


def counted(out: str) -> Counter[tuple[str, int]]:
    words = out.split()
    return Counter(
        {(f, int(o)): int(n) for f, o, n in zip(words[::3], words[1::3], words[2::3], strict=True)}
    )


def test_each_hit_is_counted() -> None:
    machine = RunningMachine()
    traced = trace(machine, PROGRAM, WORK)
    assert counted(traced.out) == expected()
    assert machine.text == machine.before
    assert any(patch.several for patch in machine.handed)
    assert machine.gathered  # shared counters are among them


def test_patches_lie_over_whole_instructions() -> None:
    """Only patches that say so cover several instructions, and none of these has its own patch."""
    machine = RunningMachine()
    trace(machine, PROGRAM, WORK)
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    text, start = machine.before, machine.address("text_start")
    patched = {patch.address for patch in machine.handed}
    for patch in machine.handed:
        at = patch.address - start
        rows = decoder.disasm_lite(text[at : at + 32], patch.address)
        covered = [
            address for address, *_ in rows if address < patch.address + min(len(patch.new), JUMP)
        ]
        first = next(decoder.disasm_lite(text[at : at + 32], patch.address))
        assert patch.old == text[at : at + len(patch.old)]
        if patch.new.startswith(b"\xcc"):
            assert not patch.several
        else:
            assert patch.new.startswith(b"\xe9")
            assert patch.several == (first[1] < JUMP)
            assert not patched & set(covered[1:])


def inside_of_a_run(machine: RunningMachine) -> int:
    """Return an address that the workload executes, within a jump that is planted there."""
    passed = {step.address for step in steps("amd64", WORK, FUNCTIONS)}
    for patch in machine.handed:
        for at in range(patch.address + 1, patch.address + JUMP):
            if patch.several and at in passed:
                return at
    raise AssertionError("no run is on the way")


@pytest.mark.parametrize("cpu", [0, 1])
def test_a_cpu_that_is_inside_comes_out_first(cpu: int) -> None:
    other = RunningMachine()
    trace(other, PROGRAM, WORK)
    inside = inside_of_a_run(other)
    machine = RunningMachine()
    machine.begin([Call(call.function, call.arguments, cpu) for call in WORK])
    for processor in machine.processors:
        processor.insert(inside)
    machine.resume()
    machine.wait(10)
    assert machine.processors[cpu].get(machine.processors[cpu].pc) == inside
    for processor in machine.processors:
        processor.remove(inside)
    traced = trace(machine, PROGRAM, [])
    assert machine.came_out
    plain = FakeMachine("amd64")
    plain.run_all([Call(call.function, call.arguments, cpu) for call in WORK])
    assert machine.results(cpu) == plain.results(cpu)
    assert counted(traced.out) <= expected()
    assert machine.text == machine.before


def test_firings_that_the_machines_timers_missed_are_told() -> None:
    """Each probe's missed firings are reported by its own timer, once."""
    machine = RunningMachine()
    missed = iter([[2, 0, 5]])
    machine.take_missed = lambda: next(missed, [0, 0, 0])  # type: ignore[method-assign]
    program = """profile-97 { @a = count(); } profile-50 { @b = count(); }
        profile-13 { @c = count(); } kinst::work:0 { @d = count(); }"""
    said = trace(machine, program, WORK).said
    told = [line for line in said if "missed" in line]
    rates = [round(10**9 / period) for period, _ in machine.samplers]
    assert sorted(rates) == [13, 50, 97]
    names = [f"profile-{rate}" for rate in rates]
    assert [f"{n} firings of profile:::{name}" for n, name in ((2, names[0]), (5, names[2]))] == [
        re.sub(r"^kinst: (.*) were missed.*", r"\1", line) for line in told
    ]


@pytest.mark.parametrize(("program", "ends"), [("profile-97 { @ = count(); }", 0), ("BEGIN {}", 1)])
def test_a_trace_in_which_nothing_more_can_fire(
    program: str, ends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine itself fires profile-N."""
    monkeypatch.setattr(run, "SECONDS", 0.0)
    machine = RunningMachine()
    began: list[float] = []

    def wait(timeout: float) -> CommandEnded | None:
        began.append(time.monotonic())
        time.sleep(min(timeout, 0.05))
        return CommandEnded(0) if began[-1] > began[0] + 1 else None

    machine.wait = wait  # type: ignore[method-assign]
    said = trace(machine, program, settings={"quiet": "0"}, command=False).said
    assert sum("nothing more can fire" in line for line in said) == ends


def test_exit_before_the_timers_begin() -> None:
    program = "BEGIN { exit(3); } profile-97 { @ = count(); }"
    assert trace(RunningMachine(), program).status == 3


def test_what_has_changed_is_not_planted_on() -> None:
    machine = RunningMachine()
    changed = machine.address("work")
    real = machine.plant

    def plant(patches: Sequence[LivePatch], *rest: object, **more: object) -> None:
        machine._write([(changed, b"\x90" * 8)])
        real(patches, *rest, **more)  # type: ignore[arg-type]

    machine.plant = plant  # type: ignore[method-assign]
    with pytest.raises(TargetError, match="has changed"):
        trace(machine, PROGRAM, WORK)
    assert not machine.handed
    other = bytearray(machine.before)
    at = changed - machine.address("text_start")
    other[at : at + 8] = b"\x90" * 8
    assert machine.text == bytes(other)


def test_a_machine_that_turns_clauses_off_says_why() -> None:
    """A machine that turns clauses off is not mistaken for the program's exit()."""
    machine = RunningMachine()
    real = machine.plant

    def plant(
        patches: Sequence[LivePatch], hook: int, code: tuple[int, int], active: int, *more: object
    ) -> None:
        real(patches, hook, code, active, *more)  # type: ignore[arg-type]
        machine._write([(active, bytes(8))])
        machine.wait = lambda _timeout: Gone("nothing was heard of kinst")  # type: ignore[method-assign]

    machine.plant = plant  # type: ignore[method-assign,assignment]
    with pytest.raises(TargetError, match=r"^the trace is over: nothing was heard of kinst"):
        trace(machine, PROGRAM, WORK)


def test_what_is_claimed_is_all_that_lies_under_a_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    claimed: set[int] = set()
    monkeypatch.setattr(FakeSystem, "claims", lambda _, some: claimed.update(some) or ())
    machine = RunningMachine()
    trace(machine, PROGRAM, WORK)
    assert inside_of_a_run(machine) in claimed
    assert {patch.address for patch in machine.handed} <= claimed


def test_room_for_counters_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of several traces of a machine counts as the first did, although all of them together
    have more counters than fit."""
    monkeypatch.setattr(sys.modules[__name__], "LENT", 4096)
    machine = RunningMachine()
    machine.workload = tuple(WORK)
    asked = Request(MachineOptions(debug=str(kernel_file("amd64"))))
    options = {"quiet": "", "bufsize": "256k", "aggsize": "256k"}
    with found_by_name(machine), api.Machine(asked) as opened:
        opened.start()
        for _ in range(4):
            found = opened.run(PROGRAM, "workload", options=options).aggregations[""]
            counts = {(str(name), int(str(place))): n for (name, place), n in found.items()}
            assert counts == expected()
    assert machine.emptied
