"""Where control goes from many instructions, as columns of what Isa.flow() says of one."""

from __future__ import annotations

import numpy as np

from kinst.core.columns import FLOW_KINDS, Columns, Flows
from kinst.core.instruction import Flow
from kinst.core.isa import Isa

JUMP, BRANCH, CALL, RETURN, INDIRECT, TRAP = map(FLOW_KINDS.index, FLOW_KINDS[2:])


def flows_of(columns: Columns, isa: Isa) -> Flows:
    """What the ISA alone knows: of those that are marked all at once, of others one by one."""
    leads = isa.leads(columns)
    kind, target = leads.kind.copy(), leads.target.copy()
    falls = leads.falls | (kind == CALL)
    known: dict[bytes, Flow] = {}  # of those that lead nowhere by a distance
    for k in np.flatnonzero(columns.marks == 0).tolist():
        code = columns.code[k, : columns.size[k]].tobytes()
        flow = known.get(code)
        if flow is None:
            flow = isa.flow(code, int(columns.address[k]))
            if flow.target is None:
                known[code] = flow
        kind[k] = FLOW_KINDS.index(flow.kind)
        falls[k] = flow.falls_through
        target[k] = flow.target or 0
    return Flows(kind, falls, target, np.zeros(len(columns), np.bool_))
