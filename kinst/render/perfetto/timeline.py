"""Timelines from records: slices and instants on the tracks of threads and CPUs.

A record is on its thread's track if the program traces `tid`, and if the thread is not a CPU's idle
thread. Any other record is on its CPU's track.

A return ends the last open entry of its function on the track, and both make one slice. If a return
is missing, for example because the function ended with a jump to another function, the slice ends
with the caller's slice. If the trace has no return of the function at all, all entries of the
function are instants. All other records are instants as well: returns without an entry, records of
other probes, and those of the second and later clauses of a probe.

Each CPU also has a track of the threads that were seen on it: a slice lasts from the first record
of a thread to the next record of another thread. With a probe at the scheduler's switch, this track
shows which thread ran when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from kinst.core.dataclass import dataclass
from kinst.events import Record, Value

BEGIN, END, INSTANT = range(1, 4)
_IDENTITY = ("tid", "pid", "execname")  # values that identify a record's thread


@dataclass(frozen=True, slots=True)
class Thread:
    """A track of a thread.

    Attributes:
        tid: id of the thread.
        pid: id of the thread's process; None if that is not traced.
    """

    tid: int
    pid: int | None


@dataclass(frozen=True, slots=True)
class Cpu:
    """A track of a CPU.

    Attributes:
        number: number of the CPU.
        threads: True for the track of threads that ran on the CPU, False for the track of records
            without a thread.
    """

    number: int
    threads: bool = False


Track = Thread | Cpu


@dataclass(frozen=True, slots=True)
class Mark:
    """An event on a track: the beginning or the end of a slice, or an instant.

    Attributes:
        time_ns: time of the event.
        kind: BEGIN, END or INSTANT.
        track: the track.
        name: name of the slice or instant; "" for END.
        values: values that the record traced.
    """

    time_ns: int
    kind: int
    track: Track
    name: str = ""
    values: tuple[Value, ...] = ()


@dataclass(slots=True)
class Timeline:
    """A timeline: events on tracks, and names of threads.

    Attributes:
        marks: the events, in the order of time. On each track, slices are properly nested.
        names: the last name of each thread, by tid.
    """

    marks: list[Mark] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)


def timeline(records: Sequence[Record]) -> Timeline:
    """Return the timeline of a trace's records, which may be in any order."""
    return _Maker(sorted(records, key=lambda one: one.time_ns)).made()


class _Maker:
    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records
        self._returned = {_function(one) for one in records if one.probe.name.name == "return"}
        # If a probe has several clauses, the first one's record makes the slice.
        self._clause: dict[int, int] = {}
        for one in records:
            first = self._clause.get(one.probe.id, one.clause)
            self._clause[one.probe.id] = min(first, one.clause)
        self._open: dict[Track, list[tuple[str, str]]] = {}
        self._running: dict[int, Thread] = {}  # by CPU
        self._timeline = Timeline()

    def made(self) -> Timeline:
        for one in self._records:
            self._timeline.marks += self._marks(one)
        last: dict[int, int] = {one.cpu: one.time_ns for one in self._records}
        self._timeline.marks += (
            Mark(last[cpu], END, Cpu(cpu, True)) for cpu in sorted(self._running)
        )
        return self._timeline

    def _marks(self, record: Record) -> Iterator[Mark]:
        thread = self._thread(record)
        if thread is not None:
            yield from self._switch(record, thread)
        track = thread if thread is not None and thread.tid else Cpu(record.cpu)
        values = tuple(value for value in record.values if value.name not in _IDENTITY)
        function, name = _function(record), record.probe.name.name
        time, plain = record.time_ns, _name(record)
        open_ = self._open.setdefault(track, [])
        chosen = self._clause[record.probe.id] == record.clause
        if name == "entry" and chosen and function in self._returned:
            open_.append(function)
            yield Mark(time, BEGIN, track, plain, values)
        elif name == "return" and chosen and function in open_:
            while True:
                closed = open_.pop()
                yield Mark(time, END, track, values=values if closed == function else ())
                if closed == function:
                    break
        else:
            yield Mark(time, INSTANT, track, f"{plain}:{name}" if name else plain, values)

    def _thread(self, record: Record) -> Thread | None:
        named = {value.name: value.value for value in record.values}
        tid, pid = named.get("tid"), named.get("pid")
        if not isinstance(tid, int):
            return None
        if isinstance(execname := named.get("execname"), str):
            self._timeline.names[tid] = execname
        return Thread(tid, pid if isinstance(pid, int) else None)

    def _switch(self, record: Record, thread: Thread) -> Iterator[Mark]:
        """Yield the events that a record causes on the track of a CPU's threads. There are none if
        the CPU's last record was of the same thread.
        """
        before, cpu = self._running.get(record.cpu), Cpu(record.cpu, True)
        if before is not None and before.tid == thread.tid:
            return
        if before is not None:
            yield Mark(record.time_ns, END, cpu)
        self._running[record.cpu] = thread
        name = self._timeline.names.get(thread.tid, "")
        yield Mark(record.time_ns, BEGIN, cpu, f"{name} {thread.tid}".lstrip())


def _function(record: Record) -> tuple[str, str]:
    return record.probe.name.module, record.probe.name.function


def _name(record: Record) -> str:
    name = record.probe.name
    return name.function or name.provider
