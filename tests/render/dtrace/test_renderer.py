"""Records to text in dtrace(1)'s layout; texts are from the Dynamic Tracing Guide's examples."""

from __future__ import annotations

import struct

import pytest

from kinst.core import dtypes
from kinst.core.dtypes import StringType
from kinst.core.errors import TargetError
from kinst.core.layout import HEADER_HALF
from kinst.core.probe import Probe, ProbeName
from kinst.core.records import Field
from kinst.dlang.typed import (
    Action,
    ClearAction,
    EvaluateAction,
    ExitAction,
    NormalizeAction,
    PrintaAction,
    PrintfAction,
    TraceAction,
    TruncAction,
)
from kinst.dlang.vocabulary.d_options import Options
from tests.consumer.world import (
    BEGIN,
    SPAN,
    World,
    aggregation,
    chunk,
    const,
    fields,
    format_,
    part,
    put64,
    record,
    table_layout,
)

HEAD = "CPU     ID                    FUNCTION:NAME\n"
QUIET = Options(quiet=True)
STRING = (StringType(32), 32)


def printf_world(parts: list, types: list, options: Options = QUIET) -> World:  # type: ignore[type-arg]
    made, size = fields(*types)
    action = PrintfAction(SPAN, format_(*parts), tuple(const() for _ in types))
    return World([([action], [made], size)], options=options)


def test_default_action_prints_the_columns() -> None:
    w = World([([], [], 24)])
    w.take([chunk(record(0, probe=1), record(0, probe=12, cpu=3))])
    w.take([chunk(record(0, probe=12, cpu=10))])
    assert w.text() == (
        HEAD
        + "  0      1                           :BEGIN \n"
        + "  3     12                      vfs_read:19 \n"
        + " 10     12                      vfs_read:19 \n"
    )


def test_hello_world_with_exit() -> None:
    """The first program of the guide: BEGIN { trace("hello, world"); exit(0); }"""
    made, size = fields(STRING, dtypes.INT)
    actions = [TraceAction(SPAN, const()), ExitAction(SPAN, const())]
    w = World([(actions, [made[:1], made[1:]], size)], probes=(BEGIN,))
    payload = b"hello, world\0".ljust(32, b"\xcc") + struct.pack("<i", 0)
    assert w.interpreter.exit_status is None
    w.take([chunk(record(0, payload, probe=1))])
    assert w.text() == (
        HEAD + "  0      1                           :BEGIN   hello, world                     \n"
    )
    assert w.interpreter.exit_status == 0


def test_exit_status_is_remembered_and_nothing_is_printed_for_it_when_quiet() -> None:
    made, size = fields(dtypes.INT)
    w = World([([ExitAction(SPAN, const())], [made], size)], options=QUIET)
    w.take([chunk(record(0, struct.pack("<i", 3)))])
    assert (w.text(), w.interpreter.exit_status) == ("", 3)


@pytest.mark.parametrize(
    ("type_", "data", "shown", "quiet"),
    [
        (dtypes.INT8, b"\x05", "   5", "5"),
        (dtypes.INT8, b"\xff", " 255", "255"),  # as dtrace(1): unsigned below four bytes
        (dtypes.SHORT, b"\x07\0", "     7", "7"),
        (dtypes.INT, b"\xff\xff\xff\xff", "       -1", "-1"),
        (dtypes.UINT, b"\x10\0\0\0", "       16", "16"),
        (dtypes.INT64, struct.pack("<q", 321), "              321", "321"),
        (dtypes.UINT64, b"\xff" * 8, "               -1", "-1"),
    ],
)
def test_trace_of_integers(type_: dtypes.IntType, data: bytes, shown: str, quiet: str) -> None:
    made, size = fields(type_)
    clause = ([TraceAction(SPAN, const())], [made], size)
    w = World([clause])
    w.take([chunk(record(0, data))])
    assert w.text() == HEAD + "  0     12                      vfs_read:19 " + shown + "\n"
    w = World([clause], options=QUIET)
    w.take([chunk(record(0, data))])
    assert w.text() == quiet


