"""The renderer for JSON lines: a JSON object on a line for each event (docs/json.md, and
json.schema.json in this folder).

Records are formatted in bulk, directly from their bytes (kinst.consumer). Each clause has a
%-template with the constant parts of its lines, so that only values are formatted for each
record."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Callable, Mapping, Sequence

from kinst.consumer.columns import bytes_of, strings_of, values_of
from kinst.consumer.convert import text
from kinst.consumer.decode import in_order
from kinst.consumer.printf import Column, RowTemplate, TemplateBuilder
from kinst.consumer.rings import Bytes
from kinst.consumer.schema import Schema
from kinst.consumer.symbols import FrameFinder
from kinst.consumer.values import TIME, ValueField, aggregation_of, value_fields
from kinst.core.dtypes import IntType, PointerType, StackType, StringType
from kinst.core.layout import RECORD_PROBE
from kinst.core.records import Field
from kinst.dlang.typed import is_signed
from kinst.events import (
    Aggregation,
    Batch,
    Bucket,
    End,
    Event,
    Fault,
    Frame,
    KeyPart,
    Lost,
    Message,
    OptionSet,
    Output,
    Printed,
    Reopen,
    Shell,
    Stack,
    Truncate,
)
from kinst.render import Destination

STACKS_KEPT = 1 << 16  # encoded stacks in the cache
_string = json.encoder.encode_basestring_ascii
_PROBE_AND_CPU = Field(RECORD_PROBE, 8, StringType())


# --- Values ---------------------------------------------------------------------------------


def encoded(value: object) -> str:
    """Return a value of an event as JSON text."""
    return json.dumps(structured(value), separators=(",", ":"), allow_nan=False)


def structured(value: object) -> object:
    """Return a value of an event as types that json.dumps() accepts."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, Stack):
        members: dict[str, object] = {"stack": value.kind}
        if value.kind == "user":
            members["pid"] = value.pid
        return members | {"frames": [structured(frame) for frame in value.frames]}
    if isinstance(value, Frame):
        return _frame(value)
    if isinstance(value, Bucket):
        return {"low": value.low, "high": value.high, "count": value.count}
    if isinstance(value, Mapping):
        return {str(name): structured(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [structured(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value


def _frame(frame: Frame) -> dict[str, object]:
    """Return a frame as a JSON object with the members that are known."""
    members: dict[str, object] = {"address": f"{frame.address:#x}"}
    if frame.module:
        members["module"] = frame.module
    if frame.function:
        members["function"] = frame.function
        if not frame.inlined:
            members["offset"] = frame.offset
    if frame.file:
        members["file"] = frame.file
        members["line"] = frame.line
    if frame.inlined:
        members["inlined"] = True
    return members


def _key(part: KeyPart) -> object:
    return structured(part)


# --- Records --------------------------------------------------------------------------------


def _value_column(recorded: ValueField, frames: FrameFinder) -> tuple[str, Column]:
    """Return how to format one of a record's values, as (directive, function). The %-directive is
    "%d" or "%s". The function gets many records, and returns for each the value to format.
    """
    field, type_ = recorded.field, recorded.field.type
    if isinstance(type_, IntType | PointerType) and type_.size == field.size:
        signed = is_signed(type_)
        return "%d", lambda rows: values_of(rows, field, signed)
    if isinstance(type_, StringType):
        return "%s", lambda rows: [_string(text(value)) for value in strings_of(rows, field)]
    if isinstance(type_, StackType):
        return "%s", _stack_column(field, type_, frames)
    read = recorded.read
    return "%s", lambda rows: [encoded(value) for value in read(rows)]


def _stack_column(field: Field, type_: StackType, frames: FrameFinder) -> Column:
    """Return a function that formats the stacks of many records as JSON. It encodes each different
    stack once, since stacks repeat."""
    cache: dict[bytes, str] = {}

    def one(value: bytes) -> str:
        text_of = cache.get(value)
        if text_of is None:
            if len(cache) >= STACKS_KEPT:
                cache.clear()
            text_of = cache[value] = encoded(frames.stack(value, type_))
        return text_of

    return lambda rows: [one(value) for value in bytes_of(rows, field)]


def record_template(
    clause: int,
    fields: Sequence[ValueField],
    frames: FrameFinder,
    prefix: Callable[[int], str],
) -> RowTemplate:
    """Return the template of the lines for a clause's records.

    Args:
        clause: index of the clause.
        fields: the values of a record.
        frames: finds the names of addresses.
        prefix: returns the start of a line, up to the value of the record's time. Its argument is
            the u64 in the record's header that has the probe id and the CPU.
    """
    out = TemplateBuilder()
    out.column("%s", lambda rows: [prefix(v) for v in values_of(rows, _PROBE_AND_CPU, False)])
    out.column("%d", lambda rows: values_of(rows, TIME, False))
    out.literal(f',"clause":{clause},"values":[')
    for number, one in enumerate(fields):
        name, type_ = _string(one.name), _string(str(one.field.type))
        out.literal(f'{"," if number else ""}{{"name":{name},"type":{type_},"value":')
        out.column(*_value_column(one, frames))
        out.literal("}")
    out.literal("]}\n")
    template = out.built()
    assert template is not None
    return template


# --- Lines ----------------------------------------------------------------------------------


class JsonLines:
    """A renderer that writes a line of JSON for every event. The events Arrived, TracingOver and
    Closing, which only tell how far the trace has come, get no line."""

    def __init__(self, destination: Destination, schema: Schema) -> None:
        self._write = destination.write
        self._shell = destination.shell
        self._traced = {name: text for name, text in destination.traced.items() if text}
        self._schema = schema
        self._options = schema.options
        self._frames = FrameFinder(schema.names)
        self._sizes = {layout.clause: layout.size for _, layout in schema.clauses()}
        self._clauses = {clause.index: (clause, layout) for clause, layout in schema.clauses()}
        self._templates: dict[int, RowTemplate] = {}
        self._prefixes: dict[int, str] = {}
        # The command's output comes in pieces, which may end inside a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def show(self, event: Event) -> None:
        match event:
            case Batch():
                if event.part == 0:
                    self._write("".join(in_order(event, self._sizes, self._rendered)))
            case Printed():
                for index in event.tables:
                    table = self._schema.tables[index]
                    table_values = aggregation_of(table, self._options, self._frames)
                    self._aggregation(table_values, final=event.action < 0)
            case Lost():
                self._line("lost", kind=event.kind, count=event.count, cpu=event.cpu,
                           text=event.text)  # fmt: skip
            case Fault():
                self._fault(event)
            case Message():
                kind: dict[str, object] = {"kind": event.kind} if event.kind else {}
                self._line("message", text=event.text, **kind)
            case Output():
                self._output(event.data)
            case Shell():
                printed = self._shell(event.command, True)
                self._line("system", command=event.command, output=text(printed))
            case Reopen():
                self._line("freopen", path=event.path)
            case Truncate():
                self._line("ftruncate")
            case OptionSet():
                self._options = self._options.with_option(event.name, event.value)
                self._line("setopt", name=event.name, value=event.value)
            case End():
                self._output(b"", final=True)
                error: dict[str, object] = {"error": event.error} if event.error else {}
                self._line("end", reason=event.reason, status=event.status, **error, **self._traced)

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _line(self, type_: str, **members: object) -> None:
        self._write(encoded({"type": type_, **members}) + "\n")

    def _prefix(self, probe_and_cpu: int) -> str:
        prefix = self._prefixes.get(probe_and_cpu)
        if prefix is None:
            identifier, cpu = probe_and_cpu & 0xFFFFFFFF, probe_and_cpu >> 32
            name = _string(str(self._schema.probes[identifier].name))
            prefix = f'{{"type":"record","probe":{name},"id":{identifier},"cpu":{cpu},"time":'
            self._prefixes[probe_and_cpu] = prefix
        return prefix

    def _rendered(self, clause: int, rows: Bytes) -> list[str]:
        template = self._templates.get(clause)
        if template is None:
            fields = value_fields(*self._clauses[clause], self._frames)
            template = record_template(clause, fields, self._frames, self._prefix)
            self._templates[clause] = template
        return template.render(rows)

    def _aggregation(self, made: Aggregation, final: bool) -> None:
        rows = [
            {"key": [_key(part) for part in key], "value": structured(value)}
            for key, value in made.rows.items()
        ]
        described: dict[str, object] = {"expression": made.expression, "unit": made.unit}
        described = {name: value for name, value in described.items() if value}
        if made.key_names:
            described["key_names"] = list(made.key_names)
        self._line(
            "aggregation", name=made.name, function=made.function, keys=list(made.keys),
            **described, final=final, rows=rows,
        )  # fmt: skip

    def _fault(self, event: Fault) -> None:
        address: dict[str, object] = {}
        if event.kind in ("badaddr", "badalign"):
            address["address"] = f"{event.value:#x}"
        self._line(
            "fault", kind=event.kind, **address, probe=str(event.probe.name), id=event.probe.id,
            epid=event.epid, action=event.action, cpu=event.cpu, time=event.time_ns,
            text=event.text,
        )  # fmt: skip

    def _output(self, data: bytes, final: bool = False) -> None:
        if decoded := self._decoder.decode(data, final):
            self._line("output", text=decoded)


RENDERER = JsonLines
LINES = True
