"""Text of aggregations as dtrace(1) shows them: the default layout, printa() with a format, agghist
and aggpack.

Sources: libdtrace's behaviour and the Dynamic Tracing Guide, "Aggregations". Keys look like values
of trace(), but have other widths. A value takes 16 columns. Rows are sorted by value, then by key.
Aggregations come in the order of their first appearance in the program."""

from __future__ import annotations

from collections.abc import Sequence

from kinst.consumer.aggregations import (
    Entry,
    Key,
    KeyedTable,
    scalar,
    sorted_rows,
)
from kinst.consumer.convert import ALWAYS_SIGNED, Spec, Symbolise, Value, fixed, text
from kinst.consumer.symbols import is_address_data
from kinst.core.dataclass import dataclass
from kinst.core.dtypes import IntType, StringType, StructType
from kinst.core.records import Field
from kinst.core.words import MASK
from kinst.dlang.typed import FormatPart, PrintfFormat, is_signed
from kinst.render.dtrace.clauses import (
    INTEGER_WIDTH,
    printable,
    traced_bytes,
    traced_signed,
    traced_string,
)
from kinst.render.dtrace.distributions import (
    DISTRIBUTIONS,
    PACKED,
    TOTALLED,
    bar,
    distribution,
    head,
    packed,
    packed_head,
    total_of,
    used_range,
)
from kinst.render.dtrace.symbols import NO_SYMBOLS, SymbolText

KEY_STRING_WIDTH = 50
ADDRESS = "uintptr_t"  # the type of caller and ucaller
PACKED_WIDTH = 16  # columns of a key that is no integer, with agghist and aggpack


@dataclass(frozen=True, slots=True)
class AggOptions:
    """The options of dtrace(1) for aggregations, under dtrace(1)'s names.

    Attributes:
        names: formats recorded addresses.
    """

    agghist: bool = False
    aggpack: bool = False
    aggsortkey: bool = False
    aggsortrev: bool = False
    aggsortkeypos: int = 0
    aggsortpos: int = 0
    aggzoom: bool = False
    encoding: str = ""
    rawbytes: bool = False
    names: SymbolText = NO_SYMBOLS

    @property
    def utf8(self) -> bool:
        """Whether bars are made of Unicode's block elements."""
        return self.encoding == "utf8"


# --- The default layout --------------------------------------------------------------------


def _shown_key(value: Value, field: Field, options: AggOptions, *, narrow: bool = False) -> str:
    """Return the text of a key, padded as in the default layout.

    Args:
        narrow: whether strings are right-aligned and narrower, as agghist and aggpack show them.
    """
    raw = options.rawbytes
    if isinstance(value, bytes) and is_address_data(field):
        return options.names.data(value, field.type)
    if isinstance(value, bytes) and isinstance(field.type, StructType):
        if field.size not in INTEGER_WIDTH:
            return traced_bytes(value, False, raw, KEY_STRING_WIDTH)
        value = int.from_bytes(value, "little")  # libdtrace decides by the size alone
    if isinstance(value, bytes):
        if narrow and not raw and printable(value):
            return f" {text(value):>{PACKED_WIDTH}}"
        return traced_string(value, KEY_STRING_WIDTH, False, raw)
    value &= (1 << 8 * field.size) - 1
    if isinstance(field.type, IntType) and field.type.name == ADDRESS:
        return options.names.address(value)
    if traced_signed(field.size) and value >> (8 * field.size - 1):
        value -= 1 << 8 * field.size
    return f" {value:{INTEGER_WIDTH[field.size]}d}"


def _shown_value(table: KeyedTable, entry: Entry, options: AggOptions) -> str:
    function = table.aggregation.function
    if function.name in DISTRIBUTIONS:
        return distribution(function, entry.data, entry.normal, options.aggzoom, options.utf8)
    return f" {scalar(function, entry.data, entry.normal):16d}"


def _key_columns(table: KeyedTable) -> int:
    """Return how many columns the keys of a row take with agghist and aggpack."""
    return sum(1 + INTEGER_WIDTH.get(_integer_size(f), PACKED_WIDTH) for f in table.keys)


def _narrow_keys(table: KeyedTable, key: Key, options: AggOptions) -> str:
    pairs = zip(key, table.keys, strict=True)
    return "".join(_shown_key(value, field, options, narrow=True) for value, field in pairs)


def _integer_size(field: Field) -> int:
    return 0 if isinstance(field.type, StringType) or is_address_data(field) else field.size