def test_trace_of_unprintable_bytes_is_a_dump() -> None:
    made, size = fields(STRING)
    w = World([([TraceAction(SPAN, const())], [made], size)], options=QUIET)
    w.take([chunk(record(0, b"a\x01\xfe\0".ljust(32, b"\xcc")))])
    assert w.text() == (
        "\n             0  1  2  3  4  5  6  7  8  9  a  b  c  d  e  f  0123456789abcdef\n"
        "         0: 61 01 fe                                         a..\n"
    )


def test_printf_follows_the_columns_and_two_actions_share_a_row() -> None:
    made, size = fields(dtypes.INT64, dtypes.UINT64)
    actions = [
        PrintfAction(SPAN, format_(part("t=", "d")), (const(),)),
        EvaluateAction(SPAN, const()),
        PrintfAction(SPAN, format_(part(" rsi=", "x", "#")), (const(),)),
    ]
    w = World([(actions, [made[:1], (), made[1:]], size)])
    w.take([chunk(record(0, struct.pack("<qQ", -5, 0xFFFF888003A2B000)))])
    assert w.text() == (
        HEAD + "  0     12                      vfs_read:19 t=-5 rsi=0xffff888003a2b000\n"
    )


def test_printf_of_many_types_when_quiet() -> None:
    w = printf_world(
        [
            part("%d: ", "s"), part(" ", "c"), part(" ", "d"), part(" ", "x"),
            part(" ", "a"), part(" 100", "%"), part("\n"),
        ],
        [STRING, dtypes.CHAR, dtypes.SHORT, dtypes.INT, dtypes.UINT64],
    )  # fmt: skip
    payload = b"dd\0".ljust(32, b"\xee") + b"Z" + b"\0" + struct.pack("<hiQ", -2, -1, 0x40)
    w.take([chunk(record(0, payload))])
    assert w.text() == "%d: dd Z -2 ffffffff vmlinux`f+0x40 100%\n"


def test_dynamic_width_and_precision_come_with_the_record() -> None:
    w = printf_world(
        [part("[", "d", "", "*"), part("] [", "s", "-", "*", "*"), part("]")],
        [dtypes.INT, dtypes.INT, dtypes.INT, dtypes.INT, STRING],
    )
    rows = [(6, 42, 5, 2, b"abc"), (-4, 7, 3, -1, b"abc"), (0, 1, 0, 0, b"q")]
    w.take(
        [chunk(*[record(0, struct.pack("<iiii", *r[:4]) + r[4].ljust(32, b"\0")) for r in rows])]
    )
    assert w.text() == "[    42] [ab   ]" + "[7   ] [abc]" + "[1] [q]"


def test_records_of_two_clauses_and_two_cpus_come_in_order_of_time() -> None:
    made, size = fields(dtypes.INT64)
    clauses: list[tuple[list[Action], list[tuple[Field, ...]], int]] = [
        ([PrintfAction(SPAN, format_(part("a", "d"), part("\n")), (const(),))], [made], size),
        ([PrintfAction(SPAN, format_(part("b\n")), ())], [()], 24),
    ]
    w = World(clauses, options=QUIET)
    zero = [record(0, struct.pack("<q", t), time=t) for t in range(0, 100, 2)]
    one = [record(1, time=t, cpu=1) for t in range(1, 100, 2)]
    assert w.take([chunk(*zero, slot=0), chunk(*one, slot=1)]) == 100
    assert w.text() == "".join(f"a{t}\nb\n" for t in range(0, 100, 2))


def test_a_record_that_is_not_of_this_program_is_told() -> None:
    w = World([([], [], 24)])
    with pytest.raises(TargetError, match="clause 7"):
        w.take([chunk(record(7))])
    with pytest.raises(TargetError, match="clause 0"):
        w.take([chunk(record(0, bytes(8)))])


def test_long_names_push_the_row() -> None:
    probe = Probe(45, ProbeName("kinst", "vmlinux", "x" * 40, "0"))
    w = World([([], [], 24)], probes=(probe,))
    w.take([chunk(record(0, probe=45))])
    assert w.text() == HEAD + "  0     45 " + "x" * 40 + ":0 \n"


