"""Finding the records in the bytes of rings, in the order in which they happened.

Only headers are decoded: records are found, PAD records skipped, and the records of all CPUs merged
by time. A stretch of records of one clause, the common case, needs one strided comparison; only
mixtures of clauses are walked record by record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kinst.consumer.rings import Bytes, Chunk
from kinst.core.columns import distinct
from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError
from kinst.core.layout import RECORD_CLAUSE, RECORD_PAD, RECORD_SIZE, RECORD_TIME
from kinst.events import Batch

Offsets = npt.NDArray[np.int64]
Made = TypeVar("Made")

SHORT_RUN = 32
WALK = 1 << 14  # most words of one walk
WINDOW = 1 << 16


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """The records that were taken from all rings at one time, in the order in which they are shown.

    Attributes:
        data: bytes of all records.
        offsets: offset of each record in `data`.
        clauses: index of each record's clause.
        chunks: the parts of `data` that come from one ring each, in order: (CPU slot, offset in
            `data`, number of bytes taken from that ring before).
    """

    data: Bytes
    offsets: Offsets
    clauses: npt.NDArray[np.uint32]
    chunks: tuple[tuple[int, int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.offsets)

    def times(self) -> npt.NDArray[np.uint64]:
        """Return the time of each record in ns, in the order of the records. A record whose time is
        before the previous record's gets that record's time, so that times never decrease."""
        times: npt.NDArray[np.uint64] = np.maximum.accumulate(
            _field(self.data, self.offsets, RECORD_TIME, "<u8")
        )
        return times

    def positions(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return two arrays in the order of the records: the CPU slot of each record, and the
        record's position in the slot's ring. A position is the number of bytes that were written to
        the ring before the record."""
        starts = np.array([start for _, start, _ in self.chunks], dtype=np.int64)
        mine = np.searchsorted(starts, self.offsets, side="right") - 1
        slots = np.array([slot for slot, _, _ in self.chunks], dtype=np.int64)[mine]
        before = np.array([given for _, _, given in self.chunks], dtype=np.int64)[mine]
        return slots, before + self.offsets - starts[mine]


def rows_at(data: Bytes, where: Offsets, size: int) -> Bytes:
    """Return the records at these offsets as an (n, size) matrix of bytes. All of them have `size`
    bytes."""
    n = len(where)
    if n == 0:
        return np.empty((0, size), dtype=np.uint8)
    first = int(where[0])
    if bool((np.diff(where) == size).all()):
        return data[first : first + n * size].reshape(n, size)
    windows = np.lib.stride_tricks.sliding_window_view(data, size)
    rows: Bytes = windows[where]
    return rows


def in_order(
    batch: Batch, sizes: Mapping[int, int], make: Callable[[int, Bytes], Sequence[Made]]
) -> list[Made]:
    """Convert each record of a Batch event to a value by the function `make`, and return the values
    in the order of the records.

    Args:
        batch: the records.
        sizes: size of a record in bytes, by its clause.
        make: called as make(clause, rows) for each clause, with all of the clause's records;
            returns their values in the same order.
    """
    present = distinct(batch.clauses).tolist()
    if len(present) == 1:
        (clause,) = present
        return list(make(clause, rows_at(batch.data, batch.offsets, sizes[clause])))
    ordered: npt.NDArray[np.object_] = np.empty(len(batch), dtype=object)
    for clause in present:
        mine = np.flatnonzero(batch.clauses == clause)
        results = make(clause, rows_at(batch.data, batch.offsets[mine], sizes[clause]))
        for at, one in zip(mine.tolist(), results, strict=True):
            ordered[at] = one
    result: list[Made] = ordered.tolist()
    return result


def _run_length(header: npt.NDArray[np.uint64], at: int, size: int) -> int:
    """Return how many records in a row, at most WINDOW, have the size and clause of the first one.
    The data may end inside the last of them.

    Args:
        header: the bytes of records as 8-byte words.
        at: word at which the first record starts.
        size: size of the first record in bytes.
    """
    same = header[at : at + WINDOW * (size >> 3) : size >> 3] == header[at]
    end = int(np.argmin(same))
    return len(same) if same[end] else end


