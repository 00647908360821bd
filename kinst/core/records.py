"""What clauses write: the layouts that codegen decides and the consumer reads.

A ring record is RECORD_HEADER bytes (core/layout.py) followed by the clause's fields.  One
record is written for each clause that runs to its end and has at least one recording action
(trace, printf, printa, exit, clear, trunc, normalize, or no action at all); a clause that only
evaluates and aggregates writes none.

An aggregation table lies in every CPU slot's two aggregation halves, at `area`: `capacity`
entries of `entry_size` bytes.  Entry: u64 tag, keys, data.

* Hashed (constant_keys is None): open addressing, linear probing from (hash & (capacity-1)),
  at most PROBE_LIMIT entries; tag is 0 when free, otherwise the key's 64-bit hash with bit 0
  set.  Keys are compared whole.
* Constant keys: every update of the aggregation has keys that each probe knows beforehand;
  entry i belongs to constant_keys[i], tag is 0 until first used, keys are not stored.

Data, all u64/i64: count: n.  sum: total.  min, max: value.  avg: n, total.  stddev: n, total,
sum of squares low, high (128 bits).  quantize: 127 buckets, index 63 is value 0, 63+k is
2^(k-1), 63-k is -2^(k-1).  lquantize: below, levels..., above.  llquantize: below, buckets...,
above, as DTrace numbers them.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.dtypes import DType

PROBE_LIMIT = 64
QUANTIZE_BUCKETS = 127
QUANTIZE_ZERO = 63


@dataclass(frozen=True, slots=True)
class Field:
    """size bytes at offset: from the record's start, or from the entry's start for keys.

    Integers and pointers are stored with their type's size; strings as NUL-terminated text,
    zero-padded in aggregation keys."""

    offset: int
    size: int
    type: DType


@dataclass(frozen=True, slots=True)
class ClauseLayout:
    """fields: one tuple for each action of the clause, in order; () where it records nothing.

    size: bytes of the whole record, 0 when the clause writes none."""

    clause: int
    size: int
    fields: tuple[tuple[Field, ...], ...]


KeyValue = int | bytes


@dataclass(frozen=True, slots=True)
class AggregationLayout:
    """counters: where not -1, entry i of a constant-key count() also has an 8-byte monotonic
    counter at counters + 8*i of every target CPU's counter block; the value is the sum of
    table and counters."""

    index: int
    area: int
    entry_size: int
    capacity: int
    keys: tuple[Field, ...]
    data_offset: int
    data_size: int
    constant_keys: tuple[tuple[KeyValue, ...], ...] | None = None
    counters: int = -1


@dataclass(frozen=True, slots=True)
class ProgramLayout:
    """variables: offset in the globals area of each Variable, by Variable.index.

    site_keys: (probe id, aggregation index) -> entry, for constant-key aggregations; in a
    site descriptor the entries follow SITE_HEADER in the order of constant_aggregations.
    """

    clauses: tuple[ClauseLayout, ...]
    aggregations: tuple[AggregationLayout, ...]
    variables: tuple[int, ...]
    globals_size: int
    agg_size: int
    strsize: int
    constant_aggregations: tuple[int, ...]
    site_keys: dict[tuple[int, int], int]
    counters_size: int
