"""Layouts of the data that clauses write: codegen chooses the layouts, the consumer decodes by
them.

A ring record is RECORD_HEADER bytes (core/layout.py), then the clause's fields. A field that is the
record's time lies in the header. A clause writes one record each time it runs to its end, if it has
a recording action (trace, printf, printa, exit, clear, trunc, normalize, or no action at all). A
clause that only evaluates and aggregates writes no record.

An aggregation table lies in both aggregation halves of every CPU slot, at `area`: `capacity`
entries of `entry_size` bytes. An entry is a u64 tag, then the keys, then the data.

- Hashed (constant_keys is None): open addressing, linear probing from (hash & (capacity-1)), at
  most PROBE_LIMIT entries. The tag is 0 if the entry is free, otherwise the key's 64-bit hash with
  bit 0 set. All bytes of the keys are compared.
- Constant keys: the keys of every update are known for each probe before the trace starts. Entry i
  belongs to constant_keys[i]. The tag is 0 until the entry is first used. Keys are not stored.

Data, all u64 or i64:
- count: n. sum: total. min, max: value. avg: n, total.
- stddev: n, total, sum of squares low, high (128 bits).
- quantize: 127 buckets; index 63 is value 0, 63+k is 2^(k-1), 63-k is -2^(k-1).
- lquantize: below, levels..., above.
- llquantize: below, buckets..., above, as DTrace numbers them.

Tested by tests/consumer/test_values.py and tests/codegen/layout/test_layout.py."""

from __future__ import annotations

from dataclasses import field

from kinst.core.dataclass import dataclass
from kinst.core.dtypes import DType

PROBE_LIMIT = 64
QUANTIZE_BUCKETS = 127
QUANTIZE_ZERO = 63


@dataclass(frozen=True, slots=True)
class Field:
    """A value in a record, or a key in an aggregation's entry: `size` bytes at `offset` from its
    start.

    Integers and pointers have their type's size. Strings are NUL-terminated text; in keys, zeros
    fill the rest."""

    offset: int
    size: int
    type: DType


@dataclass(frozen=True, slots=True)
class ClauseLayout:
    """Layout of the records that a clause writes.

    Attributes:
        clause: the clause's number.
        size: bytes of a whole record, 0 if the clause writes no records.
        fields: a tuple of fields for each action of the clause, in order; () for an action that
            records nothing.
    """

    clause: int
    size: int
    fields: tuple[tuple[Field, ...], ...]


KeyValue = int | bytes


@dataclass(frozen=True, slots=True)
class AggregationLayout:
    """Layout of an aggregation's table.

    Attributes:
        counters: offset, in each CPU's counter block, of the aggregation's 8-byte counters: counter
            i is at counters + 8*i. -1 if it has no counters; only some count()s have them, besides
            the table. To get the value of a key, add the key's table entry and its counter, and sum
            these over all CPUs. With constant keys, counter i belongs to entry i.
        slots: number of counters, if a slot table tells which key each counter belongs to;
            otherwise 0. Only a count() with one integer or pointer key can have a slot table. Word
            i of the slot table stands for the key of counter i: the key, zero-extended, plus
            SLOT_BIAS, modulo 2**64. The word is 0 while the counter belongs to no key.
        slot_table: offset of the slot table in the globals area; it has `slots` words.
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


# A bucket of a dynamic variable's table begins with a cache line of eight words: a control word,
# and the tags of the bucket's entries.  The entries follow, one after another.
DYNAMIC_LINE = 64
DYNAMIC_ENTRIES = 7
DYNAMIC_PROBES = 8  # consecutive buckets that may hold a key, from the one of its hash on
# Bits of a control word.
DYNAMIC_LOCKED = 1  # while a clause inserts into an associative array
DYNAMIC_PASSED = 2  # an insertion found no room here and went on to the next bucket
# The low bits of a tag; the others are the key's hash.  A free entry's tag is 0.
DYNAMIC_STATE = 7
DYNAMIC_BUSY = 1  # taken; the key is being written
DYNAMIC_LIVE = 2
DYNAMIC_DIRTY = 3  # freed; a clause that found the entry before may still use it
DYNAMIC_RINSING = 4  # being cleaned: free once every clause that runs now has ended


def bucket_size(entry_size: int) -> int:
    """Return the size in bytes of a bucket of a dynamic variable's table, rounded up to whole cache
    lines."""
    return (DYNAMIC_LINE + DYNAMIC_ENTRIES * entry_size + DYNAMIC_LINE - 1) & -DYNAMIC_LINE


@dataclass(frozen=True, slots=True)
class DynamicLayout:
    """Layout of the table of a dynamic variable (self->x, a[key]).

    Attributes:
        area: offset of the table in the dynamic area.
        keys: the keys in an entry; the first key of a thread-local variable is the thread.
        value: the value in an entry.
        shared: whether threads share the entries. False for a thread-local variable: its entries
            can be used again as soon as they are freed.
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
        """How many 8-byte words the keys of an entry take, with the gaps between the keys."""
        return self.value.offset // 8


@dataclass(frozen=True, slots=True)
class ProgramLayout:
    """Layouts of everything that a program writes.

    Attributes:
        variables: where each variable is, by Variable.index. Of a global variable: its offset in
            the globals area. Of a clause-local string, structure or array: its offset in the
            clause's working memory, which begins with the keys of aggregations. -1 for a
            clause-local integer or pointer, which needs no memory, and for a dynamic variable.
        clause_size: bytes of the clause-local strings, structures and arrays.
        dynamic: the tables of the dynamic variables.
        strings: (text of each string constant -> its offset in the strings area, the bytes of that
            area).
        site_keys: for aggregations with constant keys: (probe id, aggregation index) -> index of
            the table entry that the probe updates. A site descriptor has these indexes after
            SITE_HEADER, in the order of constant_aggregations.
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
        """How many bytes of the globals area are used: the variables, then the slot tables."""
        ends = (a.slot_table + 8 * a.slots for a in self.aggregations if a.slots)
        return max(self.globals_size, *ends, 8)

    @property
    def dynamic_size(self) -> int:
        """How many bytes of the dynamic area are used."""
        return max((d.area + d.buckets * d.stride for d in self.dynamic), default=0)
