"""Render one trace in both output formats, and check that they agree.

Every event goes to a text renderer and to a JSON renderer, so both see the same bytes of the same
buffers: a difference is a fault of one of the renderers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import jsonschema

from kinst.dlang.typed import PrintaAction, PrintfAction
from kinst.events import Batch, Event, OptionSet, Printed
from kinst.render import Destination, renderer

Line = dict[str, Any]
SCHEMA = json.loads(files("kinst.render").joinpath("json.schema.json").read_text())
_VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

# Conversions of printf that may show a number in another form.
OPAQUE = frozenset(("c", "C", "wc", "ws", "S", "Y", "T", "a", "A", "k", "e", "E", "f", "g", "G"))


def invalid(line: Line) -> list[str]:
    """Return the schema's complaint about a line."""
    return [error.message for error in _VALIDATOR.iter_errors(line)]


@dataclass
class Shown:
    """Output of one event: text and lines of JSON."""

    event: Event
    text: str
    lines: list[Line]


@dataclass
class Both:
    """All events of a trace, in both formats.

    Attributes:
        json: the lines as they were written.
    """

    schema: Any
    json: str = ""
    shown: list[Shown] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(one.text for one in self.shown)

    @property
    def lines(self) -> list[Line]:
        return [line for one in self.shown for line in one.lines]

    def of_type(self, type_: str) -> list[Line]:
        return [line for line in self.lines if line["type"] == type_]


def trace_both(trace: Any, shell: str = "") -> Both:
    """Trace to the end.

    Args:
        shell: returns what commands of system() print.
    """
    text, said, lines = list[str](), list[str](), list[str]()
    both = Both(trace.schema)

    def run(command: str, capture: bool) -> bytes:
        return shell.encode()

    made = [
        renderer("dtrace")(Destination(text.append, said.append, text.append), trace.schema),
        renderer("json")(Destination(lines.append, said.append, shell=run), trace.schema),
    ]
    for event in trace.events():
        text.clear()
        lines.clear()
        for one in made:
            one.show(event)
        written = "".join(lines)
        both.json += written
        both.shown.append(
            Shown(event, "".join(text), [json.loads(line) for line in written.splitlines()])
        )
    return both


# --- Do both formats agree? -----------------------------------------------------------------


def forms(value: int) -> Iterator[str]:
    """Return all forms in which text may show a number: signed or unsigned, in the width of its
    type, in any base of printf's."""
    for bits in (8, 16, 32, 64):
        unsigned = value & (1 << bits) - 1
        signed = unsigned - (1 << bits) if unsigned >> (bits - 1) else unsigned
        if value in (unsigned, signed):
            yield from (str(signed), str(unsigned), f"{unsigned:x}", f"{unsigned:o}")
    yield str(value)


def place_of(value: int | str, text: str, start: int) -> int:
    """Return where the first of these forms ends in text, at or after `start`; -1 if there is
    none."""
    if isinstance(value, str):
        at = text.find(value, start)
        return at + len(value) if at >= 0 else -1
    ends = []
    for form in set(forms(value)):
        found = re.compile(rf"(?<![\w-])(0x0*|0*)?{re.escape(form)}(?!\w)", re.I).search(
            text, start
        )
        if found:
            ends.append(found.end())
    return min(ends, default=-1)


def unsaid(values: Iterable[int | str], text: str) -> list[int | str]:
    """Return the values that do not appear in this order in text."""
    missing, at = [], 0
    for value in values:
        end = place_of(value, text, at)
        if end < 0:
            missing.append(value)
        else:
            at = end
    return missing


def _shown_values(both: Both, line: Line) -> Iterator[int | str]:
    """Return the values of a record that text shows as numbers or strings."""
    clause = both.schema.program.clauses[line["clause"]]
    conversions: list[str] = []
    for action in clause.actions:
        if isinstance(action, PrintfAction):
            for part in action.format.parts:
                stars = [part.width, part.precision].count("*")
                # A width is not shown as text, and a precision may cut text.
                conversions += ["k"] * stars
                if part.conversion and part.conversion != "%":
                    conversions.append("k" if stars or part.precision else part.conversion)
        elif type(action).__name__ in ("TraceAction", "PrintAction"):
            conversions.append("" if type(action).__name__ == "TraceAction" else "k")
        elif type(action).__name__ == "PerformAction" and action.name == "tracemem":
            conversions.append("k")
    assert len(conversions) == len(line["values"]), (conversions, line)
    for conversion, one in zip(conversions, line["values"], strict=True):
        value = one["value"]
        if conversion in OPAQUE:
            continue
        if isinstance(value, int):
            yield value
        elif isinstance(value, str) and value.isprintable():
            yield value.strip()


def _bucket_said(bucket: Line, function: str, text: str) -> bool:
    low, high, count = bucket["low"], bucket["high"], bucket["count"]
    if low is None:
        label = f"< {high}" if function != "quantize" else str(high - 1)
    elif high is None:
        label = f">= {low}" if function != "quantize" else str(low)
    else:
        label = str(low if function != "quantize" or low >= 0 else high - 1)
    return re.search(rf"^ *{label} [^\w\n]*{count} *$", text, re.M) is not None


def _aggregation_unsaid(both: Both, event: Printed, line: Line, text: str) -> list[object]:
    distribution = line["function"] in ("quantize", "lquantize", "llquantize")
    rows = line["rows"]
    if distribution:
        return [
            bucket
            for row in rows
            for bucket in row["value"]
            if not _bucket_said(bucket, line["function"], text)
        ]
    values: list[int | str] = [row["value"] for row in rows]
    format_ = None
    if event.action >= 0:
        action = both.schema.program.clauses[event.clause].actions[event.action]
        assert isinstance(action, PrintaAction)
        format_ = action.format
    if format_ is not None and not any("@" in p.conversion + p.flags for p in format_.parts):
        return []
    if len(event.tables) > 1 or format_ is not None:  # joined rows are in another order
        return [value for value in values if place_of(value, text, 0) < 0]
    missing: list[object] = list(unsaid(values, text))
    for row in rows:
        texts = [part for part in row["key"] if isinstance(part, str) and part.isprintable()]
        missing += unsaid([*texts, row["value"]], text)
    return missing


def differences(both: Both) -> list[str]:
    """Return values of the JSON that are missing from text, and lines that do not match the
    schema."""
    wrong = [f"{line}: {told}" for line in both.lines for told in invalid(line)]
    records = [one for one in both.shown if isinstance(one.event, Batch)]
    values: list[int | str] = []
    for one in records:
        assert one.event.part == 0 or not one.lines
        for line in one.lines:
            values += _shown_values(both, line)
    text = "".join(one.text for one in records)
    wrong += [f"not in the text of the records: {value!r}" for value in unsaid(values, text)]
    packed = both.schema.options.agghist or both.schema.options.aggpack
    for one in both.shown:
        if isinstance(one.event, OptionSet):
            packed = packed or one.event.name in ("agghist", "aggpack")
        if isinstance(one.event, Printed):
            assert len(one.lines) == len(one.event.tables)
            for line in one.lines if not packed else ():
                wrong += [
                    f"not in the text of @{line['name']}: {value}"
                    for value in _aggregation_unsaid(both, one.event, line, one.text)
                ]
    return wrong
