"""Aggregations against models in Python, on both machines."""

from __future__ import annotations

import random
import struct

import pytest

from kinst.codegen.layout.aggregation_tables import data_words
from kinst.codegen.layout.program_layout import lay_out_program
from kinst.core import layout as lay
from kinst.core.dtypes import INT, INT64, STRING, UINT, UINT64, DType, IntType
from kinst.core.errors import KinstError
from kinst.core.records import SLOT_BIAS, SLOTS
from kinst.dlang import typed as t
from kinst.dlang.typed import AggFunction, AggregationVariable
from tests.codegen.codegen_rig import (
    RIGS,
    SPAN,
    HostRig,
    Rig,
    TargetRig,
    builtin,
    integer,
    name_of,
    program,
    reg,
    scratch,
    string,
)

both = pytest.mark.parametrize("rig", RIGS)
LOW, HIGH = -(1 << 63), (1 << 63) - 1
EDGES = [0, 1, -1, 2, 3, -2, 4, 7, 8, 9, 10, 11, 63, 64, 99, 100, 101, 999, 1000, 1001, HIGH, LOW]
EDGES += [HIGH - 1, LOW + 1, 1 << 40, -(1 << 40), (1 << 62) - 1, 1 << 62, -(1 << 62), 5000, 99999]


def wrap(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def aggregation(
    function: str, *params: int, keys: tuple[DType, ...] = (), index: int = 0
) -> AggregationVariable:
    return AggregationVariable(f"a{index}", index, keys, AggFunction(function, params))


def signed(index: int) -> t.Cast:
    return t.Cast(INT64, SPAN, reg(index))


def quantize_bucket(value: int) -> int:
    """Compute a bucket by the definition: bucket i reaches from its bound up to the next one's
    (for negative values: down to)."""
    bound = [-(1 << (62 - i)) if i < 63 else 0 if i == 63 else 1 << (i - 64) for i in range(127)]
    if value < 0:
        return next(i for i in range(63) if value <= bound[i])
    return max(i for i in range(63, 127) if bound[i] <= value)


def lquantize_bucket(value: int, base: int, limit: int, step: int) -> int:
    levels = (limit - base) // step
    if value < base:
        return 0
    return min((value - base) // step, levels) + 1


def llquantize_bounds(factor: int, low: int, high: int, steps: int) -> list[int]:
    """Return lower bounds of all buckets but the first, and of the bucket above all."""
    bounds = []
    for order in range(low, high + 1):
        bottom, top = factor**order, factor ** (order + 1)
        width = max(1, top // steps)
        bounds += list(range(bottom, top, width))
    return [*bounds, factor ** (high + 1)]


def model(function: AggFunction, updates: list[tuple[int, int]]) -> tuple[int, ...]:
    values = [v for v, _ in updates]
    total = sum(values) & (1 << 64) - 1
    match function.name:
        case "count":
            return (len(values),)
        case "sum":
            return (total,)
        case "min":
            return (min(values) & (1 << 64) - 1,)
        case "max":
            return (max(values) & (1 << 64) - 1,)
        case "avg":
            return (len(values), total)
        case "stddev":
            squares = sum(v * v for v in values) % (1 << 128)
            return (len(values), total, squares & (1 << 64) - 1, squares >> 64)
    data = [0] * data_words(function)
    for value, weight in updates:
        if function.name == "quantize":
            bucket = quantize_bucket(value)
        elif function.name == "lquantize":
            base, limit, step = function.params
            bucket = lquantize_bucket(value, base, limit, step)
        else:
            factor, low, high, steps = function.params
            bucket = sum(1 for b in llquantize_bounds(factor, low, high, steps) if b <= value)
        data[bucket] = (data[bucket] + weight) & (1 << 64) - 1
    return tuple(data)


FUNCTIONS = [
    ("count",), ("sum",), ("min",), ("max",), ("avg",), ("stddev",), ("quantize",),
    ("lquantize", 0, 100, 10), ("lquantize", -50, 1001, 7), ("lquantize", -(1 << 31), 100, 1 << 30),
    ("llquantize", 10, 0, 6, 20), ("llquantize", 10, 2, 4, 10), ("llquantize", 2, 0, 20, 4),
    ("llquantize", 3, 1, 5, 27), ("llquantize", 10, 17, 19, 10), ("llquantize", 2, 60, 66, 4),
    ("llquantize", 10, 19, 20, 10), ("llquantize", 7, 20, 23, 49),
]  # fmt: skip


@both
@pytest.mark.parametrize("spec", FUNCTIONS)
def test_functions_match_their_model(rig: type[Rig], spec: tuple[object, ...]) -> None:
    plain = aggregation(*spec)  # type: ignore[arg-type]
    keyed = aggregation(*spec, keys=(INT64,), index=1)  # type: ignore[arg-type]
    name = str(spec[0])
    value = None if name == "count" else signed(1)
    weighted = name.endswith("quantize")
    weight = signed(2) if weighted else None
    run = rig(
        program(
            [
                t.AggregateAction(SPAN, plain, (), value, weight),
                t.AggregateAction(SPAN, keyed, (signed(3),), value, weight),
            ],
            aggregations=(plain, keyed),
        ),
        {1: (0,)},
        scratch=scratch(agg_size=131072),
    )
    choose = random.Random(str(spec))
    values = EDGES + [wrap(choose.getrandbits(choose.randrange(1, 65))) for _ in range(120)]
    updates = [(v, choose.choice((1, 1, 5, -3)) if weighted else 1) for v in values]
    groups: dict[int, list[tuple[int, int]]] = {}
    for i, (v, w) in enumerate(updates):
        groups.setdefault(i % 5 - 2, []).append((v, w))
        run.fire(1, {1: v, 2: w, 3: i % 5 - 2})
    assert run.table(0, run.slot) == {bytes(8): model(plain.function, updates)}
    expected = {struct.pack("<q", k): model(plain.function, u) for k, u in groups.items()}
    assert run.table(1, run.slot) == expected
    assert run.state(lay.STATE_AGG_DROPS, run.slot) == 0


@both
def test_tuple_keys_of_strings_and_integers(rig: type[Rig]) -> None:
    keys = (INT, STRING, IntType(1, False, "uint8_t"), UINT64)
    agg = aggregation("sum", keys=keys)
    exprs = (
        t.Cast(INT, SPAN, reg(1)),
        t.Conditional(STRING, SPAN, reg(2), string(b"left side"), string(b"right")),
        t.Cast(keys[2], SPAN, reg(1)),
        reg(3),
    )
    run = rig(
        program([t.AggregateAction(SPAN, agg, exprs, signed(4))], aggregations=(agg,)),
        {1: (0,)}, strsize=21,
    )  # fmt: skip
    choose = random.Random(5)
    expected: dict[bytes, int] = {}
    for _ in range(200):
        a, b, c = choose.choice((-1, 5, 300)), choose.choice((0, 1)), choose.choice((9, 1 << 63))
        run.fire(1, {1: a, 2: b, 3: c, 4: 10})
        text = (b"left side" if b else b"right").ljust(21, b"\0")
        entry = struct.pack("<i", a) + text + struct.pack("<B", a & 255)
        key = entry.ljust(32, b"\0") + struct.pack("<Q", c)
        expected[key] = expected.get(key, 0) + 10
    assert run.table(0, run.slot) == {k: (v,) for k, v in expected.items()}
    layout = run.layout.aggregations[0]
    assert [f.offset for f in layout.keys] == [8, 12, 33, 40]


@both
def test_full_table_counts_drops(rig: type[Rig]) -> None:
    agg = aggregation("count", keys=(UINT64,))
    run = rig(
        program([t.AggregateAction(SPAN, agg, (reg(1),), None)], aggregations=(agg,)),
        {1: (0,)}, scratch=scratch(agg_size=4096),
    )  # fmt: skip
    assert run.layout.aggregations[0].capacity == 128  # 24 bytes an entry
    for i in range(400):
        run.fire(1, {1: i})
    kept = run.table(0, run.slot)
    assert 64 <= len(kept) <= 128
    assert len(kept) + run.state(lay.STATE_AGG_DROPS, run.slot) == 400
    for i in range(400):
        run.fire(1, {1: i})
    again = run.table(0, run.slot)
    assert set(again.values()) == {(2,)} and again.keys() == kept.keys()


@both
@pytest.mark.parametrize("function", ["sum", "max", "avg", "stddev", "quantize"])
def test_the_active_half_is_written_and_stale_data_is_not_read(
    rig: type[Rig], function: str
) -> None:
    agg = aggregation(function, keys=(UINT64,))
    run = rig(
        program([t.AggregateAction(SPAN, agg, (reg(1),), signed(2))], aggregations=(agg,)),
        {1: (0,)},
    )
    # Only tags are zero: data of an earlier use must not count.
    layout = run.layout.aggregations[0]
    stale = (bytes(8) + b"\xee" * (layout.entry_size - 8)) * layout.capacity
    run.write(run.scratch.agg_of(run.slot, 1), stale)
    run.write(lay.HEADER_HALF, struct.pack("<Q", 1))
    run.fire(1, {1: 5, 2: 70})
    run.fire(1, {1: 5, 2: 1})
    assert run.table(0, run.slot, half=0) == {}
    expected = model(agg.function, [(70, 1), (1, 1)])
    assert run.table(0, run.slot, half=1) == {struct.pack("<Q", 5): expected}


def by(*names: str) -> tuple[t.Expr, ...]:
    return tuple(builtin(n, UINT if n == "id" else STRING) for n in names)


@both
def test_constant_keys_are_entries_of_the_site(rig: type[Rig]) -> None:
    by_function = aggregation("count", keys=(STRING,))
    by_literal = aggregation("max", keys=(INT, STRING), index=1)
    single = aggregation("count", index=2)
    by_id = aggregation("sum", keys=(UINT, INT), index=3)
    minus = t.Cast(INT, SPAN, integer(-7, INT64))
    clauses = program(
        [
            t.AggregateAction(SPAN, by_function, by("probefunc"), None),
            t.AggregateAction(SPAN, by_literal, (integer(1), string(b"x")), signed(1)),
            t.AggregateAction(SPAN, by_literal, (integer(2), string(b"x")), signed(1)),
        ],
        [
            t.AggregateAction(SPAN, single, (), None),
            t.AggregateAction(SPAN, by_id, (*by("id"), minus), signed(1)),
        ],
        aggregations=(by_function, by_literal, single, by_id),
    )
    probes = {5: (0, 1), 6: (0,), 105: (1, 0)}  # 5 and 105 are in one function
    run = rig(clauses, probes)
    layouts = run.layout.aggregations
    assert layouts[0].constant_keys == ((b"function_5",), (b"function_6",))
    assert layouts[1].constant_keys == ((1, b"x"), (2, b"x"))
    assert layouts[2].constant_keys == ((),)
    assert layouts[3].constant_keys == ((5, -7), (105, -7))
    assert run.layout.site_keys == {
        (5, 0): 0, (6, 0): 1, (105, 0): 0, (5, 3): 0, (105, 3): 1,
    }  # fmt: skip
    assert [a.counters for a in layouts] == [0, -1, 16, -1] and run.layout.counters_size == 24
    assert all(a.entry_size == 8 + a.data_size for a in layouts)
    for probe, value in ((5, -3), (6, -9), (105, -5), (5, -4)):
        run.fire(probe, {1: value})
    tables = [
        {layouts[i].constant_keys[int.from_bytes(k, "little")]: v[0] for k, v in  # type: ignore[index]
         run.table(i, run.slot).items()}
        for i in range(4)
    ]  # fmt: skip
    mask = (1 << 64) - 1
    assert tables[0] == {(b"function_5",): 3, (b"function_6",): 1}
    assert tables[1] == {(1, b"x"): -3 & mask, (2, b"x"): -3 & mask}
    assert tables[2] == {(): 3}
    assert tables[3] == {(5, -7): -7 & mask, (105, -7): -5 & mask}


def test_keys_that_a_probe_cannot_know_are_hashed() -> None:
    agg = aggregation("count", keys=(STRING,))
    updates = [t.AggregateAction(SPAN, agg, by("probefunc"), None),
               t.AggregateAction(SPAN, agg, by("probename"), None)]  # fmt: skip
    one_each = program(updates[:1], updates[1:], aggregations=(agg,))
    alone = lay_out_program(one_each, [(name_of(1), 1, (0,)), (name_of(2), 2, (1,))], 64, 8192)
    assert alone.aggregations[0].constant_keys == ((b"function_1",), (b"2",))
    two = lay_out_program(one_each, [(name_of(1), 1, (0, 1))], 64, 8192)
    assert two.aggregations[0].constant_keys is None
    assert two.aggregations[0].keys[0].size == len("function_1") + 1, "no probe has a longer one"
    pid = program(
        [t.AggregateAction(SPAN, agg, (builtin("execname", STRING),), None)], aggregations=(agg,)
    )
    hashed = lay_out_program(pid, [(name_of(1), 1, (0,))], 64, 8192).aggregations[0]
    assert hashed.constant_keys is None and hashed.keys[0].size == 64


def test_host_and_target_agree_on_keys_and_capacity_is_shared() -> None:
    first, second = (aggregation("sum", keys=(STRING,), index=i) for i in range(2))
    fixed = aggregation("quantize", index=2)
    execname = (builtin("execname", STRING),)
    clauses = program(
        [t.AggregateAction(SPAN, a, execname, reg(1)) for a in (first, second)]
        + [t.AggregateAction(SPAN, fixed, (), reg(1))],
        aggregations=(first, second, fixed),
    )
    runs = [rig(clauses, {1: (0,)}) for rig in (HostRig, TargetRig)]
    for run in runs:
        run.fire(1, {1: 6})
    assert runs[0].table(0, 2) == runs[1].table(0, 0) == {b"dd".ljust(64, b"\0"): (6,)}
    layouts = runs[0].layout.aggregations
    assert [a.capacity for a in layouts] == [128, 128, 1]  # (32768 - 1024) / 2 / 80 = 198
    ends = [a.area + a.capacity * a.entry_size for a in layouts]
    assert [a.area for a in layouts] == [0, ends[0], ends[1]] and ends[2] <= 32768
    with pytest.raises(KinstError, match="aggsize"):
        lay_out_program(clauses, [(name_of(1), 1, (0,))], 64, 1024)


def test_min_and_max_start_from_their_first_value() -> None:
    low, high = aggregation("min"), aggregation("max", index=1)
    updates = [t.AggregateAction(SPAN, a, (), signed(1)) for a in (low, high)]
    run = HostRig(program(updates, aggregations=(low, high)), {1: (0,)})
    run.fire(1, {1: 50})
    run.fire(1, {1: 60})
    assert run.table(0, 2) == {bytes(8): (50,)} and run.table(1, 2) == {bytes(8): (60,)}


@both
def test_constant_keys_give_way_where_they_do_not_fit(rig: type[Rig]) -> None:
    drawing = aggregation("quantize", keys=(STRING,))
    counted = aggregation("count", keys=(STRING,), index=1)
    clauses = program(
        [
            t.AggregateAction(SPAN, drawing, by("probename"), reg(1)),
            t.AggregateAction(SPAN, counted, by("probename"), None),
        ],
        aggregations=(drawing, counted),
    )
    run = rig(clauses, dict.fromkeys(range(100, 120), (0,)), scratch=scratch(agg_size=16384))
    layouts = run.layout.aggregations
    assert layouts[0].constant_keys is None  # 20 KB
    assert layouts[1].constant_keys == tuple((str(p).encode(),) for p in range(100, 120))
    run.fire(104, {1: 3})
    run.fire(107, {1: 3})
    run.fire(107, {1: 3})
    expected = model(drawing.function, [(3, 1)])
    assert run.table(0, run.slot) == {
        b"104".ljust(8, b"\0"): expected,
        b"107".ljust(8, b"\0"): tuple(2 * n for n in expected),
    }
    assert sorted(run.table(1, run.slot).values()) == [(1,), (2,)]


def test_many_probes_are_laid_out() -> None:
    agg = aggregation("count", keys=(STRING, STRING))
    clauses = program([t.AggregateAction(SPAN, agg, by("probefunc", "probename"), None)],
                      aggregations=(agg,))  # fmt: skip
    probes = [(name_of(i), i, (0,)) for i in range(20000)]
    layout = lay_out_program(clauses, probes, 256, 4 << 20)
    assert layout.aggregations[0].capacity == 20000
    assert layout.site_keys[19999, 0] == 19999


@both
def test_equal_hashes_do_not_make_equal_keys(rig: type[Rig]) -> None:
    agg = aggregation("count", keys=(UINT64, UINT64))
    run = rig(
        program([t.AggregateAction(SPAN, agg, (reg(1), reg(2)), None)], aggregations=(agg,)),
        {1: (0,)},
    )
    run.fire(1, {1: 5, 2: 6})
    # Give the entry another key under the hash of (5, 6).
    layout = run.layout.aggregations[0]
    area = run.scratch.agg_of(run.slot, 0)
    table = run.read(area, layout.capacity * layout.entry_size)
    place = table.index(struct.pack("<QQ", 5, 6))
    run.write(area + place, struct.pack("<QQ", 5, 7))
    run.fire(1, {1: 5, 2: 6})
    expected = {struct.pack("<QQ", 5, 7): (1,), struct.pack("<QQ", 5, 6): (1,)}
    assert run.table(0, run.slot) == expected


def test_a_count_by_one_key_claims_its_slot() -> None:
    """A word is claimed for each key that the clause meets first, if it is where the clause looks
    for it.

    No second key gets the same slot.
    """
    agg = aggregation("count", keys=(INT,))
    key = t.Cast(INT, SPAN, reg(1))
    run = TargetRig(
        program([t.AggregateAction(SPAN, agg, (key,), None)], aggregations=(agg,)),
        {1: (0,)},
        scratch=scratch(globals_size=8192 + 64),
    )
    (layout,) = run.layout.aggregations
    assert layout.slots == SLOTS
    met = dict[int, int]()
    choose = random.Random(3)
    for value in (-1, 0, 1, *(choose.getrandbits(32) - (1 << 31) for _ in range(300))):
        run.fire(1, {1: value & (1 << 64) - 1})
        word = (value & 0xFFFF_FFFF) + SLOT_BIAS
        slot = ((word & 0xFFFF_FFFF) * 0x9E37_79B1 & 0xFFFF_FFFF) >> 22
        met.setdefault(slot, word)
    raw = run.read(run.scratch.globals + layout.slot_table, 8 * SLOTS)
    words = struct.unpack(f"<{SLOTS}Q", raw)
    assert {slot: word for slot, word in enumerate(words) if word} == met
