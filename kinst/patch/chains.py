"""Chains: which trampolines lead straight into which others (docs/architecture.md, "Chains").

When the instruction that comes next, or the one that a branch goes to, is planted as well, control
need not go back to the kernel's text only to leave it again by the next patch: it goes on in that
site's trampoline.  Every site keeps its own patch, so whoever comes another way (a return, a
computed jump, a thread that was inside) is counted all the same: a chain changes what a hit costs,
never what is counted.

Trampolines lie in the order of their sites, so that control falls from one into the next without
a jump.  A thread could then stay in a chain for as long as a loop of the function runs, also when
the patches are gone.  In that order each loop has a link that leads backward; the trampoline at
its end, a head, begins with an instruction that a jump fits over.  Unplanting writes a jump to the
original there, and a thread that was inside leaves the chain within one turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kinst.core.isa import Isa
from kinst.core.probe import Site

_DIRECT = ("jump", "branch", "call")


@dataclass(frozen=True, slots=True)
class Chains:
    """next: a site to the one whose trampoline lies straight behind its own.  targets: a site to
    the one that its direct branch or call leads to.  heads: sites that a link leads back to.
    reached: sites that any link leads to.  All by address."""

    next: Mapping[int, int] = field(default_factory=dict)
    targets: Mapping[int, int] = field(default_factory=dict)
    heads: frozenset[int] = frozenset()
    reached: frozenset[int] = frozenset()


NO_CHAINS = Chains()


def find_chains(sites: Sequence[Site], isa: Isa) -> Chains:
    """The chains of sites, which are in the order of their addresses."""
    planted = frozenset(site.address for site in sites)
    following, targets = dict[int, int](), dict[int, int]()
    heads, reached = set[int](), set[int]()
    for site in sites:
        flow = isa.flow(site.code, site.address)
        after = site.address + len(site.code)
        # A call comes back by its return address, which is the original one.
        if flow.falls_through and flow.kind != "call" and after in planted:
            following[site.address] = after
            reached.add(after)
        if flow.target in planted and flow.kind in _DIRECT:
            reached.add(flow.target)
            targets[site.address] = flow.target
            if flow.target <= site.address:
                heads.add(flow.target)
    if not reached:
        return NO_CHAINS
    return Chains(following, targets, frozenset(heads), frozenset(reached))
