"""How control comes to an instruction, on code that is drawn by hand."""

from __future__ import annotations

from kinst.core.isa import Instruction
from kinst.isa import load
from kinst.patch.gates import Ways, ways_to

AT = 0x1000
ISA = load("amd64")


def ways(code: str, *sites: int, elsewhere: tuple[int, ...] = ()) -> dict[int, Ways]:
    """By offsets.  code: hexadecimal."""
    instructions: list[Instruction] = list(ISA.decode(bytes.fromhex(code), AT))
    flows = [ISA.flow(one.code, one.address) for one in instructions]
    found = ways_to([AT + at for at in sites], instructions, flows, [AT + at for at in elsewhere])
    return {
        at - AT: Ways(tuple(one - AT for one in way.before), way.known) for at, way in found.items()
    }


LOOP = "31c0 ffc0 ffc9 75fa c3"  # xor; inc; dec; jne back to inc; ret


def test_a_loop_is_entered_from_above_and_from_its_end() -> None:
    assert ways(LOOP, 2) == {2: Ways((0, 6), True)}
    assert ways(LOOP, 4) == {4: Ways((2,), True)}
    assert ways(LOOP, 8) == {8: Ways((6,), True)}


def test_what_else_leads_there_is_not_known() -> None:
    assert ways(LOOP, 2, elsewhere=(2,)) == {2: Ways((0, 6), False)}
    assert ways(LOOP, 0) == {0: Ways((), False)}


def test_a_call_comes_back() -> None:
    code = "ffd0 ffc0 75fc c3"  # call rax; inc; jne back to inc
    assert ways(code, 2) == {2: Ways((4,), False)}


def test_nothing_falls_through_a_jump() -> None:
    assert ways("eb02 90 90 c3", 2, 4) == {2: Ways((), False), 4: Ways((0, 3), True)}
