"""The live table's rows, from made-up snapshots."""

from __future__ import annotations

import pytest

from kinst.events import Aggregation, Bucket
from kinst.views.top import HISTORY, TopTable, number, quantile, sparkline


def counts(**values: int) -> Aggregation:
    return Aggregation("n", "count", ("string",), {(key,): value for key, value in values.items()})


def first_cells(table: TopTable, height: int = 10) -> list[str]:
    return [row[0] for row in table.cells(height)]


def test_sparklines() -> None:
    assert sparkline([0, 1, 4, 8]) == " ▂▅█"
    assert sparkline([0, 0]) == "  " and sparkline([]) == ""
    assert sparkline([5, 5]) == "██"


@pytest.mark.parametrize(
    ("value", "text"), [(1234567, "1,234,567"), (0.25, "0.25"), (1234.5, "1,234"), (0.0, "0")]
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_rates_and_shares() -> None:
    table = TopTable(counts(a=10, b=30))
    table.take(counts(a=10, b=30), 100.0)
    table.take(counts(a=20, b=30, c=10), 102.0)
    assert table.columns == ("key", "count", "per s", "%", "")
    rows = {row[0]: row[1:4] for row in table.cells(10)}
    assert rows == {"a": ("20", "5", "33.3"), "b": ("30", "0", "50.0"), "c": ("10", "5", "16.7")}
    assert first_cells(table) == ["a", "c", "b"]  # by the present rate, then by value
    assert [row[-1][-1] for row in table.cells(10)] == ["█", "█", " "]
    table.take(counts(b=2), 103.0)  # after clear(): the growth since then
    assert table.cells(10)[0][:3] == ("b", "2", "2") and len(table) == 1


def test_keys_sort() -> None:
    table = TopTable(counts(a=3, c=1, b=2))
    table.take(counts(a=3, c=1, b=2), 1.0)
    table.press("2", 10)
    assert first_cells(table) == ["a", "b", "c"]
    table.press("r", 10)
    assert first_cells(table) == ["c", "b", "a"]
    table.press("left", 10)  # the key's column, from its end
    assert first_cells(table) == ["c", "b", "a"]
    table.press("r", 10)
    assert first_cells(table) == ["a", "b", "c"]
    table.press("left", 10)
    assert table.columns[table.sorted_by] == "%"
    for nothing in ("9", "x", "0"):
        table.press(nothing, 10)
    assert table.columns[table.sorted_by] == "%"


def test_rows_that_do_not_fit() -> None:
    every = counts(**{f"k{n:02}": 100 - n for n in range(30)})
    table = TopTable(every)
    table.take(every, 1.0)
    assert first_cells(table, 4) == ["k00", "k01", "k02", "k03"]
    table.press("page down", 4)
    table.press("down", 4)
    assert first_cells(table, 4)[0] == "k05"
    for _ in range(20):
        table.press("page down", 4)
    assert first_cells(table, 4) == ["k26", "k27", "k28", "k29"]
    table.press("up", 4)
    assert first_cells(table, 4)[0] == "k25"
    table.press("home", 4)
    assert first_cells(table, 4)[0] == "k00"


def test_distributions() -> None:
    buckets = (Bucket(None, 0, 1), Bucket(1, 2, 49), Bucket(4, 8, 49), Bucket(8, 16, 1))
    assert [quantile(buckets, part) for part in (0.01, 0.5, 0.51, 0.99, 1)] == [
        float("-inf"), 1, 4, 4, 8
    ]  # fmt: skip
    given = Aggregation("q", "quantize", (), {(): buckets})
    table = TopTable(given)
    table.take(given, 1.0)
    assert table.columns == ("key", "values", "per s", "p50", "p99", "")
    assert table.cells(5) == [("(no key)", "100", "0", "1", "4", " " * HISTORY)]


def test_what_does_not_grow_has_no_rate() -> None:
    table = TopTable(Aggregation("", "max", (), {(): 7}))
    for value, now in ((7, 1.0), (14, 2.0)):
        table.take(Aggregation("", "max", (), {(): value}), now)
    assert table.columns == ("key", "max", "")
    assert table.cells(5) == [("(no key)", "14", " " * (HISTORY - 2) + "▅█")]
