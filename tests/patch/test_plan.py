"""Contents of a plan, and when there is none."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import kinst.patch.plan
from kinst.core.bodies import Body, CallBody, CountBody, IndexedBody, Snippet
from kinst.core.columns import FLOW_KINDS, columns_of
from kinst.core.errors import KinstError
from kinst.core.probe import Function, Site
from kinst.isa import load
from kinst.patch.blocks import BlockRules
from kinst.patch.flows import flows_of
from kinst.patch.plan import Hook, Plan, plan_hooks, plan_sites
from kinst.patch.runs import Run, runs_of
from kinst.patch.wanted import WantedSite
from tests.patch.random_functions import SLOT, Material, material
from tests.patch.small_functions import SCRATCH, TEXT
from tests.tiers import ISAS

ISA = load("amd64")
PAGE = 0x1000


@cache
def drawn(name: str, folder: Path) -> Material:
    return material(name, 12, 3, folder)


@pytest.fixture(params=ISAS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Material:
    return drawn(request.param, tmp_path_factory.getbasetemp())


def every_site(made: Material, marked: bool, times: int = 2) -> list[WantedSite]:
    """Return all instructions of all functions, in order, each counted so many times."""
    isa, wanted = made.isa, []
    for k, (code, length) in enumerate(made.codes):
        start = TEXT + k * SLOT
        columns = isa.scan([(start, code[:length])]).columns
        function = Function("vmlinux", f"f{k}", start, length)
        for one, marks in zip(isa.decode(code[:length], start), columns.marks, strict=True):
            way = "jump" if isa.jump_patch(one.size, one.address, SCRATCH) else "trap"
            at = (SCRATCH - 2 * PAGE if isa.shared_counters else 0) + 8 * len(wanted)
            site = Site(function, one.address - start, one.code)
            following = code[one.end - start : length]
            bodies = (CountBody((at,) * times),)
            wanted.append(
                WantedSite(site, way, bodies, following, b"", int(marks) if marked else 0)
            )
    return wanted


def contents(plan: Plan) -> list[object]:
    return [list(plan.text), list(plan.patches), list(plan.exits), list(plan.traps),
            list(plan.copies), list(plan.stubs), plan.end]  # fmt: skip


@pytest.mark.parametrize("chained", [False, True])
def test_many_at_once_or_few(
    made: Material, chained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same plan results one by one, all at once and three at a time."""
    plans = []
    for marked, together in ((False, 1 << 15), (True, 1 << 15), (True, 3)):
        monkeypatch.setattr(kinst.patch.plan, "TOGETHER", together)
        wanted = every_site(made, marked)
        plan = plan_sites(wanted, made.isa, SCRATCH, SCRATCH + 16 * PAGE, chained=chained)
        assert len(plan.patches) == len(wanted)
        plans.append(contents(plan))
    assert plans[0] == plans[1] == plans[2]


@pytest.mark.parametrize("times", [255, 256, 300])
def test_sites_that_count_more_than_a_byte_holds(made: Material, times: int) -> None:
    plain, marked = (
        plan_sites(every_site(made, marked, times)[:3], made.isa, SCRATCH, SCRATCH + 64 * PAGE)
        for marked in (False, True)
    )
    assert contents(plain) == contents(marked)


def end_of(plan: Plan) -> int:
    """Return the address after the last byte that is written."""
    return max(at + len(code) for at, code in [*plan.text, *plan.stubs])


def test_it_takes_what_it_says_and_no_less(made: Material) -> None:
    wanted, isa = every_site(made, True, 1), made.isa
    rules = BlockRules(SCRATCH - PAGE if isa.shared_counters else 8 * len(wanted), 1 << 12, ())

    def planned(size: int, blocks: BlockRules | None) -> Plan:
        return plan_sites(wanted, isa, SCRATCH, SCRATCH + size, chained=True, blocks=blocks)

    plain, whole = planned(16 * PAGE, None), planned(16 * PAGE, rules)
    assert len(whole.stubs) > 10 and not len(plain.stubs)
    least, most = end_of(plain) - SCRATCH, end_of(whole) - SCRATCH
    assert least < most
    for blocks in (None, rules):
        with pytest.raises(KinstError, match=f"^{len(wanted)} probes need more memory"):
            planned(least - 1, blocks)
    if isa.needs_dead_register:
        return  # the first of several rounds takes more than the last
    # Without room for stubs there are no blocks.
    assert contents(planned(most, rules)) == contents(whole)
    assert contents(planned(most - 1, rules)) == contents(plain) == contents(planned(least, rules))


