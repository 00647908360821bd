"""Rings: copied data, movement of the tail, counts, and the cost of a slow reader."""

from __future__ import annotations

import threading
import time
from itertools import chain

import pytest

from kinst.consumer.messages import lost_events
from kinst.consumer.rings import Bytes, FaultEntry, RingReader, Rings
from kinst.core.errors import TargetError
from kinst.core.layout import (
    FAULTS_KEPT,
    STATE_AGG_DROPS,
    STATE_DROPS,
    STATE_FAULTS,
    STATE_HEAD,
    STATE_NESTED,
    STATE_TAIL,
    STATE_TOLD,
)
from kinst.core.words import PAGE
from tests.consumer.world import get64, put64, scratch

ROOM = 1 << 30  # for waiting data


def texts(rings: Rings) -> list[str]:
    return [event.text for event in lost_events(rings.lost(), 2)]


def test_take_copies_what_lies_between_tail_and_head_and_advances() -> None:
    s, memory = scratch()
    memory[s.ring_of(1) : s.ring_of(1) + 16] = bytes(range(16))
    put64(memory, s.state_of(1) + STATE_HEAD, 16)
    rings = Rings(memoryview(memory), s)
    assert bytes(rings.take(1)) == bytes(range(16))
    assert get64(memory, s.state_of(1) + STATE_TAIL) == 16
    assert rings.take(1).size == 0
    assert rings.take(0).size == 0


def test_take_follows_the_wrap() -> None:
    s, memory = scratch(ring_size=64)
    start = s.ring_of(0)
    memory[start : start + 64] = bytes(range(64))
    put64(memory, s.state_of(0) + STATE_TAIL, 64 * 5 + 48)
    put64(memory, s.state_of(0) + STATE_HEAD, 64 * 6 + 40)
    taken = Rings(memoryview(memory), s).take(0)
    assert bytes(taken) == bytes(range(48, 64)) + bytes(range(40))
    assert get64(memory, s.state_of(0) + STATE_TAIL) == 64 * 6 + 40


def test_a_full_ring_is_taken_whole() -> None:
    s, memory = scratch(ring_size=64)
    put64(memory, s.state_of(0) + STATE_HEAD, 64)
    assert Rings(memoryview(memory), s).take(0).size == 64


def test_what_was_taken_does_not_change_with_the_ring() -> None:
    s, memory = scratch()
    put64(memory, s.state_of(0) + STATE_HEAD, 8)
    taken = Rings(memoryview(memory), s).take(0)
    memory[s.ring_of(0)] = 99
    assert taken[0] == 0


@pytest.mark.parametrize(("head", "tail"), [(0, 8), (15, 16), (65 + 7, 0)])
def test_impossible_counters_are_told(head: int, tail: int) -> None:
    s, memory = scratch(ring_size=64)
    put64(memory, s.state_of(0) + STATE_HEAD, head)
    put64(memory, s.state_of(0) + STATE_TAIL, tail)
    with pytest.raises(TargetError, match="corrupt"):
        Rings(memoryview(memory), s).take(0)


def test_losses_are_told_once_in_the_words_of_dtrace() -> None:
    s, memory = scratch(cpus=2)
    rings = Rings(memoryview(memory), s)
    assert texts(rings) == []
    put64(memory, s.state_of(0) + STATE_DROPS, 12)
    put64(memory, s.state_of(0) + STATE_AGG_DROPS, 5)
    put64(memory, s.state_of(1) + STATE_NESTED, 1)
    put64(memory, s.state_of(2) + STATE_DROPS, 1)
    assert texts(rings) == [
        "dtrace: 12 drops on CPU 0",
        "dtrace: 5 aggregation drops on CPU 0 (a larger -x aggsize= loses fewer)",
        "kinst: 1 probe dropped on CPU 1: it was already in a probe",
        "dtrace: 1 drop on the host",
    ]
    assert rings.lost() == []
    put64(memory, s.state_of(0) + STATE_DROPS, 13)
    assert texts(rings) == ["dtrace: 1 drop on CPU 0"]


