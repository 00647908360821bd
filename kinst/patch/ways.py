"""Which way each site is planted: jump, trap or stop, or why it is refused (design.md)."""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.errors import KinstError
from kinst.core.isa import Isa, Refused
from kinst.core.probe import Site

LONGEST = 15  # bytes that an instruction of any ISA may have
WAYS = ("jump", "trap", "stop")
NO_CHAIN = "no-chain"  # -x plant=: the best way for each site, but none leads into another
_UNDONE = "a debugger's stop undoes what the instructions before it have done"


@dataclass(frozen=True, slots=True)
class PlantingAbility:
    """What this target and this kernel allow.

    scratch_address: where trampolines will lie, or 0 without scratch.  trap: a trap handler
    is there to be hooked.  fault_hook: faults in trampolines can be translated.
    forced: "" or the one way that the user asked for (-x plant=WAY).
    """

    scratch_address: int
    trap: bool
    fault_hook: bool
    forced: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """way: jump, trap or stop, or "" with the reason why the site is refused.  rerun_prefix: live
    bytes before the site that are run again when it is planted (Isa.rerun_starts)."""

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
    personality's reason against it, or "".  has_fixup: an entry of the kernel's exception
    table expects this instruction to fault at its own address.  rerun_prefix: live bytes before
    it that are run again (Isa.rerun_starts).
    """
    if forbidden:
        return Choice("", forbidden)
    if not ability.scratch_address or ability.forced == "stop":
        return _stop(site, isa, rerun_prefix)
    displaced = isa.trampoline(site, following, ability.scratch_address, (), rerun_prefix)
    if isinstance(displaced, Refused):
        return Choice("", displaced.reason)
    if has_fixup and displaced.original_at >= 0 and not ability.fault_hook:
        return Choice("", "it may fault on purpose, and its fault could not be traced back")
    size = len(site.code)
    jump = isa.jump_patch(size, site.address, ability.scratch_address) is not None
    if ability.forced == "jump" and not jump:
        if isa.jump_patch(LONGEST, site.address, ability.scratch_address) is None:
            return Choice("", "no jump of one instruction reaches a trampoline from there")
        return Choice("", f"{size} bytes are too short for a jump")
    if jump and ability.forced != "trap":
        return Choice("jump", rerun_prefix=rerun_prefix)
    if ability.trap:
        return Choice("trap", rerun_prefix=rerun_prefix)
    if ability.forced == "trap":
        return Choice("", "this kernel has no trap handler that kinst can hook")
    return _stop(site, isa, rerun_prefix)


def _stop(site: Site, isa: Isa, rerun_prefix: bytes) -> Choice:
    reason = _UNDONE if rerun_prefix else isa.unsteppable(site.code)
    return Choice("", reason) if reason else Choice("stop")


def checked_way(value: str) -> str:
    """The value of -x plant=, checked: a way, no-chain, or "" for auto.  Raises KinstError."""
    if value in ("", "auto"):
        return ""
    if value not in (*WAYS, NO_CHAIN):
        raise KinstError(f"plant={value}: no such way", "auto, jump, trap, stop or no-chain")
    return value


def forced_way(plant: str) -> str:
    """The one way that -x plant= asks for, or ""."""
    return "" if plant == NO_CHAIN else plant
