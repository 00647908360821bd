"""Blocks in the emulator: every instruction is counted as often as the original's runs.

Each straight line has one counter, and stubs for control that enters it in the middle.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from kinst.core.bodies import CallBody, CountBody
from kinst.core.columns import columns_of
from kinst.core.isa import Isa
from kinst.core.probe import Function, Site
from kinst.isa import load
from kinst.patch.blocks import MOST_MEMBERS, BlockRules, arrange
from kinst.patch.chains import find_chains
from kinst.patch.listing import list_plan
from kinst.patch.plan import Plan, plan_sites
from kinst.patch.wanted import WantedSite
from tests.patch.small_functions import (
    COUNTERS,
    PAGE,
    SCRATCH,
    TEXT,
    Cpu,
    Planned,
    entered_everywhere,
    original,
)
from tests.patch.small_functions import planned as planned_chain
from tests.tiers import ISAS

ROOM = 400  # counters


@dataclass(frozen=True)
class Blocked:
    """A chained function, and the plan of the same sites with blocks."""

    chained: Planned
    plan: Plan
    base: int  # of addresses of counters

    @property
    def isa(self) -> Isa:
        return self.chained.isa


def planned(name: str, folder: Path, faulting: Collection[int] = ()) -> Blocked:
    made = planned_chain(name, folder, True)
    base = COUNTERS if made.isa.shared_counters else 0
    rules = BlockRules(base + 8 * len(made.sites), ROOM, faulting)
    plan = plan_sites(
        made.wanted, made.isa, SCRATCH, SCRATCH + 8 * PAGE, chained=True, blocks=rules
    )
    assert not plan.refused and len(plan.patches) == len(made.sites)
    return Blocked(made, plan, base)


@pytest.fixture(params=ISAS)
def blocked(request: pytest.FixtureRequest, tmp_path: Path) -> Blocked:
    return planned(request.param, tmp_path)


def planted(made: Blocked) -> Cpu:
    cpu = Cpu(made.isa, made.chained.code)
    for at, code in (*made.plan.text, *made.plan.stubs):
        cpu.write(at, code)
    for patch in made.plan.patches:
        cpu.write(patch.address, patch.new)
    cpu.traps = dict(made.plan.traps)
    return cpu


def counted(made: Blocked, cpu: Cpu) -> dict[int, int]:
    """Return the counters' values of each site that was hit."""
    words = np.frombuffer(bytes(cpu.uc.mem_read(COUNTERS, PAGE)), np.int64).copy()
    sums = made.plan.sums
    raw = words.copy()
    for source, target, weight in zip(sums.source, sums.target, sums.weight, strict=True):
        words[(target - made.base) >> 3] += weight * raw[(source - made.base) >> 3]
    sites = made.chained.sites
    assert not words[: len(sites)].min() < 0
    return {s.address: int(n) for s, n in zip(sites, words, strict=False) if n}


def test_every_instruction_is_counted(blocked: Blocked) -> None:
    plain, cpu = original(blocked.chained), planted(blocked)
    cpu.run(TEXT, *cpu.start_state())
    assert cpu.result() == plain.result()
    assert counted(blocked, cpu) == dict(plain.ran)
    chain = Cpu(blocked.isa, blocked.chained.code)
    for at, code in blocked.chained.plan.text:
        chain.write(at, code)
    for patch in blocked.chained.plan.patches:
        chain.write(patch.address, patch.new)
    chain.traps = dict(blocked.chained.plan.traps)
    chain.run(TEXT, *chain.start_state())
    assert sum(cpu.ran.values()) < 0.9 * sum(chain.ran.values())


def test_who_enters_in_the_middle_is_counted_from_there(blocked: Blocked) -> None:
    """Enter at every instruction, by its own patch, in the state that it has there."""
    plain, cpu = original(blocked.chained), planted(blocked)
    visits = 0
    for address, rest in entered_everywhere(plain, cpu):
        visits += 1
        assert counted(blocked, cpu) == dict(rest), f"entered at {address:#x}"
    assert visits == len(blocked.chained.sites)
    assert len(blocked.plan.stubs) > 4


