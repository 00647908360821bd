"""Faults in their places among the records: told as dtrace(1) tells them, where in the course of
things the clause failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinst.consumer.decode import DecodedRecords
from kinst.events import Fault, Lost


@dataclass(frozen=True, slots=True)
class PlacedFault:
    """An event and where it belongs: behind what its slot's ring had (head bytes) when it
    happened (time, ns)."""

    slot: int
    head: int
    time: int
    event: Fault | Lost


class FaultOrder:
    """Faults that wait for the records around them, for one batch at most."""

    def __init__(self) -> None:
        self._waiting: list[PlacedFault] = []

    def rest(self) -> list[Fault | Lost]:
        """All that still wait, in their order."""
        found = [one.event for one in sorted(self._waiting, key=lambda one: one.time)]
        self._waiting = []
        return found

    def among(
        self, records: DecodedRecords, new: Sequence[PlacedFault]
    ) -> list[tuple[int, Fault | Lost]]:
        """(index of the record that it is told before, event) of the faults that belong to
        these records, in order.  new: those since the last batch.  Of them the ones behind all
        these records wait for the next, of which some may have been made before.

        On its own CPU a fault keeps its exact place; among records of others time decides."""
        waiting, self._waiting = self._waiting, []
        if not waiting and not new:
            return []
        found = [(at, one.time, one.event) for at, one in _placed(records, waiting)]
        for at, one in _placed(records, new):
            if at == len(records):
                self._waiting.append(one)
            else:
                found.append((at, one.time, one.event))
        return [(at, event) for at, _, event in sorted(found, key=lambda one: one[:2])]


def _placed(
    records: DecodedRecords, faults: Sequence[PlacedFault]
) -> list[tuple[int, PlacedFault]]:
    if not faults or not len(records):
        return [(0, one) for one in faults]
    times = records.times()
    slots, places = records.places()
    found = []
    for one in faults:
        before = np.flatnonzero((slots == one.slot) & (places < one.head))
        behind = np.flatnonzero((slots == one.slot) & (places >= one.head))
        low = int(before[-1]) + 1 if len(before) else 0
        high = int(behind[0]) if len(behind) else len(records)
        at = low + int(np.searchsorted(times[low:high], np.uint64(one.time), side="left"))
        found.append((at, one))
    return found
