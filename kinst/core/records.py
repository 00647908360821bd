"""Layouts of what clauses write: codegen decides them, the consumer reads by them.

A ring record is RECORD_HEADER bytes (core/layout.py) followed by the clause's fields; a field that
is the time is the header's. One record is written for each clause that runs to its end and has at
least one recording action (trace, printf, printa, exit, clear, trunc, normalize, or no action at
all); a clause that only evaluates and aggregates writes none.

An aggregation table lies in every CPU slot's two aggregation halves, at `area`: `capacity` entries
of `entry_size` bytes. Entry: u64 tag, keys, data.

- Hashed (constant_keys is None): open addressing, linear probing from (hash & (capacity-1)), at
  most PROBE_LIMIT entries; tag is 0 if free, otherwise the key's 64-bit hash with bit 0 set. Keys
  are compared whole.
- Constant keys: every update of the aggregation has keys that are known for each probe in advance;
  entry i belongs to constant_keys[i], tag is 0 until first used, keys are not stored.

Data, all u64/i64:
- count: n. sum: total. min, max: value. avg: n, total.
- stddev: n, total, sum of squares low, high (128 bits).
- quantize: 127 buckets, index 63 is value 0, 63+k is 2^(k-1), 63-k is -2^(k-1).
- lquantize: below, levels..., above.
- llquantize: below, buckets..., above, as DTrace numbers them.

Tested by tests/consumer/test_values.py and tests/codegen/layout/test_layout.py.
"""

from __future__ import annotations

from dataclasses import field

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import DType

PROBE_LIMIT = 64
QUANTIZE_BUCKETS = 127
QUANTIZE_ZERO = 63


@dataclass(frozen=True, slots=True)
class Field:
    """`size` bytes at `offset` from the start of a record or, for a key, of an entry.

    Integers and pointers are stored with their type's size; strings as NUL-terminated text,
    zero-padded in aggregation keys."""

    offset: int
    size: int
    type: DType


@dataclass(frozen=True, slots=True)
class ClauseLayout:
    """The record of a clause.

    Attributes:
        clause: its number.
        size: bytes of the whole record, 0 if the clause writes none.
        fields: a tuple for each action of the clause, in order; () if it records nothing.
    """

    clause: int
    size: int
    fields: tuple[tuple[Field, ...], ...]


KeyValue = int | bytes


@dataclass(frozen=True, slots=True)
class AggregationLayout:
    """The table of an aggregation.

    Attributes:
        counters: if not -1, entry i of a constant-key count() also has an 8-byte monotonic counter
            at counters + 8*i of every target CPU's counter block; the value is the sum of table and
            counters.
        slots: if not 0, a count() with one integer key has so many such counters, for the keys
            whose words (the key, zero-extended, plus SLOT_BIAS; modulo 2**64, never 0) are in the
            table of `slots` words.
        slot_table: offset of that table in the globals area.
    """

    index: int
    area: int
    entry_size: int
    capacity: int
    keys: tuple[Field, ...]
    data_offset: int
    data_size: int
    constant_keys: tuple[tuple[KeyValue, ...], ...] | None = None
    counters: int = -1
    slots: int = 0
    slot_table: int = 0


SLOT_BIAS = 0x1234_5679
SLOTS = 1024


# A bucket of a dynamic variable's table begins with a line of eight words: control and the tags
# of its entries; the entries follow, one after another.
DYNAMIC_LINE = 64
DYNAMIC_ENTRIES = 7
DYNAMIC_PROBES = 8  # buckets that a key may be in, from its own one on
# Bits of a control word.
DYNAMIC_LOCKED = 1  # while a clause inserts into an associative array
DYNAMIC_PASSED = 2  # an insertion found no room and went on
# The low bits of a tag; the others are the key's hash.  A free entry's tag is 0.
DYNAMIC_STATE = 7
DYNAMIC_BUSY = 1  # taken, its key is being written
DYNAMIC_LIVE = 2
DYNAMIC_DIRTY = 3  # freed; a clause that found it before may still use it
DYNAMIC_RINSING = 4  # free once no clause runs that ran when it became so


def bucket_size(entry_size: int) -> int:
    """Return the bytes of a bucket; each begins on a cache line."""
    return (DYNAMIC_LINE + DYNAMIC_ENTRIES * entry_size + DYNAMIC_LINE - 1) & -DYNAMIC_LINE


@dataclass(frozen=True, slots=True)
class DynamicLayout:
    """The table of one dynamic variable (self->x, a[key]).

    Attributes:
        area: offset in the dynamic area.
        keys: places in an entry; the first key of a thread-local variable is the thread.
        value: its place in an entry.
        shared: whether it is no thread-local variable. Entries of those are free as soon as they
            are freed, since no other thread looks for them.
    """

    index: int
    area: int
    buckets: int
    entry_size: int
    keys: tuple[Field, ...]
    value: Field
    shared: bool

    @property
    def stride(self) -> int:
        return bucket_size(self.entry_size)

    @property
    def key_words(self) -> int:
        """8-byte words of the keys, gaps included."""
        return self.value.offset // 8


@dataclass(frozen=True, slots=True)
class ProgramLayout:
    """Layouts of everything that a program writes.

    Attributes:
        variables: offset of each variable, by Variable.index, in the globals area or, for a
            clause-local one in memory, in a clause's working memory after the keys; -1 if it is in
            neither.
        clause_size: bytes of the clause-local ones.
        dynamic: the dynamic variables.
        strings: offset of each string constant in the strings area, and the area's bytes.
        site_keys: (probe id, aggregation index) -> entry, for constant-key aggregations; in a site
            descriptor the entries follow SITE_HEADER in the order of constant_aggregations.
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
    clause_size: int = 0
    dynamic: tuple[DynamicLayout, ...] = ()
    strings: tuple[dict[bytes, int], bytes] = field(default_factory=lambda: ({}, b""))

    @property
    def globals_area(self) -> int:
        """Bytes of the globals area that are used: the variables, then the tables of slots."""
        ends = (a.slot_table + 8 * a.slots for a in self.aggregations if a.slots)
        return max(self.globals_size, *ends, 8)

    @property
    def dynamic_size(self) -> int:
        """Bytes of the dynamic area that are used."""
        return max((d.area + d.buckets * d.stride for d in self.dynamic), default=0)
