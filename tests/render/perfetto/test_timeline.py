"""Timelines, parsed by the classes that Perfetto itself has for its traces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

from kinst.core.probe import Probe, ProbeName
from kinst.events import Frame, PlainValue, Record, Stack, Value
from kinst.render.perfetto.packets import encode, number, varint
from kinst.render.perfetto.timeline import timeline
from tools.read_perfetto import Slice, instants, slices, tracks

PROBES = {
    (function, name): Probe(k, ProbeName("fbt", "vmlinux", function, name))
    for k, (function, name) in enumerate(
        (f, n) for f in ("outer", "inner", "jumps") for n in ("entry", "return")
    )
}
TICK = Probe(99, ProbeName("kinst", "vmlinux", "outer", "19"))


def record(
    time: int, probe: Probe, tid: int = 7, cpu: int = 0, clause: int = 0, **values: PlainValue
) -> Record:
    known = {"tid": tid, "pid": 5, "execname": f"name{tid}", **values}
    shown = tuple(Value(name, "int", value) for name, value in known.items() if value != -1)
    return Record(probe, cpu, time, clause, shown)


def enter(time: int, function: str, tid: int = 7, **values: PlainValue) -> Record:
    return record(time, PROBES[function, "entry"], tid, **values)  # type: ignore[arg-type]


def leave(time: int, function: str, tid: int = 7, **values: PlainValue) -> Record:
    return record(time, PROBES[function, "return"], tid, **values)  # type: ignore[arg-type]


def parsed(records: Sequence[Record]) -> Trace:
    trace = Trace()
    trace.ParseFromString(encode(timeline(records)))
    return trace


def test_nested_calls_of_two_threads() -> None:
    trace = parsed([
        enter(10, "outer"), enter(11, "outer", 8), enter(12, "inner", size=3), leave(20, "inner"),
        leave(25, "outer", 8), leave(30, "outer", result=-3),
    ])  # fmt: skip
    assert slices(trace) == [
        Slice("name7", "outer", 10, 30), Slice("name8", "outer", 11, 25),
        Slice("name7", "inner", 12, 20),
    ]  # fmt: skip
    begins = [p.track_event for p in trace.packet if p.track_event.name == "inner"]
    (note,) = begins[0].debug_annotations
    assert (note.name, note.int_value) == ("size", 3)
    last = [p.track_event.debug_annotations for p in trace.packet if p.timestamp == 30]
    assert [(n.name, n.int_value) for notes in last for n in notes] == [("result", -3)]


def test_who_ran_on_a_cpu() -> None:
    there = [enter(10, "outer"), enter(20, "outer", 8), record(25, TICK, 8), leave(30, "outer", 7)]
    found = [s for s in slices(parsed(there), cpus=True) if s.track == "CPU 0 threads"]
    assert found == [
        Slice("CPU 0 threads", "name7 7", 10, 20), Slice("CPU 0 threads", "name8 8", 20, 30),
        Slice("CPU 0 threads", "name7 7", 30, 30),
    ]  # fmt: skip


def test_a_function_that_jumps_away_ends_with_its_caller() -> None:
    trace = parsed([
        enter(1, "jumps"), leave(2, "jumps"),
        enter(10, "outer"), enter(12, "jumps"), leave(30, "outer"),
    ])  # fmt: skip
    assert slices(trace) == [
        Slice("name7", "jumps", 1, 2), Slice("name7", "outer", 10, 30),
        Slice("name7", "jumps", 12, 30),
    ]  # fmt: skip


def test_what_is_no_pair() -> None:
    trace = parsed([leave(5, "outer"), enter(8, "inner"), record(9, TICK), enter(10, "outer")])
    assert instants(trace) == [
        ("name7", "outer:return", 5), ("name7", "inner:entry", 8), ("name7", "outer:19", 9),
    ]  # fmt: skip
    assert slices(trace) == [Slice("name7", "outer", 10, None)]


def test_without_a_thread_records_are_of_their_cpu() -> None:
    happened = ((1, "entry", 0), (2, "entry", 1), (3, "return", 0), (9, "return", 1))
    there = [
        record(time, PROBES["outer", name], -1, cpu, pid=-1, execname=-1)
        for time, name, cpu in happened
    ]
    assert slices(parsed(there), cpus=True) == [
        Slice("CPU 0", "outer", 1, 3), Slice("CPU 1", "outer", 2, 9),
    ]  # fmt: skip
    # All CPUs have an idle thread with this number.
    idle = [
        record(1, PROBES["outer", "entry"], 0, 0), record(2, PROBES["outer", "entry"], 0, 1),
        record(3, PROBES["outer", "return"], 0, 0), record(9, PROBES["outer", "return"], 0, 1),
    ]  # fmt: skip
    found = [s for s in slices(parsed(idle), cpus=True) if "threads" not in s.track]
    assert found == [Slice("CPU 0", "outer", 1, 3), Slice("CPU 1", "outer", 2, 9)]


def test_several_clauses_of_a_probe_make_one_slice() -> None:
    entry, back = PROBES["outer", "entry"], PROBES["outer", "return"]
    trace = parsed([record(1, entry), record(2, entry, clause=3), record(9, back, clause=4)])
    assert slices(trace) == [Slice("name7", "outer", 1, 9)]
    assert instants(trace) == [("name7", "outer:entry", 2)]


def test_tracks_of_processes_and_threads() -> None:
    found = tracks(parsed([enter(1, "outer"), leave(2, "outer"), record(3, TICK, 8, pid=-1)]))
    by_name = {one.thread.thread_name or one.name: one for one in found.values()}
    assert (by_name["name7"].thread.pid, by_name["name7"].thread.tid) == (5, 7)
    assert "name8 8" in by_name
    assert by_name["CPU 0 threads"].parent_uuid == by_name["CPUs"].uuid


@pytest.mark.parametrize(
    ("value", "shown"),
    [("a\n\udcff", "a\n?"), (b"\x01\x02", "{'bytes': '0102'}"), (1.5, "1.5"),
     (Stack("kernel", (Frame(1, "vmlinux", "f", 3),)), "{'stack': 'kernel', 'frames': "
      "[{'address': '0x1', 'module': 'vmlinux', 'function': 'f', 'offset': 3}]}")],
)  # fmt: skip
def test_values_that_are_no_numbers(value: PlainValue, shown: str) -> None:
    trace = parsed([record(1, TICK, what=value)])
    events = (packet.track_event for packet in trace.packet)
    (event,) = (event for event in events if event.type == TrackEvent.TYPE_INSTANT)
    assert [(n.name, n.string_value) for n in event.debug_annotations] == [("what", shown)]


@given(st.integers(0, (1 << 64) - 1))
def test_numbers(value: int) -> None:
    packet = TracePacket()
    packet.ParseFromString(number(8, value))
    assert packet.timestamp == value
    assert varint(-1) == b"\xff" * 9 + b"\x01"


CALLS = st.recursive(
    st.just(()), lambda inner: st.lists(st.tuples(st.sampled_from(["outer", "inner"]), inner)),
    max_leaves=12,
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from([7, 8, 9]), CALLS), max_size=4))
def test_trees_of_calls_come_back(trees: list[tuple[int, object]]) -> None:
    """Threads take turns; each slice is one call, with its own times."""
    time, expected, there = 0, list[Slice](), list[Record]()

    def call(tid: int, calls: object) -> None:
        nonlocal time
        for function, inner in calls:  # type: ignore[attr-defined]
            time += 1
            start = time
            there.append(enter(start, function, tid))
            call(tid, inner)
            time += 1
            there.append(leave(time, function, tid))
            expected.append(Slice(f"name{tid}", function, start, time))

    for tid, calls in trees:
        call(tid, calls)
    assert sorted(slices(parsed(there))) == sorted(expected)