@pytest.mark.parametrize("marked", [False, True])
def test_flows_of_many_are_those_of_one(made: Material, marked: bool) -> None:
    wanted = every_site(made, marked)
    twice = [*wanted, *wanted[::-1]]  # the same code, found again
    columns = columns_of([w.site.address for w in twice], [w.site.code for w in twice])
    columns.marks[:] = [w.marks for w in twice]
    flows = flows_of(columns, made.isa)
    for k, work in enumerate(twice):
        one = made.isa.flow(work.site.code, work.site.address)
        kind = FLOW_KINDS[flows.kind[k]]
        assert kind == one.kind or (marked and {kind, one.kind} == {"next", "landing"})
        assert int(flows.target[k]) == (one.target or 0)
        assert bool(flows.falls[k]) == one.falls_through and not flows.fault[k]


def test_long_instructions_that_begin_alike() -> None:
    """Eight bytes are the same; the branch is in none of them."""
    codes = [bytes.fromhex(one) for one in (
        "48b8112233445566aa00", "48b8112233445566aa01", "eb10", "48b8112233445566aa00",
    )]  # fmt: skip
    flows = flows_of(columns_of([TEXT + 16 * k for k in range(4)], codes), ISA)
    assert [FLOW_KINDS[kind] for kind in flows.kind] == ["next", "next", "jump", "next"]
    assert flows.target.tolist() == [0, 0, TEXT + 0x32, 0]
    assert flows.falls.tolist() == [True, True, False, True]


def test_nothing_flows() -> None:
    assert not len(flows_of(columns_of([], []), ISA).kind)


