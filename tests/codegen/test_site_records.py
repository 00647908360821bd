"""Records that a trampoline writes itself, in an emulator.

They are interrupted at each instruction by handlers that write records too, in either way.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from unicorn import x86_const as x86

from kinst.codegen.code_machine import CodeMachine
from kinst.codegen.layout.program_layout import lay_out_program
from kinst.codegen.site_records import record_shapes
from kinst.core import layout as lay
from kinst.core.bodies import CallBody
from kinst.core.displaced import Relocated
from kinst.core.dtypes import INT, UINT
from kinst.core.probe import Function, Site
from kinst.core.system import Access, Clock
from kinst.dlang import typed
from kinst.dlang.api import Environment, compile_text
from kinst.isa import load
from tests.codegen.codegen_rig import (
    BASE,
    BUILTINS,
    CLOCK,
    CPU_AT,
    GS_BASE,
    SPAN,
    STACK,
    TargetRig,
    builtin,
    integer,
    program,
    reg,
    trace,
)
from tests.tiers import draws

ISA = load("amd64")
TEXT = BASE - 0x10000
BUSY_AT = CPU_AT + 0x40
SETTLED = TEXT + 0x100
NAMES = ("rax", "rcx", "rdx", "rbx", "rbp", "rsi", "rdi", *(f"r{n}" for n in range(8, 16)))
IDS = {name: getattr(x86, f"UC_X86_REG_{name.upper()}") for name in NAMES}
RDTSC = b"\x0f\x31"
# Of a processor of 2.5 GHz, as Linux has it.
GHZ = Clock(10**12, 7 * 10**12, 0x666666, 24, 0).from_zero()
MHZ = Clock(10**6, 0, 0x1400000, 24, 0)  # 1.25 ns for each cycle: no fraction of 64 bits
RECORDED = ("rdx", "r11", "rdi")  # two that the code changes, one that it leaves
SITE = Site(Function("vmlinux", "f", TEXT, 64), 0, b"\x48\x11\xc3")  # adc rbx, rax


def index_of(name: str) -> int:
    return next(register.index for register in ISA.registers if register.gdb_name == name)


class Inline(TargetRig):
    """One site, and the entry that it calls if it cannot write."""

    timestamp_asm = "rdtsc\n\tshlq $$32, %rdx\n\torq %rdx, %rax"

    def __init__(self, settled: int | None = None, clock: Clock = CLOCK, number: int = 0) -> None:
        """Create the site; `number` is the CPU's."""
        self.settled, self.clock, self.number = settled, clock, number
        self.cycles = list[int]()  # that the inline code has read
        values = [reg(index_of(name)) for name in RECORDED]
        actions = [
            trace(builtin("timestamp")),
            *map(trace, values),
            trace(integer(7)),
            trace(builtin("cpu", INT)),
            trace(typed.Cast(UINT, SPAN, builtin("timestamp"))),
        ]
        super().__init__(program([], actions), {1: (1,)})
        self.emulator.mem_map(TEXT & -4096, 4096)
        probes = [((1,), ())]
        machine = self.target_machine()
        (shape,) = record_shapes(self.program, self.layout, probes, machine, ISA).values()
        slots = frozenset(r.slot for r in ISA.registers if r.gdb_name in RECORDED)
        call = CallBody(self.code.entry((1,)), self.site(1), slots)
        self.at = BASE + self.scratch.text + 0x2000
        made = ISA.trampoline(SITE, b"", self.at, [shape.body(1, call, None)])
        assert isinstance(made, Relocated)
        self.emulator.mem_write(self.at, made.code)
        self.emulator.mem_write(GS_BASE + BUSY_AT, struct.pack("<I", 5))
        self.emulator.mem_write(GS_BASE + CPU_AT, struct.pack("<I", number))
        self.written = Counter[tuple[int, ...]]()

    def target_machine(self) -> CodeMachine:
        busy = Access(BUSY_AT, (), 4)
        cpu = Access(CPU_AT, (), 4)
        builtins = {**BUILTINS, "cpu": cpu}
        return replace(
            super().target_machine(), builtins=builtins, pin=busy, reserves=True,
            registers=ISA.registers, preemption=self.settled, clock=self.clock,
            frame_slots=ISA.frame_slots, sp_slot=ISA.sp_slot,
        )  # fmt: skip

    def hit(self, rng: random.Random, interrupts: dict[int, Any] | None = None, sp: int = 0) -> int:
        """Run the site in some state; return how many instructions that took.

        Args:
            interrupts: by number of the instruction before which they come, with their own
                interrupts.
        """
        emulator, sp = self.emulator, sp or STACK + 0x2000
        state = {name: rng.getrandbits(64) for name in NAMES}
        flags = 0x2 | rng.getrandbits(12) & 0x8D5
        for name, value in state.items():
            emulator.reg_write(IDS[name], value)
        emulator.reg_write(x86.UC_X86_REG_RSP, sp)
        emulator.reg_write(x86.UC_X86_REG_GS_BASE, GS_BASE)
        emulator.reg_write(x86.UC_X86_REG_EFLAGS, flags)
        self.written[tuple(state[name] for name in RECORDED)] += 1
        end, pc, steps = TEXT + len(SITE.code), self.at, 0
        while pc != end:
            enabled = emulator.reg_read(x86.UC_X86_REG_EFLAGS) & 0x200 or not flags & 0x200
            if interrupts and steps in interrupts and enabled:
                kept = emulator.context_save()
                below = emulator.reg_read(x86.UC_X86_REG_RSP) - 256
                self.hit(rng, interrupts[steps], below)
                self.shown()
                emulator.context_restore(kept)
            emulator.emu_start(pc, end, count=1)
            if emulator.mem_read(pc, 2) == RDTSC:
                low, high = map(emulator.reg_read, (x86.UC_X86_REG_EAX, x86.UC_X86_REG_EDX))
                self.cycles.append(high << 32 | low)
            pc = emulator.reg_read(x86.UC_X86_REG_RIP)
            steps += 1
            assert steps < 2000
        carry = flags & 1
        state["rbx"] = state["rbx"] + state["rax"] + carry & (1 << 64) - 1
        assert {name: emulator.reg_read(IDS[name]) for name in NAMES} == state
        assert emulator.reg_read(x86.UC_X86_REG_RSP) == sp
        return steps

    def clean(self) -> None:
        """Empty the ring, and check that nothing in it is taken for a record."""
        self.consume(self.number)
        self.written.clear()
        self.write(self.scratch.ring_of(self.number), b"\xa5" * self.scratch.ring_size)

    def written_so_far(self, count: int) -> None:
        """Check that all written bytes were read."""
        for word in (lay.STATE_HEAD, lay.STATE_RESERVED, lay.STATE_TAIL):
            self.write(self.scratch.state_of(self.number) + word, struct.pack("<Q", count))

    def shown(self) -> tuple[Counter[tuple[int, ...]], list[int]]:
        """Return the whole records of hits that a reader finds now, and their times."""
        found, times = Counter[tuple[int, ...]](), []
        for record in self.records(self.number):
            assert (record.clause, record.probe, record.cpu) == (1, 1, self.number)
            *values, seven, number, low = struct.unpack_from(f"<{len(RECORDED)}QiiI", record.data)
            (printed, *_) = self.fields(record)
            assert (printed, seven) == (record.time.to_bytes(8, "little"), 7)
            assert (number, low) == (self.number, record.time & 0xFFFF_FFFF)
            found[tuple(values)] += 1
            times.append(record.time)
        assert found <= self.written and found.total() == len(times)
        assert times == sorted(times)
        return found, times

    def check(self) -> list[int]:
        """Check that every hit left a whole record, with times in order."""
        head, reserved = (
            self.state(place, self.number) for place in (lay.STATE_HEAD, lay.STATE_RESERVED)
        )
        assert head == reserved
        assert struct.unpack("<I", self.emulator.mem_read(GS_BASE + BUSY_AT, 4)) == (5,)
        found, times = self.shown()
        assert found == self.written
        return times


