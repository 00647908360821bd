"""JSON lines: valid by the schema, usable with jq, and with the same content as the text."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable

import jsonschema
import pytest

import kinst
from kinst.core.probe import Probe, ProbeName
from kinst.events import (
    Arrived,
    Bucket,
    Closing,
    End,
    Event,
    Fault,
    Frame,
    Lost,
    Message,
    OptionSet,
    Output,
    Reopen,
    Shell,
    Stack,
    TracingOver,
    Truncate,
)
from kinst.render import Destination, renderer
from kinst.render.json import encoded, structured
from tests import ROOT
from tests.both_formats import SCHEMA, Both, differences, invalid, trace_both

READ = Probe(12, ProbeName("kinst", "vmlinux", "vfs_read", "19"))


def run(program: str, shell: str = "", **options: object) -> Both:
    """Return the output of a program of kinst's own process in both formats."""
    with kinst.host() as machine, machine.trace(program, options=options) as trace:
        return trace_both(trace, shell)


def jq(text: str, expression: str) -> list[str]:
    done = subprocess.run(
        ["jq", "-c", expression], input=text, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_kind_of_event_validates() -> None:
    """Events that no program of this file causes are included; each event except the marks is one
    line."""
    lines: list[str] = []
    with kinst.host() as machine, machine.trace("BEGIN { exit(0); }") as trace:
        shown = renderer("json")(
            Destination(lines.append, lines.append, shell=lambda command, capture: b"done\n"),
            trace.schema,
        )
        list(trace.events())
    events: list[Event] = [
        Lost("record", 3, 1, "dtrace: 3 drops on CPU 1"),
        Lost("dynamic", 1, None, "dtrace: 1 dynamic variable drop"),
        Fault("dtrace: error", 4, READ, 1, "badaddr", 0x10, 0, 77),
        Fault("dtrace: error", 4, READ, 0, "divzero", 0, None, 77),
        Message("kinst: the traced kernel says: \x1b[31mOops"),
        Output("é".encode()[:1]),
        Output("é".encode()[1:] + b"\xff\n"),
        Shell("date"),
        Reopen(""),
        Truncate(),
        OptionSet("quiet", "1"),
        End("gone", 1, "the guest is gone"),
    ]
    for event in [Arrived(1), TracingOver("exit"), Closing(), *events]:
        shown.show(event)
    found = [json.loads(line) for line in "".join(lines).splitlines()]
    assert [invalid(line) for line in found] == [[]] * len(found)
    assert [line["type"] for line in found] == [
        "lost", "lost", "fault", "fault", "message", "output", "system", "freopen", "ftruncate",
        "setopt", "end",
    ]  # fmt: skip
    # A character that came in two pieces is whole, and bytes that are not UTF-8 are kept.
    assert found[5]["text"].encode("utf-8", "surrogateescape") == "é".encode() + b"\xff\n"
    assert found[6] == {"type": "system", "command": "date", "output": "done\n"}
    assert found[2]["address"] == "0x10" and "address" not in found[3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "record"},
        {"type": "message", "text": 5},
        {"type": "message", "text": "", "more": 1},
        {"type": "end", "reason": "tired", "status": 0},
        {"type": "nothing"},
        {
            "type": "aggregation", "name": "", "function": "count", "keys": [], "final": True,
            "rows": [{"key": [], "value": []}],
        },
    ],
)  # fmt: skip
def test_the_schema_refuses(wrong: dict[str, object]) -> None:
    assert invalid(wrong)


def test_values() -> None:
    stack = Stack("kernel", (
        Frame(0xFFFF1, "vmlinux", "deep", 0, "fs/read.c", 7, True),
        Frame(0xFFFF1, "vmlinux", "outer", 17, "fs/read.c", 40),
        Frame(0x10),
    ))  # fmt: skip
    assert structured(stack) == {
        "stack": "kernel",
        "frames": [
            {
                "address": "0xffff1", "module": "vmlinux", "function": "deep",
                "file": "fs/read.c", "line": 7, "inlined": True,
            },
            {
                "address": "0xffff1", "module": "vmlinux", "function": "outer", "offset": 17,
                "file": "fs/read.c", "line": 40,
            },
            {"address": "0x10"},
        ],
    }  # fmt: skip
    assert structured(Stack("user", (), 7)) == {"stack": "user", "pid": 7, "frames": []}
    assert encoded({"a": [1, -(2**63)], "b": b"\x00\xff"}) == (
        '{"a":[1,-9223372036854775808],"b":{"bytes":"00ff"}}'
    )
    assert [encoded(x) for x in (0.5, float("inf"), float("nan"))] == ["0.5", '"inf"', '"nan"']
    assert structured(Bucket(None, 5, 2)) == {"low": None, "high": 5, "count": 2}


STRUCTURE = """
struct part { short low:3; short high:5; char name[8]; };
struct whole { int number; struct part part; uint64_t big[2]; };
struct whole w;
"""


