"""Choice of the way to plant each site (jump, trap or stop), or of the reason to refuse it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from kinst.core.dataclass import dataclass
from kinst.core.displaced import Onward, Refused
from kinst.core.errors import KinstError
from kinst.core.probe import Site
from kinst.core.units import counted

if TYPE_CHECKING:
    from kinst.core.isa import Isa

LONGEST = 15  # bytes that an instruction of any ISA may have
WAYS = ("jump", "trap", "stop")
_NO_SCRATCH = "this machine has no memory for trampolines"
_NO_HOOK = "this kernel has no trap handler that kinst can hook"
_FAR = "no jump of one instruction reaches a trampoline from there"
_RUNS = "the machine that kinst runs on cannot be stopped"
_UNDONE = "a debugger's stop undoes what the instructions before it have done"


@dataclass(frozen=True, slots=True)
class PlantRules:
    """Ways of planting that the user allows (-x plant=).

    Runs, gates and blocks need chains. If all sites are forced to one way, there are no chains.

    Attributes:
        forced: the only way for all sites, or "" for the best way of each site.
        chains: whether trampolines may lead into one another.
        runs: whether one jump may cover several instructions.
        gates: whether kinst may plant jumps at the predecessors of a site.
        blocks: whether the instructions of a straight line may share a counter.
        call_sites: whether to plant instructions that are call sites of the system's own tracer
            (System.leaving_call_sites).
    """

    forced: str = ""
    chains: bool = True
    runs: bool = True
    gates: bool = True
    blocks: bool = True
    call_sites: bool = True


ALONE = PlantRules("", False, False, False, False)  # each site is planted by itself


@dataclass(frozen=True, slots=True)
class PlantingAbility:
    """Ways of planting that the target and its kernel allow, and the way that the user asked for.

    Attributes:
        scratch_address: address at which trampolines will lie; 0 if there is no scratch.
        trap: whether the kernel has a trap handler that kinst can hook.
        fault_hook: whether a fault in a trampoline can be reported at the original address.
        forced: the only way that the user allows (-x plant=WAY), or "".
        stops: whether the machine can be stopped.
    """

    scratch_address: int
    trap: bool
    fault_hook: bool
    forced: str = ""
    stops: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """How one site is planted, and why it is not planted in a better way.

    Attributes:
        way: "jump", "trap" or "stop"; "" if the site is refused.
        reason: why there is no better way, or why the site is refused.
        rerun_prefix: code of the instructions before the site that its trampoline runs again after
            the work (Isa.rerun_starts); b"" for none.
    """

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
    """Return the best way to plant a site, or the refusal of it.

    Args:
        site: the instruction.
        following: live bytes after the instruction, on which its displacement may depend.
        isa: the kernel's ISA.
        ability: what the target and its kernel allow.
        forbidden: why the system forbids to plant the site, or "".
        has_fixup: whether the kernel's exception table has an entry for the instruction's address,
            so that the instruction may fault on purpose.
        rerun_prefix: code of the instructions before the site that its trampoline runs again after
            the work (Isa.rerun_starts); b"" for none.
    """
    if forbidden:
        return Choice("", forbidden)
    if ability.scratch_address and ability.forced != "stop":
        # The jump back is checked when the trampoline is made.
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
    """Return the best way to plant a site, or the refusal of it. The system must not forbid to
    plant the site, and the instruction must be one that can be displaced.

    A jump is best, then a trap, then a stop. If no jump is possible, the reason says why: the
    trampolines are too far away for even the longest jump, or the instruction is too short.
    """
    address, scratch, size = site.address, ability.scratch_address, len(site.code)
    if not scratch or ability.forced == "stop":
        why = "" if scratch else isa.no_trampolines or _NO_SCRATCH
        return _stop(site, isa, ability, why, rerun_prefix)
    jump = isa.jump_patch(size, address, scratch) is not None
    if jump and ability.forced != "trap":
        return _shared("jump", "", rerun_prefix)
    far = not jump and isa.jump_patch(LONGEST, address, scratch) is None
    number = counted(size, "byte is", "bytes are")
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
    """Return the choice with these fields. Equal choices are one object, since many sites have an
    equal choice."""
    return Choice(way, reason, rerun_prefix)


_FORBID = {
    "no-chain": ("chains", "runs", "gates", "blocks"),
    "no-run": ("runs",),
    "no-gate": ("gates",),
    "no-block": ("blocks",),
    "no-callsite": ("call_sites",),
}


def plant_rules(value: str) -> PlantRules:
    """Return the rules for a value of -x plant=: "auto", or words separated by commas. The words
    are at most one way, such as "trap", and prohibitions, such as "no-run". Raises KinstError for
    other words."""
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
