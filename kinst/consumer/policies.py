"""The buffer policies fill and ring (option bufpolicy), which keep records while tracing and show
them when tracing ends (Dynamic Tracing Guide, "Buffers and Buffering").

Tested by tests/consumer/test_speculations.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kinst.consumer.decode import find_records
from kinst.consumer.rings import Bytes, Chunk

SLACK = 4  # a ring grows to so many times its size before records that are too old are dropped


class KeptRecords:
    """Records that a buffer policy keeps until tracing ends. For each CPU slot, the policy fill
    keeps the first `size` bytes of records, and the policy ring keeps the last `size` bytes."""

    def __init__(self, policy: str, size: int) -> None:
        self._ring = policy == "ring"
        self._size = size
        self._parts: dict[int, list[Bytes]] = {}
        self._bytes: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self.full = False  # with fill, whether a CPU's buffer is full, so that tracing is over

    def add(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            slot = chunk.slot
            self._starts.setdefault(slot, chunk.start)
            self._parts.setdefault(slot, []).append(chunk.data)
            self._bytes[slot] = self._bytes.get(slot, 0) + len(chunk.data)
            if self._ring:
                if self._bytes[slot] > SLACK * self._size:
                    self._trim(slot)
            elif self._bytes[slot] > self._size:
                self.full = True

    def _trim(self, slot: int) -> None:
        """Reduce the records of a CPU slot to whole records of at most `size` bytes in total: the
        first ones for the policy fill, the last ones for ring."""
        data = np.concatenate(self._parts[slot])
        starts = find_records(data)
        if self._ring:
            kept = starts[starts >= len(data) - self._size]
            self._starts[slot] += int(kept[0]) if len(kept) else len(data)
            data = data[int(kept[0]) :] if len(kept) else data[:0]
        elif len(data) > self._size:
            # The last record that starts within the size may end after it.
            ends = np.append(starts[1:], len(data))
            fitting = ends[ends <= self._size]
            data = data[: int(fitting[-1])] if len(fitting) else data[:0]
        self._parts[slot] = [data]
        self._bytes[slot] = len(data)

    def all(self) -> list[Chunk]:
        """Return the records to show now that tracing has ended, in the order of the CPU slots."""
        for slot in self._parts:
            self._trim(slot)
        return [
            Chunk(slot, parts[0], self._starts[slot]) for slot, parts in sorted(self._parts.items())
        ]
