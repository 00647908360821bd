"""Where control goes from each of many instructions, computed for all of them together and stored
in numpy columns.

Tested by tests/patch/test_gates.py and tests/patch/test_lines_of_runs.py.
"""

from __future__ import annotations

import numpy as np

from kinst.core.columns import FLOW_KINDS, I64, Columns, Flows
from kinst.core.isa import Isa
from kinst.core.words import MASK

JUMP, BRANCH, CALL, RETURN, INDIRECT, TRAP = map(FLOW_KINDS.index, FLOW_KINDS[2:])


def flows_of(columns: Columns, isa: Isa) -> Flows:
    """Return where control goes from each instruction, as far as the ISA alone knows. Flows.fault
    is False for all of them, since only the kernel knows which instructions may fault on purpose.

    When the ISA scans code, it marks some instructions (Columns.marks). Isa.leads() finds where
    control goes from all of these in one call. The unmarked instructions are grouped by encoding,
    and Isa.flow() decodes one instruction of each group.
    """
    leads = isa.leads(columns)
    kind, target = leads.kind.copy(), leads.target.copy()
    falls = leads.falls | (kind == CALL)
    rows = np.flatnonzero(columns.marks == 0)
    first, alike = _alike(columns, rows)
    # A direct branch has the same distance to its target at any address.
    for k, which in zip(first.tolist(), alike, strict=True):
        code, address = columns.code[k, : columns.size[k]].tobytes(), int(columns.address[k])
        flow = isa.flow(code, address)
        kind[which], falls[which] = FLOW_KINDS.index(flow.kind), flow.falls_through
        if flow.target is not None:
            target[which] = columns.address[which] + np.uint64(flow.target - address & MASK)
    return Flows(kind, falls, target, np.zeros(len(columns), np.bool_))


def _alike(columns: Columns, rows: I64) -> tuple[I64, list[I64]]:
    """Group instructions that have the same encoding.

    Args:
        columns: instructions.
        rows: indexes in `columns` of the instructions to group.

    Returns:
        The index of one instruction of each group, and the indexes of all instructions of each
        group. Both are in the same order.
    """
    if not len(rows):
        return rows, []
    whole = columns.code[rows].view(np.uint64)
    codes = whole[:, 0] if not whole[:, 1].any() else whole.view("V16")[:, 0]
    _, first, which, count = np.unique(
        codes, return_index=True, return_inverse=True, return_counts=True
    )
    order = rows[np.argsort(which.ravel(), kind="stable")]
    return rows[first], np.split(order, np.cumsum(count)[:-1])