def _histogram(table: KeyedTable, options: AggOptions) -> list[str]:
    """Return the rows of an aggregation with the option agghist: each value as a bar
    (dt_print_datum()).

    dtrace(1) has bars for count() and sum() only. kinst also draws the values of avg() and
    stddev().
    """
    rows, function = sorted_rows([table], options), table.aggregation.function
    values = [scalar(function, entry.data) for _, (entry,) in rows]
    total = total_of(values, options.aggzoom)
    total = int(total) if options.aggzoom else total  # as dt_aggregate_total() keeps it
    positives, negatives = any(v > 0 for v in values), any(v < 0 for v in values)
    out = [head(_key_columns(table))] if rows else []
    for (key, (entry,)), value in zip(rows, values, strict=True):
        shown = scalar(function, entry.data, entry.normal)
        keys = _narrow_keys(table, key, options)
        out.append(keys + " " + bar(value, shown, total, positives, negatives, options.utf8))
    return out


def _packed(table: KeyedTable, options: AggOptions) -> list[str]:
    """Return the rows of an aggregation with the option aggpack: a header, then each distribution
    in one row (dt_print_datum())."""
    rows, function = sorted_rows([table], options), table.aggregation.function
    if not rows:
        return []
    first, last = used_range(function, [entry.data.tolist() for _, (entry,) in rows])
    out = [packed_head(function, first, last, _key_columns(table))]
    for key, (entry,) in rows:
        drawn = packed(function, entry.data, first, last, options.aggzoom, options.encoding)
        out.append(_narrow_keys(table, key, options) + drawn)
    return out


def default_rows(tables: Sequence[KeyedTable], options: AggOptions) -> list[str]:
    """Return the rows of an aggregation, or of several aggregations joined by key, in dtrace(1)'s
    default layout."""
    name = tables[0].aggregation.function.name
    if len(tables) == 1 and options.agghist and name in TOTALLED:
        return _histogram(tables[0], options)
    if len(tables) == 1 and options.aggpack and name in PACKED:
        return _packed(tables[0], options)
    fields = tables[0].keys
    rows = []
    for key, entries in sorted_rows(tables, options):
        parts = [_shown_key(v, f, options) for v, f in zip(key, fields, strict=True)]
        parts += [
            _shown_value(table, one, options) for table, one in zip(tables, entries, strict=True)
        ]
        rows.append("".join(parts) + "\n")
    return rows


# --- printa() with a format ----------------------------------------------------------------


class _FormattedRow:
    """The arguments of one row of printa(): the keys, in order, and the values for %@."""

    def __init__(self, tables: Sequence[KeyedTable], key: Key, entries: Sequence[Entry]) -> None:
        self._keys = iter(zip(key, tables[0].keys, strict=True))
        self._tables = tables
        self._entries = entries
        self._current = 0

    def key(self) -> tuple[Value, Field]:
        return next(self._keys)

    def value(self) -> tuple[KeyedTable, Entry]:
        """Return the value for the next %@ of the format, as (table, entry): the next aggregation,
        and its entry for the row's key. If no aggregation is left, return the last one and its
        entry again.
        """
        at = self._current
        self._current = min(at + 1, len(self._tables) - 1)
        return self._tables[at], self._entries[at]


def _is_value(part: FormatPart) -> bool:
    return "@" in part.flags or part.conversion.startswith("@")


def _value_text(part: FormatPart, spec: Spec, row: _FormattedRow, options: AggOptions) -> str:
    table, entry = row.value()
    function = table.aggregation.function
    if function.name in DISTRIBUTIONS:
        return _shown_value(table, entry, options)
    number = scalar(function, entry.data, entry.normal)
    signed = spec.conversion in ALWAYS_SIGNED or (
        function.name != "count" and spec.conversion in "dcC"
    )
    if not signed:
        number &= MASK
    return Spec(spec.conversion, spec.flags, spec.width, spec.precision, signed).format(number, str)


def _part_text(
    part: FormatPart, row: _FormattedRow, symbolise: Symbolise, options: AggOptions
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
        return _value_text(part, spec, row, options)
    value, field = row.key()
    if isinstance(value, bytes) and is_address_data(field):
        return options.names.formatted(value, field.type, spec)
    if isinstance(value, int):
        signed = spec.conversion in ALWAYS_SIGNED or (
            is_signed(field.type) and spec.conversion in "dcC"
        )
        value &= (1 << 8 * field.size) - 1
        if signed and value >> (8 * field.size - 1):
            value -= 1 << 8 * field.size
        spec = Spec(spec.conversion, flags, width, precision, signed)
    return spec.format(value, symbolise)


def formatted_rows(
    tables: Sequence[KeyedTable], format_: PrintfFormat, options: AggOptions, symbolise: Symbolise
) -> list[str]:
    """Return the rows of an aggregation, or of several aggregations joined by key, formatted by
    printa()'s format.

    Args:
        symbolise: returns the name of an address.
    """
    rows = []
    for key, entries in sorted_rows(tables, options):
        row = _FormattedRow(tables, key, entries)
        parts = []
        for part in format_.parts:
            parts.append(text(part.literal))
            parts.append(_part_text(part, row, symbolise, options))
        rows.append("".join(parts))
    return rows
