"""Freed entries of associative arrays become free in two steps.

They are never freed while a clause that may have found one still runs.
"""

from __future__ import annotations

import struct

import numpy as np
import pytest

from kinst.consumer.dynvars import Cleaner
from kinst.consumer.rings import words
from kinst.core import dtypes
from kinst.core.layout import STATE_SEQUENCE, Scratch
from kinst.core.records import (
    DYNAMIC_DIRTY,
    DYNAMIC_LIVE,
    DYNAMIC_RINSING,
    DynamicLayout,
    Field,
)
from tests.consumer.world import get64, put64, scratch

RATE, BUCKETS = 100, 4
HASH = 0xB234_5678_9ABC_DEF8  # the rest of a tag


def layout(made: Scratch, *, shared: bool = True, area: int = 0) -> DynamicLayout:
    key, value = Field(8, 8, dtypes.LONG), Field(16, 8, dtypes.LONG)
    return DynamicLayout(0, area, BUCKETS, 16, (key,), value, shared)


class Table:
    """A table in scratch memory, and its cleaner with a clock of this test."""

    def __init__(self, *, shared: bool = True, area: int = 0) -> None:
        self.scratch, self.memory = scratch()
        self.layout = layout(self.scratch, shared=shared, area=area)
        self.start = self.scratch.dynamic + area
        self.cleaner = Cleaner(memoryview(self.memory), self.scratch, (self.layout,), RATE)
        self.now = 0

    def place(self, bucket: int, entry: int) -> int:
        """Return the offset of an entry's tag: each bucket begins with a line of a word that is no
        tag, and tags."""
        return self.start + bucket * self.layout.stride + 8 * (1 + entry)

    def set(self, bucket: int, entry: int, state: int) -> None:
        put64(self.memory, self.place(bucket, entry), HASH | state)

    def get(self, bucket: int, entry: int) -> int:
        return get64(self.memory, self.place(bucket, entry))

    def step(self, after: int = RATE) -> None:
        self.now += after
        self.cleaner.clean(self.now)

    def sequence(self, slot: int, value: int) -> None:
        put64(self.memory, self.scratch.state_of(slot) + STATE_SEQUENCE, value)


@pytest.mark.parametrize("area", [0, 4096])
def test_dirty_rinsing_free(area: int) -> None:
    table = Table(area=area)
    places = [(0, 0), (1, 6), (BUCKETS - 1, 3)]
    for place in places:
        table.set(*place, DYNAMIC_DIRTY)
    table.set(2, 2, DYNAMIC_LIVE)
    before = bytes(table.memory)
    table.step()
    assert [table.get(*place) for place in places] == [HASH | DYNAMIC_RINSING] * 3
    table.step()
    assert [table.get(*place) for place in places] == [0, 0, 0]
    # Nothing else was changed: neither used entries nor words that are no tags.
    for place in places:
        struct.pack_into("<Q", table.memory, table.place(*place), HASH | DYNAMIC_DIRTY)
    assert bytes(table.memory) == before


def test_not_before_it_is_due() -> None:
    table = Table()
    table.set(0, 0, DYNAMIC_DIRTY)
    table.step()
    table.step(RATE - 1)
    assert table.get(0, 0) == HASH | DYNAMIC_RINSING
    table.step(1)
    assert table.get(0, 0) == 0


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_clause_that_runs_is_waited_for(slot: int) -> None:
    """The cleaner waits for clauses on any CPU, and in the slot of the host after them.

    It does not wait if the CPU is in a later clause by now, which cannot have found rinsing
    entries.
    """
    table = Table()
    assert slot <= table.scratch.cpus
    table.set(0, 0, DYNAMIC_DIRTY)
    table.step()
    table.sequence(slot, 7)
    for _ in range(3):
        table.step()
        assert table.get(0, 0) == HASH | DYNAMIC_RINSING
    table.set(1, 0, DYNAMIC_DIRTY)  # freed meanwhile: its turn comes after the first
    table.sequence(slot, 9)
    table.step()
    assert (table.get(0, 0), table.get(1, 0)) == (0, HASH | DYNAMIC_DIRTY)
    table.sequence(slot, 10)
    table.step()
    assert table.get(1, 0) == HASH | DYNAMIC_RINSING
    table.step()
    assert table.get(1, 0) == 0


def test_of_a_thread_s_own_nothing_is_cleaned() -> None:
    table = Table(shared=False)
    table.set(0, 0, DYNAMIC_DIRTY)
    table.step()
    table.step()
    assert table.get(0, 0) == HASH | DYNAMIC_DIRTY


def test_words_are_those_of_the_first_bytes() -> None:
    memory = bytearray(struct.pack("<3Q", 1, 2, 3))
    assert words(memoryview(memory), 16).tolist() == [1, 2]
    assert words(np.frombuffer(memory, np.uint8), 24).tolist() == [1, 2, 3]
