"""Decoding of recorded bytes to Python values, for records and for the keys and data of
aggregations.

Integers get the sign of their type, D strings become str, structures get members by name, stacks
and addresses get names. kinst decodes values only for clients that ask for them; dtrace(1)'s text
does not need them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from kinst.consumer.actions import shows_data
from kinst.consumer.aggregations import (
    Entry,
    KeyedTable,
    SortOptions,
    divide,
    llquantize_bounds,
    lquantize_step,
    quantize_bound,
    scalar,
    sorted_rows,
)
from kinst.consumer.columns import bytes_of, strings_of, values_of
from kinst.consumer.convert import text
from kinst.consumer.decode import in_order
from kinst.consumer.rings import Bytes
from kinst.consumer.schema import Schema
from kinst.consumer.symbols import FrameFinder, Names
from kinst.core.dataclass import dataclass
from kinst.core.dtypes import (
    UINT,
    ULONG,
    ArrayType,
    DType,
    FloatType,
    IntType,
    PointerType,
    StackType,
    StringType,
    StructType,
    SymbolType,
    is_char,
)
from kinst.core.layout import RECORD_CPU, RECORD_PROBE, RECORD_TIME
from kinst.core.records import ClauseLayout, Field
from kinst.core.units import scaled
from kinst.dlang.typed import (
    AggFunction,
    Clause,
    PerformAction,
    PrintAction,
    PrintfAction,
    TraceAction,
    is_signed,
)
from kinst.events import Aggregation, Batch, Bucket, Key, KeyPart, PlainValue, Record, Value

ValueColumn = Callable[[Bytes], Sequence[PlainValue]]

PROBE = Field(RECORD_PROBE, 4, UINT)
CPU = Field(RECORD_CPU, 4, UINT)
TIME = Field(RECORD_TIME, 8, ULONG)


# --- One value ------------------------------------------------------------------------------


def size_of(type_: DType) -> int:
    """Return the size of a value of this type in bytes; 0 if the type does not tell."""
    if isinstance(type_, ArrayType):
        return size_of(type_.of) * type_.count
    if isinstance(type_, IntType | PointerType | StructType | FloatType | StringType):
        return type_.size
    return 0


def plain(data: bytes, type_: DType) -> PlainValue:
    """Decode the bytes of a value that is neither a stack nor an address with a name. Return the
    bytes themselves if the type does not tell their meaning."""
    if isinstance(type_, IntType | PointerType):
        return int.from_bytes(data[: type_.size], "little", signed=is_signed(type_))
    if isinstance(type_, StringType):
        return text(data.partition(b"\0")[0])
    if isinstance(type_, StructType):
        return _members(data, type_, 0)
    if isinstance(type_, ArrayType):
        return _elements(data, type_)
    if isinstance(type_, FloatType) and type_.size in (4, 8) and len(data) >= type_.size:
        number: float = struct.unpack_from("<f" if type_.size == 4 else "<d", data)[0]
        return number
    return data


def _elements(data: bytes, type_: ArrayType) -> PlainValue:
    """Decode the bytes of an array: a char array to text up to a NUL, any other array to a list."""
    if is_char(type_.of):
        return text(data[: type_.count or len(data)].partition(b"\0")[0])
    size = size_of(type_.of)
    if not size:
        return data
    count = type_.count or len(data) // size
    return [plain(data[at : at + size], type_.of) for at in range(0, count * size, size)]


def _members(data: bytes, type_: StructType, start: int) -> dict[str, PlainValue]:
    """Decode the bytes of a structure to values by member name. Members of an anonymous member
    become members of the structure itself.

    Args:
        data: bytes that contain the structure.
        start: bit of `data` at which the structure starts.
    """
    members: dict[str, PlainValue] = {}
    for one in type_.members:
        bit = start + one.bit
        if not one.name:
            if isinstance(one.type, StructType):
                members.update(_members(data, one.type, bit))
            continue
        if one.bits and isinstance(one.type, IntType):
            members[one.name] = _bit_field(data, one.type, bit, one.bits)
        else:
            at = bit // 8
            size = size_of(one.type)
            members[one.name] = plain(data[at : at + size], one.type)
    return members


def _bit_field(data: bytes, type_: IntType, bit: int, bits: int) -> int:
    at, size = bit // 8, (bit % 8 + bits + 7) // 8
    value = int.from_bytes(data[at : at + size], "little") >> bit % 8 & (1 << bits) - 1
    return value - (1 << bits) if type_.signed and value >> (bits - 1) else value


# --- Columns of values ----------------------------------------------------------------------


def value_column(field: Field, frames: FrameFinder) -> ValueColumn:
    """Return a function that decodes a field of many records."""
    type_ = field.type
    if isinstance(type_, StackType):
        return lambda rows: [frames.stack(v, type_) for v in bytes_of(rows, field)]
    if isinstance(type_, SymbolType):
        return lambda rows: [frames.symbol(v, type_) for v in bytes_of(rows, field)]
    if isinstance(type_, StringType):
        return lambda rows: [text(v) for v in strings_of(rows, field)]
    if isinstance(type_, IntType | PointerType) and type_.size == field.size:
        signed = is_signed(type_)
        return lambda rows: values_of(rows, field, signed)
    return lambda rows: [plain(v, type_) for v in bytes_of(rows, field)]


def _dumped(fields: tuple[Field, ...]) -> ValueColumn:
    """Return a function that takes records and returns what tracemem() recorded in each: the bytes
    of the first field. If there is a second field, it has the number of bytes to return."""

    def column(rows: Bytes) -> list[PlainValue]:
        memory = bytes_of(rows, fields[0])
        if len(fields) == 1:
            return list(memory)
        sizes = values_of(rows, fields[1], True)
        return [v[:n] if n >= 0 else v for v, n in zip(memory, sizes, strict=True)]

    return column


@dataclass(frozen=True, slots=True)
class ValueField:
    """One value in the records of a clause.

    Attributes:
        name: the value's expression, as the program has it.
        field: where the value is in a record.
        read: a function that decodes the value in many records.
    """

    name: str
    field: Field
    read: ValueColumn


def value_fields(
    clause: Clause, layout: ClauseLayout, frames: FrameFinder
) -> tuple[ValueField, ...]:
    """Return the values that the records of a clause contain, in the order of its actions."""
    values: list[ValueField] = []
    for action, fields in zip(clause.actions, layout.fields, strict=True):
        if not shows_data(action):
            continue
        assert isinstance(action, TraceAction | PrintAction | PrintfAction | PerformAction)
        if isinstance(action, PerformAction):
            values.append(ValueField("".join(action.names), fields[0], _dumped(fields)))
            continue
        for at, field in enumerate(fields):
            if isinstance(action, PrintAction):
                # The value was recorded as bytes, but is decoded by the expression's type.
                field = Field(field.offset, field.size, action.expr.type)
            name = action.names[at] if at < len(action.names) else ""
            values.append(ValueField(name, field, value_column(field, frames)))
    return tuple(values)


class BatchDecoder:
    """Decoder that converts a Batch event to Record events. Call it with the Batch."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._frames = FrameFinder(schema.names)
        self._clauses = {clause.index: (clause, layout) for clause, layout in schema.clauses()}
        self._sizes = {layout.clause: layout.size for _, layout in schema.clauses()}
        self._fields: dict[int, tuple[ValueField, ...]] = {}

    def _fields_of(self, clause: int) -> tuple[ValueField, ...]:
        fields = self._fields.get(clause)
        if fields is None:
            fields = self._fields[clause] = value_fields(*self._clauses[clause], self._frames)
        return fields

    def __call__(self, batch: Batch) -> Iterator[Record]:
        return iter(in_order(batch, self._sizes, self._records))

    def _records(self, clause: int, rows: Bytes) -> list[Record]:
        decoded = []
        for one in self._fields_of(clause):
            type_ = str(one.field.type)
            decoded.append([Value(one.name, type_, value) for value in one.read(rows)])
        values = zip(*decoded, strict=True) if decoded else iter([()] * len(rows))
        headers = (values_of(rows, field, False) for field in (PROBE, CPU, TIME))
        probes = self._schema.probes
        return [
            Record(probes[probe], cpu, time, clause, tuple(mine))
            for probe, cpu, time, mine in zip(*headers, values, strict=True)
        ]


