"""Merging of per-CPU tables, halves and counters; clear(), and its effect on later data."""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from dataclasses import replace
from math import isqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinst.consumer import aggregations
from kinst.consumer.aggregations import (
    CounterSums,
    Data,
    bucket_weights,
    combine,
    divide,
    llquantize_bounds,
    quantize_bound,
    rank,
    scalar,
)
from kinst.consumer.symbols import Names, ResolvedSymbol
from kinst.core import dtypes
from kinst.core.dtypes import StringType
from kinst.core.layout import HEADER_HALF, STATE_SEQUENCE
from kinst.core.records import SLOT_BIAS, Field
from kinst.dlang.typed import AggFunction
from tests.consumer.world import World, aggregation, fields, get64, put64, table_layout
from tests.tiers import draws

SUM, MIN, MAX = AggFunction("sum"), AggFunction("min"), AggFunction("max")
AVG, STDDEV = AggFunction("avg"), AggFunction("stddev")


class NoMembers:
    def members(self, struct: dtypes.StructType) -> tuple[dtypes.Member, ...]:
        return ()


def array(*values: int) -> Data:
    return np.array(values, dtype=np.uint64 if min(values) >= 0 else np.int64).view(np.int64)


def stddev_data(values: list[int]) -> Data:
    squares = sum(v * v for v in values)
    words = [len(values), sum(values), squares & (2**64 - 1), squares >> 64]
    return np.array([w & (2**64 - 1) for w in words], dtype=np.uint64).view(np.int64)


def test_combining() -> None:
    for function, expected in ((SUM, 3), (MIN, -4), (MAX, 7)):
        into = array(7)
        combine(function, into, array(-4))
        assert into.tolist() == [expected]


def test_sums_wrap_as_in_c() -> None:
    into = array(2**63 - 1)
    combine(SUM, into, array(1))
    assert into.tolist() == [-(2**63)]


@settings(max_examples=draws(40, 100), deadline=None)
@given(
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=9),
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=9),
)
def test_stddev_of_merged_parts_is_that_of_the_whole(a: list[int], b: list[int]) -> None:
    into = stddev_data(a)
    combine(STDDEV, into, stddev_data(b))
    assert into.tolist() == stddev_data(a + b).tolist()


@pytest.mark.parametrize("bits", [4, 8, 12, 16, 20, 24, 28, 29, 30, 31, 32])
def test_stddev_of_two_values(bits: int) -> None:
    """Two values x and 2x deviate by x/2 from their mean."""
    assert scalar(STDDEV, stddev_data([1 << bits, 2 << bits])) == 1 << (bits - 1)


def test_stddev_known() -> None:
    # 0..999 has a standard deviation of 288.67; DTrace works with integers: the mean of the
    # squares is 332833 (.5), the mean 499 (.5).
    assert scalar(STDDEV, stddev_data(list(range(1000)))) == isqrt(332833 - 499 * 499)
    assert scalar(STDDEV, stddev_data([0, 0])) == 0
    assert scalar(STDDEV, array(0, 0, 0, 0)) == 0
    assert scalar(STDDEV, stddev_data([-100, -200])) == 50
    assert scalar(STDDEV, stddev_data([1000, 2000]), 10) == 50


def test_averages_round_to_zero() -> None:
    assert scalar(AVG, array(2, 7)) == 3
    assert scalar(AVG, array(2, -7)) == -3
    assert scalar(AVG, array(0, 0)) == 0
    assert scalar(AVG, array(2, 700), 100) == 3
    assert divide(-7, 2) == -3 and divide(7, -2) == -3 and divide(-7, -2) == 3


def test_quantize_bounds() -> None:
    assert [quantize_bound(i) for i in (61, 62, 63, 64, 65, 66)] == [-2, -1, 0, 1, 2, 4]
    assert quantize_bound(126) == 2**62
    assert quantize_bound(0) == -(2**62)


