"""The work that a trampoline does at a site: its kinds, which parts need no call (inline), and
which need a frame and a call.

Tested by tests/codegen/test_snippets.py and tests/isa."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kinst.core.dataclass import dataclass
from kinst.core.system import Clock


@dataclass(frozen=True, slots=True)
class Snippet:
    """Straight-line machine code that computes one word from the registers at a site, to be copied
    into a trampoline.

    Control enters at the start with the site's general registers, and leaves at the end with the
    word in SnippetRegisters.result. The code runs before a frame is made and with interrupts as
    they are at the site. So it writes no memory, does not use the stack, and reads only memory that
    is always mapped.

    Attributes:
        reads: numbers of the general registers that the code reads, as the ISA encodes them.
        writes: numbers of the general registers that the code writes, SnippetRegisters.result
            included.
        flags: whether the code changes condition flags.
        zero: how to use the word as a guard: if True, the work is done if the word is 0; if False,
            the work is done if the word is not 0.
    """

    code: bytes
    reads: frozenset[int]
    writes: frozenset[int]
    flags: bool
    zero: bool = False


@dataclass(frozen=True, slots=True)
class SnippetRegisters:
    """Registers and LLVM features with which code generation makes a Snippet.

    Attributes:
        names: frame slot of a register -> the register's name in LLVM's inline assembly, for the
            registers that a snippet may read.
        result: LLVM's name of the register for the computed word.
        features: LLVM features besides Isa.cpu_features.
        selects: whether the ISA has an instruction that chooses between two values. Without such an
            instruction, LLVM would make a branch.
    """

    names: Mapping[int, str]
    result: str
    features: str = ""
    selects: bool = True


# Numbers that clauses store in a frame's exit slot (Isa.exit_slot): where control goes after them.
# From GOTO on, a number is GOTO plus the offset of an instruction in its function.
DISPLACED, RETURN, SKIP, GOTO = 0, 1, 2, 16


@dataclass(frozen=True, slots=True)
class Exit:
    """Way out of a trampoline that clauses may choose instead of the displaced instruction.

    Attributes:
        number: what a clause stores in the frame's exit slot to choose this exit: RETURN, SKIP, or
            GOTO plus the offset of `target` in the site's function.
        target: address at which control continues. 0 for RETURN, by which control returns to the
            function's caller. RETURN is possible only at the entry of a function.
    """

    number: int
    target: int = 0


@dataclass(frozen=True, slots=True)
class CallBody:
    """Work of a probe that its trampoline does by calling entry(site_descriptor, frame), in the
    ISA's calling convention.

    Attributes:
        entry: address of the code to call.
        argument: address of the site descriptor.
        slots: frame slots that the clauses read, so that the trampoline must fill them
            (Register.slot).
        guard: computes whether to make the call; None if it is always made. The guard only saves
            time: the called code tests the same condition again.
        written: frame slots that the clauses may change; `slots` includes them. Before the
            displaced instruction, the trampoline loads their registers from the frame.
        exits: ways out of the trampoline that the clauses may choose.
    """

    entry: int
    argument: int
    slots: frozenset[int]
    guard: Snippet | None = None
    written: frozenset[int] = frozenset()
    exits: tuple[Exit, ...] = ()

    @property
    def perturbs(self) -> bool:
        """Whether the clauses may change registers, or where control goes."""
        return bool(self.written or self.exits)


@dataclass(frozen=True, slots=True)
class CountBody:
    """Work of a probe that adds one to 8-byte counters, each at per-CPU base + offset.

    Attributes:
        offsets: signed 32-bit displacements from the kernel's per-CPU base register. If the ISA has
            shared_counters: addresses of counters that all CPUs add to.
        guard: computes whether the counters are added to; None if always.
    """

    offsets: tuple[int, ...]
    guard: Snippet | None = None


@dataclass(frozen=True, slots=True)
class IndexedBody:
    """Work of a probe that adds one to a counter. A snippet computes which counter.

    Attributes:
        index: computes the counter's offset, which has the meaning of CountBody.offsets. If the
            offset is 0, there is no counter, and the trampoline calls `otherwise`.
        guard: computes whether the work is done; None if it always is.
    """

    index: Snippet
    otherwise: CallBody
    guard: Snippet | None = None


@dataclass(frozen=True, slots=True)
class RecordField:
    """One field of a record that a trampoline writes without a call: `size` bytes at `offset`.

    Attributes:
        kind: what the field contains. "time": the record's time. "cpu": the number of the CPU that
            writes the record. "register": the content of the register whose frame slot is `value`.
            "constant": `value`.
    """

    offset: int
    size: int
    kind: str
    value: int = 0


@dataclass(frozen=True, slots=True)
class RecordAddresses:
    """Addresses and constants with which a trampoline writes records without a call.

    Attributes:
        cpu: signed 32-bit displacement from the per-CPU base register to a word with this CPU's
            number.
        busy: signed 32-bit displacement from the per-CPU base register to the kernel's 32-bit
            counter Facts.pin. While a thread has raised the counter, the thread stays on its CPU,
            and no other thread runs there.
        settled: how the trampoline makes sure that its thread stays on the CPU. None: it raises
            that counter. 0: it does nothing, because this kernel never preempts threads that run in
            it. Any other value is the address of the 32-bit word Facts.preemption: the trampoline
            writes the record only if this word is 0 or 1.
        state: address of CPU 0's state page; the other CPUs' state pages follow.
        rings: address of CPU 0's ring; the other CPUs' rings follow.
        ring_size: size of a ring in bytes, a power of two.
        clock: how to convert the cycle counter to time.
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
    """Work of a probe that writes one record to this CPU's ring (core/layout.py RECORD_*) without a
    call.

    If the record cannot be written, the trampoline calls `otherwise` instead: the ring is full, or
    an NMI has interrupted a clause.

    An interrupt handler may write records while this record is being written. So the trampoline
    first reserves the record's bytes: one instruction changes the word STATE_RESERVED of the CPU's
    state page. The records become visible to the consumer when the trampoline sets the word
    STATE_HEAD of that page. Only the outermost trampoline does this, after its record is complete.
    By then the records of interrupt handlers are complete as well, because handlers end before the
    interrupted code continues.

    Attributes:
        clause: number of the clause, for the record.
        probe: Probe.id.
        size: bytes of the record.
        guard: computes whether the work is done; None if it always is.
    """

    addresses: RecordAddresses
    clause: int
    probe: int
    size: int
    fields: tuple[RecordField, ...]
    otherwise: CallBody
    guard: Snippet | None = None


