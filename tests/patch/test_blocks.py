"""Counters of blocks, wherever control enters: random straight lines with random entries, counted
here one by one."""

from __future__ import annotations

import random
from collections import Counter
from itertools import groupby

import numpy as np
import pytest

from kinst.core.bodies import CallBody, CountBody
from kinst.core.columns import columns_of
from kinst.core.probe import Function, Site
from kinst.isa import load
from kinst.patch.blocks import BlockRules, Blocks, arrange
from kinst.patch.chains import find_chains
from kinst.patch.wanted import WantedSite

ISA = load("amd64")
TEXT = 0x100_0000
CODE = bytes.fromhex("4889c8")
HIGH = 0xFFFF_FFFF_9FE0_0000  # counters that are addresses
LOW = -0x7FFF_0000  # and that are displacements from the base of each CPU


def signed(place: int) -> int:
    return int(np.uint64(place & (1 << 64) - 1).astype(np.int64))


class Line:
    """Instructions in a row, some of them requested, with the counters of each."""

    def __init__(self, rng: random.Random, base: int) -> None:
        count = rng.randrange(1, 40)
        function = Function("vmlinux", "f", TEXT, 3 * count)
        self.sites = [Site(function, 3 * k, CODE) for k in range(count)]
        asked = [rng.random() < 0.8 for _ in range(count)]
        self.started = [rng.random() < 0.3 for _ in range(count)]
        self.counters: list[list[int]] = []
        self.wanted = []
        for k, site in enumerate(self.sites):
            places = [base + 8 * rng.randrange(50) for _ in range(rng.choice((0, 1, 1, 2)))]
            places = places if asked[k] else []
            body = (CountBody(tuple(places)),) if places or rng.random() < 0.5 else ()
            self.counters.append(places)
            self.wanted.append(WantedSite(site, "trap" if asked[k] else "", body, b""))
        self.faulting = {s.address for s in self.sites if rng.random() < 0.1}
        self.free = np.array([rng.random() < 0.3 for _ in range(count)])
        self.entered = [a or s for a, s in zip(asked, self.started, strict=True)]
        self.entered[0] = True

    def arranged(self, rules: BlockRules) -> Blocks:
        columns = columns_of([s.address for s in self.sites], [s.code for s in self.sites])
        started = [s.address for s, is_ in zip(self.sites, self.started, strict=True) if is_]
        chains = find_chains(columns, ISA)
        return arrange(self.wanted, chains, self.free, rules, np.array(started, np.uint64))


@pytest.mark.parametrize("base", [0, LOW, HIGH])
def test_counts_do_not_depend_on_who_comes_where(base: int) -> None:
    rng = random.Random(7)
    made_blocks = short = 0
    for _ in range(150):
        line = Line(rng, base)
        first, room = base + 8 * 1000, rng.choice((400, 400, rng.randrange(30)))
        blocks = line.arranged(BlockRules(first, room, line.faulting))
        stubs = dict(zip(blocks.entered.tolist(), blocks.counters.tolist(), strict=True))
        used = set(stubs.values())
        says, should = Counter[int](), Counter[int]()
        for _ in range(30):
            at = rng.choice([k for k, can in enumerate(line.entered) if can])
            if at in stubs:
                says[stubs[at]] += 1
            for k in range(at, len(line.sites)):
                for body in blocks.wanted[k].bodies:
                    assert isinstance(body, CountBody)
                    says.update(map(signed, body.offsets))
                    used.update(signed(o) for o in body.offsets if o - first in range(8 * 9999))
                should.update(map(signed, line.counters[k]))
                if line.sites[k].address in line.faulting and rng.random() < 0.5:
                    break  # the fault's handler continues elsewhere
        raw = Counter(says)
        sums = blocks.sums
        for source, target, weight in zip(sums.source, sums.target, sums.weight, strict=True):
            says[int(target)] += int(weight) * raw[int(source)]
        counted = {at: n for at, n in says.items() if n and at not in used}
        assert counted == {at: n for at, n in should.items() if n}
        assert all(0 <= at - signed(first) < 8 * room and at % 8 == 0 for at in used)
        assert len(used) >= len(stubs) == len(set(stubs.values()))
        made_blocks += len(used) - len(stubs)
        short += bool(len(used) < room < len(line.sites))
    assert made_blocks > 100 and short


