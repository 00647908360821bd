"""Splitting bytes into records and merging CPUs, against a record-by-record reference."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinst.consumer.decode import find_records, merge, rows_at
from kinst.core.errors import TargetError
from tests.consumer.world import chunk, pad, record
from tests.tiers import draws


def reference(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        size, clause = struct.unpack_from("<II", data, at)
        if clause != 0xFFFFFFFF:
            found.append(at)
        at += size
    return found


piece = st.one_of(
    st.tuples(st.integers(0, 2), st.integers(1, 80)).map(
        lambda t: record(t[0], bytes(8 * (t[0] + 1))) * t[1]
    ),
    st.sampled_from([8, 16, 48]).map(pad),
    st.integers(0, 60).map(lambda n: record(3, bytes(n))),
)


@settings(max_examples=draws(50, 150), deadline=None)
@given(st.lists(piece, max_size=40))
def test_every_record_is_found(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assert find_records(np.frombuffer(data, np.uint8)).tolist() == reference(data)


def test_long_alternation_and_long_runs() -> None:
    mixed = (record(0, bytes(8)) + record(1, bytes(24))) * 6000
    data = record(0, bytes(8)) * 5000 + pad(8) + mixed + record(2) * 3000
    assert find_records(np.frombuffer(data, np.uint8)).tolist() == reference(data)


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_numbers_that_look_like_headers(count: int) -> None:
    """Data of records of 8, 16, 32 and 48 bytes look like the records' headers."""
    for size in (8, 16, 32, 48):
        run = struct.pack("<II", size, 5) * (size // 8) * count
        data = run + record(6, bytes(40)) * 3 + run
        assert find_records(np.frombuffer(data, np.uint8)).tolist() == reference(data)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<IIQQ", 0, 1, 0, 0),  # no size: would never end
        struct.pack("<IIQQ", 12, 1, 0, 0),  # not whole words
        record(0) + record(0)[:-8],  # cut off
        record(0) + struct.pack("<II", 64, 0xFFFFFFFF),  # padding beyond the end
        record(0)[:20],
        # After short runs, where sizes are followed one by one.
        record(0) + record(1) + struct.pack("<IIQQ", 12, 1, 0, 0),
        record(0) + record(1) + struct.pack("<IIQQ", 20, 1, 0, 0),
        record(0) + record(1) + struct.pack("<IIQQ", 4, 1, 0, 0),
        record(0) + record(1) + struct.pack("<IIQQ", 0, 1, 0, 0),
        *(record(0) + record(1) + struct.pack("<IIQQ", n, 1, 0, 0) for n in (9, 10, 17, 23)),
        record(0) + record(1) + struct.pack("<IIQ", 17, 1, 0) + record(0),
        record(0) + record(1) + record(0) + struct.pack("<II", 32, 1) + bytes(16),
    ],
)
def test_bytes_that_are_not_records_are_refused(data: bytes) -> None:
    with pytest.raises(TargetError):
        find_records(np.frombuffer(data, np.uint8))


def test_cpus_are_merged_by_time() -> None:
    a = [record(0, time=t, cpu=0) for t in (10, 30, 50)]
    b = [record(1, time=t, cpu=1) for t in (20, 40)]
    merged = merge([chunk(*a, slot=0), chunk(*b, slot=1)])
    assert merged.clauses.tolist() == [0, 1, 0, 1, 0]


def test_a_cpu_keeps_its_order_and_its_chunks_follow_each_other() -> None:
    first = chunk(record(0, time=10), record(1, time=9), slot=0)
    second = chunk(record(2, time=8), slot=0)
    other = chunk(record(3, time=9), slot=1)
    merged = merge([first, other, second])
    order = merged.clauses.tolist()
    assert [c for c in order if c != 3] == [0, 1, 2]
    assert order[0] == 3


def test_equal_sized_clauses_are_told_apart() -> None:
    rows = merge([chunk(record(0, b"A" * 8), record(1, b"B" * 8), record(0, b"C" * 8))])
    picked = rows_at(rows.data, rows.offsets[rows.clauses == 0], 32)
    assert [bytes(r[24:]) for r in picked] == [b"A" * 8, b"C" * 8]


def test_nothing_gives_nothing() -> None:
    nothing = merge([])
    assert len(nothing) == len(nothing.clauses) == len(nothing.data) == 0
    assert len(merge([chunk(pad(16))])) == 0


def test_rows_of_nothing() -> None:
    assert rows_at(np.zeros(64, np.uint8), np.empty(0, np.int64), 24).shape == (0, 24)
