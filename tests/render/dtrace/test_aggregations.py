"""Aggregations as text: drawings and tables from the Dynamic Tracing Guide and known runs."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from kinst.consumer.symbols import Names, ResolvedSymbol
from kinst.core import dtypes
from kinst.core.dtypes import DType, StringType
from kinst.core.records import Field
from kinst.dlang.typed import AggFunction, AggregationVariable
from kinst.dlang.vocabulary.d_options import Options
from kinst.render.dtrace.distributions import distribution
from tests.consumer.world import World, aggregation, format_, part, table_layout

HEAD = "\n           value  ------------- Distribution ------------- count    \n"


def quantize(counts: dict[int, int]) -> npt.NDArray[np.int64]:
    """Return data of quantize() from counts by value (a power of two, its negative, or 0)."""
    data = np.zeros(127, dtype=np.int64)
    for value, count in counts.items():
        magnitude = abs(value).bit_length()
        data[63 + (magnitude if value >= 0 else -magnitude)] = count
    return data


def test_quantize_of_write_times() -> None:
    """gnome-terminal's writes, from the guide's wrquantize.d."""
    data = quantize({8192: 5, 16384: 5, 32768: 4, 65536: 1})
    assert distribution(AggFunction("quantize"), data) == HEAD + (
        "            4096 |                                         0        \n"
        "            8192 |@@@@@@@@@@@@@                            5        \n"
        "           16384 |@@@@@@@@@@@@@                            5        \n"
        "           32768 |@@@@@@@@@@@                              4        \n"
        "           65536 |@@@                                      1        \n"
        "          131072 |                                         0        \n"
    )


def test_quantize_with_holes() -> None:
    """bash's writes there: empty buckets between others are shown."""
    data = quantize({16384: 4, 131072: 1})
    assert distribution(AggFunction("quantize"), data) == HEAD + (
        "            8192 |                                         0        \n"
        "           16384 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@         4        \n"
        "           32768 |                                         0        \n"
        "           65536 |                                         0        \n"
        "          131072 |@@@@@@@@                                 1        \n"
        "          262144 |                                         0        \n"
    )


def test_quantize_of_negative_values_and_of_the_last_bucket() -> None:
    data = quantize({-2: 2, -1: 1, 0: 1})
    lines = distribution(AggFunction("quantize"), data).splitlines()[2:]
    assert [line.split()[0] for line in lines] == ["-4", "-2", "-1", "0", "1"]
    data = quantize({1 << 62: 1234})
    assert distribution(AggFunction("quantize"), data) == HEAD + (
        "2305843009213693952 |                                         0        \n"
        "4611686018427387904 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@ 1234     \n"
    )


def test_empty_distributions() -> None:
    empty = distribution(AggFunction("quantize"), quantize({}))
    assert [line.split() for line in empty.splitlines()[2:]] == [
        ["-1", "|", "0"], ["0", "|", "0"], ["1", "|", "0"],
    ]  # fmt: skip
    linear = distribution(AggFunction("lquantize", (0, 100, 10)), np.zeros(12, np.int64))
    assert [line.split("|")[0].strip() for line in linear.splitlines()[2:]] == ["< 0", "0", "10"]
    logarithmic = AggFunction("llquantize", (10, 0, 1, 10))
    drawn = distribution(logarithmic, np.zeros(20, np.int64))
    assert [line.split("|")[0].strip() for line in drawn.splitlines()[2:]] == ["< 1", "1"]


def test_bars_of_weights_below_zero_and_of_both_signs() -> None:
    function = AggFunction("lquantize", (1, 4, 1))
    below = np.array([0, 0, -1, 0, 0], np.int64)
    assert distribution(function, below) == HEAD + (
        "               1                                         | 0        \n"
        "               2 @@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@| -1       \n"
        "               3                                         | 0        \n"
    )
    both = np.array([0, 1, -1, 0, 0], np.int64)
    assert distribution(function, both) == HEAD + (
        "             < 1                     |                     0        \n"
        "               1                     |@@@@@@@@@@           1        \n"
        "               2           @@@@@@@@@@|                     -1       \n"
        "               3                     |                     0        \n"
    )


