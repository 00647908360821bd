"""Scratch for a program, the counter blocks, and which probes only count."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kinst.codegen.layout.program_layout import lay_out_program
from kinst.codegen.site_work import counted_entries, exits_in
from kinst.codegen.subroutines import prototypes
from kinst.core.errors import KinstError, ScratchUsedUpError
from kinst.core.layout import (
    ARGUMENT_CONSTANT,
    ARGUMENT_NONE,
    ARGUMENT_SLOT,
    LEAF,
    STATE_CLOSED,
)
from kinst.core.machine import Abilities, Target
from kinst.core.probe import Argument, Function, Probe, ProbeName, Site
from kinst.core.system import Facts, System
from kinst.core.words import PAGE
from kinst.dlang.api import Environment, compile_text
from kinst.dlang.vocabulary.d_options import Options
from kinst.patch.ways import PlantRules
from kinst.session.counters import map_counters
from kinst.session.place import lay_out_scratch
from kinst.session.records import (
    epids_that_copy,
    is_active,
    no_result_told,
    set_active,
    without_result,
)
from kinst.session.scratch import ScratchPool, data_reserved, pool_size
from kinst.session.sizes import counters_room, sizes_of
from kinst.session.values import (
    Compiled,
    EnabledProgram,
    EnabledSite,
    PlacedProgram,
    Placement,
    ScratchMemory,
    StartedMachine,
)

FUNCTION = Function("vmlinux", "f", 0x1000, 64)


def enabled(number: int, clauses: tuple[int, ...]) -> EnabledSite:
    site = Site(FUNCTION, number, b"\x90")
    probe = Probe(number, ProbeName("kinst", "vmlinux", "f", str(number)), site)
    return EnabledSite(probe, clauses, number, None)


def counted(text: str) -> tuple[int, ...] | None:
    _, program = compile_text(text, "test", environment=Environment({"R_RAX": 0}))
    probes = [enabled(5, tuple(range(len(program.clauses))))]
    layout = lay_out_program(
        program, [(e.probe.name, e.probe.id, e.clauses) for e in probes], 256, 1 << 20
    )
    return counted_entries(program, layout, probes[0].probe.id, 0)


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("kinst::f:5 { @ = count(); }", (0,)),
        ("kinst::f:5 { @[probefunc, probename] = count(); }", (0,)),
        ("kinst::f:5 { @a = count(); @b[1] = count(); @b[2] = count(); }", (0, 8, 16)),
        ("kinst::f:5 /pid/ { @ = count(); }", (0,)),  # whatever its predicate
        ("kinst::f:5 { @ = sum(1); }", None),
        ("kinst::f:5 { @[pid] = count(); }", None),
        ("kinst::f:5 { @ = count(); trace(1); }", None),
        ("kinst::f:5 { }", None),
    ],
)
def test_what_only_counts(text: str, offsets: tuple[int, ...] | None) -> None:
    assert counted(text) == offsets


def test_exits_are_found() -> None:
    _, program = compile_text("BEGIN { trace(1); } END { exit(0); }", "test")
    assert exits_in(program, frozenset({1})) and not exits_in(program, frozenset({0}))


def test_areas_do_not_overlap() -> None:
    tree, program = compile_text("kinst::f:5 { @[pid] = count(); x = 1; }", "test")
    compiled = Compiled((), (tree,), program, Options(), PlantRules(), 1 << 20)
    probes = (enabled(5, (0,)), enabled(6, (0,)))
    enabled_program = EnabledProgram(compiled, probes, probes)
    layout = lay_out_program(
        program, [(e.probe.name, e.probe.id, e.clauses) for e in probes], 256, compiled.sizes.aggs
    )
    size = compiled.sizes.scratch(2, 1 << 20)
    assert size % LEAF == 0
    memory = ScratchMemory(memoryview(b""), 0xFFFF, 0, size)
    scratch = lay_out_scratch(enabled_program, memory, 2, layout, 2)
    areas = [
        (0, PAGE), (scratch.state, 3 * PAGE), (scratch.ring, 3 * scratch.ring_size),
        (scratch.aggs, 6 * scratch.agg_size), (scratch.temp, 3 * scratch.temp_size),
        (scratch.globals, scratch.globals_size), (scratch.strings, scratch.strings_size),
        (scratch.sites, scratch.sites_size), (scratch.traps, scratch.traps_size),
        (scratch.text, size - scratch.text),
    ]  # fmt: skip
    for (start, length), (following, _) in pairwise(areas):
        assert start + length <= following
    assert scratch.text < size
    with pytest.raises(KinstError, match="too small"):
        lay_out_scratch(enabled_program, replace(memory, size=LEAF), 2, layout, 2)


class FakeTarget:
    """A target whose memory is free from `free` on."""

    no_counters = ("", "")

    def __init__(self, free: int) -> None:
        self.free = free
        self.mapped: list[tuple[int, int, int]] = []

    def map_alias(self, virtual: int, offset: int, size: int) -> bool:
        assert virtual % LEAF == 0 and offset % LEAF == 0 and size % LEAF == 0
        if virtual < self.free:
            return False
        self.mapped.append((virtual, offset, size))
        return True


def test_counter_blocks_lie_at_one_displacement() -> None:
    bases = (0xFFFF88803EC00000, 0xFFFF88803ED00000)
    target = FakeTarget(0xFFFF888050000000)
    total = 64 * LEAF
    found = map_counters(target, bases, total, 4096)  # type: ignore[arg-type]
    assert found is not None and abs(found.displacement) < 1 << 31
    ((virtual, offset, size),) = target.mapped
    assert offset == total - counters_room(2)
    for base, place_ in zip(bases, found.offsets, strict=True):
        inside = base + found.displacement - virtual
        assert 0 <= inside <= size - 4096
        assert place_ == offset + inside
    # Blocks that overlap, or bases too far apart, cannot be used.
    assert map_counters(target, (0, 4096), total, 8192) is None  # type: ignore[arg-type]
    assert map_counters(target, (0, 1 << 30), total, 8) is None  # type: ignore[arg-type]
    full = FakeTarget(1 << 64)
    assert map_counters(full, bases, total, 8) is None  # type: ignore[arg-type]
    full.no_counters = ("there is no room", "start anew")
    with pytest.raises(KinstError, match=r"there is no room \(start anew\)"):
        map_counters(full, bases, total, 8)  # type: ignore[arg-type]


def test_counters_of_a_large_program_lie_between_the_bases_of_its_threads() -> None:
    """The bases of 16 threads of a program with 20 MB of code are 2.5 GB apart."""
    block, room = 160 << 20, 4 << 30
    bases = range(1 << 45, (1 << 45) + 16 * block, block)
    target = FakeTarget(0)
    found = map_counters(target, bases, room, 4096, room)  # type: ignore[arg-type]
    assert found is not None and 0 < found.displacement < 1 << 31
    ((virtual, _, size),) = target.mapped
    assert virtual <= bases[0] + found.displacement
    assert bases[-1] + found.displacement + 4096 <= virtual + size


def test_what_is_kept_by_the_consumer_has_room_until_it_takes_it() -> None:
    _, program = compile_text("BEGIN { }", "test")
    small = Options().with_option("bufsize", "1k")
    assert sizes_of(small, program).ring == 1024
    assert sizes_of(small.with_option("bufsize", "5"), program).ring == 64
    for policy in ("ring", "fill"):
        assert sizes_of(small.with_option("bufpolicy", policy), program).ring >= 1 << 20
    large = small.with_option("bufsize", "9m").with_option("bufpolicy", "ring")
    assert sizes_of(large, program).ring == 16 << 20


SMALL = Options(bufsize=4096, aggsize=4096)


class PoolTarget:
    """A target with scratch memory and nothing else."""

    abilities = Abilities()

    def __init__(self) -> None:
        self.memory = bytearray()

    def map_scratch(self, size: int, *_text: object, **_where: object) -> int:
        self.memory = bytearray(size)
        return 0xFFFFFFFF80000000

    def scratch_view(self) -> memoryview:
        return memoryview(self.memory)


def test_what_an_ended_trace_left_in_scratch_stays() -> None:
    """Code of an ended trace, and the flag by which it knows, stay: later traces write to
    neither."""
    target = PoolTarget()
    tree, program = compile_text('kinst::f:5 { printf("%d", pid); }', "test")
    compiled = Compiled((), (tree,), program, SMALL, PlantRules(), 1 << 16)
    probes = (enabled(5, (0,)),)
    whole = EnabledProgram(compiled, probes, probes)
    system = SimpleNamespace(facts=Facts(), modules=tuple)
    isa, unused = cast(Any, SimpleNamespace(no_trampolines="")), cast(Any, None)
    machine = StartedMachine(
        isa, cast(Target, target), cast(System, system), unused, (0, 0), unused
    )
    data = data_reserved(whole, 1)
    size = 2 * pool_size(whole, 1, compiled.trampolines) + counters_room(1)
    pool = ScratchPool(machine, size, data, data)
    layout = lay_out_program(
        program, [(e.probe.name, e.probe.id, e.clauses) for e in probes], 256, compiled.sizes.aggs
    )
    ended: list[PlacedProgram] = []
    with pytest.raises(ScratchUsedUpError):
        for number in range(10_000):
            memory = pool.take(whole)
            scratch = lay_out_scratch(whole, memory, 1, layout, len(probes))
            placed = PlacedProgram(Placement(whole, memory, (), probes[0]), scratch, layout, None)
            pool.reserve(placed, memory.address + scratch.text + PAGE)
            set_active(memory.view, scratch, True)
            data_pages = range(scratch.ring, scratch.dynamic + scratch.dynamic_size, PAGE)
            assert not any(memory.view[at] for at in data_pages)
            for at in data_pages:
                memory.view[at] = 0xFF
            memory.view[scratch.text] = number % 251 + 1
            set_active(memory.view, scratch, False)
            ended.append(placed)
    assert len({one.memory.offset for one in ended}) == len(ended)
    for number, one in enumerate(ended):
        view, scratch = one.memory.view, one.scratch
        assert view[scratch.text] == number % 251 + 1
        assert not is_active(view)
        for slot in range(scratch.cpus + 1):
            closed = scratch.state_of(slot) + STATE_CLOSED
            assert bytes(view[closed : closed + 4]) == b"\1\0\0\0"
    # Most traces need no new room for their data.
    needed = compiled.sizes.data(1)
    assert len(ended) * needed > 4 * len(target.memory)


def test_clauses_that_read_a_result_that_is_not_known() -> None:
    """Only these clauses' illegal operations are explained by a jump to another function."""
    _, program = compile_text("fbt::f:return { trace(arg1); } fbt::f:return { trace(arg0); }", "t")
    constant, known = Argument(ARGUMENT_CONSTANT, 4), Argument(ARGUMENT_SLOT, 0)
    jump, plain = (constant, Argument(ARGUMENT_NONE)), (constant, known)

    def at(name: str, arguments: tuple[Argument, ...], provider: str = "fbt") -> EnabledSite:
        one = enabled(10, (1, 0))
        probe = replace(one.probe, name=ProbeName(provider, "vmlinux", "f", name))
        return replace(one, probe=probe, arguments=arguments)

    site = Site(FUNCTION, 10, b"\x90")
    assert without_result([at("return", plain), at("return", jump)], program) == [(11, site)]
    assert no_result_told([site, site]).startswith("kinst: at f+10: arg1 is not known where")
    for other in (at("return", plain), at("entry", jump), at("return", jump, "kinst")):
        assert without_result([other], program) == []
    assert without_result([at("return", jump[:1])], program) == []


def test_clauses_that_read_user_memory() -> None:
    """Their bad addresses are not explained as addresses that only copyin() reads."""
    text = "{ trace(*(int *)arg1); } fbt::f:entry { trace(copyinstr(arg1)); }"
    environment = Environment({}, subroutines=prototypes())
    _, program = compile_text(f"fbt::f:entry {text}", "t", environment=environment)
    assert epids_that_copy([enabled(10, (1, 0)), enabled(20, (0,))], program) == {10}
