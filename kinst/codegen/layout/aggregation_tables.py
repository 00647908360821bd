"""Layout of the tables of aggregations: how many buckets each aggregating function has (Dynamic
Tracing Guide, ch. 9), which keys are constants, and how many entries fit in a table.

There are two kinds of tables. A hash table has room for keys that are computed when a probe fires.
A table of constant keys has one entry for each tuple of keys that can occur, such as each traced
function's name for @[probefunc]: each probe then always updates the same entry.

Tested by tests/codegen/layout/test_layout.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kinst.codegen.analysis import may_be_pure
from kinst.codegen.layout.variable_places import lay_out_values, round_up
from kinst.core.dataclass import dataclass
from kinst.core.dtypes import DType, IntType, PointerType
from kinst.core.errors import KinstError
from kinst.core.probe import ProbeName
from kinst.core.records import QUANTIZE_BUCKETS, SLOTS, Field, KeyValue
from kinst.dlang import typed
from kinst.dlang.typed import AggFunction

INT64_MAX = (1 << 63) - 1

_WORDS = {"count": 1, "sum": 1, "min": 1, "max": 1, "avg": 2, "stddev": 4}


@dataclass(frozen=True, slots=True)
class Magnitude:
    """An order of magnitude of llquantize(): a range of values with buckets of equal width.

    Attributes:
        low: the least value of the range.
        high: the least value above the range.
        width: width of each bucket.
        first: number of the first bucket.
    """

    low: int
    high: int
    width: int
    first: int


def magnitudes(params: tuple[int, ...]) -> tuple[tuple[Magnitude, ...], int]:
    """Return the orders of magnitude of llquantize(x, factor, low, high, steps), lowest first, and
    the number of the bucket for all values above them.

    Bucket 0 is for values below factor**low.  For each k from `low` to `high`, there is an order of
    magnitude for the values from factor**k to factor**(k+1).  The width of its buckets is
    factor**(k+1) / steps, at least 1.  The buckets of all orders are numbered one after another,
    from 1.

    Args:
        params: (factor, low, high, steps).
    """
    factor, low, high, steps = params
    orders = []
    last = factor**low
    first = 1
    if last > INT64_MAX:
        return (), first
    for _ in range(low, high + 1):
        this = last * factor
        buckets = min(this, steps)
        orders.append(Magnitude(last, min(this, INT64_MAX), max(1, this // buckets), first))
        if this > INT64_MAX:
            return tuple(orders), first + (INT64_MAX - last) // max(1, this // buckets)
        first += buckets - buckets // factor
        last = this
    return tuple(orders), first


def data_words(function: AggFunction) -> int:
    """Return how many u64 words of data each entry of an aggregation's table has (core/records.py).

    Raises KinstError if the function's parameters make no buckets (the checker refuses such
    parameters).
    """
    if function.name in _WORDS:
        return _WORDS[function.name]
    if function.name == "quantize":
        return QUANTIZE_BUCKETS
    if function.name == "lquantize":
        base, limit, step = function.params
        if step <= 0 or limit <= base:
            raise KinstError(f"lquantize({base}, {limit}, {step}) has no buckets")
        return (limit - base) // step + 2
    if function.name == "llquantize":
        return magnitudes(function.params)[1] + 1
    raise KinstError(f"unknown aggregating function {function.name}()")


# A probe: its name, its id, and the indexes of the clauses that it runs, in program order.
Probed = tuple[ProbeName, int, tuple[int, ...]]

_PARTS = {
    "probeprov": "provider",
    "probemod": "module",
    "probefunc": "function",
    "probename": "name",
}


def _literal(expr: typed.Expr) -> KeyValue | None:
    """Return the value of a key if it is a literal, possibly negated or cast; None for any other
    key.
    """
    if isinstance(expr, typed.StrConst):
        return expr.value
    if isinstance(expr, typed.IntConst):
        return _wrap(expr.value, expr.type)
    if isinstance(expr, typed.Cast):
        inner = _literal(expr.operand)
        return _wrap(inner, expr.type) if isinstance(inner, int) else inner
    if isinstance(expr, typed.Unary) and expr.op == "-":
        inner = _literal(expr.operand)
        return _wrap(-inner, expr.type) if isinstance(inner, int) else None
    return None


def _wrap(value: int, type_: DType) -> int:
    if not isinstance(type_, (IntType, PointerType)):
        return value
    bits = 8 * type_.size
    value &= (1 << bits) - 1
    return value - (1 << bits) if typed.is_signed(type_) and value >> (bits - 1) else value


def literal_keys(keys: Sequence[typed.Expr]) -> tuple[KeyValue, ...] | None:
    """Return the values of an update's keys if all keys are literals, else None."""
    values = [_literal(key) for key in keys]
    return None if None in values else tuple(v for v in values if v is not None)


