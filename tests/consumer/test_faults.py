"""Messages of faults among the records of several CPUs."""

from __future__ import annotations

import numpy as np

from kinst.consumer.decode import merge
from kinst.consumer.faults import FaultOrder, PlacedFault
from kinst.consumer.rings import Chunk
from kinst.events import Fault, Lost
from tests.consumer.world import READ, record

SIZE = len(record(0))


def chunk(slot: int, *times: int, start: int = 0) -> Chunk:
    data = b"".join(record(0, cpu=slot, time=time) for time in times)
    return Chunk(slot, np.frombuffer(data, np.uint8), start)


def told(slot: int, records: int, time: int) -> PlacedFault:
    """Return the message of a fault after so many records of its CPU."""
    return PlacedFault(slot, records * SIZE, time, fault(f"{slot} at {time}"))


def fault(text: str) -> Fault:
    return Fault(text, 1, READ, 1, "badaddr", 0)


def texts(found: list[tuple[int, Fault | Lost]]) -> list[tuple[int, str]]:
    return [(at, event.text) for at, event in found]


def test_among_the_records_of_two_cpus_by_time() -> None:
    records = merge([chunk(0, 10, 20, 30), chunk(1, 15, 25, 35)])
    order = FaultOrder()
    found = order.among(records, [told(1, 1, 22), told(0, 0, 5), told(0, 2, 27), told(1, 1, 17)])
    # Records in order: 10 15 20 25 30 35.
    assert texts(found) == [(0, "0 at 5"), (2, "1 at 17"), (3, "1 at 22"), (4, "0 at 27")]


def test_between_two_records_faults_of_two_cpus_are_told_by_time() -> None:
    records = merge([chunk(0, 10, 20, 30), chunk(1, 15, 25, 35)])
    found = FaultOrder().among(records, [told(1, 1, 19), told(0, 1, 17), told(0, 1, 18)])
    assert texts(found) == [(2, "0 at 17"), (2, "0 at 18"), (2, "1 at 19")]


def test_on_its_own_cpu_a_fault_keeps_its_place_whatever_the_clock_says() -> None:
    # All records of one firing have one time.
    records = merge([chunk(0, 10, 10, 10)])
    found = FaultOrder().among(records, [told(0, 1, 10), told(0, 2, 10)])
    assert texts(found) == [(1, "0 at 10"), (2, "0 at 10")]


def test_behind_the_last_record_it_waits_for_one_batch() -> None:
    order = FaultOrder()
    first = merge([chunk(0, 10)])
    assert order.among(first, [told(0, 1, 20), told(1, 0, 30)]) == []
    second = merge([chunk(0, 40, start=SIZE), chunk(1, 25)])
    assert texts(order.among(second, [])) == [(0, "0 at 20"), (0, "1 at 30")]


def test_it_waits_no_longer_where_no_record_comes() -> None:
    order = FaultOrder()
    nothing = merge([])
    assert order.among(merge([chunk(0, 10)]), [told(0, 1, 20)]) == []
    assert texts(order.among(nothing, [told(0, 1, 30)])) == [(0, "0 at 20")]
    assert texts(order.among(nothing, [])) == [(0, "0 at 30")]
    assert order.rest() == []


def test_at_the_end_the_rest_is_told_in_order() -> None:
    order = FaultOrder()
    assert order.among(merge([chunk(0, 10)]), [told(0, 1, 40), told(1, 0, 30)]) == []
    assert [event.text for event in order.rest()] == ["1 at 30", "0 at 40"]
