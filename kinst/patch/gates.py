"""Search for the predecessors of sites that have no room for a jump, so that kinst can displace
these predecessors as gates (docs/chains.md).

A leader is an instruction that control can enter other than from the instruction before it. Only
the first instruction of a run may be a leader. So if the next leader comes soon after a branch
target, neither a jump nor a run has room at the target. But control mostly reaches the target from
a few known instructions: the instruction before it, and the branches that lead to it. If a jump or
a run displaces these predecessors (gates), their trampolines lead straight into the trampoline of
the target. The target keeps its trap for control that comes another way.
"""

from __future__ import annotations

import numpy as np

from kinst.core.columns import I64, Bools, Flows
from kinst.core.dataclass import dataclass
from kinst.patch.flows import BRANCH, CALL, JUMP, TRAP


@dataclass(frozen=True, slots=True, eq=False)
class Predecessors:
    """Pairs of a site and an instruction from which control goes to that site. Instructions are
    given by their index in the columns of their functions.

    Attributes:
        site: index of each pair's site.
        row: index of the instruction from which control goes to the pair's site.
        known: for each instruction of the functions, whether the pairs contain all of its
            predecessors.
    """

    site: I64
    row: I64
    known: Bools

    def covered(self, displaced: Bools) -> Bools:
        """Return, for each instruction, whether all of its predecessors are known and displaced.

        Args:
            displaced: for each instruction, whether it is displaced.
        """
        result = self.known.copy()
        result[self.site[~displaced[self.row]]] = False
        return result


def predecessors_of(
    sites: Bools, flows: Flows, target: I64, follows: Bools, elsewhere: Bools
) -> Predecessors:
    """Return the predecessors of some of the instructions of functions. All arguments have one
    entry for each instruction, in address order.

    Args:
        sites: whether to find the instruction's predecessors.
        flows: where control goes from the instruction.
        target: index of the instruction in the same function that the direct jump or branch leads
            to, or -1.
        follows: whether the instruction comes directly after the previous one.
        elsewhere: whether control may come to the instruction in an unknown way, such as by a call.
            Known ways are to fall through from the instruction before it, and a direct jump or
            branch in its function.
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
