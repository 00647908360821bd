"""Functions of a real kernel's text, planned with a count at every instruction: chains, and runs
if the ISA has them."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kinst.core.bodies import CountBody
from kinst.core.columns import Bools, columns_of
from kinst.core.displaced import Refused
from kinst.core.instruction import Instruction
from kinst.core.isa import Isa
from kinst.core.probe import Function, Site
from kinst.patch.flows import BRANCH, JUMP, flows_of
from kinst.patch.patches import Patch
from kinst.patch.plan import Plan, plan_sites
from kinst.patch.runs import NO_RUNS, Run, Runs, find_runs, lines_of, runs_of
from kinst.patch.wanted import WantedSite
from tests.isa.kernel_text import Text, extents


@dataclass(frozen=True)
class PlannedFunction:
    """A function of the text, [start, end), and its plan.

    Attributes:
        counters: arguments of each site's CountBody, by the site's address.
        spare: Isa.dead_registers, by address.
        patches: patches of the runs, in order.
    """

    start: int
    end: int
    known: tuple[Instruction, ...]
    plan: Plan
    counters: dict[int, int]
    spare: dict[int, int]
    patches: tuple[Patch, ...]

    @property
    def traps(self) -> list[tuple[int, int]]:
        """Return the addresses of breakpoints, each with the address that it leads to."""
        planted = {patch.address for patch in self.plan.patches}
        runs = {run.patch.address for run in self.plan.runs}
        return [(at, to) for at, to in self.plan.traps if at in planted and at not in runs]

    @property
    def insides(self) -> set[int]:
        """Return addresses that a run's jump covers: control can no longer enter there."""
        return {at for run in self.plan.runs for at in run.insides}


def drawn_functions(text: Text, isa: Isa, rng: random.Random, longest: int) -> Iterator[
    tuple[int, int, tuple[Instruction, ...]]
]:  # fmt: skip
    """Yield functions in random order, without end, each with its instructions (at most
    `longest`)."""
    functions = list(extents(text))
    while True:
        start, end = rng.choice(functions)
        if end - start > 8 * longest:
            continue
        known = tuple(isa.decode(text.code[start - text.address : end - text.address], start))
        if 1 < len(known) <= longest and not _overlaps(isa, start, end, known):
            yield start, end, known


def _overlaps(isa: Isa, start: int, end: int, known: tuple[Instruction, ...]) -> bool:
    """Return whether a function jumps into the middle of an instruction.

    Return thunks do so; kinst refuses them by name.
    """
    targets = {isa.flow(one.code, one.address).target or 0 for one in known}
    inside = {target for target in targets if start <= target < end}
    return not inside <= {one.address for one in known}


def plan_function(
    isa: Isa, text: Text, start: int, known: tuple[Instruction, ...], scratch: int, size: int,
    counters: int,
) -> PlannedFunction:  # fmt: skip
    """Plan a count at every instruction that is not refused.

    Args:
        scratch, size: for trampolines.
        counters: the first counter's address, or its offset from the per-CPU base.
    """
    end = known[-1].end
    code = text.code[start - text.address : end - text.address]
    held = set(isa.unsafe(known))
    held |= {
        i.address for i in known if isinstance(isa.displace(i.code, i.address, scratch), Refused)
    }
    free = list(isa.dead_registers(known, [isa.flow(i.code, i.address) for i in known]))
    function = Function("vmlinux", "f", start, end - start)
    sites = [Site(function, i.address - start, i.code) for i in known if i.address not in held]
    room = {
        site.address: isa.jump_patch(len(site.code), site.address, scratch) is not None
        for site in sites
    }
    runs = runs_in(isa, code, known, room, free, held) if isa.RUN_SIZE else NO_RUNS
    offsets = {site.address: counters + 8 * k for k, site in enumerate(sites)}
    wanted = [
        WantedSite(
            site, "jump" if room[site.address] else "trap", (CountBody((offsets[site.address],)),),
            code[site.offset + len(site.code) :],
        )
        for site in sites
    ]  # fmt: skip
    spare = dict(zip([i.address for i in known], free, strict=True))
    plan = plan_sites(
        wanted, isa, scratch, scratch + size, chained=True, runs=runs, dead_registers=spare
    )  # fmt: skip
    of_runs = [run.patch for run in plan.runs]
    patches = tuple(sorted([*plan.patches, *of_runs], key=lambda patch: patch.address))
    return PlannedFunction(start, end, known, plan, offsets, spare, patches)


def runs_in(
    isa: Isa, code: bytes, known: Sequence[Instruction], room: Mapping[int, bool],
    free: Sequence[int], held: Collection[int] = (),
) -> Runs:  # fmt: skip
    """Return the runs of a function that no other code leads into.

    Args:
        room: for each planted instruction, whether a jump fits over it alone.
        free: Isa.dead_registers of all.
        held: instructions that cannot be in a run.
    """
    count = len(known)
    columns = columns_of([i.address for i in known], [i.code for i in known])
    flows = flows_of(columns, isa)
    place = (columns.address - columns.address[0]).astype(np.int64)
    nothing = np.zeros(count, np.bool_)

    def among(addresses: Iterable[int]) -> Bools:
        return np.isin(columns.address, np.array(list(addresses), np.uint64))

    # A displaced branch leads to a trampoline, and never into a run.
    displaced = np.isin(flows.kind, (BRANCH, JUMP)) & among(room)
    lines = lines_of(
        place, columns.size, flows, np.arange(count) > 0,
        entered=np.isin(columns.address, flows.target[flows.direct & ~displaced]),
        unfit=among(held), idle=nothing, padding=np.zeros(count, np.int64),
        begins=np.array(free) != 0 if isa.needs_dead_register else ~nothing,
    )  # fmt: skip
    own = among(at for at, has in room.items() if has)
    found = find_runs(lines, among(room), own, isa.RUN_SIZE)
    rows = zip(found.first.tolist(), found.end.tolist(), found.size.tolist(), strict=True)
    return runs_of(
        Run(tuple(columns.address[first:behind].tolist()), size, code[place[first] :][:size])
        for first, behind, size in rows
    )
