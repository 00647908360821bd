"""Events of records: which follow on each CPU, results of actions, and output at the end."""

from __future__ import annotations

import random
import struct

import pytest

from kinst.consumer.decode import merge
from kinst.consumer.faults import PlacedFault
from kinst.consumer.interpreter import following_of
from kinst.core import dtypes
from kinst.core.dtypes import StringType
from kinst.core.errors import TargetError
from kinst.core.layout import HEADER_HALF, RECORD_TIME
from kinst.dlang.typed import (
    Action,
    ClearAction,
    NormalizeAction,
    PerformAction,
    PrintaAction,
    TraceAction,
    TruncAction,
)
from kinst.dlang.vocabulary.d_options import Options
from kinst.events import (
    Batch,
    Closing,
    Event,
    Fault,
    Message,
    OptionSet,
    Printed,
    Reopen,
    Shell,
    Truncate,
)
from tests.consumer.world import (
    READ,
    SPAN,
    World,
    aggregation,
    chunk,
    const,
    fields,
    format_,
    part,
    record,
    table_layout,
)


def performed(name: str, *parts: tuple[str, str], types: tuple[object, ...]) -> World:
    made, size = fields(*types)  # type: ignore[arg-type]
    template = format_(*(part(*one) for one in parts)) if parts else None
    action = PerformAction(SPAN, name, tuple(const() for _ in types), template)
    return World([([action], [made], size)])


def events(world: World, *records: bytes) -> list[Event]:
    return [
        event for event in world.interpreter.take([chunk(*records)]) if not isinstance(event, Batch)
    ][1:]  # the first one has the number of arrived records


STRING = (StringType(8), 8)


def test_commands_and_files() -> None:
    data = b"a%b\0\xaa\xaa\xaa\xaa" + struct.pack("<i", -7)
    parts = (("x ", "s"), (" ", "d"))
    types = (STRING, dtypes.INT)
    assert events(performed("system", *parts, types=types), record(0, data)) == [Shell("x a%b -7")]
    assert events(performed("freopen", *parts, types=types), record(0, data)) == [
        Reopen("x a%b -7")
    ]
    assert events(performed("ftruncate", types=()), record(0)) == [Truncate()]


def setopt(name: bytes, *value: bytes) -> tuple[World, list[Event]]:
    world = performed("setopt", types=(((StringType(16), 16),) * (1 + len(value))))
    texts = b"".join(one.ljust(16, b"\0") for one in (name, *value))
    return world, events(world, record(0, texts))


def test_options_that_are_set_while_tracing() -> None:
    world, found = setopt(b"quiet")
    assert found == [OptionSet("quiet", "1")]
    assert world.interpreter.options.quiet
    world, found = setopt(b"aggsortpos", b"2")
    assert found == [OptionSet("aggsortpos", "2")]
    assert world.interpreter.options.aggsortpos == 2


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (b"nonsense", b"1", "Invalid option name"),
        (b"bufsize", b"4m", "Operation illegal when tracing is active"),
        (b"aggsortpos", b"x", "Invalid value for specified option"),
    ],
)
def test_options_that_cannot_be_set(name: bytes, value: bytes, why: str) -> None:
    """Messages are libdtrace's (dt_errtags[])."""
    world, found = setopt(name, value)
    told = f'dtrace: couldn\'t set option "{name.decode()}" to "{value.decode()}": {why}'
    assert found == [Message(told)]
    assert world.interpreter.options == Options()


def test_what_follows_on_each_cpu() -> None:
    """The result is that of a walk through the records, one by one."""
    numbers = random.Random(7)
    rows = sorted(
        (time, numbers.randrange(3), numbers.randrange(5), 1 + numbers.randrange(9))
        for time in range(200)
    )
    by_cpu = [
        [record(clause, probe=probe, cpu=cpu, time=time) for time, cpu, clause, probe in rows
         if cpu == one]
        for one in range(3)
    ]  # fmt: skip
    merged = merge([chunk(*records, slot=cpu) for cpu, records in enumerate(by_cpu)])
    expected = []
    for number, (_, cpu, _, _) in enumerate(rows):
        later = (row for row in rows[number + 1 :] if row[1] == cpu)
        expected.append(next(([probe, clause] for _, _, clause, probe in later), [-1, -1]))
    assert following_of(merged).tolist() == expected


