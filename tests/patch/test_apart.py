"""Trampolines get separate entries in the table by which QEMU finds translated code.

They differ from each other's entries and from those of code that runs with them.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kinst.core.errors import KinstError
from kinst.core.machine import CodeTable
from kinst.machines.stub.jump_cache import JUMP_CACHE
from kinst.patch.apart import Apart
from kinst.patch.chains import find_chains
from kinst.patch.plan import Plan, plan_sites
from kinst.patch.wanted import WantedSite
from tests.machines.stub.test_jump_cache import entry_in_qemu
from tests.patch.random_functions import Material, material
from tests.patch.small_functions import SCRATCH
from tests.patch.test_plan import contents, end_of, every_site
from tests.tiers import ISAS

PAGE = 0x1000
ALIGN = 16


@cache
def drawn(name: str, folder: Path) -> Material:
    return material(name, 12, 3, folder)


@pytest.fixture(params=ISAS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Material:
    return drawn(request.param, tmp_path_factory.getbasetemp())


def planned(
    made: Material, wanted: list[WantedSite], table: CodeTable | None, *, pages: int = 64,
    chained: bool = False, near: tuple[int, ...] = (),
) -> Plan:  # fmt: skip
    end = SCRATCH + pages * PAGE
    return plan_sites(wanted, made.isa, SCRATCH, end, chained=chained, table=table, near=near)


def looked_up(wanted: list[WantedSite]) -> set[int]:
    """Return the entries of the sites, and the addresses that their trampolines return to."""
    ends = [work.site.address + len(work.site.code) for work in wanted]
    return {entry_in_qemu(at) for at in [*(work.site.address for work in wanted), *ends]}


def test_no_two_trampolines_have_one_entry_nor_that_of_a_site(made: Material) -> None:
    wanted = every_site(made, True)[::5][:60]
    close, apart = planned(made, wanted, None), planned(made, wanted, JUMP_CACHE)
    own = looked_up(wanted)
    entries = [entry_in_qemu(at) for at, _ in apart.text]
    assert len(set(entries)) == len(entries) == len(wanted) and own.isdisjoint(entries)
    # As close together as possible they do collide: this draw was not luck.
    close_entries = [entry_in_qemu(at) for at, _ in close.text]
    assert len(set(close_entries) - own) < len(close_entries)
    assert [len(code) for _, code in apart.text] == [len(code) for _, code in close.text]


def test_one_trampoline_gives_way_to_what_is_said_to_be_near(made: Material) -> None:
    wanted = every_site(made, True)[:1]
    ((first, _),) = planned(made, wanted, JUMP_CACHE).text
    ((second, _),) = planned(made, wanted, JUMP_CACHE, near=(first,)).text
    assert first < second < first + PAGE
    assert entry_in_qemu(first) != entry_in_qemu(second)


def test_trampolines_that_run_into_each_other_stay_together(made: Material) -> None:
    """Only the first trampoline of such a group is found by its address."""
    wanted = every_site(made, True)[:40]
    plan = planned(made, wanted, JUMP_CACHE, chained=True)
    text = list(plan.text)
    into = find_chains(plan.sites.columns, made.isa).falls_into.tolist()
    for ((at, code), (after, _)), falls in zip(pairwise(text), into, strict=False):
        assert not falls or at + len(code) == after
    heads = [at for (at, _), falls in zip(text, [False, *into], strict=False) if not falls]
    assert 1 < len(heads) < len(text)
    entries = [entry_in_qemu(at) for at in heads]
    assert len(set(entries)) == len(entries) and looked_up(wanted).isdisjoint(entries)


def test_of_more_sites_than_the_table_has_room_for_nothing_changes(made: Material) -> None:
    wanted = every_site(made, True)
    small = CodeTable(64, lambda addresses: (addresses % np.uint64(64)).astype(np.int64))
    for chained in (False, True):
        close = planned(made, wanted, None, chained=chained)
        assert contents(planned(made, wanted, small, chained=chained)) == contents(close)


def test_where_memory_is_short_they_lie_close(made: Material) -> None:
    wanted = every_site(made, True)[:100]
    close = planned(made, wanted, None)
    wide = planned(made, wanted, JUMP_CACHE)
    assert end_of(close) < end_of(wide)
    for size in (end_of(close) - SCRATCH, end_of(wide) - SCRATCH - 1):
        tight = plan_sites(wanted, made.isa, SCRATCH, SCRATCH + size, table=JUMP_CACHE)
        assert contents(tight) == contents(close)
    with pytest.raises(KinstError, match="need more memory"):
        plan_sites(wanted, made.isa, SCRATCH, end_of(close) - 1, table=JUMP_CACHE)


def test_without_a_free_entry_the_first_place_is_taken() -> None:
    one = CodeTable(1, lambda addresses: np.zeros(len(addresses), np.int64))
    apart = Apart(one, np.array([], np.uint64), ALIGN)
    assert [apart.place(SCRATCH + 1), apart.place(SCRATCH + 1)] == [SCRATCH + ALIGN] * 2