def test_faults_are_told_each_and_those_written_over_are_counted() -> None:
    s, memory = scratch()
    rings = Rings(memoryview(memory), s)
    state = s.state_of(0)

    def write(*numbers: int) -> None:
        for n in numbers:
            for place, word in enumerate((n | 4 << 32 | 1 << 40, 1000 + n, 5 * n, 8 * n)):
                put64(memory, state + STATE_FAULTS + 32 * (n % FAULTS_KEPT) + 8 * place, word)
            put64(memory, state + STATE_TOLD, n + 1)

    assert rings.faults(0) == ([], 0)
    write(0, 1)
    assert rings.faults(0) == ([FaultEntry(0, 1, 4, 1000), FaultEntry(1, 1, 4, 1001, 5, 8)], 0)
    write(*range(2, 102))
    kept, more = rings.faults(0)
    # The oldest slot is left out: the next fault may be being written there.
    assert [one.epid for one in kept] == list(range(102 - FAULTS_KEPT + 1, 102))
    assert len(kept) + more == 100
    assert rings.faults(0) == ([], 0)


def produce(memory: bytearray, s: object, total: int, lost: list[int]) -> None:
    """Produce 8-byte records on slot 0, dropping when the ring is full."""
    head = 0
    for i in range(total):
        if head - get64(memory, s.state_of(0) + STATE_TAIL) + 8 > s.ring_size:  # type: ignore[attr-defined]
            lost[0] += 1
            continue
        put64(memory, s.ring_of(0) + head % s.ring_size, i)  # type: ignore[attr-defined]
        head += 8
        put64(memory, s.state_of(0) + STATE_HEAD, head)  # type: ignore[attr-defined]


def test_reader_gets_every_word_of_a_live_producer_in_order() -> None:
    s, memory = scratch(ring_size=4096)
    reader = RingReader(Rings(memoryview(memory), s), ROOM, every=0.0005)
    reader.start()
    lost = [0]
    producer = threading.Thread(target=produce, args=(memory, s, 20_000, lost))
    producer.start()
    chunks = []
    while producer.is_alive():
        chunks += reader.batch(timeout=0.01)
    chunks += chain.from_iterable(reader.stop())
    got = [v for c in chunks for v in c.data.view("<u8").tolist()]
    assert len(got) + lost[0] == 20_000
    assert got == sorted(got) and len(set(got)) == len(got)
    assert list(reader.stop()) == []


def test_python_ends_whether_the_reader_does_or_not() -> None:
    s, memory = scratch()
    reader = RingReader(Rings(memoryview(memory), s), ROOM)
    before = threading.enumerate()
    reader.start()
    made = [thread for thread in threading.enumerate() if thread not in before]
    assert [(thread.name, thread.daemon) for thread in made] == [("kinst-drain", True)]
    reader.end()
    assert not made[0].is_alive()


def test_beyond_its_limit_the_reader_leaves_the_rings_alone() -> None:
    s, memory = scratch(ring_size=64)
    reader = RingReader(Rings(memoryview(memory), s), 64, every=0.0005)
    put64(memory, s.state_of(0) + STATE_HEAD, 64)
    reader.start()
    deadline = time.monotonic() + 60
    while reader.pending < 64 and time.monotonic() < deadline:
        time.sleep(0.001)
    put64(memory, s.state_of(0) + STATE_HEAD, 128)
    time.sleep(0.02)
    assert get64(memory, s.state_of(0) + STATE_TAIL) == 64
    # Not even at the end, while the waiting data have not been taken.
    assert [[c.data.size for c in batch] for batch in reader.stop()] == [[64], [64]]
    assert get64(memory, s.state_of(0) + STATE_TAIL) == 128


