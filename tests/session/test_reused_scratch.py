"""Scratch of ended traces in which no thread can be any more: which it is, and how it is
reused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kinst.codegen.layout.program_layout import lay_out_program
from kinst.core.isa import Isa
from kinst.core.layout import LEAF, STATE_SEQUENCE
from kinst.core.machine import Abilities, Target
from kinst.core.probe import Function, Probe, ProbeName, Site
from kinst.core.return_addresses import EndedCode, unused
from kinst.core.system import Facts, System
from kinst.core.words import PAGE
from kinst.dlang.api import compile_text
from kinst.dlang.vocabulary.d_options import Options
from kinst.patch.ways import PlantRules
from kinst.session.counters import CounterBlocks
from kinst.session.place import lay_out_scratch
from kinst.session.scratch import ScratchPool, data_reserved
from kinst.session.sizes import SITE_CODE, counters_room
from kinst.session.values import (
    Compiled,
    EnabledProgram,
    EnabledSite,
    PlacedProgram,
    Placement,
    ScratchMemory,
    StartedMachine,
)

SCRATCH = 0xFFFFFFFF80000000
NOWHERE = np.zeros(0, np.uint64)
CODE = [EndedCode((at, at + 0x800), NOWHERE) for at in (0x10000, 0x11000, 0x12000)]


class Machine:
    """A target with words of memory, registers and scratch, and nothing else."""

    abilities = Abilities()
    cpus = 2

    def __init__(self, words: Sequence[int] = (), registers: Sequence[int] = (0, 0)) -> None:
        self.words, self._registers = words, registers
        self.memory = bytearray()

    def pointers(self, ranges: Sequence[tuple[int, int]]) -> Any:
        found = {w for w in self.words for low, high in ranges if low <= w < high}
        return np.array(sorted(found), np.uint64)

    def registers(self, cpu: int) -> dict[str, int]:
        return {"pc": self._registers[cpu], "wide": 1 << 100}

    def map_scratch(self, size: int, *_text: object, **_where: object) -> int:
        self.memory = bytearray(size)
        return SCRATCH

    def scratch_view(self) -> memoryview:
        return memoryview(self.memory)


@pytest.mark.parametrize("where", ["words", "registers"])
@pytest.mark.parametrize(
    ("address", "held"),
    [
        (0xFFFF, ()),
        (0x10000, (0,)),
        (0x107FF, (0,)),
        (0x10800, ()),
        (0x11004, (1,)),
        (0x127F8, (2,)),
    ],
)
def test_who_is_in_code_keeps_it(where: str, address: int, held: tuple[int, ...]) -> None:
    machine = Machine([address]) if where == "words" else Machine([], [0, address])
    found = unused(cast(Target, machine), CODE)
    assert found == tuple(one for k, one in enumerate(CODE) if k not in held)


def test_where_memory_cannot_be_looked_through_nothing_is_free() -> None:
    machine = Machine()
    machine.pointers = lambda ranges: None  # type: ignore[method-assign]
    assert unused(cast(Target, machine), CODE) == ()


PLANTS = SimpleNamespace(no_trampolines="")  # an ISA with code for scratch


def started(machine: Machine, *, isa: object = PLANTS, cpus: int = 1) -> StartedMachine:
    """A machine that has started, as far as its scratch needs it."""
    system = SimpleNamespace(facts=Facts(cpus=cpus), modules=tuple)
    unused = cast(Any, None)
    return StartedMachine(
        cast(Isa, isa), cast(Target, machine), cast(System, system), unused, (0, 0), unused
    )


class Traces:
    """A pool, and traces with given numbers of pages of code."""

    def __init__(self, pages: int) -> None:
        """Create the pool; `pages` is the total for code."""
        site = Site(Function("vmlinux", "f", 0x1000, 64), 0, b"\x90")
        probe = Probe(5, ProbeName("kinst", "vmlinux", "f", "0"), site)
        tree, program = compile_text("kinst::f:0 { @ = count(); }", "test")
        options = Options(bufsize=4096, aggsize=4096)
        compiled = Compiled((), (tree,), program, options, PlantRules(), 1 << 16)
        probes = (EnabledSite(probe, (0,), 5, None),)
        self.program = EnabledProgram(compiled, probes, probes)
        machine = started(Machine())
        data = data_reserved(self.program, machine.cpus)
        size = data + pages * PAGE + counters_room(machine.cpus)
        self.pool = ScratchPool(machine, size, data, data)
        self.layout = lay_out_program(
            program, [(probe.name, probe.id, (0,))], 256, compiled.sizes.aggs
        )

    def add(self, pages: int) -> tuple[int, int]:
        """Add a trace; return the range of its code, in pages of those for code."""
        memory = self.pool.take(self.program)
        scratch = lay_out_scratch(self.program, memory, 1, self.layout, 1)
        placement = Placement(self.program, memory, (), self.program.enabled[0])
        placed = PlacedProgram(placement, scratch, self.layout, None)
        start = memory.address + placed.scratch.text
        assert placed.scratch.text + pages * PAGE <= memory.size
        self.pool.reserve(placed, start + pages * PAGE - 8)
        self.placed = placed
        first = getattr(self, "first", start)
        self.first = first
        return (start - first) // PAGE, (start - first) // PAGE + pages

    def is_short(self, probes: int = 1) -> bool:
        more = replace(self.program, enabled=self.program.enabled * probes)
        return self.pool.is_short(more)

    def release(self, pages: tuple[int, int]) -> None:
        low, high = pages
        self.pool.release((self.first + low * PAGE, self.first + high * PAGE - 8))


def test_code_is_used_again_where_it_is_released_alone() -> None:
    traces = Traces(20)
    some = [traces.add(6), traces.add(3), traces.add(6)]
    assert some == [(0, 6), (6, 9), (9, 15)]
    assert not traces.is_short()
    assert traces.is_short(6 * PAGE // SITE_CODE)
    traces.release(some[0])
    assert traces.add(2) == (0, 2)  # larger than the 5 that are left
    assert traces.add(1) == (15, 16)
    # Neighbours become one piece, without any piece that is in use.
    traces.release(some[1])
    assert traces.add(7) == (2, 9)
    traces.release((0, 2))
    traces.release((2, 9))
    assert traces.add(8) == (0, 8)
    assert traces.add(4) == (16, 20)
    assert traces.add(1) == (8, 9)


def test_heads_of_ended_traces_leave_no_room_for_data() -> None:
    """Heads of each trace stay before the data, until no thread is in the code of any."""
    traces, count = Traces(20), 0
    while not traces.is_short():
        pages = traces.add(1)
        traces.release(pages)
        count += 1
        assert count < 1000
    assert pages[0] < 20, "it was not code that there was no room for"
    first = traces.placed.memory.offset
    assert first > 0
    traces.pool.start_again()
    for _ in range(2):
        assert not traces.is_short()
        traces.add(10)
    assert traces.placed.memory.offset < first


def test_a_cpu_in_a_clause_of_any_trace_is_seen() -> None:
    traces = Traces(20)
    for number in range(3):
        traces.add(1)
        assert not traces.pool.in_clause
        if number == 1:
            second = traces.placed
    sequence = second.scratch.state_of(second.scratch.cpus - 1) + STATE_SEQUENCE
    for value, inside in ((1, True), (2, False), (255, True), (256, False)):
        second.memory.view[sequence : sequence + 8] = value.to_bytes(8, "little")
        assert traces.pool.in_clause == inside


def test_counters_are_used_again_and_start_from_zero() -> None:
    machine = Machine()
    blocks = CounterBlocks(started(machine, isa=SimpleNamespace(shared_counters=True), cpus=2))
    view = memoryview(bytearray(4 * LEAF))
    memory = ScratchMemory(view, SCRATCH, 0, LEAF, 512, 0, 0, LEAF)
    assert blocks.has_room(8)
    first = blocks.place(memory, 100)
    kept = [blocks.reserve(first)]
    second = blocks.place(memory, 8, more=200)
    kept.append(blocks.reserve(second))
    assert first is not None and second is not None and second.size == 208
    assert first.offsets == (LEAF,) and second.offsets == (LEAF + 128,)
    assert not blocks.has_room(129) and blocks.place(memory, 129) is None
    view[LEAF : LEAF + 512] = b"\xff" * 512
    blocks.release(kept[0], view)
    assert bytes(view[LEAF : LEAF + 129]) == bytes(128) + b"\xff"
    assert blocks.place(memory, 128) == first.__class__(first.displacement, (LEAF,), 128)
    third = blocks.place(memory, 129)
    assert third is None and not blocks.has_room(129)
    blocks.release(kept[1], view)
    assert blocks.has_room(512) and not any(view[LEAF : LEAF + 384])