def test_llquantize_bounds() -> None:
    # The Guide: llquantize(x, 10, 0, 2, 20): ones up to 10, then 20 steps in a magnitude.
    expected = [*range(1, 10), *range(10, 100, 5), *range(100, 1000, 50), 1000]
    assert llquantize_bounds(AggFunction("llquantize", (10, 0, 2, 20))) == expected
    expected = [*range(100, 1000, 100), *range(1000, 10000, 1000), 10000]
    assert llquantize_bounds(AggFunction("llquantize", (10, 2, 3, 10))) == expected
    # More steps than numbers: ones, until a magnitude has enough of them.
    expected = [1, 2, 3, *range(4, 8, 2), *range(8, 16, 4), 16]
    assert llquantize_bounds(AggFunction("llquantize", (2, 0, 3, 4))) == expected


def test_weights_for_sorting() -> None:
    assert bucket_weights(AggFunction("lquantize", (0, 30, 10)), 5) == [-1, 0, 10, 20, 31]
    weights = bucket_weights(AggFunction("llquantize", (10, 0, 0, 10)), 11)
    assert weights == [0, *range(1, 10), 10]


@pytest.mark.parametrize(
    ("function", "zero", "one", "minus", "weight"),
    [
        (AggFunction("quantize"), 63, 64, 62, 1),
        (AggFunction("lquantize", (-1, 2, 1)), 2, 3, 1, 1),
        (AggFunction("lquantize", (-10, 20, 10)), 2, 3, 1, 10),
    ],
)
def test_equal_sums_are_told_apart_by_what_is_at_zero(
    function: AggFunction, zero: int, one: int, minus: int, weight: int
) -> None:
    """libdtrace's dt_aggregate_quantizedcmp() tells them apart by their counts at zero."""
    counts = np.zeros(127 if function.name == "quantize" else 5, np.int64)
    balanced, none = counts.copy(), counts.copy()
    balanced[[one, minus]] = 3
    none[zero] = 2
    assert rank(function, balanced) == (0, 0)
    assert rank(function, none) == (0, 2)
    none[one] = 1
    assert rank(function, none) == (weight, 2)


def test_zero_is_below_all_buckets_of_powers() -> None:
    """The bucket below those of llquantize() from 1 on counts for 0."""
    none = np.array([2, 0, 0, 3], np.int64)
    weight, at_zero = rank(AggFunction("llquantize", (10, 0, 1, 10)), none)
    assert weight > 0 and at_zero == 2


def test_what_is_below_stands_for_the_number_before() -> None:
    """The bucket below stands for the previous number, which may be 0 (libdtrace's
    dt_aggregate_lquantizedzero())."""
    counts = np.array([6, 5, 7, 0], np.int64)
    assert rank(AggFunction("lquantize", (1, 3, 1)), counts) == (5 + 14, 6)
    assert rank(AggFunction("lquantize", (2, 4, 1)), counts) == (6 + 10 + 21, 0)


def string_world() -> World:
    agg = aggregation(0, "count", (StringType(16), dtypes.INT))
    keys = [Field(8, 16, StringType(16)), Field(24, 4, dtypes.INT)]
    return World((), [(agg, table_layout(agg, 128, 8, keys))])


def key(name: bytes, pid: int) -> bytes:
    return name.ljust(16, b"\0") + struct.pack("<i", pid)


def values(w: World, index: int = 0) -> dict:  # type: ignore[type-arg]
    return {k: e.data.tolist() for k, e in w.store.tables[index].entries.items()}


def test_cpus_and_snapshots_are_merged_by_key_and_the_half_is_emptied() -> None:
    w = string_world()
    w.entry(0, 0, 0, 3, key(b"bash", 7), [2])
    w.entry(0, 1, 0, 5, key(b"bash", 7), [3])
    w.entry(0, 2, 0, 0, key(b"bash", -8), [1])  # the host's slot
    w.entry(0, 0, 1, 3, key(b"sh", 1), [50])  # the half that is not read yet
    w.store.snapshot()
    assert values(w) == {(b"bash", 7): [5], (b"bash", -8): [1]}
    assert get64(w.memory, HEADER_HALF) == 1
    area = w.scratch.agg_of(0, 0)
    assert not any(w.memory[area : area + 8192])
    w.store.snapshot()
    assert values(w) == {(b"bash", 7): [5], (b"bash", -8): [1], (b"sh", 1): [50]}
    assert get64(w.memory, HEADER_HALF) == 0
    w.store.snapshot()
    w.store.finish()
    assert values(w) == {(b"bash", 7): [5], (b"bash", -8): [1], (b"sh", 1): [50]}


