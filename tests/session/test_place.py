"""Scratch for a program, the counter blocks, and which probes only count."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kinst.codegen.layout.program_layout import lay_out_program
from kinst.codegen.site_work import counted_entries, exits_in
from kinst.core.layout import LEAF, PAGE
from kinst.core.probe import Function, Probe, ProbeName, Site
from kinst.dlang.api import Environment, compile_text
from kinst.dlang.vocabulary.d_options import Options
from kinst.session.counters import map_counters
from kinst.session.place import place
from kinst.session.sizes import counters_room, scratch_needed, sizes
from kinst.session.values import EnabledSite

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
    _, program = compile_text("kinst::f:5 { @[pid] = count(); x = 1; }", "test")
    probes = [enabled(5, (0,)), enabled(6, (0,))]
    options = Options()
    need = sizes(options, program)
    layout = lay_out_program(
        program, [(e.probe.name, e.probe.id, e.clauses) for e in probes], 256, need.aggs
    )
    size = scratch_needed(options, program, 2, 1 << 20)
    assert size % LEAF == 0
    scratch = place(0xFFFF, size, 2, options, program, layout, probes)
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
    with pytest.raises(ValueError, match="too small"):
        place(0xFFFF, LEAF, 2, options, program, layout, probes)


class FakeTarget:
    """Free from `free` on."""

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
    # Blocks that would overlap, or bases too far apart, cannot be served.
    assert map_counters(target, (0, 4096), total, 8192) is None  # type: ignore[arg-type]
    assert map_counters(target, (0, 1 << 30), total, 8) is None  # type: ignore[arg-type]
    assert map_counters(FakeTarget(1 << 64), bases, total, 8) is None  # type: ignore[arg-type]


def test_what_is_kept_by_the_consumer_has_room_until_it_takes_it() -> None:
    _, program = compile_text("BEGIN { }", "test")
    small = Options().with_option("bufsize", "1k")
    assert sizes(small, program).ring == 4096
    for policy in ("ring", "fill"):
        assert sizes(small.with_option("bufpolicy", policy), program).ring >= 1 << 20
    large = small.with_option("bufsize", "9m").with_option("bufpolicy", "ring")
    assert sizes(large, program).ring == 16 << 20
