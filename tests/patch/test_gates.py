"""Ways of control to an instruction, on code that is written by hand."""

from __future__ import annotations

import numpy as np

from kinst.core.columns import columns_of
from kinst.isa import load
from kinst.patch.flows import flows_of
from kinst.patch.gates import Predecessors, predecessors_of

AT = 0x1000
ISA = load("amd64")


def found_in(
    code: str, *sites: int, elsewhere: tuple[int, ...] = ()
) -> tuple[Predecessors, list[int]]:
    """Return how control comes to these offsets, and those of all; `code` is hexadecimal."""
    instructions = list(ISA.decode(bytes.fromhex(code), AT))
    starts = [one.address - AT for one in instructions]
    columns = columns_of([one.address for one in instructions], [one.code for one in instructions])
    flows = flows_of(columns, ISA)
    goals = [starts.index(at - AT) if at else -1 for at in flows.target.tolist()]
    behind = np.array([k > 0 for k in range(len(starts))])
    found = predecessors_of(
        np.isin(starts, sites), flows, np.array(goals), behind, np.isin(starts, elsewhere)
    )
    return found, starts


def ways(
    code: str, *sites: int, elsewhere: tuple[int, ...] = ()
) -> dict[int, tuple[tuple[int, ...], bool]]:
    """Return where control comes from, and whether that is all, by offset."""
    found, starts = found_in(code, *sites, elsewhere=elsewhere)
    rows = [starts.index(at) for at in sites]
    from_ = {k: sorted(starts[b] for b in found.row[found.site == k].tolist()) for k in rows}
    return {starts[k]: (tuple(from_[k]), bool(found.known[k])) for k in rows}


LOOP = "31c0 ffc0 ffc9 75fa c3"  # xor; inc; dec; jne back to inc; ret


def test_a_loop_is_entered_from_above_and_from_its_end() -> None:
    assert ways(LOOP, 2) == {2: ((0, 6), True)}
    assert ways(LOOP, 4) == {4: ((2,), True)}
    assert ways(LOOP, 8) == {8: ((6,), True)}


def test_what_else_leads_there_is_not_known() -> None:
    assert ways(LOOP, 2, elsewhere=(2,)) == {2: ((0, 6), False)}
    assert ways(LOOP, 0) == {0: ((), False)}


def test_a_call_comes_back() -> None:
    code = "ffd0 ffc0 75fc c3"  # call rax; inc; jne back to inc
    assert ways(code, 2) == {2: ((4,), False)}


def test_nothing_falls_through_a_jump() -> None:
    assert ways("eb02 90 90 c3", 2, 4) == {2: ((), False), 4: ((0, 3), True)}


def test_gates_cover_what_they_all_lead_to() -> None:
    found, starts = found_in(LOOP, 2, 4, 8)

    def covered(*displaced: int) -> list[int]:
        return [starts[k] for k in np.flatnonzero(found.covered(np.isin(starts, displaced)))]

    assert covered() == [] and covered(0, 2, 4, 6, 8) == [2, 4, 8]
    assert covered(0, 6) == [2, 8] and covered(0) == [] and covered(6) == [8]
    assert covered(2) == [4]


def test_a_trap_may_come_back_too() -> None:
    code = "0f0b ffc0 75fc c3"  # ud2, of a warning; inc; jne back to inc
    assert ways(code, 2) == {2: ((4,), False)}
    assert ways(code, 4, 6) == {4: ((2,), True), 6: ((4,), True)}
