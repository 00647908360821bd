"""Gates: silent jumps at the instructions that lead to a site, where nothing better fits on the
site itself (docs/chains.md).

A short instruction that a branch leads to cannot be inside a run, and before the next one that is
entered there may be no room for a jump.  But most control comes to it from a few known places: the
instruction before it, and the branches that name it.  Displaced themselves, by a jump of their own
or in a run, they lead straight into the site's trampoline.  The site keeps its trap, for whoever
comes another way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinst.core.columns import I64, Bools, Flows
from kinst.patch.flows import BRANCH, CALL, JUMP, TRAP


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """How control comes to some instructions, by rows.  site, before: an instruction, and one that
    leads to it; a row for each such pair.  known: of all rows, those to which nothing else leads.
    """

    site: I64
    before: I64
    known: Bools

    def covered(self, displaced: Bools) -> Bools:
        """Those to which all ways lead from what is displaced."""
        found = self.known.copy()
        found[self.site[~displaced[self.before]]] = False
        return found


def ways_to(sites: Bools, flows: Flows, goal: I64, behind: Bools, elsewhere: Bools) -> Ways:
    """How control comes to the instructions `sites` of functions.

    goal: the row in the same function to which each direct jump or branch leads, or -1.  behind:
    those straight behind the instruction of the row before.  elsewhere: those to which anything
    else leads, the starts of functions among them."""
    returned_to = np.zeros(len(sites), np.bool_)
    returns = flows.falls & ((flows.kind == CALL) | (flows.kind == TRAP))
    returned_to[1:] = returns[:-1]
    onward = np.zeros(len(sites), np.bool_)
    onward[1:] = (flows.falls & ~returns)[:-1]
    fallen = np.flatnonzero(sites & behind & onward)
    leads = ((flows.kind == JUMP) | (flows.kind == BRANCH)) & (goal >= 0)
    leads[leads] = sites[goal[leads]]
    branches = np.flatnonzero(leads)
    site = np.concatenate([fallen, goal[branches]])
    known = np.zeros(len(sites), np.bool_)
    known[site] = True
    known &= ~elsewhere & ~(returned_to & behind)
    return Ways(site, np.concatenate([fallen - 1, branches]), known)
