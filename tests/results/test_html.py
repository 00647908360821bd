"""Results in notebooks: their HTML is well-formed, escaped, and has the values with names and
units."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser

import kinst
from kinst.events import Aggregation, Bucket, Frame, Stack
from kinst.results import Table

PROGRAM = """int n;
tick-1ms { self->t = timestamp; @q["<a>"] = quantize(timestamp - self->t);
  @c[cpu, probename] = sum(7); trace(n++); }
tick-1ms /n >= 200/ { exit(3); }
"""


class Tables(HTMLParser):
    """Reads the cells of each table, row by row, and widths of bars; elements must have their
    ends."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.widths: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag == "i":
            self.widths.append(dict(attrs)["style"] or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data


def html_of(one: object) -> str:
    """Return the HTML that a notebook asks for."""
    return str(one._repr_html_())  # type: ignore[attr-defined]


def test_a_distribution_has_bars_and_units() -> None:
    rows = {("<b>",): (Bucket(None, 0, 1), Bucket(1024, 2048, 4)), ("c",): (Bucket(0, 1, 2),)}
    table = Table(
        Aggregation("t", "quantize", ("string",), rows, "timestamp - s", "ns", ("execname",))
    )
    found = Tables(html_of(table))
    assert found.tables == [[
        ["execname", "timestamp - s", "count", ""],
        ["<b>", "< 0", "1", ""],
        ["", "1.02 µs to 2.05 µs", "4", ""],
        ["c", "0 to 1 ns", "2", ""],
    ]]  # fmt: skip
    assert found.widths == ["width:25.0%", "width:100.0%", "width:100.0%"]
    assert "@t: 2 keys" in html_of(table)


def test_values_with_stacks_for_keys() -> None:
    stack = Stack("kernel", (Frame(0x10, "vmlinux", "f", 4), Frame(0x99)))
    table = Table(Aggregation("", "sum", ("stack", "<bytes>"), {(stack, b"\xff"): 12345}, "arg2"))
    assert Tables(html_of(table)).tables == [
        [["key1", "key2", "sum(arg2)"], ["vmlinux`f+0x4\n0x99", "ff", "12,345"]]
    ]


def test_a_long_table_is_cut() -> None:
    table = Table(Aggregation("", "count", ("int",), {(k,): k for k in range(100)}))
    (rows,) = Tables(html_of(table)).tables
    assert len(rows) == 62 and rows[-1] == ["... 40 more"]


def test_a_whole_result() -> None:
    with kinst.host() as machine:
        result = machine.run(PROGRAM)
    text = html_of(result)
    found = Tables(text)
    assert "ended: exit, status 3" in text
    heads = [rows[0] for rows in found.tables]
    assert ["cpu", "probename", "sum(7)"] in heads and ["time", "cpu", "probe", "n++"] in heads
    records = found.tables[heads.index(["time", "cpu", "probe", "n++"])]
    assert records[1][0] == "0" and records[-1] == [f"... {len(result.records) - 60:,} more"]
    assert [row[3] for row in records[1:4]] == ["0", "1", "2"]
    assert text == html_of(result) and html_of(result.records) in text
    assert "<a>" not in text


def test_it_is_loaded_for_notebooks_alone() -> None:
    program = "import sys, kinst.results; sys.exit('kinst.results.html' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
