"""Chains: which trampolines lead straight into which others (docs/chains.md).

After a displaced instruction, control goes to the next instruction or to a branch target. If that
instruction is planted as well, control need not go back to the kernel's text: it continues in the
trampoline of that site. Every site keeps its own patch, so a thread that comes another way (by a
return, by a computed jump, or from inside the function) is counted all the same. A chain changes
what a hit costs, never what is counted.

Trampolines lie in the order of their sites, so that control falls from one into the next without a
jump. So a thread could stay in a chain for as long as a loop of the function runs, even after the
patches are gone. To prevent this, each loop has a head: a trampoline to which a trampoline of the
loop jumps backward. The first instruction of a head is long enough to be replaced by a jump.
Unplanting replaces the instruction by a jump to the original instruction. A thread in the loop then
leaves the chain within one turn.
"""

from __future__ import annotations

import numpy as np

from kinst.core.columns import I64, U64, Bools, Columns, Leads
from kinst.core.dataclass import dataclass
from kinst.core.isa import Isa
from kinst.patch.flows import CALL, flows_of


@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """Links between the trampolines of sites. By a link, control goes from one trampoline straight
    into another: it falls into it, or jumps to it. All fields have one entry for each site, in
    address order.

    Attributes:
        falls_into: whether the trampoline of the next site lies directly after this site's
            trampoline, so that control falls into it.
        straight: whether control goes from this site's trampoline to the next one's and nowhere
            else, faults aside.
        target: index of the site that this site's direct branch or call leads to, or -1.
        head: whether a link leads backward to this site's trampoline.
        reached: whether any link leads to this site's trampoline.
    """

    falls_into: Bools
    straight: Bools
    target: I64
    head: Bools
    reached: Bools

    def __bool__(self) -> bool:
        """Return whether there is any link."""
        return bool(self.reached.any())


def no_chains(count: int) -> Chains:
    """Return Chains without links, for `count` sites."""
    none = np.zeros(count, np.bool_)
    return Chains(none, none, np.full(count, -1, np.int64), none, none)


def find_chains(sites: Columns, isa: Isa) -> Chains:
    """Return the links between the trampolines of sites, which are given in address order."""
    count = len(sites)
    if not count:
        return no_chains(0)
    leads = leads_of(sites, isa)
    following = np.append(sites.address[1:], np.uint64(0))
    falls_into = leads.falls & (sites.after == following)
    at = np.minimum(np.searchsorted(sites.address, leads.target), count - 1)
    target = np.where(sites.address[at] == leads.target, at, -1)
    head, reached = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    reached[1:] = falls_into[:-1]
    reached[target[target >= 0]] = True
    head[target[(target >= 0) & (target <= np.arange(count))]] = True
    straight = falls_into & (leads.target == 0)
    return Chains(falls_into, straight, target, head, reached)


def leads_of(sites: Columns, isa: Isa) -> Leads:
    """Return where control goes from each site's displaced instruction. A call does not lead to the
    next instruction, since it returns to the original text."""
    flows = flows_of(sites, isa)
    # A displaced call returns to the original text, since its return address is the original one.
    return Leads(flows.falls & (flows.kind != CALL), flows.target, flows.kind)


def reached_sites(chains: Chains, sites: Columns) -> U64:
    """Return the addresses of the sites to whose trampoline a link leads, ascending."""
    return sites.address[chains.reached]
