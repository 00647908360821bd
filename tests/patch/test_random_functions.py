"""Random functions do and count the same planted as unplanted, wherever they are entered and left:
the emulator runs both."""

from __future__ import annotations

import os
import random
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from kinst.patch.listing import list_plan
from kinst.patch.plan import ways_back
from tests.patch.random_functions import Material, Trial, material, random_trial
from tests.patch.small_functions import TEXT, Cpu, first_visits
from tests.tiers import ISAS, draws

SEED = random.randrange(1 << 30) if os.environ.get("KINST_RANDOM") else 1
PARTS, PART = draws(2, 4), 6  # functions of each ISA
pytestmark = pytest.mark.drawn


@cache
def drawn(name: str, folder: Path) -> Material:
    return material(name, PARTS * PART, SEED, folder)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("functions")


@pytest.fixture(params=range(PARTS))
def part(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=ISAS)
def trials(request: pytest.FixtureRequest, folder: Path, part: int) -> list[Trial]:
    made, rng = drawn(str(request.param), folder), random.Random(SEED + part)
    return [random_trial(made, part * PART + k, rng) for k in range(PART)]


def result(trial: Trial, cpu: Cpu) -> tuple[dict[str, int], bytes]:
    """Return Cpu.result(), without registers that a function may lose because jumps spoil them."""
    values, memory = cpu.result()
    if trial.isa.needs_dead_register:
        kept = (1, 2, 3, 4, 8, 9, 10, 11, *range(18, 28))
        values = {f"x{n}": values[f"x{n}"] for n in kept}
    return values, memory


def original(trial: Trial) -> Cpu:
    cpu = Cpu(trial.isa, trial.code)
    cpu.keep = True
    cpu.run(TEXT, *cpu.start_state())
    return cpu


def entrances(trial: Trial, steps: list[int]) -> int:
    """Return how often control must come to a patch, of these instructions in execution order.

    Control comes from code that is not displaced, from a call and from a return.
    """
    kinds = {s.address: trial.isa.flow(s.code, s.address).kind for s in trial.sites}
    displaced, found = trial.displaced, 0
    for before, at in pairwise([0, *steps]):
        apart = not trial.chained or before not in displaced
        found += at in displaced and (apart or kinds[before] == "return")
    return found


def test_what_is_planned(trials: list[Trial]) -> None:
    """All requested sites that can be planted are, the others are refused, and no patches
    overlap."""
    for k, trial in enumerate(trials):
        where, plan = f"seed {SEED}, function {k}", trial.plan
        assert {site.address for site, _ in plan.refused} == trial.refused, where
        ways = {address: way for address, _, way in plan.sites}
        asked = {w.site.address for w in trial.wanted if w.way in ("jump", "trap")}
        assert {at for at, way in ways.items() if way in ("jump", "trap", "run")} == (
            asked - trial.refused
        ), where
        flows = {at: trial.isa.flow(code, at) for at, code, _ in plan.sites}
        goals = {at: flow.target for at, flow in flows.items() if flow.target in ways}
        behind = {at: at + len(code) for at, code, _ in plan.sites}
        falls = {
            at for at, flow in flows.items()
            if flow.falls_through and flow.kind != "call" and behind[at] in ways
        }  # fmt: skip
        heads = {to for at, to in goals.items() if to is not None and to <= at}
        reached = {to for to in goals.values() if to is not None} | {behind[at] for at in falls}
        if not trial.chained:
            heads, reached = set(), set()
        starts = dict(zip([at for at, _ in plan.text], ways, strict=True))
        assert sorted(starts[patch.address] for patch in plan.exits) == sorted(heads), where
        assert plan.chained.tolist() == sorted(reached), where
        # Addresses at which a thread may return to the text: after code that does not fall into
        # other displaced code.
        out = {flow.target for flow in flows.values() if flow.target} - reached
        loose = set(behind.values()) - (set(ways) if reached else set())
        assert ways_back(plan).tolist() == sorted(out | heads | loose), where
        copies = dict(plan.copies)
        assert set(copies.values()) <= asked - trial.refused, where
        if trial.isa.name == "amd64":  # some of the others are made anew
            plain = {at for at in asked - trial.refused if flows[at].kind == "next"}
            assert plain <= set(copies.values()), where
        rows = list(list_plan(plan, trial.isa, lambda at: f"f+{at - TEXT:x}"))
        said = Counter(row.split(" f+")[0].strip().split(" of ")[0] for row in rows)
        straight = [at for at in falls if trial.chained and flows[at].kind != "branch"]
        assert len(straight) <= said["falls into"] <= len(falls) * trial.chained, where
        assert said["one patch"] == len(plan.runs), where
        assert sum("the head of a loop" in row for row in rows) == len(plan.exits), where
        assert sum("a stub:" in row for row in rows) == len(plan.stubs), where
        assert sum(row.endswith(", chained") for row in rows) == len(
            reached & {at for at, way in ways.items() if way}
        ), where
        texts, originals = dict(plan.text), {at: code for at, code, _ in plan.sites}
        for at, to in copies.items():
            start, isa = trial.starts[to], trial.isa
            assert start <= at < start + len(texts[start])
            if flows[to].kind in ("next", "landing", "return"):
                copy = next(isa.decode(texts[start][at - start :], at))
                assert copy.text.split()[0] == next(isa.decode(originals[to], to)).text.split()[0]
        gates = {w.site.address for w in trial.wanted if w.way == "gate"} - trial.insides
        assert {at for at, way in ways.items() if way == "gate"} == gates, where
        for found in (False, True):
            patches = trial.patches(found)
            ends = [patch.address + len(patch.new) for patch in patches]
            assert all(a <= b.address for a, b in zip(ends, patches[1:], strict=False)), where
        pieces = sorted([*plan.text, *plan.stubs])
        ends = [at + len(code) for at, code in pieces]
        assert all(end <= at for end, (at, _) in zip(ends, pieces[1:], strict=False)), where
        assert ends[-1] <= plan.end < ends[-1] + 16 and plan.end % 16 == 0, where


