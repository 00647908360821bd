"""Events: what a trace tells its client, as values.

A trace yields events in the order in which things happened.  A client has dealt with an event when
it asks for the next one.  So text, the output of commands and files keep their order.  What an
event refers to (the rows of a Batch, the tables of a Printed) is valid only until then.

There are three groups of classes: data (Record, Aggregation, Lost, Fault, Message, Output, End),
requests that only a client can fulfil (Shell, Reopen, Truncate, OptionSet), and marks that a format
may need (Arrived, TracingOver, Closing).  Records come in bulk, as a Batch, and aggregations as a
Printed; `flattened()` turns both into single values.

Tested by tests/consumer/test_interpreter.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kinst.core.probe import Probe

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# --- Values ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """Frame of a stack, or an address whose name a program asked for.

    Attributes:
        function: "" if only the module is known.
        module: "" if nothing is known.
        offset: bytes from the function's start.
        file: of the source, "" if it is not known.
        line: of the source, 0 if it is not known.
        inlined: whether the compiler inlined this function into the next frame's.
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
    """Stack of the kernel or of a process.

    Attributes:
        kind: "kernel" or "user".
        frames: innermost first; inlined functions come before the function that holds them.
        pid: the process of a user stack.
    """

    kind: str
    frames: tuple[Frame, ...]
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Bucket:
    """Bucket of a distribution: `count` values v with low <= v < high.

    None as a bound: the bucket has no bound on that side.
    """

    low: int | None
    high: int | None
    count: int


# Integers are signed or unsigned as their type is.  D strings are str (bytes that are not UTF-8
# become surrogates), tracemem() is bytes, a structure is a mapping by its members' names, an array
# is a list.
PlainValue = (
    int | float | str | bytes | Stack | Frame | Mapping[str, "PlainValue"] | list["PlainValue"]
)


@dataclass(frozen=True, slots=True)
class Value:
    """Value that a program recorded.

    Attributes:
        name: the expression as the program has it.
        type: its D type.
    """

    name: str
    type: str
    value: PlainValue


# --- Data -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """Firing of a clause.

    Attributes:
        time_ns: on the scale of D's timestamp.
        clause: its index in the program.
        values: what its actions traced, in order (trace, printf's arguments, print, tracemem).
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
    """Aggregation at one moment.

    Attributes:
        name: without the @.
        function: count, sum, ... quantize, lquantize, llquantize.
        keys: D types of the keys.
        rows: values by key, in the order in which dtrace(1) shows them.  The key is () if the
            aggregation has none.  A value is a number or, for distributions, the buckets that have
            data, lowest first.
        expression: what is aggregated, in the program's words; "" if that is not known.
        unit: of the values: "ns", "us", "ms" or "s"; "" if it is not known.
        key_names: the expressions of the keys, () if they are not known.
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
    """Data that was dropped.

    Attributes:
        kind: record, aggregation, speculation, speculative (no room in it), nested (the CPU was in
            a probe), error (in dtrace:::ERROR), message (of a fault), dynamic, dirty, rinsing
            (variables), timer (a firing of tick-N or profile-N).
        cpu: None for host-run clauses, and for drops that belong to no CPU.
        text: dtrace(1)'s sentence.
    """

    kind: str
    count: int
    cpu: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Failure of an action or a predicate (action 0).

    Attributes:
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
    """Sentence for the user: a warning of the kernel, a refused option.

    Attributes:
        kind: "warn", "oops" or "hang" for a report of the kernel about itself; else "".
    """

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Output:
    """Output of the traced command in the guest."""

    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """Last event of a trace.

    Attributes:
        reason: exit (the program's exit()), interrupted (stop() was called), command (the traced
            command ended), timeout, full (a buffer with bufpolicy fill is full), overload (the
            probes left the kernel no time, and the kernel said so), panic, hang, gone (the guest
            ended by itself in another way), error.
        status: 1 after an error or an overload, 110 after a panic, 111 after a hang; else what the
            option fail says (see core/endings.py); else the status of exit(); else the command's,
            124 if a timeout cut it off; else 0.
        error: why the trace ended with panic, hang, gone or error.  It is also raised when the next
            event is asked for.
    """

    reason: str
    status: int
    error: str = ""


# --- In bulk --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Records in the order in which they happened, as bytes; iterating makes Records.

    Attributes:
        data: bytes that hold the records.
        offsets: where each record starts.
        clauses: the clause of each record.
        part: 0 for a whole record.  The record of a clause whose actions do more than trace
            (printa, clear, system, ...) comes once for each stretch between those actions; the
            actions are events of their own, and come between.  Parts are counted from 0.  Only part
            0 makes a Record, with all its values.
        following: (n, 2) probe id and clause of the next record of the same CPU, -1 if it is not
            known; only with flowindent.
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
    """Aggregations to show now: printa() asked for them, or the trace ends.

    Attributes:
        tables: their indexes in the program; several are joined by their keys.
        read: makes the values.
        clause: the clause of the printa(), -1 at the end.
        action: the position of the printa() in its clause, -1 at the end.
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
    """Command of system(): the client runs it by a shell, or refuses to."""

    command: str


@dataclass(frozen=True, slots=True)
class Reopen:
    """File of freopen(): output goes there from now on; "": where it went at first."""

    path: str


@dataclass(frozen=True, slots=True)
class Truncate:
    """Request of ftruncate(): the client empties the file that output goes to."""


@dataclass(frozen=True, slots=True)
class OptionSet:
    """Option that setopt() has set; its new value is already checked."""

    name: str
    value: str


# --- Marks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """Count of records that were taken from the rings; the events that they cause follow.

    Some records cause none: speculated ones, those of commit() and discard().
    """

    count: int


@dataclass(frozen=True, slots=True)
class TracingOver:
    """End of tracing: probes are unplanted; END and the remaining records follow.

    Attributes:
        reason: as in End.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Closing:
    """End of records: aggregations that no printa() has printed follow."""


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
    """Yield single values: Records of each Batch, Aggregations of each Printed; no marks."""
    for event in events:
        if isinstance(event, Batch):
            yield from event
        elif isinstance(event, Printed):
            yield from event.aggregations
        elif not isinstance(event, Arrived | TracingOver | Closing):
            yield event
