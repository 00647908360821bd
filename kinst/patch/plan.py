"""The patch plan: every write that planting needs, and the writes that undo it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kinst.core.errors import KinstError
from kinst.core.isa import Body, Isa, Refused
from kinst.core.probe import Site

ALIGN = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """A site to plant in-target: its way (jump or trap), the work there, the bytes after it and
    those before it that are run again (Isa.again)."""

    site: Site
    way: str
    bodies: tuple[Body, ...]
    following: bytes
    again: bytes = b""


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
    end: first free address after the trampolines."""

    patches: tuple[Patch, ...]
    text: tuple[tuple[int, bytes], ...]
    traps: tuple[tuple[int, int], ...]
    copies: tuple[tuple[int, int], ...]
    refused: tuple[tuple[Site, str], ...]
    end: int


@dataclass(frozen=True, slots=True)
class Hook:
    """A function of the kernel to detour.  translate: the hook replaces its first argument."""

    address: int
    code: bytes
    handler: int
    translate: bool


def _aligned(address: int) -> int:
    return (address + ALIGN - 1) & -ALIGN


def plan_sites(wanted: Sequence[Wanted], isa: Isa, start: int, limit: int) -> Plan:
    """Lay out trampolines from `start` on; raises KinstError when `limit` is passed."""
    patches, text, traps, copies, refused = [], [], [], [], []
    at = _aligned(start)
    for want in wanted:
        site = want.site
        made = isa.trampoline(site, want.following, at, want.bodies, want.again)
        if isinstance(made, Refused):
            refused.append((site, made.reason))
            continue
        size = len(site.code)
        if want.way == "jump":
            patch = isa.jump_patch(size, site.address, at)
            if patch is None:
                refused.append((site, "the trampoline is out of a jump's reach"))
                continue
        else:
            trap = isa.trap_patch(size)
            patch = trap + site.code[len(trap) :]
            traps.append((site.address, at))
        if made.original_at >= 0:
            copies.append((at + made.original_at, site.address))
        patches.append(Patch(site.address, patch, site.code))
        text.append((at, made.code))
        at = _aligned(at + len(made.code))
        if at > limit:
            raise KinstError(
                f"{len(wanted)} probes need more memory than there is for trampolines",
                "name fewer instructions, or give more with -x scratch=SIZE",
            )
    return Plan(tuple(patches), tuple(text), tuple(traps), tuple(copies), tuple(refused), at)


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