def _probe_key(expr: typed.Expr, name: ProbeName, probe_id: int) -> KeyValue | None:
    if isinstance(expr, typed.Cast):
        inner = _probe_key(expr.operand, name, probe_id)
        return _wrap(inner, expr.type) if isinstance(inner, int) else inner
    if isinstance(expr, typed.Builtin) and expr.name in _PARTS:
        return str(getattr(name, _PARTS[expr.name])).encode()
    if isinstance(expr, typed.Builtin) and expr.name == "id":
        return probe_id
    return _literal(expr)


def _updates(clause: typed.Clause, index: int) -> Iterator[typed.AggregateAction]:
    for action in clause.actions:
        if isinstance(action, typed.AggregateAction) and action.aggregation.index == index:
            yield action


@dataclass(frozen=True, slots=True)
class _Constant:
    keys: tuple[tuple[KeyValue, ...], ...]
    entries: dict[tuple[int, int], int]  # (probe id, aggregation's index) -> entry


def _constant_keys(
    program: typed.TypedProgram, probes: Sequence[Probed], index: int
) -> _Constant | None:
    """Return the entries of an aggregation's table of constant keys, or None if the aggregation
    needs a hash table.

    A table of constant keys is possible under two conditions:
    * Every key is a literal, or is constant at each probe (probefunc, id and so on).
    * Each probe updates at most one entry whose keys depend on the probe: a site descriptor has
      room for the index of one such entry of each aggregation.

    Args:
        index: index of the aggregation.
    """
    entry_of: dict[tuple[KeyValue, ...], int] = {}
    probe_entries: dict[tuple[int, int], int] = {}
    # Many probes share a few tuples of clauses.
    updates_of: dict[tuple[int, ...], list[typed.AggregateAction]] = {}
    for name, probe_id, clauses in probes:
        asking = updates_of.get(clauses)
        if asking is None:
            every = [u for clause in clauses for u in _updates(program.clauses[clause], index)]
            asking = updates_of[clauses] = [u for u in every if literal_keys(u.keys) is None]
            new = every
        else:
            new = asking
        for update in new:
            values = [_probe_key(key, name, probe_id) for key in update.keys]
            if None in values:
                return None
            keys = tuple(v for v in values if v is not None)
            entry = entry_of.setdefault(keys, len(entry_of))
            if update not in asking:
                continue
            if probe_entries.setdefault((probe_id, index), entry) != entry:
                return None
    return _Constant(tuple(entry_of), probe_entries)


def _constant_at_all(program: typed.TypedProgram, index: int) -> bool:
    """Return whether every key in every update of an aggregation is constant at a probe: a literal,
    or a built-in such as probefunc or id. Clauses that no probe runs count as well.

    Args:
        index: index of the aggregation.
    """
    name = ProbeName("", "", "", "")
    return all(
        _probe_key(key, name, 0) is not None
        for clause in program.clauses
        for update in _updates(clause, index)
        for key in update.keys
    )


def _key_bounds(
    program: typed.TypedProgram, probes: Sequence[Probed], index: int, keys: int
) -> list[int]:
    """Return a bound for each key of an aggregation: the bytes (with NUL) of the longest string
    that any probe can store as this key.

    A small bound saves time, since every byte of a key is hashed and compared. The bound is 2**30,
    which is no limit, for a key that is not a string, or that is computed when some probe fires.

    Args:
        index: index of the aggregation.
        keys: number of its keys.
    """
    anything = 1 << 30
    bounds = [1] * keys
    for name, probe_id, clauses in probes:
        for clause in clauses:
            for update in _updates(program.clauses[clause], index):
                for i, key in enumerate(update.keys):
                    value = _probe_key(key, name, probe_id)
                    size = len(value) + 1 if isinstance(value, bytes) else anything
                    bounds[i] = max(bounds[i], size)
    return bounds


