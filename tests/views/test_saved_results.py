"""Output of --json is read back unchanged."""

from __future__ import annotations

import json

import pytest

from kinst.errors import KinstError
from kinst.events import Aggregation, Bucket, Frame, Stack
from kinst.render.json import structured
from kinst.views.saved_results import saved_trace

END = '{"type":"end","reason":"exit","status":0}'


def line_of(one: Aggregation) -> str:
    """Return a line in the format of docs/json.md."""
    rows = [{"key": structured(list(key)), "value": structured(v)} for key, v in one.rows.items()]
    made = {"type": "aggregation", "name": one.name, "function": one.function,
            "keys": list(one.keys), "final": True, "rows": rows}  # fmt: skip
    return json.dumps(made)


STACK = Stack("user", (Frame(0x10, "a.out", "main", 4, "main.c", 3), Frame(0xFF)), 77)
INLINED = Frame(0x20, "vmlinux", "fdget", file="file.h", line=1, inlined=True)
TABLES = [
    Aggregation("n", "count", ("string", "int"), {("cat", -3): 7, ("dog", 2**60): 1}),
    Aggregation("s", "sum", ("stack", "_symaddr", "<bytes>"), {(STACK, INLINED, b"\0\xff"): 2}),
    Aggregation("q", "quantize", (), {(): (Bucket(None, 0, 1), Bucket(4, 8, 2))}),
]


def test_every_kind_of_key_and_value_comes_back() -> None:
    record = '{"type":"record","values":[]}'
    saved = saved_trace([record, *map(line_of, TABLES), END], "x")
    assert list(saved.aggregations) == TABLES
    assert (saved.program, saved.command, saved.kernel) == ("", "", "")


def test_what_was_traced_comes_back() -> None:
    end = END.replace("}", ',"program":"BEGIN","command":"ls -l","kernel":"6.1.0"}')
    line = line_of(TABLES[2]).replace(
        '"final"', '"expression":"timestamp - t","unit":"ns","key_names":["a"],"final"'
    )
    saved = saved_trace([line, end], "x")
    assert (saved.program, saved.command, saved.kernel) == ("BEGIN", "ls -l", "6.1.0")
    (table,) = saved.aggregations
    assert (table.expression, table.unit, table.key_names) == ("timestamp - t", "ns", ("a",))


def test_the_last_trace_of_a_file_counts() -> None:
    old = Aggregation("n", "count", (), {(): 1})
    new = Aggregation("n", "count", (), {(): 2})
    gone = Aggregation("gone", "count", (), {(): 2})
    lines = [line_of(old), line_of(gone), END, line_of(old), line_of(new), END]
    assert saved_trace(lines, "x").aggregations == (new,)


@pytest.mark.parametrize("wrong", ["", "{", "[]", "3", '{"type":"aggregation"}', '{"a":1}'])
def test_other_files_are_told_by_their_line(wrong: str) -> None:
    with pytest.raises(KinstError, match=r"^x:2: not a line that kinst --json prints"):
        saved_trace([line_of(TABLES[0]), wrong, END], "x")


@pytest.mark.parametrize("lines", [[], [line_of(TABLES[0])]])
def test_a_trace_that_was_cut_off_is_told(lines: list[str]) -> None:
    with pytest.raises(KinstError, match="not a whole trace"):
        saved_trace(lines, "x")
