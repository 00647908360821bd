"""What is done at one site: the kinds of work, and how a site's is divided between what is done in
line and what needs a frame and a call.

Tested by tests/codegen/test_snippets.py and tests/isa.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kinst.core.system import Clock


@dataclass(frozen=True, slots=True)
class Snippet:
    """Straight machine code that works one word out of the registers at a site, to be copied into
    a trampoline: control enters it at its start with the site's general registers and leaves it
    at its end, with the word in SnippetRegisters.result.

    It runs before any frame is made, with interrupts as they are at the site, so it writes no
    memory, does not use the stack, and reads only memory that is always mapped.

    reads, writes: numbers of general registers, as the ISA encodes them; the result's is among
    the written ones.  flags: it changes condition flags.  zero: of a guard, the work is done
    where the word is zero; otherwise where it is not.
    """

    code: bytes
    reads: frozenset[int]
    writes: frozenset[int]
    flags: bool
    zero: bool = False


@dataclass(frozen=True, slots=True)
class SnippetRegisters:
    """What code generation must know to make a Snippet.

    names: frame slot to what LLVM's inline assembly calls the register whose value at the site
    goes there; only of those that a snippet may read.  result: the name of the register for the
    word.  features: LLVM features besides Isa.cpu_features.  selects: there is an instruction that
    chooses between two values; without one LLVM would branch.
    """

    names: Mapping[int, str]
    result: str
    features: str = ""
    selects: bool = True


@dataclass(frozen=True, slots=True)
class CallBody:
    """The probe's work is a call: entry(site_descriptor, frame) in the ISA's `convention`.

    entry: address of the code.  argument: address of the site descriptor.
    slots: frame slots that the clauses read and the trampoline must fill (Register.slot).
    guard: a word without which the call would do nothing; the code called tests the same again.
    """

    entry: int
    argument: int
    slots: frozenset[int]
    guard: Snippet | None = None


@dataclass(frozen=True, slots=True)
class CountBody:
    """The probe's work is to add one to 8-byte counters, each at per-CPU base + offset.

    offsets: signed 32-bit displacements from the kernel's per-CPU base register; or, where the
    ISA has shared_counters, addresses of counters that all CPUs add to.
    guard: a word that decides whether it is done at all.
    """

    offsets: tuple[int, ...]
    guard: Snippet | None = None


@dataclass(frozen=True, slots=True)
class IndexedBody:
    """The probe's work is to add one to the counter whose offset (as in CountBody) is a snippet's
    word; where that is 0, `otherwise`.  guard: as in CountBody."""

    index: Snippet
    otherwise: CallBody
    guard: Snippet | None = None


@dataclass(frozen=True, slots=True)
class RecordField:
    """`size` bytes of a record at `offset`.

    kind: "time" or "cpu", the record's own; "register", the one whose value at the site goes to
    frame slot `value`; or "constant", `value` itself."""

    offset: int
    size: int
    kind: str
    value: int = 0


@dataclass(frozen=True, slots=True)
class RecordPlaces:
    """What writing records without a call needs of a CPU.

    cpu, busy: signed 32-bit displacements from the per-CPU base register of this CPU's number and
    of the word (32 bits each) that keeps the thread on it, and others off it, while it is raised.
    settled: address of a word (32 bits) that says by being less than 2 that this needs no raising;
    0 where it never does, and None where it always does.
    state, rings: addresses of CPU 0's state page and ring; those of the others follow.
    ring_size: a power of two.  clock: of the cycle counter."""

    cpu: int
    busy: int
    settled: int | None
    state: int
    rings: int
    ring_size: int
    clock: Clock


@dataclass(frozen=True, slots=True)
class RecordBody:
    """The probe's work is one record in this CPU's ring (core/layout.py RECORD_*), of `size` bytes;
    where that cannot be written at once (no room, an NMI within a clause), `otherwise`.

    clause: its number in the record.  probe: Probe.id.  guard: as in CountBody.

    Interrupts stay as they are, and an interrupt handler may write records of its own meanwhile.
    So room is reserved first, by one instruction that changes STATE_RESERVED, and the records show,
    by STATE_HEAD, when the outermost of those that are being written is whole: handlers end before
    what they interrupt goes on, so all behind it is whole by then, too."""

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
    """inline: counting that needs no frame, done first.  Then either `frame`, calls and counting
    inside one frame, always; or `asked`, calls of which all are made, in one frame, where the
    guard of any of them holds; or `indexed`, where its own call is made when no counter is found;
    or `recorded`, where its own call is made when it cannot write its record.
    """

    inline: tuple[CountBody, ...] = ()
    frame: tuple[CallBody | CountBody, ...] = ()
    asked: tuple[CallBody, ...] = ()
    indexed: IndexedBody | None = None
    recorded: RecordBody | None = None

    @property
    def snippets(self) -> tuple[Snippet, ...]:
        """Every snippet that is run, in their order."""
        counts = [body.guard for body in self.inline if body.guard is not None]
        found = [*counts, *self.guards]
        if self.indexed is not None:
            found += [] if self.indexed.guard is None else [self.indexed.guard]
            found.append(self.indexed.index)
        if self.recorded is not None and self.recorded.guard is not None:
            found.append(self.recorded.guard)
        return tuple(found)

    @property
    def guards(self) -> tuple[Snippet, ...]:
        """Of the calls that are asked for."""
        return tuple(body.guard for body in self.asked if body.guard is not None)

    @property
    def calls(self) -> tuple[CallBody | CountBody, ...]:
        """What is done inside the frame, if there is one."""
        with_another_way = self.indexed or self.recorded
        return (
            self.frame or self.asked or ((with_another_way.otherwise,) if with_another_way else ())
        )


def divided(bodies: Sequence[Body]) -> SiteWork:
    """The work of a site's bodies.

    The order of several probes' counting and calls is kept only among the calls, and where
    everything is inside a frame: nothing that a call does can be seen in a counter, nor the other
    way round.  Only one call at a site can be the way out of an IndexedBody or a RecordBody, since
    the others would have to know whether it was taken; with others, it is a call like them.
    """
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
