"""Results are compared by places as people name them, never by addresses."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from kinst.errors import KinstError
from kinst.events import Aggregation, Bucket, Frame, Key, Stack
from kinst.views.differences import Comparison, compare, comparison_text


def table(rows: dict[Key, int], name: str = "n", function: str = "count") -> Aggregation:
    return Aggregation(name, function, ("string",), rows)


def only(found: tuple[Comparison, ...]) -> Comparison:
    assert len(found) == 1
    return found[0]


def test_a_result_and_itself_do_not_differ() -> None:
    one = [table({("a",): 1, ("b",): 2})]
    found = compare(one, one)
    assert only(found).differences == () and only(found).same == 2
    assert comparison_text(found) == ""


def test_only_in_b_first_then_only_in_a_then_what_changed_most() -> None:
    a = table({("same",): 4, ("gone",): 2, ("little",): 10, ("much",): 10})
    b = table({("same",): 4, ("new",): 1, ("newer",): 9, ("little",): 11, ("much",): 100})
    found = only(compare([a], [b]))
    assert [(one.key, one.a, one.b) for one in found.differences] == [
        (("newer",), None, 9), (("new",), None, 1), (("gone",), 2, None),
        (("much",), 10, 100), (("little",), 10, 11),
    ]  # fmt: skip
    assert [one.ratio for one in found.differences] == [inf, inf, 0.0, 10.0, 1.1]
    assert found.same == 1
    assert comparison_text((found,)).splitlines() == [
        " A    B     B/A  @n = count()",
        " -    9  only B  newer",
        " -    1  only B  new",
        " 2    -  only A  gone",
        "10  100   10.00  much",
        "10   11    1.10  little",
        "1 key has the same value",
    ]


def test_an_aggregation_that_one_side_lacks() -> None:
    found = compare([table({("x",): 1}, "old")], [table({("y",): 2}, "new")])
    assert [(one.name, [d.key for d in one.differences]) for one in found] == [
        ("new", [("y",)]), ("old", [("x",)]),
    ]  # fmt: skip


def test_normalised_values_add_up_alike() -> None:
    a, b = table({("x",): 10, ("y",): 30}), table({("x",): 2, ("y",): 6})
    assert only(compare([a], [b], normalised=True)).differences == ()
    most = [replace(one, function="max") for one in (a, b)]
    assert len(only(compare(most[:1], most[1:], normalised=True)).differences) == 2


FRAME = Frame(0x1000, "vmlinux", "vfs_read", 16, "fs/read_write.c", 450)


@pytest.mark.parametrize(
    ("other", "level", "differ"),
    [
        (replace(FRAME, address=0x2000), "instruction", False),
        (replace(FRAME, offset=20), "instruction", True),
        (replace(FRAME, offset=20), "line", False),
        (replace(FRAME, line=451), "line", True),
        (replace(FRAME, line=451, offset=20), "function", False),
        (replace(FRAME, function="vfs_write"), "function", True),
    ],
)
def test_levels(other: Frame, level: str, differ: bool) -> None:
    a = Aggregation("", "count", ("stack",), {(Stack("kernel", (FRAME,)),): 1})
    b = Aggregation("", "count", ("stack",), {(Stack("kernel", (other,)),): 1})
    assert bool(only(compare([a], [b], level)).differences) is differ


def test_keys_that_a_level_joins_are_added_up() -> None:
    rows: dict[Key, int] = {(FRAME,): 3, (replace(FRAME, offset=20),): 4}
    a = Aggregation("", "count", ("_symaddr",), rows)
    b = Aggregation("", "count", ("_symaddr",), {(FRAME,): 7})
    assert only(compare([a], [b], "function")).differences == ()
    least = [replace(one, function="min") for one in (a, b)]
    (row,) = only(compare(least[:1], least[1:], "function")).differences
    assert (row.a, row.b) == (3, 7)


def test_distributions_count_as_their_sums() -> None:
    a = Aggregation("", "quantize", (), {(): (Bucket(1, 2, 3), Bucket(2, 4, 1))})
    b = Aggregation("", "quantize", (), {(): (Bucket(1, 2, 2),)})
    (row,) = only(compare([a], [b])).differences
    assert (row.a, row.b) == (4, 2)


def test_another_function_cannot_be_compared() -> None:
    with pytest.raises(KinstError, match=r"@n is count\(\) in A and sum\(\) in B"):
        compare([table({})], [table({}, function="sum")])
