"""Aggregations as dtrace(1) shows them: the default layout, printa() formats, distributions.

Facts from libdtrace's behaviour and the Dynamic Tracing Guide, "Aggregations": keys are shown as
trace() shows values but in their own widths, a value takes 16 columns, rows are in the order
of their values and then of their keys, aggregations in the order of their first appearance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from kinst.consumer.aggregations import (
    AggregationStore,
    Data,
    Key,
    Table,
    divide,
    entries_of,
    key_rank,
    llquantize_bounds,
    lquantize_step,
    quantize_bound,
    rank,
    scalar,
    tables_of,
)
from kinst.consumer.clauses import INTEGER_WIDTH, traced_signed, traced_string
from kinst.consumer.convert import Spec, Symbolise, Value, fixed, text
from kinst.consumer.stacks import NO_NAMES, Names, is_address_data
from kinst.core.records import Field
from kinst.dlang.typed import is_signed
from kinst.dlang.typed_output import AggFunction, Aggregation, Format, FormatPart

KEY_STRING_WIDTH = 50
BAR = 40
ZOOM = 0.95  # how much of the bar the highest bucket fills with aggzoom
DISTRIBUTIONS = frozenset(("quantize", "lquantize", "llquantize"))


@dataclass(frozen=True, slots=True)
class AggOptions:
    """dtrace's options of the same names."""

    aggsortkey: bool = False
    aggsortrev: bool = False
    aggsortkeypos: int = 0
    aggsortpos: int = 0
    aggzoom: bool = False
    rawbytes: bool = False
    names: Names = NO_NAMES


# --- Distributions -------------------------------------------------------------------------


def _line(count: int, shown: int, total: float, positives: bool, negatives: bool) -> str:
    """One bucket's bar and count; total is what a full bar stands for."""
    length = BAR // 2 if positives and negatives else BAR
    depth = int(abs(count) * length / total + 0.5) if total else 0
    ats, spaces = "@" * depth, " " * (length - depth)
    if not negatives:
        bar = f"|{ats}{spaces}"
    elif not positives:
        bar = f"{spaces}{ats}|"
    elif count <= 0:
        bar = f"{spaces}{ats}|{'':{length}}"
    else:
        bar = f"{'':{length}}|{ats}{spaces}"
    return f"{bar} {shown:<9d}\n"


def _labels(function: AggFunction, buckets: int) -> list[str]:
    if function.name == "quantize":
        return [str(quantize_bound(i)) for i in range(buckets)]
    if function.name == "lquantize":
        base, step = function.params[0], lquantize_step(function)
        levels = buckets - 2
        inner = [str(base + i * step) for i in range(levels)]
        return [f"< {base}", *inner, f">= {base + levels * step}"]
    bounds = llquantize_bounds(function)
    inner = [str(bound) for bound in bounds[: buckets - 2]]
    return [f"< {bounds[0]}", *inner, f">= {bounds[buckets - 2]}"]


def _shown_range(function: AggFunction, counts: Sequence[int]) -> tuple[int, int]:
    """First and last bucket shown: those with data and one empty one on either side."""
    last = len(counts) - 1
    used = [i for i, count in enumerate(counts) if count]
    if not used:
        return {"quantize": (62, 64), "lquantize": (0, 2)}.get(function.name, (0, 1))
    return max(used[0] - 1, 0), min(used[-1] + 1, last)


def distribution(function: AggFunction, data: Data, normal: int = 1, zoom: bool = False) -> str:
    """The drawing of quantize(), lquantize() and llquantize() data."""
    counts = data.tolist()
    first, last = _shown_range(function, counts)
    shown = counts[first : last + 1]
    positives = any(c > 0 for c in shown)
    negatives = any(c < 0 for c in shown)
    total = max(abs(c) for c in shown) / ZOOM if zoom else float(sum(abs(c) for c in shown))
    out = [f"\n{'value':>16} {'------------- Distribution -------------':>41} {'count':<9}\n"]
    labels = _labels(function, len(counts))
    for label, count in zip(labels[first : last + 1], shown, strict=True):
        out.append(f"{label:>16} ")
        out.append(_line(count, divide(count, normal), total, positives, negatives))
    return "".join(out)


# --- Order ---------------------------------------------------------------------------------


def _joined_rank(
    tables: Sequence[Table], options: AggOptions, row: tuple[Key, Sequence[Data]]
) -> tuple[object, ...]:
    key, data = row
    position = options.aggsortpos if 0 <= options.aggsortpos < len(tables) else 0
    pairs = [(t.aggregation.function, d) for t, d in zip(tables, data, strict=True)]
    values = tuple(rank(*pair) for pair in pairs[position:] + pairs[:position])
    keys = key_rank(tables[0], key, options.aggsortkeypos)
    return (keys, values) if options.aggsortkey else (values, keys)


def sorted_rows(tables: Sequence[Table], options: AggOptions) -> list[tuple[Key, list[Data]]]:
    """Rows of one table, or of several joined by key, in the order in which they are shown."""
    rows = [
        (key, [d if d is not None else t.zero() for d, t in zip(data, tables, strict=True)])
        for key, data in entries_of(tables).items()
    ]
    rows.sort(key=partial(_joined_rank, tables, options), reverse=options.aggsortrev)
    return rows


# --- The default layout --------------------------------------------------------------------