def test_a_cpu_inside_a_clause_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregations, "WAIT_SECONDS", 60)  # that thread may come late
    w = string_world()
    at = w.scratch.state_of(0) + STATE_SEQUENCE
    put64(w.memory, at, 5)

    def leave() -> None:
        time.sleep(0.001)
        w.entry(0, 0, 0, 1, key(b"late", 1), [1])
        put64(w.memory, at, 6)

    thread = threading.Thread(target=leave)
    thread.start()
    w.store.snapshot()
    thread.join()
    assert values(w) == {(b"late", 1): [1]}


class Clock:
    """A clock that only sleeping advances."""

    def __init__(self) -> None:
        self.now, self._looks = 0.0, 0

    def monotonic(self) -> float:
        self._looks += 1
        assert self._looks < 10_000, "it looks at the clock again and again"
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_who_waits_for_a_cpu_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(aggregations, "time", clock)
    w = string_world()
    w.store.snapshot()
    assert clock.now < 0.001, "nobody is inside"
    put64(w.memory, w.scratch.state_of(0) + STATE_SEQUENCE, 5)
    w.store.snapshot()
    assert aggregations.WAIT_SECONDS <= clock.now < aggregations.WAIT_SECONDS + 0.001


@pytest.mark.parametrize("slot", [0, 1, 2])  # two CPUs and the host
def test_a_cpu_that_stays_inside_keeps_its_half_for_later(slot: int) -> None:
    w = string_world()
    put64(w.memory, w.scratch.state_of(slot) + STATE_SEQUENCE, 5)
    w.entry(0, slot, 0, 1, key(b"stuck", 1), [1])
    w.entry(0, (slot + 1) % 3, 0, 1, key(b"free", 1), [1])
    w.store.snapshot()
    assert values(w) == {(b"free", 1): [1]}
    put64(w.memory, w.scratch.state_of(slot) + STATE_SEQUENCE, 6)
    w.store.snapshot()
    assert values(w) == {(b"free", 1): [1], (b"stuck", 1): [1]}


def test_constant_keys_and_counters() -> None:
    agg = aggregation(0, "count", (StringType(16), dtypes.UINT))
    constant = ((b"vfs_read", 0), (b"vfs_read", -1), (b"vfs_write", 2))
    layout = table_layout(agg, 0, 8, capacity=3, constant_keys=constant, counters=16)
    blocks = [np.zeros(8, dtype=np.uint64) for _ in range(2)]
    w = World((), [(agg, layout)], counters=blocks)
    w.entry(0, 0, 0, 2, b"", [5])
    blocks[0][2] = 10
    blocks[1][2] = 1
    blocks[1][3] = 7
    w.store.snapshot()
    assert values(w) == {
        (b"vfs_read", 0): [11],
        (b"vfs_read", 0xFFFFFFFF): [7],
        (b"vfs_write", 2): [5],
    }
    w.store.clear(0)
    blocks[0][2] += 4
    w.store.snapshot()
    assert values(w) == {
        (b"vfs_read", 0): [4],
        (b"vfs_read", 0xFFFFFFFF): [0],
        (b"vfs_write", 2): [0],
    }
    w.store.truncate(0, None)
    w.store.snapshot()
    assert values(w) == {}


def test_of_equal_values_the_last_keys_are_kept() -> None:
    """trunc(@, 1): libdtrace compares values, and then the keys from the first on."""
    w = string_world()
    for row, (name, pid) in enumerate(((b"a", 2), (b"b", 1))):
        w.entry(0, 0, 0, row, key(name, pid), [7])
    w.store.finish()
    w.store.truncate(0, 1)
    assert values(w) == {(b"b", 1): [7]}


