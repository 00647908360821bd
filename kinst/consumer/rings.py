"""The per-CPU rings: taking the records that clauses wrote, and counting the records that were
lost.

Order of memory accesses: a producer writes a record and then advances STATE_HEAD. take() loads
STATE_HEAD, copies the bytes below it, and then stores STATE_TAIL. On x86 loads are not reordered
with loads, stores not with stores, and a store never passes an earlier load (Intel SDM vol. 3,
"Memory Ordering"). So plain accesses suffice if each access to a counter is one aligned 8-byte
access, as the access to an element of a numpy array is.

Head and tail are byte counts that only grow; the offset in the ring is the count modulo ring_size.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError
from kinst.core.layout import (
    FAULTS_KEPT,
    STATE_AGG_DROPS,
    STATE_DOUBLE_ERRORS,
    STATE_DROPS,
    STATE_DYNAMIC_DIRTY,
    STATE_DYNAMIC_DROPS,
    STATE_DYNAMIC_RINSING,
    STATE_ERRORS,
    STATE_FAULTS,
    STATE_HEAD,
    STATE_NESTED,
    STATE_SPEC_DROPS,
    STATE_SPEC_FAILED,
    STATE_TAIL,
    STATE_TOLD,
    Scratch,
)
from kinst.core.words import PAGE

Bytes = npt.NDArray[np.uint8]

DRAIN_SECONDS = 0.002
BATCH_BYTES = 4 << 20  # a batch has about so many bytes at most


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole records that were taken from the ring of one CPU slot, in the order in which they were
    written.

    Attributes:
        slot: the CPU slot.
        data: bytes of the records.
        start: number of bytes that were taken from the ring before.
    """

    slot: int
    data: Bytes
    start: int = 0


@dataclass(frozen=True, slots=True)
class SlotLosses:
    """What a CPU slot has lost since the previous call of Rings.lost().

    Attributes:
        slot: the CPU slot.
        records: records for which the ring had no room.
        aggregations: updates for which an aggregation had no room.
        nested: firings that were dropped because the CPU was already in a clause.
        errors: faults (not lost records).
        speculative: records for which their speculation had no room.
        unavailable: calls of speculation() that found no free speculation.
        dynamic: assignments to dynamic variables that were dropped because all entries that might
            hold the key were in use, or were locked by other CPUs.
        dirty: assignments to dynamic variables that were dropped because a freed entry was still
            dirty (consumer/dynvars.py). `dynamic` does not count them.
        rinsing: assignments to dynamic variables that were dropped because a freed entry was still
            rinsing. `dynamic` does not count them.
        double: faults in clauses of dtrace:::ERROR.
    """

    slot: int
    records: int
    aggregations: int
    nested: int
    errors: int
    speculative: int = 0
    unavailable: int = 0
    dynamic: int = 0
    dirty: int = 0
    rinsing: int = 0
    double: int = 0


@dataclass(frozen=True, slots=True)
class FaultEntry:
    """A fault of a clause, with the values that dtrace:::ERROR has for it.

    Attributes:
        epid: enabled probe id of the clause.
        action: number of the action in the clause.
        kind: one of FAULT_*.
        value: the bad address or other bad number that caused the fault; 0 if there is none.
        time: time in ns, on the scale of records.
        head: how many bytes of records had been written to the CPU's ring when the fault happened.
    """

    epid: int
    action: int
    kind: int
    value: int
    time: int = 0
    head: int = 0


