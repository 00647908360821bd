"""The patch plan: every write that planting needs, and the writes that undo it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kinst.core.errors import KinstError
from kinst.core.isa import Body, Isa, Onward, Refused, Relocated
from kinst.core.probe import Site
from kinst.patch.chains import NO_CHAINS, Chains, find_chains
from kinst.patch.runs import Run

ALIGN = 16
MOST_ROUNDS = 8  # of laying trampolines out


@dataclass(frozen=True, slots=True)
class Wanted:
    """A site to plant in-target: its way (jump or trap), the work there, the bytes after it and
    those before it that are run again (Isa.rerun_starts).  way "": nobody asked for it, and it is
    displaced only because it is in a run."""

    site: Site
    way: str
    bodies: tuple[Body, ...]
    following: bytes
    rerun_prefix: bytes = b""


@dataclass(frozen=True, slots=True)
class Patch:
    """Bytes at an address of kernel text: what kinst writes and what was there."""

    address: int
    new: bytes
    old: bytes


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One jump over several instructions.

    insides: addresses of instructions that it lies over, but not at.  Where a CPU or a thread may
    be about to go on at one of them, `instead` is written in its place: patches of the planted
    instructions one by one.
    """

    patch: Patch
    insides: tuple[int, ...]
    instead: tuple[Patch, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """patches: to kernel text, the hooks' first.  text: (address, code) of trampolines and stubs.
    traps: (site, trampoline) pairs, those that runs have instead among them.  copies: (address of
    a copied instruction that may fault, address of the original).  refused: sites that turned out
    impossible, with reasons.  end: first free address after the trampolines.  runs: patches that
    are decided on when they are written.  sites: what each trampoline of text is of: (address,
    original bytes, way), where the way of what is in a run is run, or "" if nobody asked for it.

    exits: to be written when the patches have been undone, over the starts of trampolines that
    others lead back to, so that a thread that is inside a chain leaves it with the next turn of
    its loop.  chained: sites that are reached from another one's trampoline."""

    patches: tuple[Patch, ...]
    text: tuple[tuple[int, bytes], ...]
    traps: tuple[tuple[int, int], ...]
    copies: tuple[tuple[int, int], ...]
    refused: tuple[tuple[Site, str], ...]
    end: int
    exits: tuple[Patch, ...] = ()
    chained: frozenset[int] = frozenset()
    runs: tuple[PlannedRun, ...] = ()
    sites: tuple[tuple[int, bytes, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Hook:
    """A function of the kernel to detour.  translate: the hook replaces its first argument."""

    address: int
    code: bytes
    handler: int
    translate: bool


def _aligned(address: int) -> int:
    return (address + ALIGN - 1) & -ALIGN


@dataclass(frozen=True, slots=True)
class _Laid:
    """A trampoline in its place, and the patch that leads to it."""

    work: Wanted
    at: int
    made: Relocated
    patch: bytes


def plan_sites(
    wanted: Sequence[Wanted],
    isa: Isa,
    start: int,
    limit: int,
    *,
    chained: bool = False,
    runs: Sequence[Run] = (),
) -> Plan:
    """Lay out trampolines from `start` on; raises KinstError when `limit` is passed.

    chained: trampolines lead straight into those of the instructions that come next.  runs: of
    chained sites; all of their members are in `wanted`."""
    refused: list[tuple[Site, str]] = []
    if chained:
        wanted = sorted(wanted, key=lambda work: work.site.address)
    while True:
        chains = find_chains([work.site for work in wanted], isa) if chained else NO_CHAINS
        laid, out = _lay_out(wanted, isa, start, limit, chains)
        if laid is None or (runs and not chained):
            chained = False
            wanted, runs = [work for work in wanted if work.way], ()
            continue
        if not out:
            break
        left = {site.address for site, _ in out}
        asked = {work.site.address for work in wanted if work.way}
        refused += [(site, reason) for site, reason in out if site.address in asked]
        # A run is left out with any of its members, and so is what was in it unasked.
        runs = [run for run in runs if left.isdisjoint(run.members)]
        left |= {work.site.address for work in wanted if not work.way}
        left -= {at for run in runs for at in run.members}
        wanted = [work for work in wanted if work.site.address not in left]
    planned = _plan_runs(runs, isa, laid)
    in_run = {at for run in planned for at in (run.patch.address, *run.insides)}
    patches, text, traps, copies, exits, sites = [], [], [], [], [], []
    for one in laid:
        site, code, way = one.work.site, one.made.code, one.work.way
        if way == "trap":
            traps.append((site.address, one.at))
        if one.made.original_at >= 0:
            copies.append((one.at + one.made.original_at, site.address))
        inside = site.address in in_run
        if way and not inside:
            patches.append(Patch(site.address, one.patch, site.code))
        text.append((one.at, code))
        sites.append((site.address, site.code, "run" if way and inside else way))
        if site.address in chains.heads:
            leave = isa.leave_patch(one.at, site.address)
            exits.append(Patch(one.at, leave, code[: len(leave)]))
    end = laid[-1].at + len(laid[-1].made.code) if laid else start
    return Plan(
        tuple(patches), tuple(text), tuple(traps), tuple(copies), tuple(refused), _aligned(end),
        tuple(exits), chains.reached, planned, tuple(sites),
    )  # fmt: skip


def _plan_runs(runs: Sequence[Run], isa: Isa, laid: Sequence[_Laid]) -> tuple[PlannedRun, ...]:
    """Their patches; those for which the ISA has none are left out."""
    if not runs:
        return ()
    by_address = {one.work.site.address: one for one in laid}
    planned = []
    for run in runs:
        members = [by_address[at] for at in run.members]
        new = isa.run_patch(run.code, run.start, members[0].at)
        if new is None:
            continue
        instead = [
            Patch(one.work.site.address, one.patch, one.work.site.code)
            for one in members
            if one.work.way
        ]
        planned.append(PlannedRun(Patch(run.start, new, run.code), run.members[1:], tuple(instead)))
    return tuple(planned)


def _lay_out(
    wanted: Sequence[Wanted], isa: Isa, start: int, limit: int, chains: Chains
) -> tuple[list[_Laid] | None, list[tuple[Site, str]]]:
    """Trampolines in their places, in the order of `wanted`, or the sites that must be left out
    before that can be done, with the reasons.

    Where a trampoline lies decides what others lead to, so they are laid out until none moves:
    twice where that does not change the size of a jump, and three times on riscv64, where code
    shrinks when a short jump is found to reach.  None, and no sites, should they not settle."""
    places: dict[int, int] = {}
    known: dict[int, tuple[int, int, _Laid]] = {}  # by site: its place, its target's, the result
    for _ in range(MOST_ROUNDS):
        laid, refused = [], list[tuple[Site, str]]()
        at, before = _aligned(start), -1
        for work in wanted:
            address = work.site.address
            if chains.next.get(before) != address:
                at = _aligned(at)
            target = places.get(chains.targets.get(address, -1), 0)
            old_at, old_target, one = known.get(address, (0, 0, None))
            if one is None or (old_at, old_target) != (at, target):
                behind, head = chains.next.get(address, -1), address in chains.heads
                made = _laid(work, isa, at, Onward(places, behind, head))
                if isinstance(made, Refused):
                    refused.append((work.site, made.reason))
                    continue
                one = made
                known[address] = at, target, one
            laid.append(one)
            at, before = at + len(one.made.code), address
            if at > limit:
                raise KinstError(
                    f"{len(wanted)} probes need more memory than there is for trampolines",
                    "name fewer instructions, or give more with -x scratch=SIZE",
                )
        now = {one.work.site.address: one.at for one in laid}
        if refused or chains is NO_CHAINS or now == places:
            return laid, refused
        places = now
    return None, []


def _laid(work: Wanted, isa: Isa, at: int, onward: Onward) -> _Laid | Refused:
    site = work.site
    made = isa.trampoline(site, work.following, at, work.bodies, work.rerun_prefix, onward)
    if isinstance(made, Refused):
        return made
    patch = b""
    if work.way == "jump":
        jump = isa.jump_patch(len(site.code), site.address, at)
        if jump is None:
            return Refused("the trampoline is out of a jump's reach")
        patch = jump
    elif work.way:
        trap = isa.trap_patch(len(site.code))
        patch = trap + site.code[len(trap) :]
    return _Laid(work, at, made, patch)


def plan_hooks(hooks: Sequence[Hook], isa: Isa, start: int) -> Plan:
    """Detours of the kernel's own functions; raises KinstError where one cannot be made."""
    patches, text = [], []
    at = _aligned(start)
    for hook in hooks:
        make = isa.translate_detour if hook.translate else isa.detour
        made = make(hook.code, hook.address, at, hook.handler)
        if isinstance(made, Refused):
            raise KinstError(f"the function at {hook.address:#x} cannot be hooked: {made.reason}")
        patch, stub = made
        patches.append(Patch(hook.address, patch, hook.code[: len(patch)]))
        text.append((at, stub))
        at = _aligned(at + len(stub))
    return Plan(tuple(patches), tuple(text), (), (), (), at)


def restore(patches: Sequence[Patch]) -> list[tuple[int, bytes]]:
    """The writes that undo patches, last first."""
    return [(p.address, p.old) for p in reversed(patches)]


def remaining(patches: Sequence[Patch], now: Mapping[int, bytes]) -> list[Patch]:
    """The patches whose original bytes are not in memory now (address to bytes)."""
    return [p for p in patches if now[p.address] != p.old]
