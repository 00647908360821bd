"""The tables of aggregations: how many buckets an aggregating function has (Dynamic Tracing Guide,
ch. 9), which keys are known before the trace, how many entries fit.

Tested by tests/codegen/layout/test_layout.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kinst.codegen.analysis import may_be_pure
from kinst.codegen.layout.variable_places import place, up
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
    """One order of magnitude of llquantize(): a value with low <= value < high is in one of its
    buckets, each `width` wide, the first of which has number `first`."""

    low: int
    high: int
    width: int
    first: int


def magnitudes(params: tuple[int, ...]) -> tuple[tuple[Magnitude, ...], int]:
    """The orders of magnitude of llquantize(x, factor, low, high, steps), and the bucket for all
    values above them.

    Bucket 0 is for values below factor**low. An order numbers its buckets from where the one below
    left off, because the lowest 1/factor of its range belongs to that one.
    """
    factor, low, high, steps = params
    found = []
    last = factor**low
    first = 1
    if last > INT64_MAX:
        return (), first
    for _ in range(low, high + 1):
        this = last * factor
        buckets = min(this, steps)
        found.append(Magnitude(last, min(this, INT64_MAX), max(1, this // buckets), first))
        if this > INT64_MAX:
            return tuple(found), first + (INT64_MAX - last) // max(1, this // buckets)
        first += buckets - buckets // factor
        last = this
    return tuple(found), first


def data_words(function: AggFunction) -> int:
    """The u64 words of an entry's data, as core/records.py lists them.

    Raises KinstError for parameters that make no buckets (the checker refuses them).
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


# A probe with its id and the clauses that it runs (indexes, in program order).
Probed = tuple[ProbeName, int, tuple[int, ...]]

_PARTS = {
    "probeprov": "provider",
    "probemod": "module",
    "probefunc": "function",
    "probename": "name",
}


def _literal(expr: typed.Expr) -> KeyValue | None:
    """The value of a constant key; None for any other key."""
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
    """The keys of an update if all of them are literals, else None."""
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
    """The aggregation's entries if every probe knows its keys in advance, else None.

    A probe has at most one entry of its own; updates with literal keys need not ask the probe.
    """
    entry_of: dict[tuple[KeyValue, ...], int] = {}
    own: dict[tuple[int, int], int] = {}
    # Probes are many, and what their clauses do with this aggregation is of few kinds.
    known: dict[tuple[int, ...], list[typed.AggregateAction]] = {}
    for name, probe_id, clauses in probes:
        asking = known.get(clauses)
        if asking is None:
            every = [u for clause in clauses for u in _updates(program.clauses[clause], index)]
            asking = known[clauses] = [u for u in every if literal_keys(u.keys) is None]
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
            if own.setdefault((probe_id, index), entry) != entry:
                return None
    return _Constant(tuple(entry_of), own)


def _constant_at_all(program: typed.TypedProgram, index: int) -> bool:
    """Whether all keys can be known in advance, also those in clauses that no probe runs."""
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
    """For each key the longest value, in bytes with its NUL, that the probes allow: every byte of a
    key is hashed and compared. A key that can be anything has a bound longer than any string."""
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
    """The shape of an aggregation's entries."""

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
        """The number of constant keys; 0 for a hashed aggregation."""
        return max(1, len(self.constant.keys)) if self.constant else 0

    @property
    def fixed_size(self) -> int:
        return self.entries * self.entry_size

    def slots(self, program: typed.TypedProgram) -> int:
        """AggregationLayout.slots: where a clause that only counts finds its key in registers."""
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
    keys, end = place(aggregation.keys, 8, strsize, bounds)
    data_offset = up(max(end, 9), 8)  # one word of keys at least, where structures have no bytes
    return EntryShape(aggregation, keys, data_offset, 8 * data_words(aggregation.function), None)


def entry_shapes(
    program: typed.TypedProgram, probes: Sequence[Probed], strsize: int, agg_size: int
) -> list[EntryShape]:
    """A shape for each aggregation. Keys are constant wherever possible, as long as these tables
    leave half of the room to the hashed ones; the largest give way first, since a hashed table
    makes only the entries that are used."""
    found = []
    for aggregation in program.aggregations:
        constant = None
        if _constant_at_all(program, aggregation.index):
            constant = _constant_keys(program, probes, aggregation.index)
        if constant is None:
            found.append(_hashed(program, probes, aggregation, strsize))
        else:
            data = 8 * data_words(aggregation.function)
            found.append(EntryShape(aggregation, (), 8, data, constant))
    while True:
        mixed = any(s.constant is None for s in found)
        large = [s for s in found if s.fixed_size and s.aggregation.keys]
        if not large or sum(s.fixed_size for s in found) <= (agg_size // 2 if mixed else agg_size):
            return found
        largest = max(large, key=lambda s: s.fixed_size)
        found[found.index(largest)] = _hashed(program, probes, largest.aggregation, strsize)


def capacities(shapes: Sequence[EntryShape], agg_size: int) -> list[int]:
    """The number of entries of each table. Constant ones have one for each tuple of keys; the
    others share the rest evenly, each rounded down to a power of two. Raises KinstError if that
    leaves one with none."""
    used = sum(s.fixed_size for s in shapes)
    hashed = sum(1 for s in shapes if s.constant is None)
    share = (agg_size - used) // hashed if hashed else 0
    if used > agg_size:
        raise KinstError(
            f"the aggregations need {used} bytes for each CPU, aggsize is {agg_size}",
            f"-x aggsize={up(used, 4096)}",
        )
    found = []
    for shape in shapes:
        entries = shape.entries or share // shape.entry_size
        if entries < 1:
            need = used + hashed * shape.entry_size
            raise KinstError(
                f"@{shape.aggregation.name} needs entries of {shape.entry_size} bytes, aggsize"
                f" {agg_size} leaves {max(share, 0)}",
                f"-x aggsize={up(64 * need, 4096)} or a smaller strsize",
            )
        found.append(shape.entries or 1 << (entries.bit_length() - 1))
    return found
