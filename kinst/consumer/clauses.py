"""Clauses compiled for printing: what text their records make.

A clause becomes steps.  A Text step is a Python %-template with one column of values for each
directive, so that a block of records of one clause is formatted by a handful of bulk
operations; any other step is an action on aggregations, or exit, that has to happen between
the texts of two records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kinst.consumer.convert import Spec, Symbolise, Value, fixed, stack, text
from kinst.consumer.printtype import print_value
from kinst.consumer.rings import Bytes
from kinst.consumer.stacks import NO_NAMES, Names, is_address_data
from kinst.core.dtypes import ArrayType, DType, FloatType, StringType, StructType
from kinst.core.layout import RECORD_PROBE
from kinst.core.records import ClauseLayout, Field
from kinst.dlang.typed import (
    Action,
    Aggregate,
    Chill,
    Clause,
    Evaluate,
    FormatPart,
    Perform,
    Print,
    Printf,
    Trace,
    is_signed,
)

Column = Callable[[Bytes], list[object]]

STRING_WIDTH = 33  # of a traced string, left-aligned
INTEGER_WIDTH = {1: 3, 2: 5, 4: 8, 8: 16}  # of a traced integer, by size


@dataclass(frozen=True, slots=True)
class TraceStyle:
    """quiet: values alone.  raw: strings as bytes too."""

    quiet: bool
    raw: bool
    symbolise: Symbolise
    names: Names = NO_NAMES
    flow: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """template % one value of every column, for each record."""

    template: str
    columns: tuple[Column, ...]

    def render(self, rows: Bytes) -> list[str]:
        """The text of each row (rows: n records, one a row)."""
        if not self.columns:
            return [self.template % ()] * len(rows)
        if len(self.columns) == 1:
            # A tuple is what % wants, also where the value is one.
            return [self.template % (value,) for value in self.columns[0](rows)]
        values = zip(*[column(rows) for column in self.columns], strict=True)
        return list(map(self.template.__mod__, values))


@dataclass(frozen=True, slots=True)
class Act:
    """An action that is more than text, with its fields."""

    action: Action
    fields: tuple[Field, ...]
    text: Text | None = None  # of system() and freopen()


Step = Text | Act


def values_of(rows: Bytes, field: Field, signed: bool) -> list[int]:
    """An integer field of every row."""
    part = np.ascontiguousarray(rows[:, field.offset : field.offset + field.size])
    result: list[int] = part.view(f"<{'i' if signed else 'u'}{field.size}").ravel().tolist()
    return result


def bytes_of(rows: Bytes, field: Field) -> list[bytes]:
    """A field of every row as its bytes, all of them."""
    part = np.ascontiguousarray(rows[:, field.offset : field.offset + field.size])
    blob, size = part.tobytes(), field.size
    return [blob[i : i + size] for i in range(0, len(blob), size)]


def strings_of(rows: Bytes, field: Field) -> list[bytes]:
    """A string field of every row, up to its NUL (what follows it is not part of it)."""
    return [value.partition(b"\0")[0] for value in bytes_of(rows, field)]


def is_string(field: Field) -> bool:
    return isinstance(field.type, StringType)


def value_of(row: Bytes, field: Field) -> Value:
    """A field of one record (row: 1 by size)."""
    if is_string(field):
        return strings_of(row, field)[0]
    return values_of(row, field, is_signed(field.type))[0]


def printable(value: bytes) -> bool:
    """Whether trace() shows bytes as text."""
    # isprint(3) or isspace(3) in the C locale, backspace, bell.
    return all(0x20 <= c <= 0x7E or 0x07 <= c <= 0x0D for c in value)


def dump(value: bytes) -> str:
    """Bytes that are not text, as trace() shows them: 16 a line in hexadecimal and ASCII."""
    digits = "0123456789abcdef"
    lines = ["\n" + " " * 11 + "".join(f"  {d}" for d in digits) + f"  {digits}\n"]
    for at in range(0, len(value), 16):
        line = value[at : at + 16]
        hexes = "".join(f" {c:02x}" for c in line).ljust(48)
        shown = "".join(chr(c) if 0x20 <= c <= 0x7E else "." for c in line)
        lines.append(f"     {at:5x}:{hexes}  {shown}\n")
    return "".join(lines)


def traced_string(value: bytes, width: int, quiet: bool, raw: bool) -> str:
    """A string as trace() and the keys of an aggregation show it, width columns wide."""
    if raw or not printable(value):
        return dump(value)
    return text(value) if quiet else f"  {text(value):<{width}}"


def traced_signed(size: int) -> bool:
    """trace() shows 8 and 4 bytes as signed, fewer as unsigned, whatever their type."""
    return size >= 4


class _Template:
    """Joins text and conversions into Text steps."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._columns: list[Column] = []
        self.steps: list[Step] = []

    def literal(self, value: str) -> None:
        self._parts.append(value.replace("%", "%%"))

    def column(self, directive: str, column: Column) -> None:
        self._parts.append(directive)
        self._columns.append(column)

    def act(self, act: Act) -> None:
        self.flush()
        self.steps.append(act)

    def flush(self) -> None:
        if self._parts:
            self.steps.append(Text("".join(self._parts), tuple(self._columns)))
            self._parts, self._columns = [], []