Body = CallBody | CountBody | IndexedBody | RecordBody


@dataclass(frozen=True, slots=True)
class SiteWork:
    """The work of all probes of a site, divided by how the trampoline does it.

    Attributes:
        inline: counting without a frame; done first.
        frame: calls and counting inside one frame; always done.
        asked: calls inside one frame. Each has a guard: if any guard holds, the trampoline makes
            all of these calls; if none holds, it makes no frame.
        indexed: counting by a computed offset, which calls `otherwise` if it finds no counter.
        recorded: writing a record, which calls `otherwise` if the record cannot be written.
    """

    inline: tuple[CountBody, ...] = ()
    frame: tuple[CallBody | CountBody, ...] = ()
    asked: tuple[CallBody, ...] = ()
    indexed: IndexedBody | None = None
    recorded: RecordBody | None = None

    @property
    def snippets(self) -> tuple[Snippet, ...]:
        """All snippets of a site's work, in the order in which they run."""
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
        """The guards of the calls in SiteWork.asked."""
        return tuple(body.guard for body in self.asked if body.guard is not None)

    @property
    def calls(self) -> tuple[CallBody | CountBody, ...]:
        """The work that the trampoline does inside a frame: `frame` or `asked`. Work of the kinds
        `indexed` and `recorded` needs no frame, except for the call `otherwise` in it."""
        with_another_way = self.indexed or self.recorded
        return (
            self.frame or self.asked or ((with_another_way.otherwise,) if with_another_way else ())
        )


@dataclass(frozen=True, slots=True)
class FrameUse:
    """How the calls of a site use the frame of saved registers that they share.

    Attributes:
        slots: slots that the trampoline must fill before the first call, because a call may read or
            change them.
        written: slots that any call may change. The trampoline loads their registers from the frame
            after the last call.
        exits: the exits of the trampoline that any call may choose, each once.
    """

    slots: frozenset[int]
    written: frozenset[int]
    exits: tuple[Exit, ...]


def frame_use(bodies: Sequence[Body]) -> FrameUse:
    """Return how the calls of a site use their frame of saved registers.

    Args:
        bodies: the work of the site. Each CallBody counts; any other Body is ignored.
    """
    calls = [body for body in bodies if isinstance(body, CallBody)]
    written = frozenset[int]().union(*(call.written for call in calls))
    return FrameUse(
        written.union(*(call.slots for call in calls)),
        written,
        tuple(dict.fromkeys(one for call in calls for one in call.exits)),
    )  # fmt: skip


def divided(bodies: Sequence[Body]) -> SiteWork:
    """Divide the work of a site's probes by how the trampoline does it, and return the parts.

    Calls keep their order. Counting may be moved before the calls, because calls do not read the
    counters and counting does not depend on calls. An IndexedBody or a RecordBody needs no call
    only if all other work is counting. In any other case, its fallback, the call `otherwise`, is
    done instead."""
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
