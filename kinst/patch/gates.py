"""Gates: jumps at the instructions that lead to a site without room for a jump (docs/chains.md).

A branch target cannot be inside a run, and there may be no room for a jump between it and the next
leader.  But control reaches it mostly from a few known instructions: the one before it, and the
branches that name it.  Displaced themselves, by a jump of their own or in a run, they lead straight
into the site's trampoline.  The site keeps its trap, for control that comes another way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinst.core.columns import I64, Bools, Flows
from kinst.patch.flows import BRANCH, CALL, JUMP, TRAP


@dataclass(frozen=True, slots=True, eq=False)
class Predecessors:
    """Pairs of an instruction and one that leads to it, by rows.

    Attributes:
        site: the instruction of each pair.
        row: its predecessor.
        known: rows to which nothing but the predecessors leads.
    """

    site: I64
    row: I64
    known: Bools

    def covered(self, displaced: Bools) -> Bools:
        """Return the rows whose predecessors are all known and displaced."""
        result = self.known.copy()
        result[self.site[~displaced[self.row]]] = False
        return result


def predecessors_of(
    sites: Bools, flows: Flows, target: I64, follows: Bools, elsewhere: Bools
) -> Predecessors:
    """Find the predecessors of some instructions of functions.

    Args:
        sites: the rows to find them for.
        flows: where control goes from each row.
        target: the row in the same function that each direct jump or branch leads to, or -1.
        follows: rows that come directly after the row before.
        elsewhere: rows that anything else leads to, the starts of functions among them.
    """
    returned_to = np.zeros(len(sites), np.bool_)
    returns = flows.falls & ((flows.kind == CALL) | (flows.kind == TRAP))
    returned_to[1:] = returns[:-1]
    onward = np.zeros(len(sites), np.bool_)
    onward[1:] = (flows.falls & ~returns)[:-1]
    fallen = np.flatnonzero(sites & follows & onward)
    leads = ((flows.kind == JUMP) | (flows.kind == BRANCH)) & (target >= 0)
    leads[leads] = sites[target[leads]]
    branches = np.flatnonzero(leads)
    site = np.concatenate([fallen, target[branches]])
    complete = np.zeros(len(sites), np.bool_)
    complete[site] = True
    complete &= ~elsewhere & ~(returned_to & follows)
    return Predecessors(site, np.concatenate([fallen - 1, branches]), complete)