def test_a_fault_ends_a_block(tmp_path: Path) -> None:
    """Every instruction may fault: there are no blocks, only the chain."""
    chained = planned_chain("amd64", tmp_path, True)
    made = planned("amd64", tmp_path, {site.address for site in chained.sites})
    assert not made.plan.stubs and not len(made.plan.sums.source)
    assert list(made.plan.text) == list(chained.plan.text)


def test_a_listing_names_the_stubs() -> None:
    isa = load("amd64")
    rules = BlockRules(8000, ROOM, ())
    plan = plan_sites(straight(3, isa), isa, SCRATCH, SCRATCH + PAGE, chained=True, blocks=rules)
    rows = list(list_plan(plan, isa, lambda at: f"f+{at - TEXT}"))
    stubs = [row for row in rows if "a stub" in row]
    assert len(stubs) == len(plan.stubs) == 2
    assert f"{plan.stubs[0][0]:x}" in stubs[0]


def straight(count: int, isa: Isa, way: str = "trap") -> list[WantedSite]:
    """Return WantedSites of so many `mov rax, rcx` in a row."""
    code = bytes.fromhex("4889c8")
    function = Function("vmlinux", "f", TEXT, 3 * count)
    sites = [Site(function, 3 * k, code) for k in range(count)]
    return [WantedSite(site, way, (CountBody((8 * k,)),), b"") for k, site in enumerate(sites)]


def arranged(
    wanted: list[WantedSite], faulting: Collection[int] = (), room: int = ROOM
) -> list[int]:
    """Return the number of instructions of each block, 1 for those in none."""
    isa = load("amd64")
    sites = columns_of([w.site.address for w in wanted], [w.site.code for w in wanted])
    free = np.zeros(len(wanted), np.bool_)
    made = arrange(wanted, find_chains(sites, isa), free, BlockRules(8 * 1000, room, faulting))
    sizes: list[int] = []
    for new, old in zip(made.wanted, wanted, strict=True):
        if new.bodies:
            sizes.append(1)
        else:
            assert old.bodies
            sizes[-1] += 1
    return sizes


def test_what_blocks_are_made_of() -> None:
    wanted = straight(6, load("amd64"))
    at = [work.site.address for work in wanted]
    assert arranged(wanted) == [6]
    assert arranged(wanted, {at[2]}) == [3, 3]  # a faulting instruction runs after all before it
    assert arranged(wanted, room=5) == [1] * 6
    called = CallBody(SCRATCH, 0, frozenset())
    other = WantedSite(wanted[3].site, "trap", (called,), b"")
    assert arranged([*wanted[:3], other, *wanted[4:]]) == [3, 1, 2]
    assert arranged([*wanted[:3], *wanted[4:]]) == [3, 2]  # an unplanted instruction ends one, too
    jump = Site(wanted[0].site.function, 18, bytes.fromhex("75f5"))  # jne to the fourth
    back = WantedSite(jump, "trap", (CountBody((800,)),), b"")
    assert arranged([*wanted, back]) == [3, 4]  # which other code branches to
    long = straight(2 * MOST_MEMBERS + 1, load("amd64"))
    assert arranged(long) == [MOST_MEMBERS, MOST_MEMBERS, 1]


def test_a_block_counts_where_it_need_not_save_flags() -> None:
    isa = load("amd64")
    wanted = straight(4, isa)
    sites = columns_of([w.site.address for w in wanted], [w.site.code for w in wanted])
    free = np.array([False, False, True, True])
    high = arrange(wanted, find_chains(sites, isa), free, BlockRules(-8 & (1 << 64) - 1, ROOM, ()))
    assert high.sums.source.min() == -8  # addresses of the upper half are valid, too
    made = arrange(wanted, find_chains(sites, isa), free, BlockRules(8000, ROOM, ()))
    assert [bool(work.bodies) for work in made.wanted] == [False, False, True, False]
    assert made.entered.tolist() == [1, 2, 3] and made.counters.tolist() == [8008, 8016, 8024]
    rows = zip(made.sums.target, made.sums.source, made.sums.weight, strict=True)
    assert sorted(map(tuple, rows)) == [
        (0, 8000, 1), (0, 8008, -1), (0, 8016, -1),
        (8, 8000, 1), (8, 8016, -1),
        (16, 8000, 1),
        (24, 8000, 1), (24, 8024, 1),
    ]  # fmt: skip