def test_a_record_and_the_next() -> None:
    cpu, rng = Inline(), random.Random(1)
    assert cpu.hit(rng) < 80  # by a call it takes twice that
    cpu.hit(rng)
    first, second = cpu.check()
    assert first < second
    assert cpu.state(lay.STATE_SEQUENCE, 0) == 0


@pytest.mark.parametrize("number", [0, 1])
def test_each_cpu_writes_to_its_own_ring(number: int) -> None:
    cpu, rng = Inline(number=number), random.Random(2)
    for _ in range(5):
        cpu.hit(rng)
    assert len(cpu.check()) == 5
    assert cpu.state(lay.STATE_HEAD, 1 - number) == 0


@pytest.mark.parametrize("clock", [CLOCK, GHZ, MHZ, replace(GHZ, base_ns=1)])
def test_the_time_is_that_of_the_cycles(clock: Clock) -> None:
    cpu, rng = Inline(clock=clock), random.Random(7)
    for _ in range(20):
        cpu.hit(rng)
    passed = [Fraction((n - clock.base_cycles) * clock.mult, 1 << clock.shift) for n in cpu.cycles]
    assert cpu.check() == [clock.base_ns + int(ns) for ns in passed]


def test_a_clock_from_zero_shows_the_same_or_a_nanosecond_less() -> None:
    rng = random.Random(8)
    for _ in range(500):
        shift = rng.randrange(10, 33)
        base, ns = rng.getrandbits(60), rng.getrandbits(50)
        old = Clock(base, ns, rng.randrange(1, 2 << shift), shift, 5)
        new, cycles = old.from_zero(), base + rng.getrandbits(48)
        shown, wanted = (
            one.base_ns + ((cycles - one.base_cycles) * one.mult >> shift) for one in (new, old)
        )
        if old.mult > 1 << shift:  # 1 ns is not told
            assert new == old
        else:
            assert new.base_ns == 0 and wanted - shown in (0, 1), old