def test_no_keys_at_all() -> None:
    agg = aggregation(0, "quantize")
    w = World((), [(agg, table_layout(agg, 64, 127 * 8, capacity=1))])
    counts = [0] * 127
    counts[70] = 3
    w.entry(0, 0, 0, 0, b"", counts)
    w.entry(0, 1, 0, 0, b"", counts)
    w.store.snapshot()
    assert values(w)[()][70] == 6 and sum(values(w)[()]) == 6


def test_two_aggregations_lie_side_by_side() -> None:
    one, two = aggregation(0, "max", (dtypes.INT64,)), aggregation(1, "count")
    keys = [Field(8, 8, dtypes.INT64)]
    layout = table_layout(one, 0, 8, keys, capacity=4)
    after = layout.entry_size * layout.capacity
    w = World((), [(one, layout), (two, table_layout(two, after, 8, capacity=1))])
    w.entry(0, 0, 0, 3, struct.pack("<q", -1), [-9])
    w.entry(0, 1, 0, 0, struct.pack("<q", -1), [-3])
    w.entry(1, 0, 0, 0, b"", [4])
    w.store.snapshot()
    assert values(w) == {(-1,): [-3]}
    assert values(w, 1) == {(): [4]}


def test_min_after_clear_is_the_new_minimum() -> None:
    agg = aggregation(0, "min")
    w = World((), [(agg, table_layout(agg, 0, 8, capacity=1))])
    w.entry(0, 0, 0, 0, b"", [50])
    w.store.snapshot()
    w.store.clear(0)
    assert values(w) == {(): [0]}
    w.entry(0, 0, 1, 0, b"", [80])
    w.store.snapshot()
    assert values(w) == {(): [80]}


def normals(w: World) -> list[int]:
    return [entry.normal for entry in w.store.tables[0].entries.values()]


def test_normalize_by_zero_changes_nothing() -> None:
    w = string_world()
    w.entry(0, 0, 0, 3, key(b"bash", 7), [2])
    w.store.snapshot()
    w.store.normalize(0, 10)
    w.store.normalize(0, 0)
    assert normals(w) == [10]
    w.store.normalize(0, None)
    assert normals(w) == [1]


def test_a_program_without_aggregations_needs_no_flip() -> None:
    w = World()
    w.store.snapshot()
    assert get64(w.memory, HEADER_HALF) == 0
    assert fields()[1] == 24


def test_counters_of_keys_that_have_slots() -> None:
    """Counts in a frame, and in slots that keys have claimed, are added up."""
    agg = aggregation(0, "count", (dtypes.INT,))
    field = Field(8, 4, dtypes.INT)
    layout = replace(table_layout(agg, 0, 8, (field,), counters=16), slots=4, slot_table=32)
    blocks = [np.zeros(8, dtype=np.uint64) for _ in range(2)]
    w = World((), [(agg, layout)], counters=blocks)
    for slot, key in ((1, 7), (3, -2)):
        word = (key & 0xFFFF_FFFF) + SLOT_BIAS
        put64(w.memory, w.scratch.globals + layout.slot_table + 8 * slot, word)
    blocks[0][2 + 1], blocks[1][2 + 1], blocks[1][2 + 3] = 5, 6, 1
    w.entry(0, 0, 0, 2, (7).to_bytes(4, "little"), [1])
    w.store.snapshot()
    assert values(w) == {(7,): [12], (-2,): [1]}
    blocks[0][2 + 1] += 3
    w.store.finish()
    assert values(w) == {(7,): [15], (-2,): [1]}


def test_what_counters_add_to_others() -> None:
    """A block counts for both of its instructions, a stub subtracts one."""
    agg = aggregation(0, "count", (dtypes.UINT,))
    layout = table_layout(agg, 0, 8, capacity=2, constant_keys=((1,), (2,)), counters=0)
    block = np.array([1, 0, 10, 4], dtype=np.uint64)
    sums = CounterSums(np.array([2, 2, 3]), np.array([0, 1, 0]), np.array([1, 1, -1]))
    w = World((), [(agg, layout)], counters=[block], sums=sums)
    w.store.snapshot()
    assert values(w) == {(1,): [7], (2,): [10]}