def test_values_of_records_have_their_names_and_types() -> None:
    both = run(
        STRUCTURE
        + """
        this int x; this int *p;
        BEGIN { w.number = -5; w.part.low = -3; w.big[1] = 0xffffffffffffffff; this->x = 7;
                trace(w.number + 1); trace((unsigned char)this->x);
                printf(" "); print(w);
                printf("%d %s %*d\\n", w.number, probename, 5, 6);
                this->p = (int *)alloca(4); *this->p = -5; tracemem(this->p, 4);
                trace("text\\"\\n"); exit(0); }"""
    )
    assert differences(both) == []
    (record,) = both.of_type("record")
    assert record["probe"] == "dtrace:::BEGIN" and (record["cpu"], record["clause"]) == (0, 0)
    assert [(v["name"], v["type"], v["value"]) for v in record["values"]] == [
        ("w.number + 1", "int", -4),
        ("(unsigned char)this->x", "unsigned char", 7),
        ("w", "struct whole", {
            "number": -5, "part": {"low": -3, "high": 0, "name": ""}, "big": [0, 2**64 - 1],
        }),
        ("w.number", "int", -5),
        ("probename", "string", "BEGIN"),
        ("5", "int", 5),
        ("6", "int", 6),
        ("this->p", "<bytes>", {"bytes": "fbffffff"}),
        ('"text\\"\\n"', "string", 'text"\n'),
    ]  # fmt: skip
    assert both.of_type("end") == [{"type": "end", "reason": "exit", "status": 0}]


def test_a_record_is_one_line_wherever_its_actions_act() -> None:
    both = run(
        """BEGIN { trace(1); @a = sum(5); printa(@a); trace(2); clear(@a); system("x %d", 3);
                  trace(4); exit(6); }""",
        "printed\n",
        destructive=True,
    )
    kinds = [line["type"] for line in both.lines]
    assert kinds == ["record", "aggregation", "system", "end"]
    assert [v["value"] for v in both.of_type("record")[0]["values"]] == [1, 2, 4]
    assert both.of_type("system") == [{"type": "system", "command": "x 3", "output": "printed\n"}]
    assert both.of_type("aggregation")[0]["rows"] == [{"key": [], "value": 5}]
    assert not both.of_type("aggregation")[0]["final"]
    assert both.of_type("end")[0]["status"] == 6
    assert differences(both) == []


AGGREGATIONS = """
BEGIN {
    @counts[1, "one"] = count(); @counts[1, "one"] = count(); @counts[-2, "two"] = count();
    @sums["s"] = sum(-7); @lows["s"] = min(-7); @highs["s"] = max(9); @means["s"] = avg(5);
    @means["s"] = avg(8); @spread = stddev(2); @spread = stddev(6);
    @powers["p"] = quantize(0); @powers["p"] = quantize(-5); @powers["p"] = quantize(1000, 3);
    @linear = lquantize(-1, 0, 100, 10); @linear = lquantize(55, 0, 100, 10);
    @linear = lquantize(100, 0, 100, 10);
    @log = llquantize(3, 10, 1, 3, 10); @log = llquantize(150, 10, 1, 3, 10);
    @log = llquantize(5000, 10, 1, 3, 10); @log = llquantize(99999, 10, 1, 3, 10);
    exit(0);
}"""


def test_aggregations() -> None:
    both = run(AGGREGATIONS)
    assert differences(both) == []
    made = {line["name"]: line for line in both.of_type("aggregation")}
    assert all(line["final"] for line in made.values())
    assert made["counts"]["keys"] == ["int", "string"]
    assert made["counts"]["rows"] == [
        {"key": [-2, "two"], "value": 1}, {"key": [1, "one"], "value": 2},
    ]  # fmt: skip
    scalars = {
        name: made[name]["rows"][0]["value"]
        for name in ("sums", "lows", "highs", "means", "spread")
    }
    assert scalars == {"sums": -7, "lows": -7, "highs": 9, "means": 6, "spread": 2}
    assert made["powers"]["rows"][0]["value"] == [
        {"low": -7, "high": -3, "count": 1},
        {"low": 0, "high": 1, "count": 1},
        {"low": 512, "high": 1024, "count": 3},
    ]
    assert made["linear"]["rows"][0]["value"] == [
        {"low": None, "high": 0, "count": 1},
        {"low": 50, "high": 60, "count": 1},
        {"low": 100, "high": None, "count": 1},
    ]
    assert made["log"]["rows"][0]["value"] == [
        {"low": None, "high": 10, "count": 1},
        {"low": 100, "high": 200, "count": 1},
        {"low": 5000, "high": 6000, "count": 1},
        {"low": 10000, "high": None, "count": 1},
    ]