@pytest.fixture(
    params=[(None, CLOCK), (0, CLOCK), (SETTLED, CLOCK), (0, GHZ)],
    ids=["raised", "never", "asked", "clock from zero"],
)
def cpu(request: pytest.FixtureRequest) -> Inline:
    made = Inline(*request.param)
    made.written_so_far(5 << 32)  # numbers of more than 32 bits
    return made


def test_interrupted_before_each_instruction(cpu: Inline) -> None:
    rng = random.Random(2)
    steps = cpu.hit(rng)
    for at in range(steps):
        cpu.clean()
        cpu.hit(rng, {at: {}})
        cpu.check()


@pytest.mark.drawn
def test_interrupted_again_and_again(cpu: Inline) -> None:
    """Handlers are interrupted, too; some hits take the long way, where the ring wraps."""
    rng = random.Random(3)
    steps = cpu.hit(rng)
    long = 0
    for _ in range(draws(50, 150)):
        cpu.clean()
        twice = {rng.randrange(steps): {rng.randrange(steps): {}} for _ in range(2)}
        before = cpu.state(lay.STATE_SEQUENCE, 0)
        cpu.hit(rng, {**twice, rng.randrange(steps): {}})
        cpu.check()
        long += cpu.state(lay.STATE_SEQUENCE, 0) != before
    assert long > draws(0, 3)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_a_kernel_that_is_switched_to_preempt_its_threads(mode: int) -> None:
    cpu, rng = Inline(SETTLED), random.Random(6)
    cpu.emulator.mem_write(SETTLED, struct.pack("<I", mode))
    cpu.hit(rng)
    cpu.check()
    assert cpu.state(lay.STATE_SEQUENCE, 0) == (2 if mode > 1 else 0)  # the long way


@pytest.mark.parametrize("closed", [False, True])
def test_within_a_clause_and_at_the_end_nothing_is_written(closed: bool) -> None:
    cpu, rng = Inline(), random.Random(4)
    state = cpu.scratch.state_of(0)
    if closed:
        cpu.write(state + lay.STATE_CLOSED, struct.pack("<I", 1))
        cpu.write(lay.HEADER_ACTIVE, bytes(8))
    else:
        cpu.write(state + lay.STATE_SEQUENCE, struct.pack("<Q", 9))
    cpu.hit(rng)
    assert cpu.records(0) == []
    assert cpu.state(lay.STATE_NESTED, 0) == int(not closed)