# --- Aggregations ---------------------------------------------------------------------------

_DISTRIBUTIONS = ("quantize", "lquantize", "llquantize")


def bucket_bounds(function: AggFunction, buckets: int) -> list[tuple[int | None, int | None]]:
    """Return (low, high) of each bucket of a distribution, which counts the values low <= value <
    high. A bound of None means that there is no bound.

    Args:
        function: quantize(), lquantize() or llquantize() with its parameters.
        buckets: number of buckets.
    """
    if function.name == "quantize":
        # A bucket of a negative power of two has the values from it up to the next power nearer to
        # 0.
        bounds: list[tuple[int | None, int | None]] = []
        for i in range(buckets):
            bound = quantize_bound(i)
            if bound < 0:
                low = quantize_bound(i - 1) + 1 if i else None
                bounds.append((low, bound + 1))
            else:
                bounds.append((bound, quantize_bound(i + 1) if i + 1 < buckets else None))
        return bounds
    if function.name == "lquantize":
        base, step = function.params[0], lquantize_step(function)
        edges = [base + i * step for i in range(buckets - 1)]
    else:
        edges = llquantize_bounds(function)[: buckets - 1]
    return list(zip([None, *edges], [*edges, None], strict=True))


def aggregated(table: KeyedTable, entry: Entry) -> int | tuple[Bucket, ...]:
    """Return the value of one key of an aggregation, divided by what normalize() set: a number or,
    for a distribution, its buckets that are not empty.

    Args:
        table: the aggregation.
        entry: the key's entry.
    """
    function = table.aggregation.function
    if function.name not in _DISTRIBUTIONS:
        return scalar(function, entry.data, entry.normal)
    bounds = bucket_bounds(function, len(entry.data))
    return tuple(
        Bucket(low, high, divide(count, entry.normal))
        for (low, high), count in zip(bounds, entry.data.tolist(), strict=True)
        if count
    )