def _shown_key(value: Value, field: Field, options: AggOptions) -> str:
    raw = options.rawbytes
    if isinstance(value, bytes) and is_address_data(field):
        return options.names.data(value, field.type)
    if isinstance(value, bytes):
        return traced_string(value, KEY_STRING_WIDTH, False, raw)
    value &= (1 << 8 * field.size) - 1
    if traced_signed(field.size) and value >> (8 * field.size - 1):
        value -= 1 << 8 * field.size
    return f" {value:{INTEGER_WIDTH[field.size]}d}"


def _shown_value(table: Table, data: Data, zoom: bool) -> str:
    function = table.aggregation.function
    if function.name in DISTRIBUTIONS:
        return distribution(function, data, table.normal, zoom)
    return f" {scalar(function, data, table.normal):16d}"


def default_rows(tables: Sequence[Table], options: AggOptions) -> list[str]:
    """Rows of one table, or of several joined by key, in dtrace's default layout."""
    fields = tables[0].keys
    rows = []
    for key, data in sorted_rows(tables, options):
        parts = [_shown_key(v, f, options) for v, f in zip(key, fields, strict=True)]
        parts += [
            _shown_value(table, one, options.aggzoom)
            for table, one in zip(tables, data, strict=True)
        ]
        rows.append("".join(parts) + "\n")
    return rows


# --- printa() with a format ----------------------------------------------------------------


class _Row:
    """The arguments of one row of printa(): keys in order, then the values of %@."""

    def __init__(self, tables: Sequence[Table], key: Key, data: Sequence[Data]) -> None:
        self._keys = iter(zip(key, tables[0].keys, strict=True))
        self._tables = tables
        self._data = data
        self._current = 0

    def key(self) -> tuple[Value, Field]:
        return next(self._keys)

    def value(self) -> tuple[Table, Data]:
        """The next aggregation's value; the last one again when there is no next."""
        at = self._current
        self._current = min(at + 1, len(self._tables) - 1)
        return self._tables[at], self._data[at]


def _is_value(part: FormatPart) -> bool:
    return "@" in part.flags or part.conversion.startswith("@")


def _value_text(part: FormatPart, spec: Spec, row: _Row, zoom: bool) -> str:
    table, data = row.value()
    function = table.aggregation.function
    if function.name in DISTRIBUTIONS:
        return distribution(function, data, table.normal, zoom)
    number = scalar(function, data, table.normal)
    signed = function.name != "count" and spec.conversion in "dicC"
    if not signed:
        number &= 0xFFFFFFFFFFFFFFFF
    return Spec(spec.conversion, spec.flags, spec.width, spec.precision, signed).format(number, str)


def _part_text(
    part: FormatPart, row: _Row, symbolise: Symbolise, zoom: bool, names: Names = NO_NAMES
) -> str:
    if not part.conversion:
        return ""
    if part.conversion == "%":
        return "%"
    width, precision = fixed(part.width, part.flags), fixed(part.precision, "")
    if part.width == "*":
        width = int(row.key()[0])
    if part.precision == "*":
        precision = max(0, int(row.key()[0]))
    flags = part.flags.replace("@", "")
    spec = Spec(part.conversion.lstrip("@"), flags, width, precision, False)
    if _is_value(part):
        return _value_text(part, spec, row, zoom)
    value, field = row.key()
    if isinstance(value, bytes) and is_address_data(field):
        return names.formatted(value, field.type, spec)
    if isinstance(value, int):
        signed = is_signed(field.type) and spec.conversion in "dicC"
        if not signed:
            value &= (1 << 8 * field.size) - 1
        spec = Spec(spec.conversion, flags, width, precision, signed)
    return spec.format(value, symbolise)


def formatted_rows(
    tables: Sequence[Table], format_: Format, options: AggOptions, symbolise: Symbolise
) -> list[str]:
    """Rows of one table, or of several joined by key, each by a printa() format."""
    rows = []
    for key, data in sorted_rows(tables, options):
        row = _Row(tables, key, data)
        parts = []
        for part in format_.parts:
            parts.append(text(part.literal))
            parts.append(_part_text(part, row, symbolise, options.aggzoom, options.names))
        rows.append("".join(parts))
    return rows


# --- What the printer asks for -------------------------------------------------------------


class AggPrinter:
    """Prints the aggregations of a store.  write takes text."""

    def __init__(
        self,
        store: AggregationStore,
        options: AggOptions,
        symbolise: Symbolise,
        write: Callable[[str], None],
    ) -> None:
        self.store = store
        self.options = options
        self._symbolise = symbolise
        self._write = write

    def _emit(self, tables: Iterable[Table], rows: Sequence[str]) -> None:
        if rows:
            self._write("".join(rows))
            for table in tables:
                table.printed = True

    def printa(self, format_: Format | None, wanted: Sequence[Aggregation]) -> None:
        """printa(): by its format, or in the default layout after an empty line."""
        tables = tables_of(self.store, wanted)
        if format_ is None:
            self._write("\n")
            self._emit(tables, default_rows(tables, self.options))
        else:
            rows = formatted_rows(tables, format_, self.options, self._symbolise)
            self._emit(tables, rows)

    def rest(self) -> None:
        """What dtrace(1) does at the end: every aggregation that printa() never printed."""
        tables = [t for t in self.store.tables.values() if not t.printed]
        if self.options.aggsortrev:
            tables.reverse()  # the order of aggregations is part of the order of rows
        for table in tables:
            rows = default_rows([table], self.options)
            if rows:
                self._write("".join(rows))