def test_a_full_ring_drops_and_counts() -> None:
    cpu, rng = Inline(), random.Random(5)
    for _ in range(200):
        cpu.hit(rng)
    kept = len(cpu.records(0))
    assert 40 < kept < 200 and cpu.state(lay.STATE_DROPS, 0) == 200 - kept
    assert cpu.state(lay.STATE_HEAD, 0) == cpu.state(lay.STATE_RESERVED, 0)


@pytest.mark.parametrize("number", [0, 1])
def test_whether_it_is_within_a_clause_is_all_that_is_asked(number: int) -> None:
    """A clause is recognised by the lowest bit of one word, and by whether the other word is 0.

    The values of the site's registers do not matter.
    """
    cpu, rng = Inline(number=number), random.Random(9)
    state = cpu.scratch.state_of(number)
    for _ in range(20):
        sequence = rng.getrandbits(40) & -2
        cpu.write(state + lay.STATE_SEQUENCE, struct.pack("<Q", sequence))
        before = cpu.state(lay.STATE_HEAD, number)
        cpu.hit(rng)
        assert cpu.state(lay.STATE_SEQUENCE, number) == sequence
        assert cpu.state(lay.STATE_HEAD, number) > before
        cpu.write(state + lay.STATE_SEQUENCE, struct.pack("<Q", sequence | 1))
        before = cpu.state(lay.STATE_HEAD, number)
        cpu.hit(rng)
        assert cpu.state(lay.STATE_HEAD, number) == before


def test_a_record_that_just_fits_at_the_rings_end() -> None:
    """A record with less room takes the long way, which fills the ring."""
    cpu, rng = Inline(), random.Random(10)
    cpu.hit(rng)
    size = cpu.state(lay.STATE_HEAD, 0)
    for left in (size + 8, size, size - 8):
        cpu.written_so_far(3 * cpu.scratch.ring_size - left)
        before = cpu.state(lay.STATE_SEQUENCE, 0)
        cpu.hit(rng)
        assert (cpu.state(lay.STATE_SEQUENCE, 0) == before) == (left >= size)
        assert sum(cpu.shown()[0].values()) == 1