def test_lquantize() -> None:
    """lquantize(1, 1, 10), and file descriptors of the guide's wrlquantize.d."""
    one = np.zeros(11, np.int64)
    one[1] = 1
    assert distribution(AggFunction("lquantize", (1, 10, 1)), one) == HEAD + (
        "             < 1 |                                         0        \n"
        "               1 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@ 1        \n"
        "               2 |                                         0        \n"
    )
    fds = np.zeros(102, np.int64)
    fds[27] = 9
    assert distribution(AggFunction("lquantize", (0, 100, 1)), fds) == HEAD + (
        "              25 |                                         0        \n"
        "              26 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@ 9        \n"
        "              27 |                                         0        \n"
    )


def test_lquantize_ends() -> None:
    function = AggFunction("lquantize", (-10, 10, 10))
    data = np.array([3, 0, 0, 1], np.int64)
    assert distribution(function, data) == HEAD + (
        "           < -10 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@           3        \n"
        "             -10 |                                         0        \n"
        "               0 |                                         0        \n"
        "           >= 10 |@@@@@@@@@@                               1        \n"
    )


def test_llquantize() -> None:
    """llquantize of 1..10, once each, normalised: the known run of llquantize(x,10,0,2,20)."""
    function = AggFunction("llquantize", (10, 0, 2, 20))
    data = np.zeros(1 + 9 + 18 + 18 + 1, np.int64)
    data[1:11] = 10
    rows = "".join(
        f"{v:16d} |@@@@                                     1        \n" for v in range(1, 11)
    )
    assert distribution(function, data, 10) == (
        HEAD
        + "             < 1 |                                         0        \n"
        + rows
        + "              15 |                                         0        \n"
    )
    data[:] = 0
    data[-1] = 4
    assert distribution(function, data) == HEAD + (
        "             950 |                                         0        \n"
        "         >= 1000 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@ 4        \n"
    )


def test_bars_are_rounded_not_cut() -> None:
    data = quantize({0: 1, 1: 15})  # 1/16 and 15/16 of 40: 2.5 and 37.5
    bars = [line.count("@") for line in distribution(AggFunction("quantize"), data).splitlines()]
    assert bars == [0, 0, 0, 3, 38, 0]
    data = quantize({0: 6, 1: 94})  # 2.4 and 37.6
    bars = [line.count("@") for line in distribution(AggFunction("quantize"), data).splitlines()]
    assert bars == [0, 0, 0, 2, 38, 0]


def test_zoomed_bars_fill_95_percent() -> None:
    data = quantize({1: 10, 2: 5})
    bars = distribution(AggFunction("quantize"), data, zoom=True).splitlines()
    assert [b.count("@") for b in bars[2:]] == [0, 38, 19, 0]


def show(
    aggs: Sequence[tuple[AggregationVariable, Sequence[Field]]],
    entries: Sequence[tuple[int, bytes, Sequence[int]]],
    options: Options | None = None,
) -> World:
    """Return a store with these aggregations and entries (aggregation, key bytes, data)."""
    layouts, area = [], 0
    for agg, keys in aggs:
        size = {"quantize": 127 * 8, "avg": 16, "stddev": 32}.get(agg.function.name, 8)
        layouts.append((agg, table_layout(agg, area, size, keys)))
        area += layouts[-1][1].entry_size * 8
    names = Names(lambda address: ResolvedSymbol("m", "f", 0))
    w = World((), layouts, options or Options(), names=names)
    used = [0] * len(aggs)
    for index, key, data in entries:
        w.entry(index, 0, 0, used[index], key, data)
        used[index] += 1
    w.store.finish()
    return w


STRING = StringType(16)


def named(name: bytes) -> bytes:
    return name.ljust(16, b"\0")


def test_counts_by_name_as_dtrace_lists_them() -> None:
    agg = aggregation(0, "count", (STRING,))
    data = [(b"node", 39836), (b"utmpd", 2), (b"jsontool.js", 33), (b"beam.smp", 55940)]
    w = show([(agg, [Field(8, 16, STRING)])], [(0, named(n), [c]) for n, c in data])
    w.finish()
    assert w.text() == (
        "  utmpd                                                             2\n"
        "  jsontool.js                                                      33\n"
        "  node                                                          39836\n"
        "  beam.smp                                                      55940\n"
    )


def test_equal_values_are_in_the_order_of_their_keys() -> None:
    agg = aggregation(0, "count", (STRING,))
    data = [(b"vmadmd", 33), (b"jsontool.js", 33)]
    w = show([(agg, [Field(8, 16, STRING)])], [(0, named(n), [c]) for n, c in data])
    w.finish()
    assert [line.split()[0] for line in w.text().splitlines()] == ["jsontool.js", "vmadmd"]


