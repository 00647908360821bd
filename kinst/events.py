"""Events: what a trace tells its client, as values.

A trace yields them in the order in which things happened.  An event has been dealt with by the
client when the client asks for the next one: so text, the output of commands and files keep
their order, and what an event refers to (the rows of a Batch, the tables of a Printed) is as it
was at that moment only until then.

The classes fall into three groups: data (Record, Aggregation, Lost, Fault, Message, Output, End),
what only a client can do (Shell, Reopen, Truncate, OptionSet), and marks that a format may need
(Arrived, TracingOver, Closing).  Records come in bulk, as a Batch, and aggregations as a Printed;
`flattened()` turns both into single values.

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
    """One frame of a stack, or an address that a program asked the name of.

    function: "" where only the module is known; module: "" where nothing is.  offset: bytes from
    the function's start.  file, line: of the source, "" and 0 where not known.  inlined: the
    function is one that the compiler put into the next frame's.
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
    """kind: "kernel" or "user".  frames: innermost first, the copies of inlined functions before
    the function that holds them.  pid: the process of a user stack."""

    kind: str
    frames: tuple[Frame, ...]
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Bucket:
    """count values v with low <= v < high; None: no bound on that side."""

    low: int | None
    high: int | None
    count: int


# An integer by its type's sign; a D string as str (bytes that are not UTF-8 as surrogates);
# tracemem() as bytes; a structure by its members' names; an array as a list.
PlainValue = (
    int | float | str | bytes | Stack | Frame | Mapping[str, "PlainValue"] | list["PlainValue"]
)


@dataclass(frozen=True, slots=True)
class Value:
    """One recorded value.  name: the expression as the program has it.  type: its D type."""

    name: str
    type: str
    value: PlainValue


# --- Data -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """One firing of a clause.  time_ns: as D's timestamp.  clause: its index in the program.
    values: what its actions traced, in order (trace, printf's arguments, print, tracemem)."""

    probe: Probe
    cpu: int
    time_ns: int
    clause: int
    values: tuple[Value, ...]


KeyPart = int | str | bytes | Stack | Frame
Key = tuple[KeyPart, ...]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An aggregation's value at one moment.

    name: without the @.  function: count, sum, ... quantize, lquantize, llquantize.  keys: D types
    of the keys.  rows: by key (() where it has none), in the order in which dtrace(1) shows them;
    a number, or for distributions the buckets that have data, lowest first.

    In the program's own words, "" and () where that is not known: expression: what is aggregated;
    unit: of its values, "ns", "us", "ms" or "s"; key_names: the expressions of the keys.
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

    kind: record, aggregation, speculation, speculative (no room in it), nested (the CPU was in a
    probe), error (in dtrace:::ERROR), message (of a fault), dynamic, dirty, rinsing (variables),
    timer (a firing of tick-N or profile-N).
    cpu: None for host-run clauses, and where it is of no CPU.  text: dtrace(1)'s sentence.
    """

    kind: str
    count: int
    cpu: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Fault:
    """An action or a predicate (action 0) failed.

    kind: badaddr, badalign, illop, divzero, noscratch, unknown.  value: the bad address.
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
    """A sentence for the person who traces: a warning of the kernel, a refused option.

    kind: of what the kernel said of itself, "warn", "oops" or "hang"; "" for anything else."""

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Output:
    """What the traced command wrote in the guest."""

    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """The last event.

    reason: exit (the program's exit()), interrupted (stop() was called), command (the traced one
    ended), timeout, full (a buffer of bufpolicy fill is), overload (the probes left the kernel no
    time, and it said so), panic, hang, gone (the guest ended by itself in another way), error.
    status: 1 after an error or an overload; 110 of a panic, 111 of a hang; what the option fail
    says (see core/endings.py); else of exit(), else of the command that ended, 124 of one that a
    timeout cut off, else 0.  error: why, for panic, hang, gone and error; it is then also raised
    when the next event is asked for.
    """

    reason: str
    status: int
    error: str = ""


# --- In bulk --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Records in the order in which they happened, as their bytes; iterating makes Records.

    data: bytes that hold them; offsets: where each starts; clauses: whose it is.

    part: a clause whose actions do more than trace (printa, clear, system, ...) has its record
    here once for each stretch between those; they are events of their own, and come between.
    Parts are counted from 0.  Only part 0 makes a Record, with all its values.

    following: (n, 2) probe id and clause of the next record of the same CPU, -1 where it is not
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
    """Aggregations that are to be shown now: by printa(), or because it is the end.

    tables: their indexes in the program; several are joined by their keys.  clause, action: whose
    printa() it is (Action by position in the clause), -1 at the end.  read: makes the values.
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
    """system(): the client runs the command by a shell, or refuses to."""

    command: str


@dataclass(frozen=True, slots=True)
class Reopen:
    """freopen(): data goes to this file from now on; "": where it went at first."""

    path: str


@dataclass(frozen=True, slots=True)
class Truncate:
    """ftruncate(): the file that data goes to is emptied."""


@dataclass(frozen=True, slots=True)
class OptionSet:
    """setopt(): an option that has a new value, which was checked."""

    name: str
    value: str


# --- Marks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """So many records were taken from the rings; what they lead to follows.  (Some may show
    nothing: speculated ones, those of commit() and discard().)"""

    count: int


@dataclass(frozen=True, slots=True)
class TracingOver:
    """Probes are unplanted; END and what is left follow.  reason: as of End."""

    reason: str


@dataclass(frozen=True, slots=True)
class Closing:
    """All records were given; aggregations that no printa() has printed follow."""


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
# What flattened() yields.
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
    """The same as single values: Record for Batch, Aggregation for Printed; no marks."""
    for event in events:
        if isinstance(event, Batch):
            yield from event
        elif isinstance(event, Printed):
            yield from event.aggregations
        elif not isinstance(event, Arrived | TracingOver | Closing):
            yield event
