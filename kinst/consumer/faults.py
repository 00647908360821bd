"""Order of faults among records: each fault is shown at the moment when its clause failed, as
dtrace(1) does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kinst.consumer.decode import DecodedRecords
from kinst.core.dataclass import dataclass
from kinst.events import Fault, Lost


@dataclass(frozen=True, slots=True)
class PlacedFault:
    """A fault of a clause, with its position among the records of its CPU.

    Attributes:
        slot: the CPU slot.
        head: how many bytes of records had been written to the slot's ring when the fault happened.
        time: time of the fault in ns.
        event: the event to yield for it.
    """

    slot: int
    head: int
    time: int
    event: Fault | Lost


class FaultOrder:
    """Sorter that puts faults between the records around them. Records are taken from all rings
    again and again; a fault that is later than all records taken so far waits for the next records.
    """

    def __init__(self) -> None:
        self._waiting: list[PlacedFault] = []

    def rest(self) -> list[Fault | Lost]:
        """Return the events of all faults that still wait, ordered by time, and forget the
        faults."""
        events = [one.event for one in sorted(self._waiting, key=lambda one: one.time)]
        self._waiting = []
        return events

    def among(
        self, records: DecodedRecords, new: Sequence[PlacedFault]
    ) -> list[tuple[int, Fault | Lost]]:
        """Return the faults that belong among these records, in order, each with the index of the
        record that follows it.

        A new fault that is later than all these records waits for the next call: the next records
        may be earlier than the fault. A fault has its exact position among the records of its own
        CPU. Its time decides its position among the records of other CPUs.

        Args:
            records: the records that were taken from all rings now.
            new: the faults since the previous call.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting and not new:
            return []
        placed = [(at, one.time, one.event) for at, one in _placed(records, waiting)]
        for at, one in _placed(records, new):
            if at == len(records):
                self._waiting.append(one)
            else:
                placed.append((at, one.time, one.event))
        return [(at, event) for at, _, event in sorted(placed, key=lambda one: one[:2])]


def _placed(
    records: DecodedRecords, faults: Sequence[PlacedFault]
) -> list[tuple[int, PlacedFault]]:
    if not faults or not len(records):
        return [(0, one) for one in faults]
    times = records.times()
    slots, places = records.positions()
    placed = []
    for one in faults:
        before = np.flatnonzero((slots == one.slot) & (places < one.head))
        later = np.flatnonzero((slots == one.slot) & (places >= one.head))
        low = int(before[-1]) + 1 if len(before) else 0
        high = int(later[0]) if len(later) else len(records)
        at = low + int(np.searchsorted(times[low:high], np.uint64(one.time), side="left"))
        placed.append((at, one))
    return placed
