"""Work at one site: its kinds, and which part is done in line and which needs a frame and a call.

Tested by tests/codegen/test_snippets.py and tests/isa.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kinst.core.dataclass import dataclass
from kinst.core.system import Clock


@dataclass(frozen=True, slots=True)
class Snippet:
    """Straight machine code that computes one word from the registers at a site, to be copied into
    a trampoline.

    Control enters it at its start with the site's general registers and leaves it at its end, with
    the word in SnippetRegisters.result. It runs before any frame is made, with interrupts as they
    are at the site, so it writes no memory, does not use the stack, and reads only memory that is
    always mapped.

    Attributes:
        reads: numbers of general registers, as the ISA encodes them.
        writes: the same, the result's included.
        flags: whether it changes condition flags.
        zero: for a guard, whether the work is done if the word is zero rather than if it is not.
    """

    code: bytes
    reads: frozenset[int]
    writes: frozenset[int]
    flags: bool
    zero: bool = False


@dataclass(frozen=True, slots=True)
class SnippetRegisters:
    """How code generation makes a Snippet.

    Attributes:
        names: LLVM's inline-assembly name of the register whose value at the site goes to a frame
            slot; only of those that a snippet may read.
        result: the name of the register for the word.
        features: LLVM features besides Isa.cpu_features.
        selects: whether an instruction chooses between two values; without one LLVM would branch.
    """

    names: Mapping[int, str]
    result: str
    features: str = ""
    selects: bool = True


@dataclass(frozen=True, slots=True)
class CallBody:
    """Work by a call: entry(site_descriptor, frame) in the ISA's `convention`.

    Attributes:
        entry: address of the code.
        argument: address of the site descriptor.
        slots: frame slots that the clauses read and the trampoline must fill (Register.slot).
        guard: decides whether the call has anything to do; the called code tests the same again.
    """

    entry: int
    argument: int
    slots: frozenset[int]
    guard: Snippet | None = None


@dataclass(frozen=True, slots=True)
class CountBody:
    """Work that adds one to 8-byte counters, each at per-CPU base + offset.

    Attributes:
        offsets: signed 32-bit displacements from the kernel's per-CPU base register or, if the ISA
            has shared_counters, addresses of counters that all CPUs add to.
        guard: decides whether it is done at all.
    """

    offsets: tuple[int, ...]
    guard: Snippet | None = None


@dataclass(frozen=True, slots=True)
class IndexedBody:
    """Work that adds one to the counter whose offset (as in CountBody) a snippet computes.

    Attributes:
        index: the snippet; if its word is 0, `otherwise` is called instead.
        guard: as in CountBody.
    """

    index: Snippet
    otherwise: CallBody
    guard: Snippet | None = None


@dataclass(frozen=True, slots=True)
class RecordField:
    """`size` bytes of a record at `offset`.

    Attributes:
        kind: "time" or "cpu", the record's own; "register", the one whose value at the site goes to
            frame slot `value`; or "constant", `value` itself.
    """

    offset: int
    size: int
    kind: str
    value: int = 0


@dataclass(frozen=True, slots=True)
class RecordPlaces:
    """Addresses and constants for writing records without a call.

    Attributes:
        cpu: signed 32-bit displacement from the per-CPU base register of this CPU's number.
        busy: the same of the word (32 bits) that, while raised, keeps the thread on its CPU and
            others off it.
        settled: address of a word (32 bits): if less than 2, nothing needs raising; 0 if nothing
            ever does, None if it always does.
        state: address of CPU 0's state page; those of the others follow.
        rings: address of CPU 0's ring; those of the others follow.
        ring_size: a power of two.
        clock: of the cycle counter.
    """

    cpu: int
    busy: int
    settled: int | None
    state: int
    rings: int
    ring_size: int
    clock: Clock


@dataclass(frozen=True, slots=True)
class RecordBody:
    """Work that writes one record to this CPU's ring (core/layout.py RECORD_*).

    If the record cannot be written at once (no room, an NMI within a clause), `otherwise` is called
    instead. Interrupts stay as they are, and an interrupt handler may write records of its own
    meanwhile. So one instruction that changes STATE_RESERVED reserves room first, and the records
    become visible, by STATE_HEAD, when the outermost of those being written is whole: handlers end
    before the interrupted code goes on, so all records after it are whole by then, too.

    Attributes:
        clause: its number in the record.
        probe: Probe.id.
        size: bytes of the record.
        guard: as in CountBody.
    """

    places: RecordPlaces
    clause: int
    probe: int
    size: int
    fields: tuple[RecordField, ...]
    otherwise: CallBody
    guard: Snippet | None = None


Body = CallBody | CountBody | IndexedBody | RecordBody


@dataclass(frozen=True, slots=True)
class SiteWork:
    """The work of one site, by how it is done.

    Attributes:
        inline: counting that needs no frame, done first.
        frame: calls and counting inside one frame, done always.
        asked: calls that are all made, in one frame, if the guard of any of them holds.
        indexed: work whose own call is made if it finds no counter.
        recorded: work whose own call is made if it cannot write its record.
    """

    inline: tuple[CountBody, ...] = ()
    frame: tuple[CallBody | CountBody, ...] = ()
    asked: tuple[CallBody, ...] = ()
    indexed: IndexedBody | None = None
    recorded: RecordBody | None = None

    @property
    def snippets(self) -> tuple[Snippet, ...]:
        """Every snippet that runs, in order."""
        counts = [body.guard for body in self.inline if body.guard is not None]
        snippets = [*counts, *self.guards]
        if self.indexed is not None:
            snippets += [] if self.indexed.guard is None else [self.indexed.guard]
            snippets.append(self.indexed.index)
        if self.recorded is not None and self.recorded.guard is not None:
            snippets.append(self.recorded.guard)
        return tuple(snippets)

    @property
    def guards(self) -> tuple[Snippet, ...]:
        """Guards of the calls in `asked`."""
        return tuple(body.guard for body in self.asked if body.guard is not None)

    @property
    def calls(self) -> tuple[CallBody | CountBody, ...]:
        """The work inside the frame, if there is one."""
        with_another_way = self.indexed or self.recorded
        return (
            self.frame or self.asked or ((with_another_way.otherwise,) if with_another_way else ())
        )


def divided(bodies: Sequence[Body]) -> SiteWork:
    """Return how the work of a site's bodies is done.

    The order of several probes' counting and calls is kept only among the calls, and if everything
    is inside a frame: no call sees a counter, and counting sees nothing of a call. Only one call at
    a site can be the fallback of an IndexedBody or a RecordBody, since others would have to know
    whether it was made; together with others, it is a call like them."""
    lone = [body for body in bodies if not isinstance(body, CountBody)]
    if len(lone) == 1 and isinstance(lone[0], IndexedBody):
        return SiteWork(_counts(bodies), indexed=lone[0])
    if len(lone) == 1 and isinstance(lone[0], RecordBody):
        return SiteWork(_counts(bodies), recorded=lone[0])
    plain = [
        replace(body.otherwise, guard=body.guard)
        if isinstance(body, IndexedBody | RecordBody)
        else body
        for body in bodies
    ]
    calls = tuple(body for body in plain if isinstance(body, CallBody))
    if all(body.guard is not None for body in calls):
        return SiteWork(_counts(bodies), asked=calls)
    inline = tuple(body for body in _counts(bodies) if body.guard is not None)
    frame = tuple(body for body in plain if isinstance(body, CallBody) or body.guard is None)
    return SiteWork(inline, frame)


def _counts(bodies: Sequence[Body]) -> tuple[CountBody, ...]:
    return tuple(body for body in bodies if isinstance(body, CountBody) and body.offsets)