def test_more_than_a_batch_is_left_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinst.consumer.rings.BATCH_BYTES", 32)
    s, memory = scratch(ring_size=64)
    reader = RingReader(Rings(memoryview(memory), s), ROOM, every=0.0005)
    reader.start()
    for head in (32, 64, 96):
        put64(memory, s.state_of(0) + STATE_HEAD, head)
        deadline = time.monotonic() + 60
        while reader.pending < head and time.monotonic() < deadline:
            time.sleep(0.001)
    behind = []
    for _ in range(4):
        behind.append((sum(c.data.size for c in reader.batch()), reader.behind))
    reader.end()
    assert behind == [(32, True), (32, True), (32, False), (0, False)]
    assert reader.pending == 0


def test_the_last_look_empties_all_rings_whatever_the_limit() -> None:
    s, memory = scratch(ring_size=64)
    for slot in (0, 1):
        put64(memory, s.state_of(slot) + STATE_HEAD, 64)
    reader = RingReader(Rings(memoryview(memory), s), 64)
    assert [(c.slot, c.data.size) for c in chain.from_iterable(reader.stop())] == [
        (0, 64),
        (1, 64),
    ]


class Interrupted(Rings):
    """Rings to which data come between two requests of the reader."""

    def watch(self, reader: RingReader, memory: bytearray, head: int) -> None:
        self.ring_reader, self.memory, self.head = reader, memory, head
        self.waiting = -1  # for the reader, when the second ring is first taken
        self.read = threading.Event()  # the first batch was

    def heads(self) -> list[int]:
        if self.waiting >= 0:
            self.read.wait(60)
        return super().heads()

    def take(self, slot: int, head: int | None = None) -> Bytes:
        if slot == 1 and self.waiting < 0:
            self.waiting = self.ring_reader.pending
            put64(self.memory, self.head, 16)
        return super().take(slot, head)


def test_what_is_taken_together_comes_in_one_batch_and_nothing_later_with_it() -> None:
    """Batches are merged by time.

    A record of the second ring that came while the first was read may be later than one that the
    first got meanwhile.
    """
    s, memory = scratch(ring_size=64)
    rings = Interrupted(memoryview(memory), s)
    reader = RingReader(rings, ROOM, every=0.0005)
    rings.watch(reader, memory, s.state_of(1) + STATE_HEAD)
    put64(memory, s.state_of(1) + STATE_HEAD, 8)
    put64(memory, s.state_of(0) + STATE_HEAD, 8)
    reader.start()
    batches = []
    deadline = time.monotonic() + 60
    while sum(c.data.size for b in batches for c in b) < 24 and time.monotonic() < deadline:
        if batch := reader.batch(timeout=0.01):
            batches.append(batch)
            rings.read.set()
    assert list(reader.stop()) == [] and rings.waiting == 0
    assert [(c.slot, c.data.size) for c in batches[0]] == [(0, 8), (1, 8)]
    assert [(c.slot, c.data.size) for b in batches[1:] for c in b] == [(1, 8)]


def test_what_stops_the_reader_reaches_its_reader() -> None:
    s, memory = scratch(ring_size=64)
    put64(memory, s.state_of(0) + STATE_HEAD, 1000)
    reader = RingReader(Rings(memoryview(memory), s), ROOM, every=0.0005)
    reader.start()
    with pytest.raises(TargetError, match="corrupt"):
        reader.batch(timeout=60)


def test_before_the_first_batch_nothing_is_behind() -> None:
    s, memory = scratch()
    assert not RingReader(Rings(memoryview(memory), s), 1 << 20).behind


def test_of_the_scratch_only_what_has_counters_is_read_as_words() -> None:
    """Only the state pages of all CPUs and of the host are read as words, however large the rest
    of scratch is."""
    s, memory = scratch(cpus=3)
    put64(memory, s.state_of(3) + STATE_DROPS, 9)
    cut = memoryview(memory)[: s.state_of(3) + PAGE]
    (lost,) = Rings(cut, s).lost()
    assert (lost.slot, lost.records) == (3, 9)