def reading(slots: frozenset[int]) -> list[tuple[Body, ...]]:
    """Return work of each kind that reads these slots."""
    word = Snippet(b"\x13\0\0\0", slots, frozenset((31,)), False)  # nop
    nothing: frozenset[int] = frozenset()
    call = CallBody(SCRATCH + 8 * PAGE, SCRATCH - PAGE, slots)
    silent = CallBody(SCRATCH + 8 * PAGE, SCRATCH - PAGE, nothing)
    return [
        (CountBody((SCRATCH - PAGE,), word),), (call,), (IndexedBody(word, silent),),
        (IndexedBody(Snippet(word.code, nothing, frozenset((31,)), False), call),),
        (CountBody((SCRATCH - PAGE,)), call),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", range(5))
def test_what_work_is_told_of_is_not_spoilt(kind: int) -> None:
    """A jump of riscv64 needs a register, and uses a dead one."""
    isa = load("riscv64")
    code = bytes.fromhex("0505 0505 0505 0505")  # c.addi a0, 1
    function = Function("vmlinux", "f", TEXT, 8)
    sites = [Site(function, at, code[at : at + 2]) for at in range(0, 8, 2)]
    run = Run(tuple(site.address for site in sites), 8, code)
    names = {"t1": 6, "t3": 28, "t6": 31}
    free = sum(1 << slot for slot in names.values())

    def spoilt(slots: frozenset[int], known: int = 4) -> str:
        bodies = reading(slots)[kind]
        wanted = [WantedSite(site, "trap", bodies, b"") for site in sites]
        plan = plan_sites(
            wanted, isa, SCRATCH, SCRATCH + 8 * PAGE, chained=True, runs=runs_of([run]),
            dead_registers={site.address: free for site in sites[4 - known :]},
        )  # fmt: skip
        if not plan.runs:
            return ""
        first = next(isa.decode(plan.runs[0].patch.new, TEXT))
        name = first.text.split()[1].rstrip(",")
        assert first.text.startswith("auipc")
        return name

    assert spoilt(frozenset()) in names
    for kept, slot in names.items():
        assert spoilt(frozenset(names.values()) - {slot}) == kept
    assert spoilt(frozenset(names.values())) == "", "there is none"
    assert spoilt(frozenset(), known=3) == "", "nothing is known of where the jump is"


def test_runs_of_a_plan() -> None:
    """Two of them, one by one and as a slice."""
    code = bytes.fromhex("4801c8 4801c8 90 4801c8 4801c8")
    function = Function("vmlinux", "f", TEXT, len(code))
    offsets = (0, 3, 7, 10)
    sites = [Site(function, at, code[at : at + 3]) for at in offsets]
    ways = ("trap", "trap", "", "trap")
    wanted = [WantedSite(s, w, (), b"") for s, w in zip(sites, ways, strict=True)]
    rows = [Run((TEXT, TEXT + 3), 6, code[:6]), Run((TEXT + 7, TEXT + 10), 6, code[7:])]
    plan = plan_sites(wanted, ISA, SCRATCH, SCRATCH + PAGE, chained=True, runs=runs_of(rows))
    first, second = plan.runs
    assert list(plan.runs[:]) == [first, second] and list(plan.runs[1:]) == [second]
    assert (first.patch.address, first.patch.old) == (TEXT, code[:6])
    assert first.insides == (TEXT + 3,) and second.insides == (TEXT + 10,)
    assert [patch.address for patch in first.instead] == [TEXT, TEXT + 3]
    assert [patch.address for patch in second.instead] == [TEXT + 10]
    assert plan.runs.target.tolist() == [at for at, _ in plan.text if at in plan.runs.target]
    starts = dict(zip([site[0] for site in plan.sites], plan.text, strict=True))
    assert plan.runs.target.tolist() == [starts[TEXT][0], starts[TEXT + 7][0]]
    assert list(plan.sites[1:3]) == [plan.sites[1], plan.sites[2]]
    assert [way for _, _, way in plan.sites] == ["run", "run", "", "run"]
    assert not plan.patches
    # Without chains there are no runs, nor anything else that was not requested.
    long = WantedSite(Site(function, 13, bytes.fromhex("b800100000")), "jump", (), b"")
    alone = plan_sites([*wanted, long], ISA, SCRATCH, SCRATCH + PAGE, runs=runs_of(rows))
    assert not alone.runs
    for every in (plan.runs, alone.runs):
        for bounds, of in ((every.inside_at, every.insides), (every.instead_at, every.instead)):
            assert len(bounds) == len(every) + 1
            assert (bounds[0], bounds[-1]) == (0, len(of))
    assert [site[0] for site in alone.sites] == [TEXT, TEXT + 3, TEXT + 10, TEXT + 13]


def test_what_no_jump_reaches_is_told() -> None:
    """Nothing else suffers; sites that were not requested are left out without a message."""
    code = bytes.fromhex("b800100000 b800200000 4801c8")
    function = Function("vmlinux", "f", TEXT, len(code))
    sites = [Site(function, at, code[at : at + 5]) for at in (0, 5, 10)]
    ways = ("jump", "gate", "trap")
    wanted = [WantedSite(s, w, (), b"") for s, w in zip(sites, ways, strict=True)]
    far = TEXT + (1 << 33)
    for chained in (False, True):
        plan = plan_sites(wanted, ISA, far, far + PAGE, chained=chained)
        reasons = [(site.address, reason) for site, reason in plan.refused]
        assert [at for at, _ in reasons] == [TEXT, TEXT + 10]
        assert not plan.patches and not len(plan.sites)


def test_detours_lie_behind_each_other() -> None:
    code = bytes.fromhex("55534889fbe800010000") + b"\x90" * 22
    hooks = [Hook(TEXT + 64 * k, code, SCRATCH + 0x800, k % 2 > 0) for k in range(4)]
    plan = plan_hooks(hooks, ISA, SCRATCH + 1)
    ends = [at + len(stub) for at, stub in plan.text]
    starts = [at for at, _ in plan.text]
    assert starts[0] == SCRATCH + 16 and not any(at % 16 for at in starts)
    assert all(0 <= b - a < 16 for a, b in zip(ends, [*starts[1:], plan.end], strict=True))
    for patch, start, hook in zip(plan.patches, starts, hooks, strict=True):
        assert (patch.address, patch.old) == (hook.address, code[: len(patch.new)])
        jump = next(ISA.decode(patch.new, patch.address))
        assert ISA.flow(jump.code, jump.address).target == start
    assert [(at, old, way) for at, old, way in plan.sites] == [
        (p.address, p.old, "jump") for p in plan.patches
    ]
    assert all(a[1] != b[1] for a, b in pairwise(plan.text)), "every second one translates"
    assert not plan_hooks([], ISA, SCRATCH).patches


def test_faults_of_blocks_do_not_depend_on_order() -> None:
    """One instruction at a time may fault; instructions counted together are cut after it."""
    code = bytes.fromhex("4889c8") * 6
    function = Function("vmlinux", "f", TEXT, len(code))
    sites = [Site(function, 3 * k, code[:3]) for k in range(6)]
    rng = random.Random(1)
    for _ in range(20):
        faulting = {site.address for site in sites if rng.random() < 0.4}
        wanted = [WantedSite(s, "trap", (CountBody((8 * k,)),), b"") for k, s in enumerate(sites)]
        plan = plan_sites(
            wanted, ISA, SCRATCH, SCRATCH + PAGE, chained=True,
            blocks=BlockRules(1000 * 8, 100, faulting),
        )  # fmt: skip
        cuts = [k for k, site in enumerate(sites) if site.address in faulting]
        pieces = [high - low for low, high in pairwise([0, *[k + 1 for k in cuts], 6])]
        stubs = sum(size - 1 for size in pieces if size > 1)
        assert len(plan.stubs) == stubs
        sums = plan.sums
        assert len(np.unique(sums.source)) == stubs + sum(size > 1 for size in pieces)
