"""Records as what a timeline shows: slices and instants on tracks.

A record is its thread's where the program traces `tid`, else its CPU's, and so are those of the
idle CPUs' threads.  An entry and the return that ends it (the last that is open in the thread) are
a slice; where an open one has no return, as one that ends with a jump to another function, its
slice ends with its caller's.  Entries of a function that has no return anywhere, returns without an
entry, and all other records are instants.

Each CPU also has a track of the threads that were seen on it, from a record of one to the next of
another: with a probe where the scheduler switches, that is who ran when.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kinst.events import Record, Value

BEGIN, END, INSTANT = range(1, 4)
_IDENTITY = ("tid", "pid", "execname")  # what says whose a record is


@dataclass(frozen=True, slots=True)
class Thread:
    """pid: None where it is not traced."""

    tid: int
    pid: int | None


@dataclass(frozen=True, slots=True)
class Cpu:
    """What happened on a CPU.  threads: which of them ran; else records without a thread."""

    number: int
    threads: bool = False


Track = Thread | Cpu


@dataclass(frozen=True, slots=True)
class Mark:
    """kind: BEGIN or END of a slice, or INSTANT.  name: "" of an END."""

    time_ns: int
    kind: int
    track: Track
    name: str = ""
    values: tuple[Value, ...] = ()


@dataclass(slots=True)
class Timeline:
    """marks: in the order of time, and nested on each track.  names: of threads by tid, as they
    were last."""

    marks: list[Mark] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)


def timeline(records: Sequence[Record]) -> Timeline:
    """Return the timeline of a trace's records."""
    return _Maker(sorted(records, key=lambda one: one.time_ns)).made()


class _Maker:
    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records
        self._returned = {_function(one) for one in records if one.probe.name.name == "return"}
        # Of several clauses of a probe the first makes the slice.
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
        """Return the CPU's track, where another thread is on it than before."""
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
