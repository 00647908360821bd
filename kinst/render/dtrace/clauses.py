"""Templates of dtrace(1)'s text: each clause is compiled to templates that format many of its
records at once.

An action such as printa(), clear() or system() takes effect between the values of a record. So it
divides the record into parts (events.Batch.part): the values before it, and those after it. Each
part has a template.

Tested by tests/render/dtrace/test_renderer.py."""

from __future__ import annotations

from collections.abc import Callable

from kinst.consumer.actions import acts, is_silent
from kinst.consumer.columns import bytes_of, is_string, strings_of, values_of
from kinst.consumer.convert import Symbolise, text
from kinst.consumer.printf import Column, RowTemplate, TemplateBuilder, add_format
from kinst.consumer.rings import Bytes
from kinst.consumer.symbols import is_address_data
from kinst.core.dataclass import dataclass
from kinst.core.dtypes import ArrayType, DType, FloatType, StringType, StructType
from kinst.core.layout import RECORD_PROBE
from kinst.core.records import ClauseLayout, Field
from kinst.dlang.typed import Clause, PerformAction, PrintAction, PrintfAction, TraceAction
from kinst.render.dtrace.printtype import print_value
from kinst.render.dtrace.symbols import SymbolText

STRING_WIDTH = 33  # columns of a traced string, left-aligned
INTEGER_WIDTH = {1: 3, 2: 5, 4: 8, 8: 16}  # columns of a traced integer, by size in bytes


@dataclass(frozen=True, slots=True)
class TraceStyle:
    """How records are shown.

    Attributes:
        quiet: whether only the values are shown (-q).
        raw: whether strings are shown as bytes (rawbytes).
        symbolise: returns the name of an address.
        names: formats stacks and symbols.
        flow: whether rows are indented by function (flowindent).
    """

    quiet: bool
    raw: bool
    symbolise: Symbolise
    names: SymbolText
    flow: bool = False


def printable(value: bytes) -> bool:
    """Return whether trace() shows these bytes as text."""
    # isprint(3) or isspace(3) in the C locale, backspace or bell.
    return all(0x20 <= c <= 0x7E or 0x07 <= c <= 0x0D for c in value)


def dump(value: bytes) -> str:
    """Return bytes that are not text as trace() shows them: 16 bytes a line, in hexadecimal and
    ASCII."""
    digits = "0123456789abcdef"
    lines = ["\n" + " " * 11 + "".join(f"  {d}" for d in digits) + f"  {digits}\n"]
    for at in range(0, len(value), 16):
        line = value[at : at + 16]
        hexes = "".join(f" {c:02x}" for c in line).ljust(48)
        shown = "".join(chr(c) if 0x20 <= c <= 0x7E else "." for c in line)
        lines.append(f"     {at:5x}:{hexes}  {shown}\n")
    return "".join(lines)


def traced_string(value: bytes, width: int, quiet: bool, raw: bool) -> str:
    """Return a string as trace() and the keys of aggregations show it, padded to `width` columns.

    Args:
        quiet: do not pad.
        raw: show the string as bytes.
    """
    if raw or not printable(value):
        return dump(value)
    return text(value) if quiet else f"  {text(value):<{width}}"


def traced_signed(size: int) -> bool:
    """Return whether trace() shows an integer of `size` bytes as a signed number. Only the size
    counts, not whether the integer's type is signed.
    """
    return size >= 4


def _print(out: TemplateBuilder, type_: DType, field: Field, style: TraceStyle) -> None:
    out.column(
        "%s", lambda rows: [print_value(type_, v, style.symbolise) for v in bytes_of(rows, field)]
    )


def traced_bytes(value: bytes, quiet: bool, raw: bool, width: int = STRING_WIDTH) -> str:
    """Return a structure or an array as trace() shows it: as text if it is printable text followed
    by NULs, otherwise as bytes.

    Args:
        quiet: do not pad text.
        raw: always show bytes.
        width: columns to which text is padded.
    """
    text, _, rest = value.partition(b"\0")
    if text and not raw and printable(text) and not rest.strip(b"\0"):
        return traced_string(text, width, quiet, raw)
    return dump(value)


def _trace(out: TemplateBuilder, field: Field, style: TraceStyle) -> None:
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


def _dumped(fields: tuple[Field, ...]) -> Column:
    """Return a function that formats the data of tracemem() in many records as dumps.

    Args:
        fields: the field with the data, and perhaps a second field, which says how many bytes of
            the data to show.
    """
    memory = fields[0]

    def column(rows: Bytes) -> list[object]:
        sizes = values_of(rows, fields[1], True) if len(fields) > 1 else [memory.size] * len(rows)
        return [
            dump(value[:size] if size >= 0 else value)
            for value, size in zip(bytes_of(rows, memory), sizes, strict=True)
        ]

    return column


def compile_clause(
    clause: Clause,
    layout: ClauseLayout,
    style: TraceStyle,
    prefix: Callable[[int], str],
) -> tuple[RowTemplate | None, ...]:
    """Return a template for each part of a clause's records; None for a part that shows nothing.

    Args:
        clause: the clause.
        layout: layout of the clause's records.
        style: how records are shown.
        prefix: returns the first columns of a row, which show CPU and probe. Its argument is the
            u64 in the record's header that has the probe id and the CPU (RECORD_PROBE and
            RECORD_CPU). It is not called in quiet mode.
    """
    out, parts = TemplateBuilder(), list[RowTemplate | None]()
    silent = is_silent(clause)
    if not silent and (style.flow or not style.quiet):
        probe_and_cpu = Field(RECORD_PROBE, 8, StringType())
        out.column("%s", lambda rows: [prefix(v) for v in values_of(rows, probe_and_cpu, False)])
    for action, fields in zip(clause.actions, layout.fields, strict=True):
        if acts(action):
            parts.append(out.built())
        elif isinstance(action, PrintfAction):
            add_format(out, action.format, fields, style.symbolise)
        elif isinstance(action, PrintAction):
            _print(out, action.expr.type, fields[0], style)
        elif isinstance(action, PerformAction):
            out.column("%s", _dumped(fields))
        elif isinstance(action, TraceAction):
            _trace(out, fields[0], style)
    if not silent and not style.quiet:
        out.literal("\n")
    parts.append(out.built())
    return tuple(parts)
