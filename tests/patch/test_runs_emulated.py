"""Runs in the emulator: a function of short instructions does what the original does, wherever it
is entered, and each instruction is counted as often as the original's runs."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, pairwise, product
from pathlib import Path

import pytest

from kinst.core.bodies import CountBody
from kinst.core.probe import Function, Site
from kinst.isa import load
from kinst.patch.listing import list_plan
from kinst.patch.patches import Patch
from kinst.patch.plan import Plan, plan_sites, ways_back
from kinst.patch.runs import Run, Runs, runs_of
from kinst.patch.wanted import WantedSite
from tests.isa.gnu_assembler import assembled
from tests.isa.planned_functions import runs_in
from tests.patch.small_functions import (
    COUNTERS,
    DATA_BYTES,
    PAGE,
    SCRATCH,
    SOURCES,
    TEXT,
    Cpu,
    Planned,
    first_visits,
    original,
)

RUNS = {"amd64": 6, "riscv64": 7}
ALONE = {"amd64": 12, "riscv64": 26}
WAYS = {"amd64": (14, 8), "riscv64": (22, 8)}  # in runs, traps


def planned(name: str, folder: Path, asked: set[int] | None = None) -> tuple[Planned, Runs]:
    """Return the function of test_chains.py with runs.

    Args:
        asked: offsets of the sites that have a probe; None: all.
    """
    isa = load(name)
    code = assembled(name, SOURCES[name], folder)
    length = len(code) - DATA_BYTES
    while isa.name == "riscv64" and code[:length].endswith(b"\x01\0"):  # c.nop, of .balign
        length -= 2
    decoded = list(isa.decode(code[:length], TEXT))
    free = isa.dead_registers(decoded, [isa.flow(i.code, i.address) for i in decoded])
    spare = dict(zip([i.address for i in decoded], free, strict=True))
    function = Function("vmlinux", "f", TEXT, length)
    sites = [Site(function, i.address - TEXT, i.code) for i in decoded]
    asked = {site.offset for site in sites} if asked is None else asked
    room = {
        site.address: isa.jump_patch(len(site.code), site.address, SCRATCH) is not None
        for site in sites
        if site.offset in asked
    }
    runs = runs_in(isa, code, decoded, room, free)
    in_runs = {at for run in runs for at in run.members}
    sites = [site for site in sites if site.offset in asked or site.address in in_runs]
    wanted = []
    for k, site in enumerate(sites):
        at = 8 * k if not isa.shared_counters else COUNTERS + 8 * k
        way = ("jump" if room[site.address] else "trap") if site.address in room else ""
        bodies = (CountBody((at,)),) if way else ()
        following = code[site.offset + len(site.code) : length]
        wanted.append(WantedSite(site, way, bodies, following))
    plan = plan_sites(
        wanted, isa, SCRATCH, SCRATCH + 8 * PAGE, chained=True, runs=runs, dead_registers=spare
    )
    assert not plan.refused
    return Planned(isa, code, sites, wanted, plan), runs


def planted(made: Planned, found: bool = False) -> Cpu:
    """Return a processor with the planted function.

    Args:
        found: live return addresses point into every run, so that each has its fallback patches.
    """
    cpu = Cpu(made.isa, made.code)
    for at, code in made.plan.text:
        cpu.write(at, code)
    for patch in patches(made.plan, found):
        assert cpu.uc.mem_read(patch.address, len(patch.old)) == patch.old
        cpu.write(patch.address, patch.new)
    cpu.traps = dict(made.plan.traps)
    return cpu


def patches(plan: Plan, found: bool) -> list[Patch]:
    of_runs = [p for run in plan.runs for p in (run.instead if found else (run.patch,))]
    return sorted([*plan.patches, *of_runs], key=lambda patch: patch.address)


@pytest.fixture(params=["amd64", "riscv64"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def result(cpu: Cpu) -> tuple[dict[str, int], bytes]:
    """Return Cpu.result(), without registers that a function may lose: jumps of riscv64 spoil
    some."""
    values, memory = cpu.result()
    if cpu.isa.name == "riscv64":
        kept = (1, 2, 3, 4, 8, 9, 10, 11, *range(18, 28))
        values = {f"x{n}": values[f"x{n}"] for n in kept}
    return values, memory


def insides(made: Planned) -> set[int]:
    return {at for run in made.plan.runs for at in run.insides}


def test_most_short_instructions_are_in_runs(name: str, tmp_path: Path) -> None:
    made, runs = planned(name, tmp_path)
    ways = Counter(way for *_, way in made.plan.sites)
    assert len(runs) == len(made.plan.runs) == RUNS[name]
    assert (ways["run"], ways["trap"]) == WAYS[name]
    covered = [range(p.address, p.address + len(p.new)) for p in patches(made.plan, False)]
    assert all(a.stop <= b.start for a, b in pairwise(covered))


def test_it_does_and_counts_what_the_original_does(name: str, tmp_path: Path) -> None:
    made, _ = planned(name, tmp_path)
    plain, cpu = original(made), planted(made)
    cpu.run(TEXT, *cpu.start_state())
    assert result(cpu) == result(plain)
    assert cpu.counted(made.sites) == dict(plain.ran)


@pytest.mark.parametrize("found", [False, True])
def test_entered_at_every_instruction(name: str, tmp_path: Path, found: bool) -> None:
    """Enter in the state that the original has there.

    Control enters by the instruction's patch or, inside a run, at an address that a thread may
    have that was in a trampoline before.  If live return addresses point into the runs, all
    instructions are entered by their own patches.
    """
    made, _ = planned(name, tmp_path)
    plain, cpu = original(made), planted(made, found)
    starts = {site[0]: at for site, (at, _) in zip(made.plan.sites, made.plan.text, strict=True)}
    expected, visits, inside = result(plain), 0, set() if found else insides(made)
    for step, address, values, data, stack in first_visits(plain):
        cpu.run(starts[address] if address in inside else address, values, data, stack)
        visits += 1
        assert result(cpu) == expected, f"entered at {address:#x}"
        rest = Counter(where for where, *_ in plain.seen[step:])
        assert cpu.counted(made.sites) == dict(rest), f"entered at {address:#x}"
    assert visits == len(made.sites)


def test_each_site_alone(name: str, tmp_path: Path) -> None:
    """Plant one short instruction: its neighbours are displaced with it, uncounted."""
    whole, _ = planned(name, tmp_path)
    plain, inside = original(whole), 0
    for site in whole.sites:
        made, runs = planned(name, tmp_path, {site.offset})
        assert len(runs) <= 1 and len(made.plan.sites) <= 5
        inside += len(runs)
        for found in (False, True):
            cpu = planted(made, found)
            cpu.run(TEXT, *cpu.start_state())
            assert result(cpu) == result(plain)
            assert cpu.counted(made.sites) == {site.address: plain.ran[site.address]}
            assert (cpu.trapped > 0) == (bool(made.plan.traps) and (found or not runs))
    assert inside == ALONE[name]


def test_unplanting_leads_out(name: str, tmp_path: Path) -> None:
    """A thread in any trampoline when the text is restored does what it would have done."""
    made, _ = planned(name, tmp_path)
    plain = original(made)
    starts = {site[0]: at for site, (at, _) in zip(made.plan.sites, made.plan.text, strict=True)}
    for _, address, values, data, stack in first_visits(plain):
        cpu = planted(made)
        cpu.write(TEXT, made.code)
        for patch in made.plan.exits:
            cpu.write(patch.address, patch.new)
        cpu.run(starts[address], values, data, stack)
        assert result(cpu) == result(plain)
        assert not [at for at, n in cpu.counted(made.sites).items() if n > 1]


def test_what_cannot_be_moved_undoes_its_run() -> None:
    """The planned instruction before it becomes a trap, and the one that was not requested is
    left."""
    isa = load("amd64")
    code = bytes.fromhex("4801c8fb4801c8")  # add; sti, whose shadow is refused; add
    function = Function("vmlinux", "f", TEXT, len(code))
    sites = [Site(function, 0, code[:3]), Site(function, 3, code[3:4]), Site(function, 4, code[4:])]
    ways = ("trap", "", "")
    wanted = [WantedSite(s, w, (), b"\xf4") for s, w in zip(sites, ways, strict=True)]
    run = Run((TEXT, TEXT + 3, TEXT + 4), 7, code)
    plan = plan_sites(wanted, isa, SCRATCH, SCRATCH + PAGE, chained=True, runs=runs_of([run]))
    assert not plan.runs and not plan.refused
    assert list(plan.sites) == [(TEXT, code[:3], "trap")]


@pytest.mark.parametrize("hop", ["e0", "e1", "e2", "e3", "67e3"])
def test_a_loop_that_leads_out_of_its_run(hop: str) -> None:
    """The loop leads to an instruction without a probe, which is followed by the middle of the
    run's jump."""
    isa = load("amd64")
    # HOP 1f; add eax, ecx; add edx, 1; ret; 1: mov eax, 1000; ret
    parts = [bytes.fromhex(part) for part in (hop + "06", "01c8", "83c201", "c3", "b8e8030000c3")]
    code = b"".join(parts)
    starts = [0, *accumulate(map(len, parts))]
    function = Function("vmlinux", "f", TEXT, len(code))
    members = [Site(function, at, part) for at, part in zip(starts, parts[:3], strict=False)]
    wanted = [
        WantedSite(site, "trap", (CountBody((8 * k,)),), code[site.offset + len(site.code) :])
        for k, site in enumerate(members)
    ]
    run = Run(tuple(site.address for site in members), starts[3], code[: starts[3]])
    plan = plan_sites(wanted, isa, SCRATCH, SCRATCH + PAGE, chained=True, runs=runs_of([run]))
    assert len(plan.runs) == 1
    made = Planned(isa, code, members, wanted, plan)
    plain, cpu = Cpu(isa, code), planted(made)
    for count, flags in product((0, 1, 2, 1 << 32), (0, 0x40)):
        values, data, stack = plain.start_state()
        values |= {"rcx": count, "rflags": 2 | flags}
        for one in (plain, cpu):
            one.run(TEXT, values, data, stack)
        assert result(cpu) == result(plain)
        assert cpu.counted(members) == {s.address: 1 for s in members if plain.ran[s.address]}