def _mapped(
    column: Callable[[Bytes], Iterable[Value]], prepare: Callable[[Value], object]
) -> Column:
    return lambda rows: [prepare(value) for value in column(rows)]


def _raw_column(field: Field, conversion: str) -> Callable[[Bytes], list[Value]]:
    if conversion in ("k", "ws"):
        return lambda rows: list(bytes_of(rows, field))
    if is_string(field):
        return lambda rows: list(strings_of(rows, field))
    signed = is_signed(field.type) and conversion in "dicC"
    return lambda rows: list[Value](values_of(rows, field, signed))


def _dynamic(part: FormatPart, stars: Sequence[Field], field: Field, style: TraceStyle) -> Column:
    """A conversion whose width or precision comes with each record."""
    raw = _raw_column(field, part.conversion)
    signed = is_signed(field.type)

    def column(rows: Bytes) -> list[object]:
        given = [values_of(rows, star, True) for star in stars]
        made: list[object] = []
        for i, value in enumerate(raw(rows)):
            numbers = iter([g[i] for g in given])
            width = next(numbers) if part.width == "*" else fixed(part.width, part.flags)
            precision = next(numbers) if part.precision == "*" else fixed(part.precision, "")
            if precision is not None and precision < 0:
                precision = None  # as if it were not there (printf(3))
            spec = Spec(part.conversion, part.flags, width, precision, signed)
            made.append(spec.format(value, style.symbolise))
        return made

    return column


def _printf(out: _Template, action: Printf, fields: Sequence[Field], style: TraceStyle) -> None:
    left = iter(fields)
    for part in action.format.parts:
        out.literal(text(part.literal))
        if not part.conversion:
            continue
        if part.conversion == "%":
            out.literal("%")
            continue
        stars = [next(left) for star in (part.width, part.precision) if star == "*"]
        field = next(left)
        if part.conversion == "k":
            width = fixed(part.width, part.flags) or 0
            indent = width if "-" in part.flags else 0
            out.column(
                "%s",
                _mapped(
                    _raw_column(field, "k"),
                    lambda v, indent=indent: stack(v, indent, style.symbolise),  # type: ignore[misc]
                ),
            )
        elif stars:
            out.column("%s", _dynamic(part, stars, field, style))
        else:
            spec = Spec(
                part.conversion, part.flags, fixed(part.width, part.flags),
                fixed(part.precision, ""), is_signed(field.type),
            )  # fmt: skip
            directive, prepare = spec.compile(style.symbolise)
            raw = _raw_column(field, part.conversion)
            out.column(directive, _mapped(raw, prepare) if prepare else raw)  # type: ignore[arg-type]


def _print(out: _Template, type_: DType, field: Field, style: TraceStyle) -> None:
    out.column(
        "%s", lambda rows: [print_value(type_, v, style.symbolise) for v in bytes_of(rows, field)]
    )