def aggregation_of(
    table: KeyedTable, options: SortOptions, names: Names | FrameFinder
) -> Aggregation:
    """Return the present values of an aggregation as an event, with keys in the order in which
    dtrace(1) shows them.

    Args:
        table: the aggregation.
        options: dtrace(1)'s options for sorting.
        names: finds names for addresses in keys.
    """
    frames = names if isinstance(names, FrameFinder) else FrameFinder(names)
    rows: dict[Key, int | tuple[Bucket, ...]] = {}
    for key, (entry,) in sorted_rows([table], options):
        parts = zip(key, table.keys, strict=True)
        rows[tuple(_key_part(part, field, frames) for part, field in parts)] = aggregated(
            table, entry
        )
    aggregation = table.aggregation
    types = tuple(str(field.type) for field in table.keys)
    measure, function = aggregation.measure, aggregation.function.name
    unit = measure.unit
    if function not in _DISTRIBUTIONS:  # of those, normalize() changes the counts, not the values
        normals = {entry.normal for entry in table.entries.values()} or {1}
        unit = scaled(unit, *normals) if len(normals) == 1 else ""
    return Aggregation(
        aggregation.name, function, types, rows, measure.expression, unit, measure.keys
    )


def _key_part(value: int | bytes, field: Field, frames: FrameFinder) -> KeyPart:
    if isinstance(value, int):
        return value
    if isinstance(field.type, StackType):
        return frames.stack(value, field.type)
    if isinstance(field.type, SymbolType):
        return frames.symbol(value, field.type)
    if isinstance(field.type, StringType):
        return text(value)
    return value