def test_no_more_is_reserved_than_the_ring_has() -> None:
    """Reserved bytes never exceed the ring's size, also if the room continues at its start."""
    cpu, rng = Inline(), random.Random(11)
    cpu.hit(rng)
    size, room = cpu.state(lay.STATE_HEAD, 0), cpu.scratch.ring_size
    for read in (0, 7 * size, 30 * size):
        while cpu.state(lay.STATE_TAIL, 0) < read:
            tail = cpu.state(lay.STATE_TAIL, 0) + size
            cpu.write(cpu.scratch.state_of(0) + lay.STATE_TAIL, struct.pack("<Q", tail))
        drops = cpu.state(lay.STATE_DROPS, 0)
        for _ in range(room // size + 10):
            cpu.hit(rng)
            tail = cpu.state(lay.STATE_TAIL, 0)
            assert cpu.state(lay.STATE_RESERVED, 0) - tail <= room
        cpu.shown()
        assert cpu.state(lay.STATE_DROPS, 0) > drops


def test_a_clock_from_zero_takes_less_to_tell() -> None:
    """The code adds no base time, which is the reason for Clock.from_zero()."""
    rng, later = random.Random(12), replace(GHZ, base_ns=1)
    assert Inline(clock=GHZ).hit(rng) < Inline(clock=later).hit(rng)


@pytest.fixture(scope="module")
def inline_machine() -> CodeMachine:
    return Inline().target_machine()


def shapes(text: str, machine: CodeMachine) -> int:
    """Return for how many probes a trampoline can write the record.

    There is a probe for each clause, which runs alone, and one for which all clauses run.
    """
    known = {register.d_name: register.index for register in ISA.registers}
    found = compile_text(text, "test", environment=Environment(known))[1]
    alone = [((k,), ()) for k in range(len(found.clauses))]
    probes = [*alone, (tuple(range(len(found.clauses))), ())]
    layout = lay_out_program(found, [], 64, 4096)
    return len(record_shapes(found, layout, probes, machine, ISA))


@pytest.mark.parametrize(
    ("clauses", "count"),
    [
        ("{ trace(timestamp); }", 1),
        ('{ printf("%d %d", cpu, regs[R_RDX]); trace(5); }', 1),
        ("/regs[R_RAX] == 5/ { trace(1); }", 1),
        ("/pid == 5 && !(regs[R_RAX] + 1)/ { trace(1); }", 1),
        ("/cpu == 0/ { trace(1); }", 0),  # tested where it could differ from the recorded value
        ("/regs[R_RAX] + cpu > 3/ { trace(cpu); }", 0),
        ("{ trace(1); @ = count(); }", 0),
        ("{ x = 1; }", 0),
        ("{ trace(pid); }", 0),
        ("{ trace(execname); }", 0),
        ("{ trace(1); exit(0); }", 0),
        ("{ trace((char)regs[R_RAX]); }", 1),
        ("{ trace((long)(char)regs[R_RAX]); }", 0),  # made wider
        ("{ trace(regs[R_RAX] + 1); }", 0),
        ("{ trace(regs[R_RFL]); }", 0),  # no general register
        ("{ trace(regs[R_RIP]); }", 0),
        ("{ trace(1); } kinst::f:0 { trace(2); }", 2),  # each alone, not both
    ],
)
def test_what_is_written_without_a_call(
    clauses: str, count: int, inline_machine: CodeMachine
) -> None:
    assert shapes(f"kinst::f:0 {clauses}", inline_machine) == count


@pytest.mark.parametrize(
    ("settled", "told"),
    [(None, None), (0, 0), (SETTLED, SETTLED), (1 << 40, None), ((1 << 64) - (1 << 31) - 4, None),
     ((1 << 64) - (1 << 31), (1 << 64) - (1 << 31))],
)  # fmt: skip
def test_a_word_that_is_asked_is_within_reach(
    settled: int | None, told: int | None, inline_machine: CodeMachine
) -> None:
    """An address is extended from 32 bits; if it is not in reach, the thread is always saved."""
    made = compile_text("kinst::f:0 { trace(1); }", "test")[1]
    machine = replace(inline_machine, preemption=settled)
    found = record_shapes(made, lay_out_program(made, [], 64, 4096), [((0,), ())], machine, ISA)
    assert [shape.addresses.settled for shape in found.values()] == [told]


def test_machines_where_records_need_a_call(inline_machine: CodeMachine) -> None:
    """The CPU's number and the count of interrupts are words at fixed offsets of a CPU's data.

    The rest is within the reach of 32 bits, and there is a clock.
    """
    text = "kinst::f:0 { trace(cpu); }"
    builtins = dict(inline_machine.builtins)
    assert shapes(text, inline_machine) == 1

    def with_access(name: str, access: Access) -> CodeMachine:
        if name == "pin":
            return replace(inline_machine, pin=access)
        return replace(inline_machine, builtins=builtins | {name: access})

    for name in ("cpu", "pin"):
        for access in (Access(CPU_AT, (), 8), Access(CPU_AT, (8,), 4), Access(None, (), 4),
                       Access(1 << 31, (), 4), Access(-(1 << 31) - 1, (), 4)):  # fmt: skip
            assert shapes(text, with_access(name, access)) == 0, access
        for at in ((1 << 31) - 4, -(1 << 31)):
            assert shapes(text, with_access(name, Access(at, (), 4))) == 1, at
    without_cpu = {key: access for key, access in builtins.items() if key != "cpu"}
    assert shapes(text, replace(inline_machine, builtins=without_cpu)) == 0
    assert shapes(text, replace(inline_machine, pin=None)) == 0
    places = inline_machine.scratch
    for changed, count in (
        ({"clock": None}, 0), ({"timestamp_asm": ""}, 0), ({"base": 1 << 40}, 0),
        ({"base": (1 << 64) - (1 << 31)}, 1), ({"base": (1 << 64) - (1 << 31) - 4096}, 0),
        ({"base": (1 << 64) - places.ring_of(3)}, 1),
        ({"base": (1 << 64) - places.ring_of(3) + 4096}, 0),
        ({"scratch": replace(places, ring_size=2048)}, 0),
    ):  # fmt: skip
        assert shapes(text, replace(inline_machine, **changed)) == count, changed