def test_sums_of_squares_wrap_at_128_bits() -> None:
    into = stddev_data([2**63 - 1])
    into[2:] = np.array([5, 2**63], np.uint64).view(np.int64)
    combine(STDDEV, into, into.copy())
    assert into.view(np.uint64)[2:].tolist() == [10, 0]


@pytest.mark.parametrize(
    ("type_", "c"),
    [
        (dtypes.INT8, ctypes.c_int8), (dtypes.UINT8, ctypes.c_uint8),
        (dtypes.INT, ctypes.c_int32), (dtypes.UINT, ctypes.c_uint32),
        (dtypes.INT64, ctypes.c_int64), (dtypes.UINT64, ctypes.c_uint64),
    ],
)  # fmt: skip
def test_constant_keys_are_those_of_c(type_: dtypes.IntType, c: type[ctypes.c_int64]) -> None:
    numbers = [0, 1, -1, 127, 128, 255, 256, -128, -129, 2**31 - 1, 2**31, 2**63 - 1, -(2**63)]
    for number in numbers:
        agg = aggregation(0, "count", (type_,))
        layout = table_layout(agg, 0, 8, capacity=1, constant_keys=((number,),), counters=0)
        blocks = [np.ones(1, dtype=np.uint64)]
        w = World((), [(agg, layout)], counters=blocks)
        w.store.snapshot()
        assert list(values(w)) == [(c(number).value,)], number


def test_keys_that_are_structures_are_told_apart_by_all_their_bytes() -> None:
    made = dtypes.StructType("struct", "s", 8, "s", NoMembers())
    agg = aggregation(0, "sum", (made, dtypes.INT64))
    keys = [Field(8, 8, made), Field(16, 8, dtypes.INT64)]
    w = World((), [(agg, table_layout(agg, 0, 8, keys, capacity=4))])
    same, other = b"abcdefgh", b"abcdefg\0"
    for slot, row, key in ((0, 0, same), (1, 0, same), (0, 1, other)):
        w.entry(0, slot, 0, row, key + struct.pack("<q", 7), [10])
    w.store.snapshot()
    assert values(w) == {(same, 7): [20], (other, 7): [10]}


def test_addresses_of_one_function_are_one_key() -> None:
    """Keys are joined as in libdtrace's dt_aggregate_sym(); an address without a name is its own
    key."""
    sym = dtypes.SymbolType("sym")
    agg = aggregation(0, "count", (dtypes.INT64, sym))
    keys = [Field(8, 8, dtypes.INT64), Field(16, 8, sym)]
    layout = table_layout(agg, 0, 8, keys)
    names = Names(lambda at: ResolvedSymbol("vmlinux", "f", at & ~0xFFF) if at < 0x8000 else None)
    w = World((), [(agg, layout)], names=names)
    for row, address in enumerate((0x1010, 0x9001, 0x1F00, 0x9002, 0x2001)):
        w.entry(0, 0, 0, row, struct.pack("<qQ", -1, address), [1])
    w.store.snapshot()
    counted = {(key, int.from_bytes(at, "little")): n for (key, at), (n,) in values(w).items()}
    assert counted == {(-1, 0x1000): 2, (-1, 0x2000): 1, (-1, 0x9001): 1, (-1, 0x9002): 1}


def test_a_distribution_without_data_has_all_its_buckets() -> None:
    agg = aggregation(0, "quantize")
    w = World((), [(agg, table_layout(agg, 64, 127 * 8, capacity=1))])
    assert w.store.tables[0].zero().data.tolist() == [0] * 127


def test_a_constant_key_that_is_a_string_ends_at_its_nul() -> None:
    agg = aggregation(0, "count", (StringType(16),))
    layout = table_layout(agg, 0, 8, capacity=1, constant_keys=((b"vfs\0x",),), counters=0)
    w = World((), [(agg, layout)], counters=[np.ones(1, dtype=np.uint64)])
    w.store.snapshot()
    assert list(values(w)) == [(b"vfs",)]