@pytest.mark.parametrize("asked", [False, True])
def test_flowindent_alone_is_told_what_follows(asked: bool) -> None:
    made, size = fields(dtypes.LONG)
    world = World([([TraceAction(SPAN, const())], [made], size)], options=Options(flowindent=asked))
    rows = [record(0, bytes(8), probe=probe, time=probe) for probe in (1, 12)]
    batches = [e for e in world.interpreter.take([chunk(*rows)]) if isinstance(e, Batch)]
    following = [None if one.following is None else one.following.tolist() for one in batches]
    assert following == [[[12, 0], [-1, -1]] if asked else None]


def counting(*actions: Action, options: Options | None = None) -> World:
    agg = aggregation(0, "sum", (dtypes.INT,))
    keys, _ = fields(dtypes.INT)
    layout = table_layout(agg, 128, 8, [type(keys[0])(8, 4, dtypes.INT)])
    made, size = fields(*([dtypes.LONG] if actions else []))
    clauses = [(actions, [made] * len(actions), size)] if actions else [([], [], 24)]
    return World(clauses, [(agg, layout)], options or Options())


def fill(world: World, *rows: tuple[int, int]) -> None:
    for number, (key, value) in enumerate(rows):
        world.entry(0, 0, world.memory[HEADER_HALF] & 1, number, struct.pack("<i", key), [value])


def shown(world: World) -> dict[tuple[object, ...], object]:
    (one,) = world.interpreter.aggregations()
    return dict(one.rows)


AGG = aggregation(0, "sum", (dtypes.INT,))


def test_what_is_done_to_aggregations() -> None:
    number = struct.pack("<q", 2)
    world = counting(NormalizeAction(SPAN, AGG, const()))
    fill(world, (1, 10), (2, 30), (3, 20))
    list(world.interpreter.take([chunk(record(0, number))]))
    assert shown(world) == {(1,): 5, (3,): 10, (2,): 15}
    world = counting(TruncAction(SPAN, AGG, const()))
    fill(world, (1, 10), (2, 30), (3, 20))
    list(world.interpreter.take([chunk(record(0, number))]))
    assert shown(world) == {(3,): 20, (2,): 30}
    for count, left in ((1, {(2,): 30}), (-1, {(1,): 10}), (0, {})):
        world = counting(TruncAction(SPAN, AGG, const()))
        fill(world, (1, 10), (2, 30), (3, 20))
        list(world.interpreter.take([chunk(record(0, struct.pack("<q", count)))]))
        assert shown(world) == left
    world = counting(ClearAction(SPAN, AGG))
    fill(world, (1, 10))
    list(world.interpreter.take([chunk(record(0, number))]))
    assert shown(world) == {(1,): 0}


def test_printed_once() -> None:
    """Aggregations that printa() has printed are not printed again at the end, unless they were
    empty."""
    world = counting(PrintaAction(SPAN, None, (AGG,)))
    fill(world, (1, 10))
    data = record(0, bytes(8))
    (printed,) = events(world, data)
    assert isinstance(printed, Printed)
    assert (printed.tables, printed.clause, printed.action) == ((0,), 0, 0)
    assert [dict(one.rows) for one in printed.read()] == [{(1,): 10}]
    assert [type(one) for one in world.interpreter.finish()] == [Closing]
    world = counting()
    fill(world, (1, 10))
    _, printed = world.interpreter.finish()
    assert isinstance(printed, Printed) and (printed.clause, printed.action) == (-1, -1)


def fault(text: str, time: int) -> PlacedFault:
    return PlacedFault(0, 1 << 20, time, Fault(text, 1, READ, 1, "badaddr", 0))


