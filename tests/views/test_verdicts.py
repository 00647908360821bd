"""The values of assertions over aggregations, computed by hand."""

from __future__ import annotations

import pytest

from kinst.dlang.assertions import read_test_file
from kinst.events import Aggregation, Bucket
from kinst.results import Table, tables_of
from kinst.views.verdicts import Given, TraceResults, Verdict, judge

TABLES = tables_of(
    [
        Aggregation("", "count", (), {(): 7}),
        Aggregation("by", "sum", ("string", "int"), {("cat", -1): 5, ("dog", 2): -2}),
        Aggregation("least", "min", ("string",), {("cat",): 3}),
        Aggregation(
            "time", "quantize", ("string",),
            {("cat",): (Bucket(64, 128, 2), Bucket(1024, 2048, 1)), ("dog",): (Bucket(4, 8, 1),)},
        ),
        Aggregation("open", "lquantize", (), {(): (Bucket(None, 0, 1), Bucket(0, 10, 2))}),
    ]
)  # fmt: skip


def held(assertion: str, *reads: Given) -> Verdict:
    """Judge an assertion.

    Args:
        reads: values that D computed for the parts without aggregations, in order.
    """
    (test,) = read_test_file(f'TEST "t" {{ {assertion}; }}', "f.d").tests
    given: dict[str, Table] = dict(TABLES)
    return judge(test, TraceResults(given, [list(reads)], 3))


@pytest.mark.parametrize(
    ("assertion", "reads"),
    [
        ("@ == 7", ()), ("@ * 2 - 14 == 0", ()), ("!(@ != 7)", ()), ("@ / 2 == 3", ()),
        ("-@ / 2 == -3", (-3,)), ("-@ % 4 == -3", (-3,)), ("~@ == -8", (-8,)), ("@ << 1 == 14", ()),
        ("@ > 6 && @ < 8", ()), ("@ < 6 || @ >= 7", ()), ("(@ > 6) ^^ (@ > 8)", ()),
        ("@ > 100 ? 0 : 1", ()), ("@ == n", (7,)), ("@ > n || n / 0", (1, 1)),
        ('@by["cat", -1] == 5', ("cat", -1)), ('@by["cat", 0xffffffffffffffff] == 5', ("cat",)),
        ('@by["none", 0] == 0', ("none",)), ("sum(@by) == 3", ()), ("count(@by) == 2", ()),
        ("min(@by) == -2", (-2,)), ("max(@by) == 5", ()), ('@least["cat"] == 3', ("cat",)),
        ("count(@time) == 4", ()), ('count(@time["cat"]) == 3', ("cat",)),
        ('min(@time["cat"]) == 64', ("cat",)), ("min(@time) == 4", ()), ("max(@time) == 2047", ()),
        ("$status == 3", ()), ("who == \"cat\"", (1, "cat", "cat")),
    ],
)  # fmt: skip
def test_holds(assertion: str, reads: tuple[Given, ...]) -> None:
    verdict = held(assertion, *reads)
    assert verdict.state == "ok", verdict


@pytest.mark.parametrize(
    ("assertion", "reads", "why"),
    [
        ("@ == 6", (), ""),
        ("@ == n", (6,), ""),
        ("@ == n", (), "n could not be read"),
        ("@nosuch == 0", (), "the program has no aggregation @nosuch"),
        ("@by == 3", (), "@by has keys: @by[key], count(@by), sum(@by)"),
        ("@by[1] == 3", (), "@by has 2 keys, 1 given"),
        ('@least["dog"] == 0', ("dog",), "min() has seen nothing there"),
        ('@time["cat"] > 0', ("cat",), "quantize() has no single value: "),
        ("sum(@time) > 0", (), "quantize() has no sum"),
        ("min(@open) == 0", (), "lquantize() has values beyond its last bucket"),
        ("@ / (@ - 7) == 0", (), "a division by zero"),
        ("@ < who", ("cat",), '< takes numbers, and "cat" is none'),
    ],
)
def test_does_not_hold(assertion: str, reads: tuple[Given, ...], why: str) -> None:
    verdict = held(assertion, *reads)
    assert (verdict.state, verdict.location, verdict.expression) == ("failed", "f.d:1", assertion)
    assert verdict.why.startswith(why) and bool(verdict.why) == bool(why)


def test_its_values_are_told() -> None:
    verdict = held('@by["cat", k] * 2 == n && who != "dog"', "cat", -1, 11, 1, "cow", "dog")
    assert verdict.values == (
        ('@by["cat", k]', "5"), ("k", "-1"), ("n", "11"), ('who != "dog"', "1"), ("who", '"cow"'),
    )  # fmt: skip


def test_a_predicate_skips() -> None:
    (test,) = read_test_file('TEST "t" /@ > 7/ { 0 == 1; }', "f.d").tests
    assert judge(test, TraceResults(TABLES, [], 0)).state == "skipped"
