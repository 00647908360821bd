"""Which way each site is planted: jump, trap or stop, or why it is refused (design.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from kinst.core.displaced import Onward, Refused
from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.core.probe import Site

LONGEST = 15  # bytes that an instruction of any ISA may have
WAYS = ("jump", "trap", "stop")
_NO_SCRATCH = "this machine has no memory for trampolines"
_NO_HOOK = "this kernel has no trap handler that kinst can hook"
_FAR = "no jump of one instruction reaches a trampoline from there"
_RUNS = "the machine that kinst runs on cannot be stopped"
_UNDONE = "a debugger's stop undoes what the instructions before it have done"


@dataclass(frozen=True, slots=True)
class PlantRules:
    """What -x plant= allows.

    forced: the one way for all sites, or "" for the best of each.  chains: trampolines may lead
    into one another.  runs: one jump may cover several instructions.  gates: a site may be reached
    from a jump earlier on the way.  blocks: instructions of a straight line may share a counter.
    These three are made of chains: without chains, none of them is there, and sites that are
    all planted in one way have no chains.  call_sites: also where the system's own tracer may put
    a call (System.leaving_call_sites).
    """

    forced: str = ""
    chains: bool = True
    runs: bool = True
    gates: bool = True
    blocks: bool = True
    call_sites: bool = True


BEST = PlantRules()
ALONE = PlantRules("", False, False, False, False)  # every site by itself


@dataclass(frozen=True, slots=True)
class PlantingAbility:
    """What this target and this kernel allow.

    scratch_address: where trampolines will lie, or 0 without scratch.  trap: a trap handler
    is there to be hooked.  fault_hook: faults in trampolines can be translated.
    forced: "" or the one way that the user asked for (-x plant=WAY).  stops: the machine can be
    stopped.
    """

    scratch_address: int
    trap: bool
    fault_hook: bool
    forced: str = ""
    stops: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """way: jump, trap or stop, with the reason why it is no better one, or "" with the reason why
    the site is refused.  rerun_prefix: live bytes before the site that are run again when it is
    planted (Isa.rerun_starts)."""

    way: str
    reason: str = ""
    rerun_prefix: bytes = b""


def choose(
    site: Site,
    following: bytes,
    isa: Isa,
    ability: PlantingAbility,
    forbidden: str,
    has_fixup: bool,
    rerun_prefix: bytes = b"",
) -> Choice:
    """The best way to plant on this site.

    following: live bytes after it, on which the instruction may depend.  forbidden: the
    system's reason against it, or "".  has_fixup: an entry of the kernel's exception
    table expects this instruction to fault at its own address.  rerun_prefix: live bytes before it
    that are run again (Isa.rerun_starts).
    """
    if forbidden:
        return Choice("", forbidden)
    if ability.scratch_address and ability.forced != "stop":
        # Whether the way back reaches is seen when it is made: scratch is where it does.
        onward = Onward(falls_into=site.address + len(site.code))
        scratch = ability.scratch_address
        displaced = isa.trampoline(site, following, scratch, (), rerun_prefix, onward)
        if isinstance(displaced, Refused):
            return Choice("", displaced.reason)
        if has_fixup and displaced.original_at >= 0 and not ability.fault_hook:
            return Choice("", "it may fault on purpose, and its fault could not be traced back")
    return choose_movable(site, isa, ability, rerun_prefix)


def choose_movable(
    site: Site, isa: Isa, ability: PlantingAbility, rerun_prefix: bytes = b""
) -> Choice:
    """The best way to plant on a site that nothing forbids and that can be displaced.

    That is the same for all sites of one size for which jump_patch() says the same of the site's
    size and of LONGEST bytes."""
    address, scratch, size = site.address, ability.scratch_address, len(site.code)
    if not scratch or ability.forced == "stop":
        why = "" if scratch else isa.no_trampolines or _NO_SCRATCH
        return _stop(site, isa, ability, why, rerun_prefix)
    jump = isa.jump_patch(size, address, scratch) is not None
    if jump and ability.forced != "trap":
        return _shared("jump", "", rerun_prefix)
    far = not jump and isa.jump_patch(LONGEST, address, scratch) is None
    number = "1 byte is" if size == 1 else f"{size} bytes are"
    why = "" if jump else _FAR if far else f"{number} too short for a jump"
    if ability.forced == "jump":
        return _shared("", why, b"")
    if ability.trap:
        return _shared("trap", why, rerun_prefix)
    if ability.forced == "trap":
        return _shared("", _NO_HOOK, b"")
    return _stop(site, isa, ability, f"{why}, and {_NO_HOOK}", rerun_prefix)


def _stop(site: Site, isa: Isa, ability: PlantingAbility, why: str, rerun_prefix: bytes) -> Choice:
    if not ability.stops:
        return _shared("", f"{why}, and {_RUNS}" if why else _RUNS, b"")
    reason = _UNDONE if rerun_prefix else isa.unsteppable(site.code)
    return _shared("", reason, b"") if reason else _shared("stop", why, b"")


@cache
def _shared(way: str, reason: str, rerun_prefix: bytes) -> Choice:
    """One value for the many sites for which it is the same."""
    return Choice(way, reason, rerun_prefix)


_FORBID = {
    "no-chain": ("chains", "runs", "gates", "blocks"),
    "no-run": ("runs",),
    "no-gate": ("gates",),
    "no-block": ("blocks",),
    "no-callsite": ("call_sites",),
}


def plant_rules(value: str) -> PlantRules:
    """The value of -x plant=: auto, one way, or any of what can be forbidden, with commas between.
    Raises KinstError."""
    words = [word for word in value.split(",") if word not in ("", "auto")]
    for word in words:
        if word not in (*WAYS, *_FORBID):
            raise KinstError(
                f"plant={value}: no such way" + (f" as {word}" if word != value else ""),
                f"auto, {', '.join(WAYS)}, or some of {', '.join(_FORBID)}",
            )
    forced = [word for word in words if word in WAYS]
    if len(forced) > 1:
        raise KinstError(f"plant={value}: {' and '.join(forced)} exclude each other", "name one")
    off = {part for word in words if word in _FORBID for part in _FORBID[word]}
    call_sites = "call_sites" not in off
    if forced:
        return replace(ALONE, forced=forced[0], call_sites=call_sites)
    return PlantRules(
        chains="chains" not in off,
        runs="runs" not in off,
        gates="gates" not in off,
        blocks="blocks" not in off,
        call_sites=call_sites,
    )