@pytest.mark.parametrize("policy", ["switch", "ring"])
@pytest.mark.parametrize("end", ["pause", "finish"])
def test_what_is_left_at_the_end(policy: str, end: str) -> None:
    """Faults after the last record, and with bufpolicy all records; a pause prints nothing."""
    world = counting(options=Options(bufpolicy=policy))
    assert not world.interpreter.full
    fill(world, (1, 10))
    data = record(0)
    first = list(world.interpreter.take([chunk(data, data)], [fault("a", 5), fault("b", 3)]))
    last = list(getattr(world.interpreter, end)())
    records = [one for one in (*first, *last) if isinstance(one, Batch)]
    assert sum(map(len, records)) == 2
    if policy == "ring":
        assert not first
    assert [one.text for one in last if isinstance(one, Fault)] == ["b", "a"]
    kinds = [type(one) for one in last if isinstance(one, Closing | Printed)]
    assert kinds == ([Closing, Printed] if end == "finish" else [])
    assert shown(world) == {(1,): 10}


def test_a_record_of_another_size_or_clause_is_refused() -> None:
    made, size = fields(dtypes.INT)
    for wrong in (record(0), record(1, bytes(8))):
        world = World([([TraceAction(SPAN, const())], [made], size)])
        with pytest.raises(TargetError, match="corrupt"):
            list(world.interpreter.take([chunk(record(0, bytes(4)), wrong)]))


def test_a_fault_among_the_records_stands_before_what_follows_it() -> None:
    """Two faults, one between two records that act and one after them."""
    world = counting(ClearAction(SPAN, AGG))
    data = [record(0, bytes(8), time=t) for t in (10, 20, 30)]
    size = len(data[0])
    faults = [
        PlacedFault(0, n * size, t, Fault(str(n), 1, READ, 1, "badaddr", 0))
        for n, t in ((1, 12), (2, 22))
    ]
    told: list[str] = []
    for one in world.interpreter.take([chunk(*data)], faults):
        if isinstance(one, Fault):
            told.append(one.text)
        elif isinstance(one, Batch) and one.clauses.size:
            told += [str(time) for time in one.data.view("<u8")[(one.offsets + RECORD_TIME) >> 3]]
    # A record that acts has a batch before its action and one after it.
    assert told == ["10", "10", "1", "20", "20", "2", "30", "30"]


def test_a_cpu_that_has_all_it_may_have() -> None:
    """Tracing with bufpolicy fill is over when a record no longer fits."""
    world = counting(options=Options(bufpolicy="fill", bufsize=2 * len(record(0))))
    world.interpreter.take([chunk(record(0))])
    for expected in (False, False, True):
        list(world.interpreter.take([chunk(record(0))]))
        assert world.interpreter.full == expected


def speculative(end: str) -> World:
    """Return clauses with speculate(n) and trace(x); commit(n) or discard(n) is in another one."""
    made, size = fields(dtypes.LONG, dtypes.LONG)
    one, one_size = fields(dtypes.LONG)
    first = [PerformAction(SPAN, "speculate", (const(),)), TraceAction(SPAN, const())]
    second = [PerformAction(SPAN, end, (const(),))]
    return World([(first, [made[:1], made[1:]], size), (second, [one], one_size)])


@pytest.mark.parametrize("end", ["commit", "discard"])
def test_only_the_speculation_that_is_named_ends(end: str) -> None:
    world = speculative(end)
    kept = [record(0, struct.pack("<qq", use, 70 + use)) for use in (5, 6)]
    world.take([chunk(*kept, record(1, struct.pack("<q", 6)))])
    ended = world.text()
    assert ("76" in ended) == (end == "commit") and "75" not in ended
    # Later records of an ended speculation are shown or not like the rest of it.
    assert world.interpreter._speculations.commit(6) == []
    assert len(world.interpreter._speculations.commit(5)) == 1


def test_only_speculations_are_silent() -> None:
    """commit() alone shows no line of its own; system() does (dtrace(1) without -q)."""
    world = speculative("commit")
    world.take([chunk(record(1, struct.pack("<q", 6)))])
    assert "vfs_read" not in world.text()
    world = performed("system", types=())
    world.take([chunk(record(0))])
    assert "vfs_read:19" in world.text()
