"""What --json printed is read back as it was."""

from __future__ import annotations

import json

import pytest

from kinst.errors import KinstError
from kinst.events import Aggregation, Bucket, Frame, Stack
from kinst.render.json import structured
from kinst.views.saved import saved_aggregations

END = '{"type":"end","reason":"exit","status":0}'


def line_of(one: Aggregation) -> str:
    """As docs/json.md has it."""
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
    assert list(saved_aggregations([record, *map(line_of, TABLES), END], "x")) == TABLES


def test_the_last_trace_of_a_file_counts() -> None:
    old = Aggregation("n", "count", (), {(): 1})
    new = Aggregation("n", "count", (), {(): 2})
    gone = Aggregation("gone", "count", (), {(): 2})
    lines = [line_of(old), line_of(gone), END, line_of(old), line_of(new), END]
    assert saved_aggregations(lines, "x") == (new,)


@pytest.mark.parametrize("wrong", ["", "{", "[]", "3", '{"type":"aggregation"}', '{"a":1}'])
def test_other_files_are_told_by_their_line(wrong: str) -> None:
    with pytest.raises(KinstError, match=r"^x:2: not a line that kinst --json prints"):
        saved_aggregations([line_of(TABLES[0]), wrong, END], "x")


@pytest.mark.parametrize("lines", [[], [line_of(TABLES[0])]])
def test_a_trace_that_was_cut_off_is_told(lines: list[str]) -> None:
    with pytest.raises(KinstError, match="not a whole trace"):
        saved_aggregations(lines, "x")
