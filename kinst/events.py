"""Events: the values that a trace yields to its client.

A trace yields events in the order in which things happened. It waits until its client asks for the
next event. A client should complete its work for an event first: then texts, outputs of commands
and changes of files have the right order. The records of a Batch and the tables of a Printed are
valid only until the client asks for the next event.

There are three groups of classes. Data: Record, Aggregation, Lost, Fault, Message, Output, End.
Requests that only a client can fulfil: Shell, Reopen, Truncate, OptionSet. Marks that an output
format may need: Arrived, TracingOver, Closing. Many records come together as a Batch, and
aggregations as a Printed. flattened() turns them into single Records and Aggregations.

Tested by tests/consumer/test_interpreter.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from kinst.core.dataclass import dataclass
from kinst.core.probe import Probe

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# --- Values ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a stack, or an address whose name a program asked for.

    Attributes:
        function: name of the function; "" if only the module is known.
        module: name of the module; "" if nothing is known.
        offset: offset in bytes from the function's start.
        file: the source file, "" if not known.
        line: the source line, 0 if not known.
        inlined: whether the compiler inlined this function into the function of the next frame.
    """

    address: int
    module: str = ""
    function: str = ""
    offset: int = 0
    file: str = ""
    line: int = 0
    inlined: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack of the kernel or of a process.

    Attributes:
        kind: "kernel" or "user".
        frames: innermost first; inlined functions come before the function whose code contains
            them.
        pid: id of the process of a user stack.
    """

    kind: str
    frames: tuple[Frame, ...]
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of a distribution: how many values v had low <= v < high. A bound is None if the
    bucket has no bound on that side."""

    low: int | None
    high: int | None
    count: int


# Integers are signed or unsigned like their D type.  D strings are str (bytes that are not UTF-8
# become surrogates), data of tracemem() is bytes, a structure is a mapping from its members' names,
# an array is a list.
PlainValue = (
    int | float | str | bytes | Stack | Frame | Mapping[str, "PlainValue"] | list["PlainValue"]
)


@dataclass(frozen=True, slots=True)
class Value:
    """A value that a program recorded.

    Attributes:
        name: the expression, as the program has it.
        type: D type of the expression.
    """

    name: str
    type: str
    value: PlainValue


# --- Data -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """Event: a clause fired and recorded values.

    Attributes:
        time_ns: time of the firing, on the scale of D's timestamp.
        clause: index of the clause in the program.
        values: what the clause's actions traced, in order (trace, arguments of printf, print,
            tracemem).
    """

    probe: Probe
    cpu: int
    time_ns: int
    clause: int
    values: tuple[Value, ...]


KeyPart = int | str | bytes | Stack | Frame
Key = tuple[KeyPart, ...]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Event: the values of an aggregation at one moment.

    Attributes:
        name: the aggregation's name, without the @.
        function: count, sum, ... quantize, lquantize, llquantize.
        keys: D types of the keys.
        rows: values by key, in the order in which dtrace(1) shows them. The key is () if the
            aggregation has no keys. A value is a number; for a distribution, it is the tuple of
            buckets with data, lowest first.
        expression: the aggregated expression, as the program has it; "" if not known.
        unit: unit of the values: "ns", "us", "ms" or "s"; "" if not known.
        key_names: the expressions of the keys, () if not known.
    """

    name: str
    function: str
    keys: tuple[str, ...]
    rows: Mapping[Key, int | tuple[Bucket, ...]]
    expression: str = field(default="", compare=False)
    unit: str = field(default="", compare=False)
    key_names: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Lost:
    """Event: data was dropped.

    Attributes:
        kind: what was dropped, or why. One of: record; aggregation; speculation; speculative (no
            room in a speculation); nested (the CPU was in a probe already); error (a fault in
            dtrace:::ERROR); message (a fault whose report was overwritten before kinst read it);
            dynamic, dirty or rinsing (an assignment to a dynamic variable); timer (a firing of
            tick-N or profile-N).
        cpu: None for clauses that run on the host, and for drops that belong to no CPU.
        text: dtrace(1)'s sentence about the drop.
    """

    kind: str
    count: int
    cpu: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Event: an action or a predicate failed.

    Attributes:
        action: number of the action, 0 for the predicate.
        kind: badaddr, badalign, illop, divzero, noscratch, unknown.
        value: the bad address.
    """

    text: str
    epid: int
    probe: Probe
    action: int
    kind: str
    value: int
    cpu: int | None = None
    time_ns: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """Event: a sentence for the user, such as a warning of the kernel or a refused option.

    Attributes:
        kind: "warn", "oops" or "hang" if the kernel has reported a problem; else "".
    """

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Output:
    """Event: the traced command wrote output in the guest."""

    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """Event: the trace has ended; no event follows.

    Attributes:
        reason: why the trace has ended. One of: exit (the program called exit()); interrupted (the
            client called stop()); command (the traced command ended); boot (the traced boot ended);
            timeout; full (a buffer with bufpolicy fill is full); overload (the kernel reported that
            the probes leave it too little time); panic; hang; gone (the guest ended by itself in
            another way); error.
        status: exit status: 1 after an error or an overload, 110 after a panic, 111 after a hang.
            Otherwise the first of these that exists: the status by the option fail
            (core/endings.py); the status of exit(); 124 if a timeout ended the command; the
            command's status; 0.
        error: why the trace ended with panic, hang, gone or error. The same error is raised when
            the next event is asked for.
    """

    reason: str
    status: int
    error: str = ""


# --- In bulk --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Event: many records, as bytes, in the order in which they happened. Iterating yields Records.

    Attributes:
        data: bytes that contain the records.
        offsets: offset in `data` of each record.
        clauses: the clause of each record.
        part: which part of the clause's actions to show, counted from 0. The actions printa(),
            clear(), system() and the like are events of their own, and divide a clause into parts.
            The clause trace(a); clear(@x); trace(b) yields the same record twice: with part 0 to
            show a, and with part 1 to show b. A clause without such actions has only part 0.
            Iterating yields a Record, with all values, for part 0 only.
        following: (n, 2) array: probe id and clause of the same CPU's next record, -1 if not known.
            None without flowindent.
    """

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    clauses: npt.NDArray[np.uint32]
    decode: Callable[[Batch], Iterator[Record]] = field(repr=False)
    part: int = 0
    following: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[Record]:
        return self.decode(self) if self.part == 0 else iter(())