def test_it_does_and_counts_the_same(trials: list[Trial]) -> None:
    for k, trial in enumerate(trials):
        plain = original(trial)
        cpu = trial.planted()
        cpu.run(TEXT, *cpu.start_state())
        assert result(trial, cpu) == result(trial, plain), f"seed {SEED}, function {k}"
        assert trial.counted(cpu) == trial.expected(plain.ran), f"seed {SEED}, function {k}"
        steps = [at for at, *_ in plain.seen]
        patched = sum(n for at, n in cpu.ran.items() if at in trial.displaced)
        if not trial.isa.needs_dead_register:  # riscv64: reports a trapped one twice
            assert patched == entrances(trial, steps), f"seed {SEED}, function {k}"


def test_entered_at_every_instruction(trials: list[Trial]) -> None:
    """Enter by the instruction's patch or, inside a run, at the address to which control would
    return.

    A thread there has been counted by earlier instructions, in a block whose counter was not
    requested from there.
    """
    for k, trial in enumerate(trials):
        plain = original(trial)
        for found in (False, True) if trial.plan.runs else (False,):
            cpu, starts = trial.planted(found), trial.starts | dict(trial.plan.traps)
            inside = set() if found else trial.insides
            uncounted = inside - set(dict(trial.plan.traps)) if trial.blocks else set()
            for step, address, *state in first_visits(plain):
                cpu.run(starts[address] if address in inside else address, *state)
                where = f"seed {SEED}, function {k}, entered at {address:#x}"
                assert result(trial, cpu) == result(trial, plain), where
                rest = Counter(at for at, *_ in plain.seen[step:])
                if address not in uncounted:
                    assert trial.counted(cpu) == trial.expected(rest), where


def test_unplanting_leads_out(trials: list[Trial]) -> None:
    """A thread in a trampoline when the text is restored leaves at the next iteration of a
    loop."""
    for k, trial in enumerate(trials):
        plain, cpu = original(trial), trial.planted()
        cpu.write(TEXT, trial.code)
        for patch in trial.plan.exits:
            assert bytes(cpu.uc.mem_read(patch.address, len(patch.old))) == patch.old
            cpu.write(patch.address, patch.new)
        starts = trial.starts
        for _, address, *state in first_visits(plain):
            if address not in starts:
                continue
            cpu.run(starts[address], *state)
            where = f"seed {SEED}, function {k}, from {address:#x}"
            assert result(trial, cpu) == result(trial, plain), where
            if trial.blocks is None:
                once = trial.expected(dict.fromkeys(trial.counters, 1))
                assert trial.counted(cpu) <= once, f"{where}: counted for a second turn"
