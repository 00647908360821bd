"""Trampolines that are made at once are byte for byte those that are made one by one.

Whole functions drawn from real kernels are planned with the marks of scan() and without.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from kinst.core.bodies import Body, CallBody, CountBody
from kinst.core.columns import FOLLOWING
from kinst.core.isa import Isa
from kinst.core.probe import Function, Site
from kinst.isa import load, names
from kinst.patch.plan import Plan, plan_sites
from kinst.patch.wanted import WantedSite
from tests.isa.kernel_text import find_vmlinux, read_text
from tests.tiers import of_kernels

SITES = 20_000  # of each kernel
SEED = random.randrange(1 << 30) if os.environ.get("KINST_RANDOM") else 13
SHARE_MARKED = {"amd64": 0.98}


def bodies_of(isa: Isa, scratch: int, rng: random.Random) -> list[tuple[Body, ...]]:
    """Return bodies without work, with counters of one and of several probes, and with one call."""
    places = [8 * rng.randrange(500) for _ in range(40)]
    if isa.shared_counters:
        places = [scratch - (1 << 16) + at for at in places]
    one = [(CountBody((at,)),) for at in places]
    more = [(CountBody((a, b)), CountBody((b,))) for a, b in itertools.pairwise(places)]
    frames = [(), isa.argument_slots[:2], (isa.sp_slot, isa.result_slot), (isa.pc_slot,)]
    calls = [
        (CallBody(scratch - 4096 - 64 * k, scratch - 8192 - 256 * n, frozenset(slots)),)
        for k, slots in enumerate(frames)
        for n in range(8)
    ]
    return [(), *one * 3, *more, *calls]


@cache
def drawn(isa: Isa) -> tuple[tuple[WantedSite, ...], int]:
    """Return some eighty of a hundred instructions of random functions, and the address of
    scratch."""
    rng, text = random.Random(SEED), read_text(find_vmlinux(isa.name))
    end = text.address + len(text.code)
    scratch = 0xFFFFFFFF9FE00000 if isa.name == "amd64" else end + (4 << 20) & -4096
    bodies = bodies_of(isa, scratch, rng)
    functions = sorted({at: (at, size, name) for at, size, name in text.functions}.values())
    rng.shuffle(functions)
    wanted: list[WantedSite] = []
    for at, size, name in functions:
        code = text.code[at - text.address :][:size]
        function = Function("vmlinux", name, at, size)
        instructions = list(isa.decode(code, at))
        scanned = isa.scan([(at, code)])
        assert scanned.bounds.tolist() == [0, len(instructions)]
        columns, kept = scanned.columns, isa.unsafe(instructions) | isa.rerun_starts(instructions)
        assert not kept or isa.has_sequences(code)
        for k, one in enumerate(instructions):
            assert (one.address, one.size) == (int(columns.address[k]), int(columns.size[k]))
            assert columns.code[k].tobytes() == one.code.ljust(16, b"\0")
            if one.address in kept or rng.random() < 0.2:
                continue
            offset = one.address - at
            way = "jump" if isa.jump_patch(one.size, one.address, scratch) else "trap"
            following = code[offset + one.size :][:FOLLOWING]
            site = Site(function, offset, one.code)
            marks = int(columns.marks[k])
            wanted.append(WantedSite(site, way, rng.choice(bodies), following, b"", marks))
        if len(wanted) > SITES:
            break
    return tuple(wanted), scratch


def values(plan: Plan) -> list[object]:
    pairs = [list(plan.traps), list(plan.copies)]
    return [plan.text.block, list(plan.patches), list(plan.exits), pairs, plan.refused, plan.end,
            list(plan.sites), plan.chained.tolist()]  # fmt: skip


@pytest.mark.parametrize("name", of_kernels(names()))
def test_marks_are_of_what_is_near(name: str) -> None:
    """The marks of an instruction by itself are those of the instruction in its function."""
    isa = load(name)
    wanted, _ = drawn(isa)
    some = random.Random(SEED).sample(wanted, 500)
    alone = isa.scan([(w.site.address, w.site.code + w.following) for w in some])
    first = alone.bounds[:-1]
    assert alone.columns.marks[first].tolist() == [w.marks for w in some], f"seed {SEED}"


@pytest.mark.parametrize("name", of_kernels(names()))
def test_calls_are_made_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of the trampolines that only make a call are made one by one."""
    isa, alone = load(name), 0
    wanted, scratch = drawn(isa)
    calling = [one for one in wanted if one.bodies and isinstance(one.bodies[0], CallBody)]
    calling = [one for one in calling if isa.pc_slot not in one.bodies[0].slots]
    make = isa.trampoline

    def counted(*arguments: Any) -> Any:
        nonlocal alone
        alone += 1
        return make(*arguments)

    monkeypatch.setattr(isa, "trampoline", counted)
    plan_sites(calling, isa, scratch + 24, scratch + (16 << 20))
    assert alone <= len(calling) * (1 - SHARE_MARKED.get(name, 0)), f"seed {SEED}"


@pytest.mark.parametrize("name", of_kernels(names()))
def test_made_at_once_and_one_by_one(name: str) -> None:
    isa = load(name)
    wanted, scratch = drawn(isa)
    unmarked = [replace(one, marks=0) for one in wanted]
    marked = sum(one.marks != 0 for one in wanted) / len(wanted)
    assert marked >= SHARE_MARKED.get(name, 0), f"seed {SEED}: {marked:.1%} are marked"
    for chained, count in ((True, len(wanted)), (False, len(wanted) // 4)):
        quick = plan_sites(wanted[:count], isa, scratch + 24, scratch + (16 << 20), chained=chained)
        plain = plan_sites(
            unmarked[:count], isa, scratch + 24, scratch + (16 << 20), chained=chained
        )
        assert values(quick) == values(plain), f"seed {SEED}"
        assert len(quick.patches) > count * 0.9
        assert bool(len(quick.exits)) == chained