def test_rows_are_normalized_sorted_and_cut_as_the_text() -> None:
    both = run(
        """#pragma D option aggsortrev
        BEGIN { @a["x"] = sum(100); @a["y"] = sum(300); @a["z"] = sum(200); normalize(@a, 10);
                trunc(@a, 2); exit(0); }"""
    )
    assert differences(both) == []
    (made,) = both.of_type("aggregation")
    assert [(row["key"], row["value"]) for row in made["rows"]] == [(["y"], 30), (["z"], 20)]


def test_faults_and_messages_stand_where_they_happened() -> None:
    both = run(
        """BEGIN { trace(1); } BEGIN { trace(*(int *)16); } BEGIN { trace(2); setopt("nothing");
        setopt("quiet"); printf(" %d", 3); exit(0); }""",
        destructive=True,
    )
    assert [line["type"] for line in both.lines] == [
        "record", "fault", "record", "message", "setopt", "end",
    ]  # fmt: skip
    (fault,) = both.of_type("fault")
    assert (fault["kind"], fault["address"], fault["action"]) == ("badaddr", "0x10", 1)
    assert fault["probe"] == "dtrace:::BEGIN" and fault["epid"] == 2 and fault["cpu"] is None
    assert differences(both) == []


def test_what_speculations_forget_is_no_line() -> None:
    both = run(
        """BEGIN { self->a = speculation(); } BEGIN { speculate(self->a); trace(1); }
        BEGIN { commit(self->a); } BEGIN { self->b = speculation(); }
        BEGIN { speculate(self->b); trace(2); } BEGIN { discard(self->b); exit(0); }""",
        nspec=2,
    )
    assert [[v["value"] for v in line["values"]] for line in both.of_type("record")] == [[1], []]
    assert differences(both) == []


def test_timers_and_many_records() -> None:
    both = run(
        'tick-1ms { trace(timestamp); printf(" %d\\n", ++n); } tick-1ms /n == 50/ { exit(0); }'
    )
    records = [line for line in both.of_type("record") if line["values"]]
    assert [line["values"][1]["value"] for line in records] == [*range(1, 51)]
    assert all(line["values"][0]["value"] == line["time"] for line in records)
    assert differences(both) == []


def test_jq_reads_the_lines() -> None:
    both = run(AGGREGATIONS)
    assert jq(both.json, 'select(.type == "aggregation") | .name') == [
        f'"{name}"'
        for name in (
            "counts",
            "sums",
            "lows",
            "highs",
            "means",
            "spread",
            "powers",
            "linear",
            "log",
        )
    ]
    assert jq(both.json, 'select(.name == "counts") | .rows[] | [.key[1], .value]') == [
        '["two",1]', '["one",2]',
    ]  # fmt: skip
    assert jq(both.json, 'select(.name == "powers") | .rows[0].value | map(.count) | add') == ["5"]


@pytest.fixture
def unusual() -> Callable[[str], Both]:
    """Return text with bytes that are not UTF-8."""

    def made(bytes_: str) -> Both:
        return run(f'BEGIN {{ printf("%s", "{bytes_}"); @["{bytes_}"] = count(); exit(0); }}')

    return made


def test_bytes_that_are_no_text_survive(unusual: Callable[[str], Both]) -> None:
    both = unusual("\\377a\\001")
    assert both.json.isascii()
    value = both.of_type("record")[0]["values"][0]["value"]
    assert value.encode("utf-8", "surrogateescape") == b"\xffa\x01"
    assert both.of_type("aggregation")[0]["rows"][0]["key"] == [value]


DOCUMENT = (ROOT / "docs/json.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT, re.M | re.S)


def test_lines_in_the_document_are_valid() -> None:
    lines = [json.loads(line) for block in blocks("json") for line in block.splitlines()]
    assert [invalid(line) for line in lines] == [[]] * len(lines)
    assert len(lines) >= 10 and {line["type"] for line in lines} <= documented()


def documented() -> set[str]:
    """Return the types of lines that the document explains."""
    heads = re.findall(r"^## (\w+)$", DOCUMENT, re.M)
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", DOCUMENT, re.M)
    return {*heads, *(name for row in rows for name in re.findall(r"`(\w+)`", row))}


def test_the_document_explains_what_the_schema_has() -> None:
    definitions = SCHEMA["$defs"]
    kinds = {name for name, one in definitions.items() if "type" in one.get("properties", {})}
    assert kinds - {"value"} <= documented()
    for name in kinds - {"value"}:
        for member in definitions[name]["properties"]:
            assert f"`{member}`" in DOCUMENT, f"{name}.{member}"
        for values in (v["enum"] for v in definitions[name]["properties"].values() if "enum" in v):
            assert all(f"`{value}`" in DOCUMENT for value in values), name


def test_the_program_in_the_document_prints_what_it_says() -> None:
    (program,) = blocks("d")
    (said,) = (block for block in blocks("json") if '"here"' in block)
    assert masked(run(program).json) == masked(said)


def masked(lines: str) -> str:
    return re.sub(r'"time":\d+', '"time":0', lines)