@pytest.mark.parametrize(
    ("type_", "code", "expected"),
    [
        (dtypes.INT8, "<b", ["   0   0", "   1   1", "   2   2", " 254  -2", " 255  -1"]),
        (
            dtypes.SHORT,
            "<h",
            ["     0   0", "     1   1", "     2   2", " 65534  -2", " 65535  -1"],
        ),
        (dtypes.INT, "<i", [f"{v:9d}{v:4d}" for v in (0, 1, 2, -2, -1)]),
        (dtypes.INT64, "<q", [f"{v:17d}{v:4d}" for v in (0, 1, 2, -2, -1)]),
    ],
)
def test_signed_keys_sort_and_show_as_in_dtrace(
    type_: DType, code: str, expected: list[str]
) -> None:
    agg = aggregation(0, "sum", (type_,))
    size = struct.calcsize(code)
    entries = [(0, struct.pack(code, v), [v]) for v in (-2, -1, 0, 1, 2)]
    options = Options(aggsortkey=True)
    w = show([(agg, [Field(8, size, type_)])], entries, options)
    w.finish()
    assert w.text().splitlines() == [e[: size_of(e)] + f"{e[-4:].strip():>17}" for e in expected]


def size_of(row: str) -> int:
    return len(row) - 4


def test_distributions_follow_their_keys() -> None:
    agg = aggregation(0, "quantize", (STRING,))
    counts = quantize({16384: 4, 131072: 1}).tolist()
    w = show([(agg, [Field(8, 16, STRING)])], [(0, named(b"bash"), counts)])
    w.finish()
    assert w.text().startswith(
        "  bash                                              "
        + HEAD
        + "            8192 |                                         0        \n"
    )
    assert w.text().endswith(" 0        \n\n")


def test_constant_keys_show_as_stored_ones_would() -> None:
    agg = aggregation(0, "count", (StringType(), dtypes.INT))
    constant = ((b"vfs_write", -1), (b"vfs_read", 7))
    w = World((), [(agg, table_layout(agg, 0, 8, capacity=2, constant_keys=constant))])
    w.entry(0, 0, 0, 0, b"", [2])
    w.entry(0, 1, 1, 1, b"", [1])
    w.store.finish()
    w.finish()
    assert w.text() == (
        "  vfs_read                                                  7                1\n"
        "  vfs_write                                                -1                2\n"
    )


def test_no_keys_no_columns() -> None:
    agg = aggregation(0, "avg")
    w = show([(agg, [])], [(0, b"", [4, -10])])
    w.finish()
    assert w.text() == "               -2\n"


def test_aggregations_come_in_the_order_of_the_program() -> None:
    aggs: list[tuple[AggregationVariable, list[Field]]] = [
        (aggregation(i, f, name=f), []) for i, f in enumerate(["max", "min", "count"])
    ]
    w = show(aggs, [(2, b"", [7]), (0, b"", [9]), (1, b"", [-1])])
    w.finish()
    assert w.text().split() == ["9", "-1", "7"]


def two() -> list[tuple[AggregationVariable, list[Field]]]:
    keys = [Field(8, 16, STRING)]
    return [
        (aggregation(0, "count", (STRING,), name="n"), keys),
        (aggregation(1, "avg", (STRING,), name="t"), keys),
    ]


JOINED = [
    (0, named(b"sh"), [3]), (0, named(b"ls"), [1]), (0, named(b"cp"), [2]),
    (1, named(b"sh"), [1, 10]), (1, named(b"mv"), [1, 5]), (1, named(b"cp"), [2, 80]),
]  # fmt: skip


def test_several_aggregations_are_joined_by_key() -> None:
    w = show(two(), JOINED)
    aggs = [t.aggregation for t in w.store.tables.values()]
    row = format_(part("", "s", "", 4), part(" ", "d", "@", 3), part(" ", "d", "@", 3), part("\n"))
    w.printa(row, aggs)
    assert w.text() == "  mv   0   5\n  ls   1   0\n  cp   2  40\n  sh   3  10\n"
    w.out.clear()
    w.finish()
    assert w.text() == ""


def test_joined_sorted_by_another_column() -> None:
    w = show(two(), JOINED, Options(aggsortpos=1, aggsortrev=True))
    aggs = [t.aggregation for t in w.store.tables.values()]
    w.printa(format_(part("", "s"), part(" ")), aggs)
    assert w.text() == "cp sh mv ls "