@dataclass(frozen=True, slots=True)
class EntryShape:
    """Layout of the table entries of one aggregation.

    Attributes:
        aggregation: the aggregation.
        keys: the field of each key in an entry.
        data_offset: offset of the data in an entry.
        data_size: bytes of the data.
        constant: the table's entries if all keys are constants; None for a hash table.
    """

    aggregation: typed.AggregationVariable
    keys: tuple[Field, ...]
    data_offset: int
    data_size: int
    constant: _Constant | None

    @property
    def entry_size(self) -> int:
        return self.data_offset + self.data_size

    @property
    def entries(self) -> int:
        """The number of entries of a table of constant keys; 0 for a hash table."""
        return max(1, len(self.constant.keys)) if self.constant else 0

    @property
    def fixed_size(self) -> int:
        return self.entries * self.entry_size

    def slots(self, program: typed.TypedProgram) -> int:
        """Return how many counters the aggregation has that trampolines find by a key, without a
        call (AggregationLayout.slots): SLOTS or 0.

        It has such counters under three conditions: it is a count() in a hash table; its only key
        is an integer or a pointer; and some clause does nothing but update it, with a key that may
        be pure.
        """
        types = self.aggregation.keys
        if self.constant or self.aggregation.function.name != "count" or len(types) != 1:
            return 0
        return (
            SLOTS
            if isinstance(types[0], IntType | PointerType)
            and any(
                may_be_pure(update.keys[0])
                for clause in program.clauses
                for update in _updates(clause, self.aggregation.index)
                if len(clause.actions) == 1
            )
            else 0
        )


def _hashed(
    program: typed.TypedProgram,
    probes: Sequence[Probed],
    aggregation: typed.AggregationVariable,
    strsize: int,
) -> EntryShape:
    bounds = _key_bounds(program, probes, aggregation.index, len(aggregation.keys))
    keys, end = lay_out_values(aggregation.keys, 8, strsize, bounds)
    data_offset = round_up(
        max(end, 9), 8
    )  # one word of keys at least: a structure may have no bytes
    return EntryShape(aggregation, keys, data_offset, 8 * data_words(aggregation.function), None)


def entry_shapes(
    program: typed.TypedProgram, probes: Sequence[Probed], strsize: int, agg_size: int
) -> list[EntryShape]:
    """Choose for each aggregation between a table of constant keys and a hash table; return the
    layout of each aggregation's entries, in order.

    At first, every aggregation whose keys are constants gets a table of constant keys. These tables
    may take the whole area or, if there are hash tables too, half of it. While they take more, the
    largest of them becomes a hash table, which needs entries only for keys that occur.

    Args:
        agg_size: bytes of one half of one CPU's aggregation area.
    """
    shapes = []
    for aggregation in program.aggregations:
        constant = None
        if _constant_at_all(program, aggregation.index):
            constant = _constant_keys(program, probes, aggregation.index)
        if constant is None:
            shapes.append(_hashed(program, probes, aggregation, strsize))
        else:
            data = 8 * data_words(aggregation.function)
            shapes.append(EntryShape(aggregation, (), 8, data, constant))
    while True:
        mixed = any(s.constant is None for s in shapes)
        large = [s for s in shapes if s.fixed_size and s.aggregation.keys]
        if not large or sum(s.fixed_size for s in shapes) <= (agg_size // 2 if mixed else agg_size):
            return shapes
        largest = max(large, key=lambda s: s.fixed_size)
        shapes[shapes.index(largest)] = _hashed(program, probes, largest.aggregation, strsize)


def capacities(shapes: Sequence[EntryShape], agg_size: int) -> list[int]:
    """Return the number of entries of each aggregation's table, in the order of `shapes`.

    A table of constant keys has one entry for each tuple of keys.  Hash tables share the rest of
    the area evenly, and the number of entries of each is rounded down to a power of two.  Raises
    KinstError if the area is too small for the tables.

    Args:
        agg_size: bytes of one half of one CPU's aggregation area.
    """
    used = sum(s.fixed_size for s in shapes)
    hashed = sum(1 for s in shapes if s.constant is None)
    share = (agg_size - used) // hashed if hashed else 0
    if used > agg_size:
        raise KinstError(
            f"the aggregations need {used} bytes for each CPU, aggsize is {agg_size}",
            f"-x aggsize={round_up(used, 4096)}",
        )
    capacity = []
    for shape in shapes:
        entries = shape.entries or share // shape.entry_size
        if entries < 1:
            need = used + hashed * shape.entry_size
            raise KinstError(
                f"@{shape.aggregation.name} needs entries of {shape.entry_size} bytes, aggsize"
                f" {agg_size} leaves {max(share, 0)}",
                f"-x aggsize={round_up(64 * need, 4096)} or a smaller strsize",
            )
        capacity.append(shape.entries or 1 << (entries.bit_length() - 1))
    return capacity