def counting_world(actions: list, types: list, options: Options = QUIET) -> World:  # type: ignore[type-arg]
    keys, _ = fields(dtypes.INT)
    key = type(keys[0])(8, 4, dtypes.INT)
    agg = aggregation(0, "sum", (dtypes.INT,))
    made, size = fields(*types)
    per_action = [made if types and i == 0 else () for i in range(len(actions))]
    w = World(
        [(actions, per_action, size)], [(agg, table_layout(agg, 0, 8, [key]))], options=options
    )
    for row, (k, v) in enumerate([(1, 30), (2, 20), (3, 10)]):
        w.entry(0, 0, 0, row, struct.pack("<i", k), [v])
    return w


AGG = aggregation(0, "sum", (dtypes.INT,))
ROWS = format_(part("", "d"), part("=", "d", "@"), part(";"))


def test_printa_sees_what_was_counted_before_it_and_newer_data_after() -> None:
    w = counting_world([PrintaAction(SPAN, ROWS, (AGG,))], [])
    w.take([chunk(record(0))])
    assert w.text() == "3=10;2=20;1=30;"
    half = int.from_bytes(w.memory[HEADER_HALF : HEADER_HALF + 8], "little")
    assert half == 1
    w.entry(0, 1, 1, 0, struct.pack("<i", 3), [100])
    w.out.clear()
    w.take([chunk(record(0))])
    assert w.text() == "2=20;1=30;3=110;"


def test_default_printa_has_an_empty_line_before_and_the_end_of_the_row_after() -> None:
    w = counting_world([PrintaAction(SPAN, None, (AGG,))], [], Options())
    w.take([chunk(record(0))])
    assert w.text() == (
        HEAD + "  0     12                      vfs_read:19 \n"
        "        3               10\n        2               20\n        1               30\n\n"
    )


def test_actions_happen_in_the_order_of_the_clause() -> None:
    actions = [
        NormalizeAction(SPAN, AGG, const(10)),
        PrintaAction(SPAN, ROWS, (AGG,)),
        NormalizeAction(SPAN, AGG, None),
        PrintfAction(SPAN, format_(part("|")), ()),
        ClearAction(SPAN, AGG),
        PrintaAction(SPAN, ROWS, (AGG,)),
    ]
    w = counting_world(actions, [dtypes.UINT64])
    w.take([chunk(record(0, struct.pack("<Q", 10)))])
    assert w.text() == "3=1;2=2;1=3;|1=0;2=0;3=0;"


@pytest.mark.parametrize(
    ("count", "left"), [(2, "2=20;1=30;"), (-2, "3=10;2=20;"), (0, ""), (9, "3=10;2=20;1=30;")]
)
def test_trunc(count: int, left: str) -> None:
    actions = [TruncAction(SPAN, AGG, const()), PrintaAction(SPAN, ROWS, (AGG,))]
    w = counting_world(actions, [dtypes.INT])
    w.take([chunk(record(0, struct.pack("<i", count)))])
    assert w.text() == left


def test_trunc_without_a_count_removes_everything() -> None:
    w = counting_world([TruncAction(SPAN, AGG, None), PrintaAction(SPAN, ROWS, (AGG,))], [])
    w.take([chunk(record(0))])
    w.finish()
    assert w.text() == ""


def test_at_the_end_only_what_was_never_printed_is_printed() -> None:
    w = counting_world([PrintaAction(SPAN, ROWS, (AGG,))], [])
    w.finish()
    assert w.text() == (
        "        3               10\n        2               20\n        1               30\n"
    )
    w = counting_world([PrintaAction(SPAN, ROWS, (AGG,))], [])
    w.take([chunk(record(0))])
    w.out.clear()
    w.finish()
    assert w.text() == ""


def test_finish_takes_both_halves() -> None:
    w = counting_world([], [])
    w.entry(0, 2, 1, 5, struct.pack("<i", 9), [1])
    put64(w.memory, HEADER_HALF, 1)
    w.finish()
    assert w.text().startswith("        9                1\n        3 ")


def test_sort_options() -> None:
    w = counting_world([], [], Options(quiet=True, aggsortkey=True))
    w.finish()
    assert [line.split() for line in w.text().splitlines()] == [
        ["1", "30"], ["2", "20"], ["3", "10"],
    ]  # fmt: skip
    w = counting_world([], [], Options(quiet=True, aggsortrev=True))
    w.finish()
    assert [line.split()[0] for line in w.text().splitlines()] == ["1", "2", "3"]