@dataclass(frozen=True, slots=True, eq=False)
class Printed:
    """Event: aggregations are to be shown now, since the program called printa() or the trace ends.

    Attributes:
        tables: indexes of the aggregations in the program. If there are several, they are shown as
            one table, joined by their keys.
        read: returns these aggregations with their values.
        clause: index of the clause with the printa(); -1 at the end of the trace.
        action: position of the printa() in its clause; -1 at the end of the trace.
    """

    tables: tuple[int, ...]
    read: Callable[[], tuple[Aggregation, ...]] = field(repr=False)
    clause: int = -1
    action: int = -1

    @property
    def aggregations(self) -> tuple[Aggregation, ...]:
        return self.read()


# --- What only a client can do --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shell:
    """Request of system(): the client runs the command by a shell, or refuses."""

    command: str


@dataclass(frozen=True, slots=True)
class Reopen:
    """Request of freopen(): the client sends output to the file `path` from now on. The path ""
    means the destination at the start of the trace."""

    path: str


@dataclass(frozen=True, slots=True)
class Truncate:
    """Request of ftruncate(): the client empties the file to which output goes."""


@dataclass(frozen=True, slots=True)
class OptionSet:
    """Event: setopt() has changed an option. The new value has been checked."""

    name: str
    value: str


# --- Marks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """Mark: kinst has taken records from the buffers. The events of these records follow.

    A record may cause no event, such as a speculated record before its commit().

    Attributes:
        count: how many records.
    """

    count: int


@dataclass(frozen=True, slots=True)
class TracingOver:
    """Mark: tracing has ended and the probes are unplanted. The remaining records and those of END
    follow.

    Attributes:
        reason: why tracing has ended, one of the reasons of End.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Closing:
    """Mark: all records have been yielded. Aggregations that no printa() has printed follow."""


Event = (
    Batch
    | Printed
    | Lost
    | Fault
    | Message
    | Output
    | Shell
    | Reopen
    | Truncate
    | OptionSet
    | Arrived
    | TracingOver
    | Closing
    | End
)
# Events that flattened() yields.
PlainEvent = (
    Record
    | Aggregation
    | Lost
    | Fault
    | Message
    | Output
    | Shell
    | Reopen
    | Truncate
    | OptionSet
    | End
)


def flattened(events: Iterable[Event]) -> Iterator[PlainEvent]:
    """Yield the events one value at a time: each Batch becomes its Records, each Printed its
    Aggregations, and marks are left out."""
    for event in events:
        if isinstance(event, Batch):
            yield from event
        elif isinstance(event, Printed):
            yield from event.aggregations
        elif not isinstance(event, Arrived | TracingOver | Closing):
            yield event