def test_joined_sorted_by_a_column_that_is_not_there() -> None:
    """Rows are sorted by the first column, as without the option."""
    for position in (0, 2, 9):
        w = show(two(), JOINED, Options(aggsortpos=position))
        aggs = [t.aggregation for t in w.store.tables.values()]
        w.printa(format_(part("", "s"), part(" ")), aggs)
        assert w.text() == "mv ls cp sh "


def test_joined_in_the_default_layout() -> None:
    w = show(two(), JOINED[2:4])
    w.printa(None, [t.aggregation for t in w.store.tables.values()])
    assert w.text() == (
        "\n"
        "  sh                                                                0               10\n"
        "  cp                                                                2                0\n"
    )


def test_more_values_than_aggregations_repeat_the_last() -> None:
    w = show([(aggregation(0, "sum"), [])], [(0, b"", [-1])])
    agg = w.store.tables[0].aggregation
    row = format_(part("", "d", "@"), part(" ", "x", "@"), part(" ", "@u"), part("%", "%"))
    w.printa(row, [agg])
    assert w.text() == "-1 ffffffffffffffff 18446744073709551615%%"


def test_formats_of_keys() -> None:
    types = (dtypes.UINT64, dtypes.INT, STRING)
    agg = aggregation(0, "count", types)
    keys = [Field(8, 8, types[0]), Field(16, 4, types[1]), Field(20, 16, STRING)]
    data = struct.pack("<Qi", 0x40, -1) + named(b"sh")
    w = show([(agg, keys)], [(0, data, [12])])
    row = format_(
        part("", "a", "-", 10), part("|", "x"), part("|", "s", "", 5), part("|", "d", "@", 8),
        part("|\n"),
    )  # fmt: skip
    w.printa(row, [agg])
    assert w.text() == "m`f+0x40  |ffffffff|   sh|      12|\n"


def test_printa_of_a_distribution_ignores_the_width() -> None:
    w = show([(aggregation(0, "quantize"), [])], [(0, b"", quantize({1: 1}).tolist())])
    agg = w.store.tables[0].aggregation
    w.printa(format_(part("@g = ", "d", "@", 10), part("\n")), [agg])
    assert w.text() == "@g = " + HEAD + (
        "               0 |                                         0        \n"
        "               1 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@ 1        \n"
        "               2 |                                         0        \n\n"
    )


def test_printa_of_nothing_does_not_count_as_printed() -> None:
    w = show([(aggregation(0, "count"), [])], [])
    agg = w.store.tables[0].aggregation
    w.printa(format_(part("", "d", "@")), [agg])
    assert w.text() == "" and not w.store.tables[0].printed


def test_key_position_of_sorting() -> None:
    agg = aggregation(0, "count", (dtypes.INT, dtypes.INT))
    keys = [Field(8, 4, dtypes.INT), Field(12, 4, dtypes.INT)]
    entries = [(0, struct.pack("<ii", a, b), [1]) for a, b in [(1, 9), (2, 8), (3, 7)]]
    for position, expected in ((0, "1 2 3 "), (1, "3 2 1 "), (5, "1 2 3 ")):
        options = Options(aggsortkey=True, aggsortkeypos=position)
        w = show([(agg, keys)], entries, options)
        w.printa(format_(part("", "d"), part(" ")), [agg])
        assert w.text() == expected


def test_distributions_sort_by_their_weighted_sum() -> None:
    agg = aggregation(0, "quantize", (STRING,))
    data = {b"many": {1: 100}, b"large": {1024: 1}, b"below": {-1: 5}, b"zeroes": {0: 3}}
    entries = [(0, named(k), quantize(v).tolist()) for k, v in data.items()]
    w = show([(agg, [Field(8, 16, STRING)])], entries)
    w.printa(format_(part("", "s"), part(" ")), [agg])
    assert w.text() == "below zeroes many large "


def test_addresses_are_shown_by_name() -> None:
    """@[caller] is an address in the kernel's code, not a negative number."""
    caller = dtypes.IntType(8, False, "uintptr_t")
    agg = aggregation(0, "count", (caller, dtypes.INT64))
    fields = [Field(8, 8, caller), Field(16, 8, dtypes.INT64)]
    key = struct.pack("<Qq", 0xFFFFFFFFAD4E8F94, -1387378796)
    w = show([(agg, fields)], [(0, key, [7])])
    w.finish()
    name, number, count = w.text().split()
    assert (name, number, count) == ("m`f+0xffffffffad4e8f94", "-1387378796", "7")
