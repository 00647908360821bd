"""Probes at one site: a function that runs the clauses of the probe that a hit belongs to."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from typing import ClassVar

import pytest

from kinst.core.probe import Selection, pointed_at
from tests.codegen.codegen_rig import (
    FRAME,
    REGISTERS,
    SLOTS,
    STACK,
    TargetRig,
    builtin,
    program,
    trace,
)

SAVED = STACK + 0x100  # memory that a register points at
NUMBER, STATE = 0x78, 0x20  # offsets in it
BASE = REGISTERS[6].slot


def selection(*values: int, mask: int = 0, wanted: int = 0) -> Selection:
    state = pointed_at(BASE, STATE) if mask else None
    return Selection(pointed_at(BASE, NUMBER), values, state, mask, wanted)


def fired(rig: TargetRig, number: int, state: int = 0) -> list[tuple[int, int]]:
    """Return (clause, probe id that the clause reads) of each record of a hit."""
    words = [0] * SLOTS
    words[BASE] = SAVED
    rig.emulator.mem_write(FRAME, struct.pack(f"<{SLOTS}Q", *words))
    rig.emulator.mem_write(SAVED + NUMBER, struct.pack("<Q", number))
    rig.emulator.mem_write(SAVED + STATE, struct.pack("<Q", state))
    (chooser,) = rig.code.choosers
    rig.call(chooser, 0, FRAME)
    found = [(r.clause, int.from_bytes(rig.fields(r)[0], "little")) for r in rig.records(0)]
    rig.consume(0)
    return found


def rig_of(chosen: Mapping[int, Selection], clauses: Mapping[int, tuple[int, ...]]) -> TargetRig:
    class Chosen(TargetRig):
        selections: ClassVar[Mapping[int, Selection]] = chosen

    return Chosen(program([trace(builtin("id"))], [trace(builtin("id"))]), clauses)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 14])
def test_the_number_selects_the_probe(count: int) -> None:
    """The choice is the same as that of a dictionary, for numbers near and far."""
    numbers = random.Random(count).sample(range(500), count)
    probes = {7 + k: selection(number) for k, number in enumerate(numbers)}
    rig = rig_of(probes, {p: (p % 2,) for p in probes})
    owners = {number: 7 + k for k, number in enumerate(numbers)}
    near = {n + d for n in numbers for d in (-1, 0, 1)} - {-1}
    for number in (*near, 0, (1 << 31) - 1, (1 << 32) - 1):
        owner = owners.get(number)
        assert fired(rig, number) == ([] if owner is None else [(owner % 2, owner)])


def test_only_the_low_half_of_a_number_counts() -> None:
    rig = rig_of({7: selection(3), 8: selection(4)}, {7: (0,), 8: (1,)})
    assert fired(rig, 0xDEAD << 32 | 3) == [(0, 7)]


def test_a_probe_may_have_several_numbers_and_several_clauses() -> None:
    rig = rig_of({7: selection(3, 300), 8: selection(4)}, {7: (0, 1), 8: (1,)})
    assert fired(rig, 3) == fired(rig, 300) == [(0, 7), (1, 7)]
    assert fired(rig, 4) == [(1, 8)] and fired(rig, 301) == []


def test_a_state_tells_two_tables_of_numbers_apart() -> None:
    own, other = selection(3, mask=0x10), selection(3, mask=0x10, wanted=0x10)
    rig = rig_of({7: own, 8: other, 9: selection(3)}, {7: (0,), 8: (1,), 9: (0,)})
    assert fired(rig, 3, state=0xEF) == [(0, 7), (0, 9)]
    assert fired(rig, 3, state=0x30) == [(1, 8), (0, 9)]


def test_no_probe_fires_after_the_end() -> None:
    rig = rig_of({7: selection(3)}, {7: (0,)})
    rig.write(0, bytes(8))
    assert fired(rig, 3) == []