def find_records(data: Bytes) -> Offsets:
    """Return the offset of each record in the bytes of a ring, without PAD records.

    Raises TargetError if the bytes are not whole records.
    """
    if data.size & 7:
        raise TargetError(f"{data.size} bytes of records are not a whole number of words")
    header = data.view("<u8")  # RECORD_SIZE and RECORD_CLAUSE in one word
    total = len(header)
    parts: list[Offsets] = []
    at = 0
    while at < total:
        word = int(header[at])
        size, clause = word & 0xFFFFFFFF, word >> 32
        if not size or size & 7 or at + (size >> 3) > total:
            raise TargetError(f"a record of {size} bytes at {at * 8} of {data.size} is corrupt")
        step = size >> 3
        if clause == RECORD_PAD:
            at += step
            continue
        n = _run_length(header, at, size)
        # The data may end inside the last record.
        n = min(n, (total - at) // step)
        parts.append(np.arange(at, at + n * step, step, dtype=np.int64))
        at += n * step
        if n < SHORT_RUN:
            at, walked = _walk(header, at)
            parts.append(walked)
    if not parts:
        return np.empty(0, dtype=np.int64)
    return np.concatenate(parts) * 8


def _walk(header: npt.NDArray[np.uint64], at: int) -> tuple[int, Offsets]:
    """Find records one by one, over at most WALK words.

    Args:
        header: the bytes of records as 8-byte words.
        at: word at which the first record starts.

    Returns:
        The word at which the walk stopped, and the words at which records start.
    """
    end = min(len(header), at + WALK)
    local = header[at:end].tolist()
    starts = []
    i = 0
    while i < len(local):
        word = local[i]
        size = word & 0xFFFFFFFF
        if not size or size & 7 or at + i + (size >> 3) > len(header):
            break  # find_records() reads this word next and raises
        if word >> 32 != RECORD_PAD:
            starts.append(at + i)
        i += size >> 3
    return at + i, np.array(starts, dtype=np.int64)


def _field(data: Bytes, offsets: Offsets, at: int, dtype: str) -> npt.NDArray[np.uint64]:
    width = np.dtype(dtype).itemsize
    return data.view(dtype)[(offsets + at) // width]


def merge(chunks: Sequence[Chunk]) -> DecodedRecords:
    """Find the records that were taken from the rings of all CPUs, and return them sorted by time.
    Records of one CPU keep their order, even if their times decrease.

    Args:
        chunks: bytes of records, as they were taken from the rings at one time.
    """
    chunks = [chunk for chunk in chunks if chunk.data.size]
    if not chunks:
        empty = np.empty(0, dtype=np.int64)
        return DecodedRecords(np.empty(0, np.uint8), empty, np.empty(0, np.uint32))
    data = chunks[0].data if len(chunks) == 1 else np.concatenate([c.data for c in chunks])
    parts, slots, bases = [], [], []
    base = 0
    for chunk in chunks:
        offsets_of = find_records(chunk.data)
        bases.append((chunk.slot, base, chunk.start))
        parts.append(offsets_of + base)
        slots.append(np.full(len(offsets_of), chunk.slot, dtype=np.int64))
        base += chunk.data.size
    offsets = np.concatenate(parts)
    if len({chunk.slot for chunk in chunks}) > 1:
        slot = np.concatenate(slots)
        time = _field(data, offsets, RECORD_TIME, "<u8").copy()
        for one in {chunk.slot for chunk in chunks}:
            mine = slot == one
            time[mine] = np.maximum.accumulate(time[mine])
        offsets = offsets[np.argsort(time, kind="stable")]
    clauses = _field(data, offsets, RECORD_CLAUSE, "<u4")
    return DecodedRecords(data, offsets, clauses.astype(np.uint32), tuple(bases))


assert RECORD_SIZE == 0 and RECORD_CLAUSE == 4  # find_records() reads both as one word
