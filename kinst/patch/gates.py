"""Gates: silent jumps at the instructions that lead to a site, where nothing better fits on the
site itself (docs/chains.md).

A short instruction that a branch leads to cannot be inside a run, and before the next one that is
entered there may be no room for a jump.  But most control comes to it from a few known places: the
instruction before it, and the branches that name it.  Displaced themselves, by a jump of their own
or in a run, they lead straight into the site's trampoline.  The site keeps its trap, for whoever
comes another way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kinst.core.isa import Flow, Instruction

_BRANCHES = ("jump", "branch")


@dataclass(frozen=True, slots=True)
class Ways:
    """How control comes to an instruction.  before: the instructions that lead to it, by address.
    known: those are all."""

    before: tuple[int, ...]
    known: bool


def ways_to(
    sites: Collection[int],
    instructions: Sequence[Instruction],
    flows: Sequence[Flow],
    elsewhere: Collection[int],
) -> dict[int, Ways]:
    """How control comes to some instructions of a function.

    flows: of the function's instructions, in their order.  elsewhere: addresses to which anything
    else leads, the function's start among them."""
    before: dict[int, list[int]] = {at: [] for at in sites}
    returned_to = set[int]()
    for one, flow in zip(instructions, flows, strict=True):
        if flow.falls_through and one.end in before:
            if flow.kind in ("call", "trap"):
                returned_to.add(one.end)
            else:
                before[one.end].append(one.address)
        if flow.kind in _BRANCHES and flow.target in before:
            before[flow.target].append(one.address)
    return {
        at: Ways(
            tuple(dict.fromkeys(found)),
            bool(found) and at not in elsewhere and at not in returned_to,
        )
        for at, found in before.items()
    }
