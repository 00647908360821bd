"""The patch plan: every write that planting needs, and the writes that undo it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kinst.core.errors import KinstError
from kinst.core.isa import Body, Isa, Onward, Refused, Relocated
from kinst.core.probe import Site
from kinst.patch.chains import NO_CHAINS, Chains, find_chains

ALIGN = 16
MOST_ROUNDS = 8  # of laying trampolines out


@dataclass(frozen=True, slots=True)
class Wanted:
    """A site to plant in-target: its way (jump or trap), the work there, the bytes after it and
    those before it that are run again (Isa.rerun_starts)."""

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
class Plan:
    """patches: to kernel text, the hooks' first.  text: (address, code) of trampolines and stubs.
    traps: (site, trampoline) pairs.  copies: (address of a copied instruction that may fault,
    address of the original).  refused: sites that turned out impossible, with reasons.
    end: first free address after the trampolines.

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
    wanted: Sequence[Wanted], isa: Isa, start: int, limit: int, *, chained: bool = False
) -> Plan:
    """Lay out trampolines from `start` on; raises KinstError when `limit` is passed.

    chained: trampolines lead straight into those of the instructions that come next."""
    refused: list[tuple[Site, str]] = []
    if chained:
        wanted = sorted(wanted, key=lambda work: work.site.address)
    while True:
        chains = find_chains([work.site for work in wanted], isa) if chained else NO_CHAINS
        laid, out = _lay_out(wanted, isa, start, limit, chains)
        if laid is None:
            chained = False
            continue
        if not out:
            break
        refused += out
        left = {site.address for site, _ in out}
        wanted = [work for work in wanted if work.site.address not in left]
    patches, text, traps, copies, exits = [], [], [], [], []
    for one in laid:
        site, code = one.work.site, one.made.code
        if one.work.way == "trap":
            traps.append((site.address, one.at))
        if one.made.original_at >= 0:
            copies.append((one.at + one.made.original_at, site.address))
        patches.append(Patch(site.address, one.patch, site.code))
        text.append((one.at, code))
        if site.address in chains.heads:
            leave = isa.leave_patch(one.at, site.address)
            exits.append(Patch(one.at, leave, code[: len(leave)]))
    end = laid[-1].at + len(laid[-1].made.code) if laid else start
    return Plan(
        tuple(patches), tuple(text), tuple(traps), tuple(copies), tuple(refused), _aligned(end),
        tuple(exits), chains.reached,
    )  # fmt: skip


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
    if work.way == "jump":
        patch = isa.jump_patch(len(site.code), site.address, at)
        if patch is None:
            return Refused("the trampoline is out of a jump's reach")
    else:
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
