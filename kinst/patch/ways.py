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
class Means:
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
    """way: jump, trap or stop, or "" with the reason why the site is refused.  again: live bytes
    before the site that are run again when it is planted (Isa.again)."""

    way: str
    reason: str = ""
    again: bytes = b""


def choose(
    site: Site,
    following: bytes,
    isa: Isa,
    means: Means,
    forbidden: str,
    has_fixup: bool,
    again: bytes = b"",
) -> Choice:
    """The best way to plant on this site.

    following: live bytes after it, on which the instruction may depend.  forbidden: the
    personality's reason against it, or "".  has_fixup: an entry of the kernel's exception
    table expects this instruction to fault at its own address.  again: live bytes before it that
    are run again (Isa.again).
    """
    if forbidden:
        return Choice("", forbidden)
    if not means.scratch_address or means.forced == "stop":
        return _stop(site, isa, again)
    displaced = isa.trampoline(site, following, means.scratch_address, (), again)
    if isinstance(displaced, Refused):
        return Choice("", displaced.reason)
    if has_fixup and displaced.original_at >= 0 and not means.fault_hook:
        return Choice("", "it may fault on purpose, and its fault could not be traced back")
    size = len(site.code)
    jump = isa.jump_patch(size, site.address, means.scratch_address) is not None
    if means.forced == "jump" and not jump:
        if isa.jump_patch(LONGEST, site.address, means.scratch_address) is None:
            return Choice("", "no jump of one instruction reaches a trampoline from there")
        return Choice("", f"{size} bytes are too short for a jump")
    if jump and means.forced != "trap":
        return Choice("jump", again=again)
    if means.trap:
        return Choice("trap", again=again)
    if means.forced == "trap":
        return Choice("", "this kernel has no trap handler that kinst can hook")
    return _stop(site, isa, again)


def _stop(site: Site, isa: Isa, again: bytes) -> Choice:
    reason = _UNDONE if again else isa.unsteppable(site.code)
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