def test_a_run_as_assembly() -> None:
    isa = load("amd64")
    code = bytes.fromhex("4801c85dc3")  # add rax, rcx; pop rbp; ret
    function = Function("vmlinux", "f", TEXT, len(code))
    sites = [Site(function, 0, code[:3]), Site(function, 3, code[3:4]), Site(function, 4, code[4:])]
    wanted = [WantedSite(s, w, (), b"") for s, w in zip(sites, ("trap", "", "trap"), strict=True)]
    run = Run((TEXT, TEXT + 3, TEXT + 4), 5, code)
    plan = plan_sites(wanted, isa, SCRATCH, SCRATCH + PAGE, chained=True, runs=runs_of([run]))
    rows = [" ".join(row.split()) for row in list_plan(plan, isa, lambda at: f"f+{at - TEXT}")]
    assert rows[:2] == ["f+0 add rax, rcx run", "one patch of 5 bytes, over f+3, f+4"]
    assert "f+3 pop rbp displaced with its run" in rows and "f+4 ret run, chained" in rows


def test_where_a_thread_in_old_trampolines_may_come_back(name: str, tmp_path: Path) -> None:
    """After all of the function was planted and loops' heads are unplanted, a thread may return to
    the heads."""
    made, _ = planned(name, tmp_path)
    back = set(ways_back(made.plan).tolist())
    flows = [made.isa.flow(site.code, site.address) for site in made.sites]
    targets = {flow.target for flow in flows if flow.target is not None}
    sites = {site.address for site in made.sites}
    backward = {
        flow.target
        for site, flow in zip(made.sites, flows, strict=True)
        if flow.target is not None and flow.target <= site.address
    }
    assert back & sites == backward & sites and targets - sites <= back
    loose = plan_sites(made.wanted, made.isa, SCRATCH, SCRATCH + 8 * PAGE)
    behind = {site.address + len(site.code) for site in made.sites}
    assert ways_back(loose).tolist() == sorted(behind | targets)