def block_sizes(line: Line, blocks: Blocks) -> list[int]:
    """Return the sizes of all blocks, in order: members of one have its counters, or none."""
    sizes = [0]
    inside = set(blocks.entered.tolist())
    for k, (old, new) in enumerate(zip(line.wanted, blocks.wanted, strict=True)):
        if old is not new and k not in inside and line.entered[k]:
            sizes.append(0)
        sizes[-1] += old is not new
    return [size for size in sizes if size]


def test_lines_are_cut_where_they_must_be_and_nowhere_else() -> None:
    """All instructions are requested and counted: each piece between cuts with more than one is a
    block."""
    rng = random.Random(8)
    for _ in range(60):
        count = rng.randrange(1, 24)
        function = Function("vmlinux", "f", TEXT, 3 * count)
        sites = [Site(function, 3 * k, CODE) for k in range(count)]
        kinds = [rng.choice("cccccfxr") for _ in range(count)]
        call = CallBody(HIGH, HIGH, frozenset())
        wanted = [
            WantedSite(s, "trap", (call,) if kind == "x" else (CountBody((8 * k,)),), b"",
                   b"\x90" if kind == "r" else b"")
            for k, (s, kind) in enumerate(zip(sites, kinds, strict=True))
        ]  # fmt: skip
        faulting = {s.address for s, kind in zip(sites, kinds, strict=True) if kind == "f"}
        columns = columns_of([s.address for s in sites], [s.code for s in sites])
        free = np.zeros(count, np.bool_)
        rules = BlockRules(8000, 1000, faulting)
        blocks = arrange(wanted, find_chains(columns, ISA), free, rules)
        number, of = 0, []
        for kind in kinds:
            number += kind in "xr"
            of.append(number)
            number += kind in "fxr"
        expected = [len(list(each)) for _, each in groupby(of)]
        joined = sum(size - 1 for size in expected)
        assert len(blocks.entered) == joined
        counting = sum(bool(work.bodies) for work in blocks.wanted)
        assert counting == len(expected)


def test_one_that_counts_needs_no_block() -> None:
    """An instruction that is displaced with it does no work: there is nothing to share."""
    function = Function("vmlinux", "f", TEXT, 9)
    sites = [Site(function, 3 * k, CODE) for k in range(3)]
    chains = find_chains(columns_of([s.address for s in sites], [CODE] * 3), ISA)
    for counting, shared in (((1,), False), ((0, 2), True)):
        wanted = [
            WantedSite(site, "trap", (CountBody((8 * k,)),) if k in counting else (), b"")
            for k, site in enumerate(sites)
        ]
        made = arrange(wanted, chains, np.zeros(3, np.bool_), BlockRules(800, 9, ()))
        assert (len(made.sums.source) > 0) == (len(made.entered) > 0) == shared
        assert (list(made.wanted) == wanted) != shared


def test_nothing_is_arranged() -> None:
    chains = find_chains(columns_of([], []), ISA)
    none = arrange([], chains, np.zeros(0, np.bool_), BlockRules(0, 9, ()))
    assert not none.wanted and not len(none.sums.source)


def test_who_comes_to_a_run_that_nobody_asked_to_begin_is_counted() -> None:
    """A run's jump is at an instruction without a probe, within a block.

    Control that comes there from elsewhere runs the rest of the block.
    """
    function = Function("vmlinux", "f", TEXT, 9)
    sites = [Site(function, 3 * k, CODE) for k in range(3)]
    bodies = [(CountBody((0,)),), (), (CountBody((8,)),)]
    wanted = [
        WantedSite(s, "trap" if b else "", b, b"") for s, b in zip(sites, bodies, strict=True)
    ]
    columns = columns_of([s.address for s in sites], [s.code for s in sites])
    started = np.array([sites[1].address], np.uint64)
    blocks = arrange(
        wanted, find_chains(columns, ISA), np.zeros(3, np.bool_), BlockRules(80, 9, ()), started
    )
    assert blocks.entered.tolist() == [1, 2] and blocks.counters.tolist() == [88, 96]
    rows = zip(blocks.sums.target, blocks.sums.source, blocks.sums.weight, strict=True)
    assert sorted(map(tuple, rows)) == [
        (0, 80, 1), (8, 80, 1), (8, 88, 1), (8, 96, 1),
    ]  # fmt: skip