def words(view: memoryview | Bytes, size: int) -> npt.NDArray[np.uint64]:
    """Return the first `size` bytes of scratch as an array of u64, which shares the memory of
    `view`."""
    return np.frombuffer(view, dtype="<u8", count=size // 8)


class Rings:
    """The rings of one scratch, one for each CPU slot. Only one thread at a time may call
    take()."""

    def __init__(self, view: memoryview | Bytes, scratch: Scratch) -> None:
        self._bytes: Bytes = np.frombuffer(view, dtype=np.uint8)
        self._words = words(view, scratch.state + (scratch.cpus + 1) * PAGE)
        self._scratch = scratch
        self._seen: dict[tuple[int, int], int] = {}
        self.slots = scratch.cpus + 1

    def _counter(self, slot: int, field: int) -> int:
        return int(self._words[(self._scratch.state_of(slot) + field) >> 3])

    def taken(self, slot: int) -> int:
        """Return how many bytes take() has taken from a slot's ring so far."""
        return self._counter(slot, STATE_TAIL)

    def heads(self) -> list[int]:
        """Return for each slot how many bytes of records have been written to its ring so far: the
        end up to which take() takes records.

        Get all ends before you take records from any ring. Otherwise take() might take a record
        although an earlier record is still in another ring.
        """
        return [self._counter(slot, STATE_HEAD) for slot in range(self.slots)]

    def take(self, slot: int, head: int | None = None) -> Bytes:
        """Take the records out of a slot's ring: copy the bytes between tail and head, advance the
        tail, and return the bytes.

        Args:
            slot: the CPU slot.
            head: end of the records to take, as heads() returns it; by default the end now.

        Raises:
            TargetError: the counters are impossible, so they were overwritten.
        """
        size = self._scratch.ring_size
        tail = self._counter(slot, STATE_TAIL)
        if head is None:
            head = self._counter(slot, STATE_HEAD)
        used = head - tail
        if not 0 <= used <= size:
            raise TargetError(
                f"the ring of CPU slot {slot} is corrupt: head {head:#x}, tail {tail:#x}",
                "a program or the kernel in the traced machine wrote to kinst's memory",
            )
        out: Bytes = np.empty(used, dtype=np.uint8)
        if used:
            start = self._scratch.ring_of(slot)
            at = tail & (size - 1)
            first = min(used, size - at)
            out[:first] = self._bytes[start + at : start + at + first]
            out[first:] = self._bytes[start : start + used - first]
            self._words[(self._scratch.state_of(slot) + STATE_TAIL) >> 3] = head
        return out

    def lost(self) -> list[SlotLosses]:
        """Return the losses of each CPU slot since the previous call. Slots without losses are left
        out."""
        result = []
        fields = (
            STATE_DROPS, STATE_AGG_DROPS, STATE_NESTED, STATE_ERRORS,
            STATE_SPEC_DROPS, STATE_SPEC_FAILED,
            STATE_DYNAMIC_DROPS, STATE_DYNAMIC_DIRTY, STATE_DYNAMIC_RINSING, STATE_DOUBLE_ERRORS,
        )  # fmt: skip
        for slot in range(self.slots):
            deltas = []
            for field in fields:
                now = self._counter(slot, field)
                deltas.append(now - self._seen.get((slot, field), 0))
                self._seen[slot, field] = now
            if any(deltas):
                result.append(SlotLosses(slot, *deltas))
        return result

    def faults(self, slot: int) -> tuple[list[FaultEntry], int]:
        """Return the faults of a CPU slot since the previous call, in order. Also return the number
        of faults since then that later faults have overwritten."""
        now = self._counter(slot, STATE_TOLD)
        before = self._seen.get((slot, STATE_TOLD), 0)
        self._seen[slot, STATE_TOLD] = now
        if now == before:
            return [], 0
        first = (self._scratch.state_of(slot) + STATE_FAULTS) >> 3
        entries = self._words[first : first + 4 * FAULTS_KEPT].copy().reshape(-1, 4).tolist()
        # Later faults, and one that is being written now, overwrite the oldest.
        begun = self._counter(slot, STATE_TOLD) + 1
        oldest = min(now, max(before, begun - FAULTS_KEPT))
        faults = []
        for n in range(oldest, now):
            which, value, time, head = entries[n % FAULTS_KEPT]
            epid, kind, action = which & 0xFFFFFFFF, which >> 32 & 0xFF, which >> 40
            faults.append(FaultEntry(epid, action, kind, value, time, head))
        return faults, oldest - before


class RingReader:
    """A thread that empties the rings every few milliseconds into a bounded queue, from which the
    client takes the records.

    The thread takes nothing while `limit` bytes of records or more wait for the client, in the
    queue or in what batch() returned last. Meanwhile the rings fill up, and the producers count the
    records that they drop, so nothing is lost silently.
    """

    def __init__(
        self,
        rings: Rings,
        limit: int,
        *,
        every: float = DRAIN_SECONDS,
        besides: Sequence[Callable[[], None]] = (),
    ) -> None:
        """
        Args:
            rings: the rings to empty.
            limit: bytes of waiting records. While so many wait for the client, the thread takes no
                more.
            every: seconds between two rounds.
            besides: functions that the thread calls in each round after it has emptied the rings.
        """
        self._rings = rings
        self._every = every
        self._limit = limit
        self._besides = besides
        # Each list has what was taken from all rings at one time.
        self._queue: deque[list[Chunk]] = deque()
        self._pending = 0
        self._given = 0  # bytes of the client's last batch
        self.behind = False  # whether more records wait after the last batch
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="kinst-drain", daemon=True)
        self._thread.start()

    def _sweep(self) -> None:
        """Take the records of all rings, and put them into the queue as one element.

        Records are merged by time only within one round. So if a record is taken, all earlier
        records of all CPUs must be taken in the same round (Rings.heads()).
        """
        if self._pending + self._given >= self._limit:
            return
        chunks: list[Chunk] = []
        for slot, head in enumerate(self._rings.heads()):
            start = self._rings.taken(slot)
            data = self._rings.take(slot, head)
            if data.size:
                chunks.append(Chunk(slot, data, start))
        if chunks:
            with self._lock:
                self._queue.append(chunks)
                self._pending += _bytes_of(chunks)
            self._ready.set()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._every):
                self._sweep()
                for work in self._besides:
                    work()
        except Exception as error:  # batch() raises it in its caller's thread
            self._error = error
            self._ready.set()

    def batch(self, timeout: float = 0.0) -> list[Chunk]:
        """Return the records that have waited longest, about BATCH_BYTES; all records of one round
        come together. Return an empty list if no records wait.

        The call also means that the client has handled the records of the previous call.

        Args:
            timeout: seconds to wait for records if there are none.

        Raises the error that stopped the thread, if there was one.
        """
        self._given = 0
        if timeout:
            self._ready.wait(timeout)
        if self._error is not None:
            raise self._error
        chunks: list[Chunk] = []
        with self._lock:
            while self._queue and self._given < BATCH_BYTES:
                sweep = self._queue.popleft()
                chunks += sweep
                self._given += _bytes_of(sweep)
            self._pending -= self._given
            self.behind = bool(self._queue)
            if not self.behind:
                self._ready.clear()
        return chunks

    @property
    def pending(self) -> int:
        """Number of bytes that were taken from the rings and that batch() has not returned yet."""
        return self._pending

    def stop(self) -> Iterator[list[Chunk]]:
        """End the thread, empty the rings once more, and yield all waiting records, in lists as
        batch() returns them.

        Call it when no producer runs. Further calls are harmless.
        """
        self.end()
        while True:
            self._given = 0
            self._sweep()
            if not (chunks := self.batch()):
                return
            yield chunks

    def end(self) -> None:
        """End the thread. Records that wait stay in the queue."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def _bytes_of(chunks: Sequence[Chunk]) -> int:
    return sum(chunk.data.size for chunk in chunks)
