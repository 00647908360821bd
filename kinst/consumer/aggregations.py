"""Aggregations: merging the tables of all CPUs into one table for each aggregation, and clear(),
trunc() and normalize().

Each CPU has two copies ("halves") of the tables in scratch. The word HEADER_HALF says which half
clauses write; the consumer merges the other half. To switch halves, AggregationStore changes the
word and sleeps for FLIP_SECONDS. A CPU whose STATE_SEQUENCE is odd then is in a clause that may
have read the word before the change. AggregationStore waits until the STATE_SEQUENCE of each such
CPU has changed: the clause has ended. If a CPU stays in one clause for longer than WAIT_SECONDS, a
later snapshot merges the CPU's old half.

Neither side uses a fence. A clause makes STATE_SEQUENCE odd before it reads HEADER_HALF, and a
store reaches memory in far less than FLIP_SECONDS. So after the sleep, the consumer sees an odd
STATE_SEQUENCE for every clause that read the old word. Clauses that start later see the new word.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from math import isqrt
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kinst.consumer.columns import bytes_of, is_string, strings_of, values_of
from kinst.consumer.rings import Bytes
from kinst.consumer.symbols import NO_NAMES, Names, is_address_data
from kinst.core.dataclass import dataclass
from kinst.core.dtypes import IntType, PointerType, StringType, StructType
from kinst.core.layout import HEADER_HALF, STATE_SEQUENCE, Scratch
from kinst.core.records import SLOT_BIAS, AggregationLayout, Field, KeyValue, ProgramLayout
from kinst.core.words import MASK
from kinst.dlang.typed import AggFunction, AggregationVariable, TypedProgram, is_signed

Data = npt.NDArray[np.int64]
Key = tuple[KeyValue, ...]

FLIP_SECONDS = 0.0001
WAIT_SECONDS = 0.005


def _halves(low: int, high: int) -> tuple[int, int]:
    return low & MASK, high & MASK


def square_sum(data: Data) -> int:
    """Return the 128-bit sum of squares that the data of stddev() contains."""
    low, high = _halves(int(data[2]), int(data[3]))
    return high << 64 | low


def combine(function: AggFunction, into: Data, more: Data) -> None:
    """Add the data of one CPU to the merged data of a key, in place. Arithmetic wraps at 64 bits as
    in C.

    Args:
        function: the aggregating function.
        into: the merged data.
        more: the data to add.
    """
    if function.name == "min":
        np.minimum(into, more, out=into)
    elif function.name == "max":
        np.maximum(into, more, out=into)
    elif function.name == "stddev":
        total = (square_sum(into) + square_sum(more)) & ((1 << 128) - 1)
        into[:2] += more[:2]
        into.view(np.uint64)[2:] = (total & MASK, total >> 64)
    else:
        into += more


def divide(a: int, b: int) -> int:
    """Return the quotient of two integers, rounded towards zero as in C."""
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def scalar(function: AggFunction, data: Data, normal: int = 1) -> int:
    """Return the number that count(), sum(), min(), max(), avg() and stddev() print for a key.

    stddev() is libdtrace's: the root of (mean of squares - square of mean), in integers.

    Args:
        data: merged data of the key.
        normal: divisor that normalize() has set.
    """
    if function.name == "avg":
        n = int(data[0])
        return divide(divide(int(data[1]), normal), n) if n else 0
    if function.name == "stddev":
        n = int(data[0])
        if n == 0:
            return 0
        mean = divide(divide(int(data[1]), normal), n)
        return isqrt(max(0, square_sum(data) // normal // normal // n - mean * mean))
    return divide(int(data[0]), normal)


@dataclass(slots=True)
class Entry:
    """Merged data of one key of an aggregation.

    Attributes:
        data: the data as 8-byte words.
        cleared: whether clear() has set the data to zero and nothing was added since. If so, the
            next data replaces the zero. It is not combined with the zero, because min() could then
            return the zero, which was never traced.
        normal: divisor that normalize() has set.
    """

    data: Data
    cleared: bool = False
    normal: int = 1


@dataclass(slots=True)
class KeyedTable:
    """An aggregation of a program, with its data merged over all CPUs.

    Attributes:
        aggregation: the aggregation, as the program declares it.
        layout: layout of the aggregation's tables in scratch.
        keys: type and size of each part of a key, even if the keys are constants and so are not
            stored in scratch.
        entries: merged data by key.
        printed: whether a printa() has printed the aggregation.
    """

    aggregation: AggregationVariable
    layout: AggregationLayout
    keys: tuple[Field, ...]
    entries: dict[Key, Entry] = field(default_factory=dict)
    printed: bool = False

    def add(self, key: Key, data: Data) -> None:
        entry = self.entries.get(key)
        if entry is None:
            self.entries[key] = Entry(data.copy())
        elif entry.cleared:
            entry.data, entry.cleared = data.copy(), False
        else:
            combine(self.aggregation.function, entry.data, data)

    def zero(self) -> Entry:
        """Return the entry to show for a key that the aggregation does not have."""
        return Entry(np.zeros(self.layout.data_size // 8, dtype=np.int64))


def _key_fields(aggregation: AggregationVariable, layout: AggregationLayout) -> tuple[Field, ...]:
    """Return type, size and offset of each part of an aggregation's keys. If the keys are
    constants, they are not stored, and the offsets are 0."""
    if layout.constant_keys is None:
        return layout.keys
    return tuple(
        Field(0, t.size if isinstance(t, IntType | PointerType | StringType) else 8, t)
        for t in aggregation.keys
    )


def _wrap(value: KeyValue, key: Field) -> KeyValue:
    """Return a constant key in the form in which it would be read from a table: an integer cut to
    the size and sign of its type, or a string cut before its NUL."""
    if isinstance(value, bytes):
        return value.partition(b"\0")[0]
    value &= (1 << 8 * key.size) - 1
    if is_signed(key.type) and value >> (8 * key.size - 1):
        value -= 1 << 8 * key.size
    return value


@dataclass(frozen=True, slots=True, eq=False)
class CounterSums:
    """Additions that compute the counts of sites whose trampolines do not count.

    The sites of a basic block run together, so only one of their trampolines counts, in the block
    counter. Stubs count control that enters the middle of the block. The consumer computes the
    counter of each site of the block from these counters (patch/blocks.py). A counter is given by
    its index in each CPU's counter block.

    Attributes:
        source: the counter of a block or stub, for each addition.
        target: the counter of the site to which the source is added, for each addition.
        weight: 1 to add the source or -1 to subtract it, for each addition.
    """

    source: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]
    weight: npt.NDArray[np.int64]


class AggregationStore:
    """All aggregations of a program, merged over all CPUs."""

    def __init__(
        self,
        view: memoryview | Bytes,
        scratch: Scratch,
        program: TypedProgram,
        layout: ProgramLayout,
        counters: Sequence[npt.NDArray[np.uint64]] = (),
        names: Names = NO_NAMES,
        sums: CounterSums | None = None,
        before: AggregationStore | None = None,
        gather: Callable[[], None] | None = None,
    ) -> None:
        """Begin with empty aggregations, or with those of another store.

        Args:
            view: the scratch, writable.
            scratch: layout of the scratch.
            program: the program.
            layout: layout of the program's data.
            counters: the counter block of each CPU of the target, as u64 that only grow.
                Trampolines keep some counts there instead of in tables.
            names: finds names for recorded addresses. Addresses that are shown by the same name
                become one key, such as all addresses in one function for func().
            sums: additions to do with `counters`; None if there are none.
            before: store of the preceding batch, whose aggregations the new store continues; its
                program is the same with other probes. None to begin with empty aggregations.
            gather: function that copies the target's counters to `counters`, called each time
                before `counters` are read. None if `counters` are the target's counters themselves.
        """
        self._gather = gather
        self._names = names
        self._bytes: Bytes = np.frombuffer(view, dtype=np.uint8)
        self._words = np.frombuffer(view, dtype="<u8")
        self._scratch = scratch
        self._counters = counters
        self._sums = sums
        self._layouts = layouts = {one.index: one for one in layout.aggregations}
        self.tables: dict[int, KeyedTable] = (
            before.tables
            if before is not None
            else {
                one.index: KeyedTable(one, layouts[one.index], _key_fields(one, layouts[one.index]))
                for one in sorted(program.aggregations, key=lambda a: a.index)
                if one.index in layouts
            }
        )
        self._constant: dict[int, list[Key]] = {
            index: [
                tuple(_wrap(v, f) for v, f in zip(key, table.keys, strict=True)) for key in constant
            ]
            for index, table in self.tables.items()
            if (constant := layouts[index].constant_keys) is not None
        }
        self._last: dict[int, npt.NDArray[np.uint64]] = {}
        self._left: dict[int, tuple[int, int]] = {}  # by CPU slot: (half, sequence) if not merged

    def use_counters(self, counters: Sequence[npt.NDArray[np.uint64]], sums: CounterSums) -> None:
        """Replace the counters whose counts are added to the aggregations, from now on. The
        arguments are those of __init__()."""
        self._counters, self._sums = counters, sums

    def snapshot(self) -> None:
        """Merge what clauses have counted so far in one half of the tables. Meanwhile clauses count
        in the other half."""
        if not self.tables:
            return
        for slot, (left, sequence) in self._left.items():
            if self._sequence(slot) != sequence:  # the CPU has left the clause that wrote that half
                self._merge_half(slot, left)
        half = int(self._words[HEADER_HALF >> 3]) & 1
        self._words[HEADER_HALF >> 3] = 1 - half
        time.sleep(FLIP_SECONDS)
        busy = self._busy()
        self._left = {slot: (half, sequence) for slot, sequence in busy.items()}
        for slot in range(self._scratch.cpus + 1):
            if slot not in busy:
                self._merge_half(slot, half)
        self._merge_counters()

    def finish(self) -> None:
        """Merge all that clauses have counted, in both halves of the tables. Call it once no
        producer runs any more."""
        for slot in range(self._scratch.cpus + 1):
            for half in (0, 1):
                self._merge_half(slot, half)
        self._merge_counters()

    def _sequence(self, slot: int) -> int:
        return int(self._words[(self._scratch.state_of(slot) + STATE_SEQUENCE) >> 3])

    def _busy(self) -> dict[int, int]:
        """Wait until no clause can still write the old half of the tables, for at most
        WAIT_SECONDS.

        Return the CPU slots that stay in one clause for that long, as a map from slot to the value
        of the slot's STATE_SEQUENCE.
        """
        slots = range(self._scratch.cpus + 1)
        busy = {s: q for s in slots if (q := self._sequence(s)) & 1}
        deadline = time.monotonic() + WAIT_SECONDS
        while busy and time.monotonic() < deadline:
            time.sleep(FLIP_SECONDS)
            busy = {s: q for s, q in busy.items() if self._sequence(s) == q}
        return busy

    def _merge_half(self, slot: int, half: int) -> None:
        start = self._scratch.agg_of(slot, half)
        for index, table in self.tables.items():
            layout = self._layouts[index]
            at = start + layout.area
            size = layout.entry_size * layout.capacity
            rows = self._bytes[at : at + size].reshape(layout.capacity, layout.entry_size)
            used = np.flatnonzero(rows[:, :8].copy().view("<u8").ravel())
            if not len(used):
                continue
            taken = rows[used]
            data = np.ascontiguousarray(
                taken[:, layout.data_offset : layout.data_offset + layout.data_size]
            ).view("<i8")
            for key, one in zip(self._keys(index, layout, used, taken), data, strict=True):
                table.add(key, one)
            rows[used] = 0

    def _keys(
        self, index: int, layout: AggregationLayout, used: npt.NDArray[np.intp], taken: Bytes
    ) -> list[Key]:
        constant = self._constant.get(index)
        if constant is not None:
            return [constant[i] for i in used.tolist()]
        if not layout.keys:
            return [()] * len(used)
        columns: list[Sequence[KeyValue]] = []
        for key in layout.keys:
            if is_address_data(key):
                values = bytes_of(taken, key)
                columns.append([self._names.merged(value, key.type) for value in values])
            elif isinstance(key.type, StructType):
                columns.append(bytes_of(taken, key))
            elif is_string(key):
                columns.append(strings_of(taken, key))
            else:
                columns.append(values_of(taken, key, is_signed(key.type)))
        return list(zip(*columns, strict=True))

    def _counted(self) -> npt.NDArray[np.uint64]:
        """Return each counter, summed over all CPUs, with the additions of CounterSums applied."""
        now = np.zeros(len(self._counters[0]), dtype=np.uint64)
        for block in self._counters:
            now += block
        if self._sums is not None and len(self._sums.source):
            signed = now.view(np.int64)
            more = self._sums.weight * signed[self._sums.source]
            np.add.at(signed, self._sums.target, more)
        return now

    def _merge_counters(self) -> None:
        if not self._counters:
            return
        if self._gather is not None:
            self._gather()
        counted = self._counted()
        for index, table in self.tables.items():
            layout = self._layouts[index]
            if layout.counters < 0:
                continue
            constant = self._constant.get(index, ())
            size = layout.slots or len(constant)
            first = layout.counters >> 3
            now = counted[first : first + size]
            more = now - self._last.get(index, np.zeros(size, dtype=np.uint64))
            self._last[index] = now
            # The keys are read after the counters: by then the slot of each count has its key.
            keys = self._slot_keys(layout) if layout.slots else constant
            for i in np.flatnonzero(more).tolist():
                table.add(keys[i], more[i : i + 1].view(np.int64))

    def _slot_keys(self, layout: AggregationLayout) -> Sequence[Key]:
        """Return the key of each counter of an aggregation that keeps its counts in counters, in
        the order of the counters. A counter that is not used yet has a key without meaning."""
        start = self._scratch.globals + layout.slot_table >> 3
        words = self._words[start : start + layout.slots].tolist()
        return [(_wrap(word - SLOT_BIAS, layout.keys[0]),) for word in words]

    def clear(self, index: int) -> None:
        """Clear an aggregation as clear() does: keep each key, with zeros as its data."""
        for entry in self.tables[index].entries.values():
            entry.data = np.zeros_like(entry.data)
            entry.cleared = True

    def truncate(self, index: int, count: int | None) -> None:
        """Truncate an aggregation as trunc() does.

        Args:
            index: index of the aggregation.
            count: how many keys to keep: those with the highest values or, if it is negative, those
                with the lowest. None and 0 keep no key.
        """
        table = self.tables[index]
        if not count:
            table.entries.clear()
            return
        ordered = sorted(table.entries, key=lambda k: self._rank(table, k), reverse=count > 0)
        for key in ordered[abs(count) :]:
            del table.entries[key]

    @staticmethod
    def _rank(table: KeyedTable, key: Key) -> tuple[object, ...]:
        entry = table.entries[key]
        return rank(table.aggregation.function, entry.data), key_rank(table, key)

    def normalize(self, index: int, divisor: int | None) -> None:
        """Set the divisor of each key that an aggregation has now, as normalize() does or, if the
        divisor is None, as denormalize() does. A divisor of 0 changes nothing.

        Keys that the aggregation gets later are not normalized (libdtrace's dt_normalize_agg())."""
        if divisor != 0:
            for entry in self.tables[index].entries.values():
                entry.normal = 1 if divisor is None else divisor


def key_rank(table: KeyedTable, key: Key, position: int = 0) -> tuple[KeyValue, ...]:
    """Return what a key of an aggregation is sorted by: a tuple of the key's parts from number
    `position` on (0 is the first), then the parts before it. Integers count as unsigned."""
    plain = tuple(
        v if isinstance(v, bytes) else v & ((1 << 8 * f.size) - 1)
        for v, f in zip(key, table.keys, strict=True)
    )
    if position >= len(plain):
        position = 0
    return plain[position:] + plain[:position]


def rank(function: AggFunction, data: Data) -> tuple[int, int]:
    """Return the pair of numbers by which keys are sorted, for the data of one key.

    For a distribution, the first number is the sum over all buckets of count times weight
    (bucket_weights()). The second is the count of the bucket with weight 0 or, for llquantize(), of
    the first bucket; it is 0 if there is no such bucket.

    For other data, the first number is what is printed for the key without normalize(), and the
    second is 0.
    """
    if function.name not in ("quantize", "lquantize", "llquantize"):
        return scalar(function, data), 0
    counts = data.tolist()
    bounds = bucket_weights(function, len(counts))
    if function.name == "llquantize":
        at_zero = counts[0]
    else:
        at_zero = counts[bounds.index(0)] if 0 in bounds else 0
    return sum(c * b for c, b in zip(counts, bounds, strict=True)), at_zero


def bucket_weights(function: AggFunction, buckets: int) -> list[int]:
    """Return the weight of each bucket of a distribution: the number that stands for the bucket's
    values when distributions are compared (rank())."""
    if function.name == "quantize":
        return [quantize_bound(i) for i in range(buckets)]
    if function.name == "lquantize":
        base, step = function.params[0], lquantize_step(function)
        inner = [base + i * step for i in range(buckets - 2)]
        return [base - 1, *inner, base + len(inner) * step + 1]
    inner = llquantize_bounds(function)
    return [inner[0] - 1, *inner][:buckets]


def quantize_bound(bucket: int) -> int:
    """Return the value of a bucket of quantize() by the bucket's index: negative powers of two up
    to index 62, 0 at index 63, positive powers of two from index 64 on."""
    if bucket == 63:
        return 0
    return 1 << (bucket - 64) if bucket > 63 else -(1 << (62 - bucket))


def lquantize_step(function: AggFunction) -> int:
    return function.params[2] if len(function.params) > 2 else 1


def llquantize_bounds(function: AggFunction) -> list[int]:
    """Return the lower bound of each bucket of llquantize() except the first, which has none. The
    last bound belongs to the bucket for values above the range."""
    factor, low, high, steps = function.params
    value = factor**low
    following = value * factor
    step = following // steps if following > steps else 1
    bounds = []
    order = low
    while order <= high:
        bounds.append(value)
        value += step
        if value >= following:
            following = value * factor
            step = following // steps if following > steps else 1
            order += 1
    bounds.append(value)
    return bounds


def entries_of(tables: Sequence[KeyedTable]) -> Mapping[Key, list[Entry | None]]:
    """Return a map from each key of several aggregations to a list with the key's entry in each
    aggregation, in the order of the aggregations. The list has None for an aggregation that lacks
    the key."""
    joined: dict[Key, list[Entry | None]] = {}
    for i, table in enumerate(tables):
        for key, entry in table.entries.items():
            joined.setdefault(key, [None] * len(tables))[i] = entry
    return joined


class SortOptions(Protocol):
    """The options of dtrace(1) that decide the order of keys when aggregations are printed."""

    @property
    def aggsortkey(self) -> bool: ...
    @property
    def aggsortrev(self) -> bool: ...
    @property
    def aggsortkeypos(self) -> int: ...
    @property
    def aggsortpos(self) -> int: ...


def _joined_rank(
    tables: Sequence[KeyedTable], options: SortOptions, row: tuple[Key, Sequence[Entry]]
) -> tuple[object, ...]:
    key, entries = row
    position = options.aggsortpos if options.aggsortpos < len(tables) else 0
    pairs = [(t.aggregation.function, e.data) for t, e in zip(tables, entries, strict=True)]
    values = tuple(rank(*pair) for pair in pairs[position:] + pairs[:position])
    keys = key_rank(tables[0], key, options.aggsortkeypos)
    return (keys, values) if options.aggsortkey else (values, keys)


def sorted_rows(
    tables: Sequence[KeyedTable], options: SortOptions
) -> list[tuple[Key, list[Entry]]]:
    """Return the keys of several aggregations in the order of display. Each key comes with its
    entry in each aggregation; if an aggregation lacks the key, the entry has zeros."""
    rows = [
        (key, [e if e is not None else t.zero() for e, t in zip(entries, tables, strict=True)])
        for key, entries in entries_of(tables).items()
    ]
    rows.sort(key=partial(_joined_rank, tables, options), reverse=options.aggsortrev)
    return rows
