"""Code for speculations, against a model: slots that are free, in use and ended."""

from __future__ import annotations

import random
import struct

import pytest

from kinst.core import layout as lay
from tests.codegen.codegen_rig import RIGS, Rig
from tests.codegen.subroutines_rig import compiled

TEXT = """
kinst::f:0 /regs[R_0] == 0/ { trace(speculation()); }
kinst::f:0 /regs[R_0] == 1/ { speculate((int)regs[R_1]); trace(0x1111111111111111); }
kinst::f:0 /regs[R_0] == 2/ { commit((int)regs[R_1]); }
kinst::f:0 /regs[R_0] == 3/ { discard((int)regs[R_1]); }
dtrace:::ERROR { trace(arg4); }
"""
CLAUSES = (0, 1, 2, 3)
SPECSIZE = 200


def started(rig: type[Rig], slots: int, size: int = SPECSIZE) -> Rig:
    run = rig(compiled(TEXT), {7: CLAUSES}, error=(4,))
    run.write(lay.HEADER_NSPEC, struct.pack("<Q", slots))
    run.write(lay.HEADER_SPECSIZE, struct.pack("<Q", size))
    return run


def step(run: Rig, kind: int, number: int = 0) -> list[tuple[int, list[int]]]:
    """Return (clause, words) of the records of one firing."""
    run.consume(run.slot)
    run.fire(7, {0: kind, 1: number})
    found = []
    for record in run.records(run.slot):
        body = record.data[: len(record.data) // 8 * 8]
        found.append((record.clause, list(struct.unpack(f"<{len(body) // 8}Q", body))))
    return found


@pytest.mark.parametrize("rig", RIGS)
@pytest.mark.parametrize("slots", [1, 3])
def test_random_programs(rig: type[Rig], slots: int) -> None:
    """A speculation has the lowest free number, and its records carry its own word until its end.

    The record of the end carries the same word.  Each speculation has its own room.
    """
    rng, run = random.Random(slots), started(rig, slots)
    in_use: dict[
        int, tuple[int, int]
    ] = {}  # number -> (its word, 0 as long as none is known; used)
    words = set[int]()
    failed = dropped = 0
    size_of_record = 0
    for _ in range(400):
        kind = rng.choice((0, 1, 1, 1, 2, 3))
        number = rng.randrange(0, slots + 1)
        if kind == 0:
            free = [n for n in range(1, slots + 1) if n not in in_use]
            ((clause, body),) = step(run, 0)
            assert clause == 0 and body[-1] & 0xFFFFFFFF == (free[0] if free else 0)
            failed += not free
            if free:
                in_use[free[0]] = (0, 0)
            continue
        place = lay.HEADER_SPECULATIONS + 8 * (number - 1)
        used_word = struct.unpack("<Q", run.read(place, 8))[0] << 8 | number
        records = step(run, kind, number)
        if number not in in_use:
            assert kind == 1 or all(body[0] == 0 for _, body in records)
            assert not (kind == 1 and records), "nothing is recorded without a speculation"
            continue
        word, used = in_use[number]
        if kind == 1:
            if not records:
                dropped += 1
                assert used + (size_of_record or 48) > SPECSIZE
                continue
            ((clause, body),) = records
            size_of_record = lay.RECORD_HEADER + 8 * len(body)
            assert clause == 1 and 0x1111111111111111 in body
            found = next(w for w in body if w != 0x1111111111111111)
            assert found == word or (not word and found not in words)
            assert found == used_word
            words.add(found)
            in_use[number] = found, used + size_of_record
            assert used + size_of_record <= SPECSIZE
        else:
            ((clause, body),) = records
            assert clause == kind and body[0] == used_word
            assert body[0] == word or (not word and body[0] not in words)
            words.add(body[0])
            del in_use[number]
    assert run.state(lay.STATE_SPEC_FAILED, run.slot) == failed > 0
    assert run.state(lay.STATE_SPEC_DROPS, run.slot) == dropped > 0


@pytest.mark.parametrize("rig", RIGS)
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_numbers_that_cannot_be(rig: type[Rig], kind: int) -> None:
    run = started(rig, 3)
    for number, fault in ((4, True), (3, False), (-1, True), (0, False), (1 << 32, False)):
        records = step(run, kind, number)
        assert [c for c, _ in records if c == 4] == [4] * fault
        if fault:
            assert records[0][1][-1] & 0xFFFFFFFF == lay.FAULT_ILLOP


@pytest.mark.parametrize("rig", RIGS)
def test_room_to_the_last_byte(rig: type[Rig]) -> None:
    probe = started(rig, 1, 1 << 20)
    step(probe, 0)
    ((_, body),) = step(probe, 1, 1)
    size = lay.RECORD_HEADER + 8 * len(body)
    for room, fits in ((3 * size, 3), (3 * size - 1, 2), (size, 1), (size - 1, 0), (0, 0)):
        run = started(rig, 1, room)
        step(run, 0)
        assert sum(len(step(run, 1, 1)) for _ in range(5)) == fits
        # A new speculation in the same slot has all of it again.
        step(run, 3, 1)
        step(run, 0)
        assert sum(len(step(run, 1, 1)) for _ in range(5)) == fits


@pytest.mark.parametrize("rig", RIGS)
def test_gigabytes_are_counted_on(rig: type[Rig]) -> None:
    """STATE_SPECULATIONS counts a CPU's recorded bytes in 32 bits."""
    for used in (0x7FFF_FFF0, 0x8000_0000, 0x9000_0000, 0xFFFF_0000):
        run = started(rig, 1, used + 100)
        step(run, 0)
        ((_, body),) = step(run, 1, 1)
        size = lay.RECORD_HEADER + 8 * len(body)
        place = run.scratch.state_of(run.slot) + lay.STATE_SPECULATIONS
        run.write(place, struct.pack("<I", used))
        fits = 100 // size
        assert sum(len(step(run, 1, 1)) for _ in range(5)) == fits
        assert run.state(lay.STATE_SPECULATIONS, run.slot) == 1 << 32 | used + fits * size


@pytest.mark.parametrize("rig", RIGS)
def test_each_slot_has_a_word(rig: type[Rig]) -> None:
    """core/layout.py: a word is odd while its slot is in use, and is incremented each time.

    A CPU's word has the slot's word above the recorded bytes.
    """
    most = lay.MOST_SPECULATIONS
    run = started(rig, most)
    for number in range(1, most + 1):
        ((_, body),) = step(run, 0)
        assert body[-1] & 0xFFFFFFFF == number
    words = struct.unpack(f"<{most}Q", run.read(lay.HEADER_SPECULATIONS, 8 * most))
    assert words == (1,) * most
    for number in (1, 2, most):
        ((_, body),) = step(run, 1, number)
        used = run.state(lay.STATE_SPECULATIONS + 8 * (number - 1), run.slot)
        assert used == 1 << 32 | lay.RECORD_HEADER + 8 * len(body)
        step(run, 3, number)
    words = struct.unpack(f"<{most}Q", run.read(lay.HEADER_SPECULATIONS, 8 * most))
    assert words == (2, 2, *(1,) * (most - 3), 2)


@pytest.mark.parametrize("rig", RIGS)
def test_no_slots_at_all(rig: type[Rig]) -> None:
    run = started(rig, 0)
    ((_, body),) = step(run, 0)
    assert body[-1] & 0xFFFFFFFF == 0 and run.state(lay.STATE_SPEC_FAILED, run.slot) == 1
    assert [c for c, _ in step(run, 1, 1)] == [4]
