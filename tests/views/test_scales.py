"""Axes: their numbers are round, they fit, and they have units."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinst.core.units import count_text, counted, value_text
from kinst.views.scales import BucketScale, round_ticks

ENDS = st.floats(1e-6, 1e15)


@given(ENDS, st.integers(2, 20))
def test_ticks_of_an_axis_are_round(high: float, most: int) -> None:
    found = round_ticks(0, high, most)
    assert 1 <= len(found) <= most and found[0] == 0 and found[-1] <= high * (1 + 1e-9)
    if len(found) > 1:
        step = found[1]
        digits = step / 10 ** math.floor(math.log10(step) + 1e-9)
        assert any(digits == pytest.approx(round_one) for round_one in (1, 2, 5))
        assert found == pytest.approx([k * step for k in range(len(found))])


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(0, "ns", "0"), (999, "ns", "999 ns"), (1000, "ns", "1 µs"), (16_777_216, "ns", "16.8 ms"),
     (1500, "us", "1.5 ms"), (90, "s", "90 s"), (5000, "", "5k"), (1_500, "", "1.5k")],
)  # fmt: skip
def test_numbers_have_their_unit(value: int, unit: str, shown: str) -> None:
    assert value_text(value, unit) == shown
    if not unit:
        assert count_text(value) == shown


def texts(scale: BucketScale, most: int) -> list[str]:
    return [tick.text for tick in scale.ticks(most)]


DOUBLED = [(1 << k, 2 << k) for k in range(9, 30)]


def test_times_have_decimal_prefixes_and_plain_powers_of_two_binary_ones() -> None:
    assert texts(BucketScale(DOUBLED, "quantize", "ns"), 8) == [
        "1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s"
    ]  # fmt: skip
    assert texts(BucketScale(DOUBLED, "quantize", "us"), 3) == ["1 ms", "1 s", "1000 s"]
    assert texts(BucketScale(DOUBLED, "quantize"), 5) == ["1Ki", "32Ki", "1Mi", "32Mi", "1Gi"]


def test_a_tick_is_where_its_value_is_between_the_bounds() -> None:
    scale = BucketScale(DOUBLED, "quantize", "ns")
    for tick, value in zip(scale.ticks(8), (10**k for k in range(3, 10)), strict=True):
        bucket = int(tick.at)
        low, high = DOUBLED[bucket]
        assert low <= value < high
        # On a logarithmic axis doubling moves by one bucket.
        assert 2 ** (tick.at - bucket) * low == pytest.approx(value)


def test_open_buckets_say_what_they_hold() -> None:
    bounds = [(None, 0), (0, 10), (10, 20), (20, 30), (30, None)]
    assert texts(BucketScale(bounds, "lquantize", "ms"), 12) == ["< 0", "10 ms", "20 ms", "≥ 30 ms"]
    assert texts(BucketScale([(None, 5)], "lquantize"), 12) == ["< 5"]
    assert BucketScale([], "quantize").ticks(4) == []


def test_labels_do_not_overlap_and_0_is_kept() -> None:
    bounds = [(-3, -1), (-1, 0), (0, 1), *((1 << k, 2 << k) for k in range(20))]
    assert texts(BucketScale(bounds, "quantize"), 5) == ["0", "1Ki", "1Mi"]
    for most in (5, 12):
        places = [tick.at for tick in BucketScale(bounds, "quantize").ticks(most)]
        assert min(np.diff(places)) >= len(bounds) / most / 2


def test_a_number_has_its_noun() -> None:
    assert [counted(n, "probe") for n in (0, 1, 2)] == ["0 probes", "1 probe", "2 probes"]
    assert [counted(n, "try", "tries") for n in (1, 2)] == ["1 try", "2 tries"]
    assert counted(12345, "record", spec=",") == "12,345 records"