def traced_bytes(value: bytes, quiet: bool, raw: bool, width: int = STRING_WIDTH) -> str:
    """A structure or array as trace() shows it: as text when it is nothing else up to NULs."""
    text, _, rest = value.partition(b"\0")
    if text and not raw and printable(text) and not rest.strip(b"\0"):
        return traced_string(text, width, quiet, raw)
    return dump(value)


def _trace(out: _Template, field: Field, style: TraceStyle) -> None:
    if isinstance(field.type, StructType | ArrayType | FloatType) and (
        field.size not in INTEGER_WIDTH
    ):
        out.column(
            "%s",
            lambda rows: [traced_bytes(v, style.quiet, style.raw) for v in bytes_of(rows, field)],
        )
        return
    if is_address_data(field):
        out.column(
            "%s", lambda rows: [style.names.data(v, field.type) for v in bytes_of(rows, field)]
        )
        return
    if is_string(field):
        out.column(
            "%s",
            lambda rows: [
                traced_string(v, STRING_WIDTH, style.quiet, style.raw)
                for v in strings_of(rows, field)
            ],
        )
        return
    signed = traced_signed(field.size)
    width = INTEGER_WIDTH[field.size]
    out.column(
        "%d" if style.quiet else f" %{width}d",
        lambda rows: list[object](values_of(rows, field, signed)),
    )


def _perform(out: _Template, action: Perform, fields: tuple[Field, ...], style: TraceStyle) -> None:
    """Actions of the consumer's side."""
    if action.name == "tracemem":
        out.column("%s", _dumped(fields))
        return
    text: Text | None = None
    if action.format is not None:
        command = _Template()
        _printf(command, Printf(action.span, action.format, action.args), fields, style)
        command.flush()
        text = command.steps[0] if command.steps else Text("", ())  # type: ignore[assignment]
    out.act(Act(action, fields, text))


def _dumped(fields: tuple[Field, ...]) -> Column:
    """tracemem(): the dump of the first field, or of as much of it as the second says."""
    memory = fields[0]

    def column(rows: Bytes) -> list[object]:
        sizes = values_of(rows, fields[1], True) if len(fields) > 1 else [memory.size] * len(rows)
        return [
            dump(value[:size] if size >= 0 else value)
            for value, size in zip(bytes_of(rows, memory), sizes, strict=True)
        ]

    return column


def is_silent(clause: Clause) -> bool:
    """Whether its records are only about speculations, and show no row of their own."""
    performed = [a for a in clause.actions if not isinstance(a, Evaluate | Aggregate | Chill)]
    return bool(performed) and all(
        isinstance(a, Perform) and a.name in ("commit", "discard") for a in performed
    )


def compile_clause(
    clause: Clause,
    layout: ClauseLayout,
    style: TraceStyle,
    prefix: Callable[[int], str],
) -> tuple[Step, ...]:
    """Steps that print a record of this clause.

    prefix: the first columns of a row, by the u64 that is probe id and CPU (RECORD_PROBE and
    RECORD_CPU); not asked in quiet mode.
    """
    out = _Template()
    silent = is_silent(clause)
    if not silent and (style.flow or not style.quiet):
        probe_and_cpu = Field(RECORD_PROBE, 8, StringType())
        out.column("%s", lambda rows: [prefix(v) for v in values_of(rows, probe_and_cpu, False)])
    for action, fields in zip(clause.actions, layout.fields, strict=True):
        if isinstance(action, Evaluate | Aggregate | Chill):
            continue
        if isinstance(action, Printf):
            _printf(out, action, fields, style)
        elif isinstance(action, Print):
            _print(out, action.expr.type, fields[0], style)
        elif isinstance(action, Perform):
            _perform(out, action, fields, style)
        elif isinstance(action, Trace):
            _trace(out, fields[0], style)
        else:
            out.act(Act(action, fields))
    if not silent and not style.quiet:
        out.literal("\n")
    out.flush()
    return tuple(out.steps)
