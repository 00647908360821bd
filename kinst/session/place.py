"""Where everything lies in scratch for one program."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress

from kinst.codegen.analysis import string_table
from kinst.core.errors import KinstError, ScratchUsedUpError, TargetError
from kinst.core.layout import LEAF, PAGE, STATE_SEQUENCE, Scratch, lay_out
from kinst.core.machine import Target
from kinst.core.records import ProgramLayout
from kinst.dlang import typed
from kinst.dlang.vocabulary.d_options import Options
from kinst.patch.descriptors import descriptor_size
from kinst.patch.ways import PlantingAbility
from kinst.session.sizes import SITE_CODE, counters_room, data_needed, scratch_needed, sizes
from kinst.session.values import (
    Compiled,
    Counters,
    EnabledSite,
    Placed,
    ScratchMemory,
    TracedMachine,
)
from kinst.wire import native

NAMES_ROOM = 2 << 20  # bytes for the names of all functions of a kernel, and of offsets in them
SPREAD = 2  # how much more one batch may need than another of as many bytes of code
TABLE_ROOM = 128  # trap and fault tables: bytes for each site, both at their emptiest


class ScratchPool:
    """The scratch of one machine, handed out to one trace after another.

    A thread that was preempted in a trampoline, or that sleeps in a displaced access to user
    memory, goes on there after its trace has ended.  So code is not overwritten until it is known
    that nobody is in it (release()), and the header page and the CPUs' state pages, in which the
    code of an ended trace finds that it is to do nothing (HEADER_ACTIVE, STATE_CLOSED), never are:
    each trace's data begins behind those of the one before.  The rest of its data is emptied and
    used again.

        | heads of ended traces, data of the trace | code of all -> | free | counter blocks |

    When the heads have taken the room for data, all begins anew where no code is in use any more
    (start_again()), else in what is free.
    """

    def __init__(self, traced: TracedMachine, size: int, reserved: int, data: int) -> None:
        """Map `size` bytes of scratch.  reserved: bytes at its start that no code is to be in, so
        that they can serve every trace.  data: bytes there that need not be in reach of code.
        The machine is stopped.

        Raises TargetError when the target should have scratch and no place for it is found.
        """
        self._cpus = traced.cpus
        self._data = reserved
        self._address = _map(traced, traced.target, size, data) if traced.target else None
        self.view = memoryview(b"")  # of all of it
        if self._address is not None and traced.target is not None:
            self.view = traced.target.scratch_view()[:size]
        self._heads = 0  # where the next trace's header and state pages are to be
        self._sequences: list[int] = []  # offsets of STATE_SEQUENCE of all CPUs in all traces
        self._first_code = self._last_code = 0  # offsets of the code of ended traces; 0 for none
        self._released: list[tuple[int, int]] = []  # offsets [low, high) of pieces between those
        self._room = counters_room(traced.cpus)  # at its end, which is not handed out here
        self._size = size - self._room

    @property
    def in_target(self) -> bool:
        """Whether the machine has scratch memory."""
        return self._address is not None

    def take(self, compiled: Compiled, enabled: Sequence[EnabledSite]) -> ScratchMemory:
        """Scratch for a program and its probes, with all its data zero.  Where the target has none
        it is memory of this process.  Raises KinstError when there is not enough left."""
        need = scratch_needed(compiled.options, compiled.program, self._cpus, compiled.trampolines)
        if self._address is None:
            own = memoryview(mmap.mmap(-1, need))
            return ScratchMemory(own, 0, native.address_of(own), need)
        data = self._data_of(compiled, enabled)
        base, (code, end) = self._heads, self._most_room()
        if self._first_code and base + data > self._first_code:
            base, code = self._behind_all_code(data)
            end = self._size
        size = end - base
        if size <= max(data, code - base):
            raise ScratchUsedUpError(
                f"the scratch memory of this machine is used up: {len(self.view)} bytes",
                "boot it again, with more scratch",
            )
        if self._first_code:  # up to there an ended trace's data may be
            native.discard(self.view[base : self._first_code])
        view = self.view[base:]
        return ScratchMemory(
            view, self._address + base, native.address_of(view), size, self._room, base,
            code - base, self._size,
        )  # fmt: skip

    def _most_room(self) -> tuple[int, int]:
        """The offsets [low, high) of the largest piece that is free for code."""
        behind = max(self._data, self._last_code), self._size
        return max((behind, *self._released), key=lambda piece: piece[1] - piece[0])

    def _data_of(self, compiled: Compiled, enabled: Sequence[EnabledSite]) -> int:
        data = data_needed(compiled.options, compiled.program, self._cpus)
        return data + _described(compiled.program, enabled) + PAGE - 1 & -PAGE

    def is_short(self, compiled: Compiled, enabled: Sequence[EnabledSite]) -> bool:
        """Whether code for these probes may not fit beside that of ended traces, or data beside
        their heads."""
        if not self._first_code:
            return False
        low, high = self._most_room()
        crowded = self._heads + self._data_of(compiled, enabled) > self._first_code
        return crowded or high - low < SITE_CODE * len(enabled)

    def start_again(self) -> None:
        """Nobody is in any trace's code any more: all of it is free."""
        self._heads = self._first_code = self._last_code = 0
        self._released = []
        self._sequences = []

    def _behind_all_code(self, data: int) -> tuple[int, int]:
        """Where data, and code behind it, begin anew: there is no room left for data before the
        code of the traces until now."""
        start = self._heads = self._last_code
        self._first_code = 0
        self._released = []
        several = self._size - start > self._data + data  # room for the data of others too
        return start, start + (self._data if several else 0)

    def keep(self, placed: Placed, code_end: int) -> None:
        """What was taken last is in use, and its code not to be overwritten.

        code_end: address behind the code."""
        memory, scratch = placed.memory, placed.scratch
        if not memory.address:
            return
        start = memory.offset + scratch.text
        self._first_code = min(self._first_code or start, start)
        end = memory.offset + code_end - memory.address
        end = max(end, start) + PAGE - 1 & -PAGE
        self._last_code = max(end, self._last_code)
        own = [piece for piece in self._released if piece[0] <= start < piece[1]]
        for low, high in own:
            self._released.remove((low, high))
            self._released += [part for part in ((low, start), (end, high)) if part[0] < part[1]]
        self._heads = memory.offset + scratch.ring  # the first thing behind the state pages
        states = (memory.offset + scratch.state_of(cpu) for cpu in range(scratch.cpus))
        self._sequences += (state + STATE_SEQUENCE for state in states)

    @property
    def in_clause(self) -> bool:
        """Whether a CPU is in a clause, of whichever trace."""
        return any(self.view[at] & 1 for at in self._sequences)

    def release(self, code: tuple[int, int]) -> None:
        """Nobody is in the code at addresses [low, high) any more, nor will be; it was kept."""
        assert self._address is not None
        low, high = code[0] - self._address & -PAGE, code[1] - self._address + PAGE - 1 & -PAGE
        if not self._first_code or low < self._first_code:
            return  # data are there now, or may be
        pieces = list[tuple[int, int]]()
        for start, end in sorted([*self._released, (low, high)]):
            if pieces and pieces[-1][1] == start:
                start, _ = pieces.pop()
            pieces.append((start, end))
        self._released = pieces


def pool_size(compiled: Compiled, enabled: Sequence[EnabledSite], cpus: int) -> int:
    """Bytes of a machine's scratch that is to serve these probes; a multiple of a leaf."""
    own = compiled.options, compiled.program, cpus, compiled.trampolines, len(enabled)
    described = _described(compiled.program, enabled) + LEAF - 1 & -LEAF
    return scratch_needed(*own) + described + counters_room(cpus)


def data_reserved(compiled: Compiled, enabled: Sequence[EnabledSite], cpus: int) -> int:
    """Bytes at the start of scratch that the data of these probes fits in, and that of as many
    others."""
    data = data_needed(compiled.options, compiled.program, cpus)
    return data + SPREAD * _described(compiled.program, enabled) + LEAF - 1 & -LEAF


def most_probes(compiled: Compiled, cpus: int, room: int) -> int:
    """How many instructions fit into so many bytes of a machine's scratch."""
    one = descriptor_size(len(compiled.program.aggregations)) + TABLE_ROOM + SITE_CODE
    fixed = scratch_needed(compiled.options, compiled.program, cpus, 0) + counters_room(cpus)
    strings = len(string_table(compiled.program)[1]) + NAMES_ROOM
    return max((room - fixed - strings - 2 * LEAF) // one, 1)


def _described(program: typed.Program, enabled: Sequence[EnabledSite]) -> int:
    """Bytes that what is told of these probes takes, at most: strings, descriptors, trap tables."""
    descriptors = (len(enabled) + 2) * descriptor_size(len(program.aggregations))
    return _strings_size(program, enabled) + descriptors + TABLE_ROOM * len(enabled) + 8 * PAGE


def _strings_size(program: typed.Program, enabled: Sequence[EnabledSite]) -> int:
    probes = [e.probe.name for e in enabled]
    names = {n.provider for n in probes} | {n.module for n in probes}
    names |= {n.function for n in probes} | {n.name for n in probes}
    return len(string_table(program)[1]) + sum(len(n.encode()) + 1 for n in names) + 64


def _map(traced: TracedMachine, target: Target, size: int, data: int) -> int | None:
    """Where scratch is mapped: in reach of the loaded modules too, where that can be.
    data: bytes at its start that need not be in reach of code."""
    low, high = traced.text
    modules = traced.personality.modules() if traced.personality else ()
    low = min((low, *(m.text[0] for m in modules)))
    high = max((high, *(m.text[1] for m in modules)))
    if (low, high) != traced.text:
        with suppress(TargetError):
            return target.map_scratch(size, traced.text, (low, high), data)
    return target.map_scratch(size, traced.text, data=data)


def planting_ability(traced: TracedMachine, memory: ScratchMemory, forced: str) -> PlantingAbility:
    """What planting in this machine can rely on."""
    facts = traced.facts
    inside = facts is not None and bool(facts.nofault_read) and "cpu" in facts.builtins
    code = memory.address + memory.size - PAGE  # behind the data: near the end of scratch
    return PlantingAbility(
        code if inside and memory.address else 0,
        facts is not None and bool(facts.trap_hook),
        facts is not None and bool(facts.fault_hook),
        forced,
        not traced.never_stands,
    )


def place_all(
    traced: TracedMachine,
    memory: ScratchMemory,
    compiled: Compiled,
    layout: ProgramLayout,
    enabled: tuple[EnabledSite, ...],
    counters: Counters | None,
) -> Placed:
    """Lay out scratch for these probes.  Raises KinstError when it is too small."""
    try:
        scratch = place(
            memory.address, memory.size, traced.cpus, compiled.options, compiled.program, layout,
            enabled, memory.text_from,
        )  # fmt: skip
    except ValueError as error:
        raise KinstError(str(error), "use a smaller bufsize or aggsize") from error
    return Placed(memory, scratch, layout, counters)


def place(
    address: int,
    size: int,
    cpus: int,
    options: Options,
    program: typed.Program,
    layout: ProgramLayout,
    enabled: Sequence[EnabledSite],
    text_from: int = 0,
) -> Scratch:
    """The areas of scratch for these probes.  Raises ValueError when it is too small."""
    need = sizes(options, program)
    descriptors = (len(enabled) + 2) * descriptor_size(len(layout.constant_aggregations))
    return lay_out(
        address,
        size,
        cpus,
        ring_size=need.ring,
        agg_size=need.aggs,
        globals_size=layout.globals_area,
        strings_size=_strings_size(program, enabled),
        sites_size=descriptors,
        traps_size=PAGE + TABLE_ROOM * len(enabled),
        temp_size=need.temp,
        dynamic_size=need.dynamic,
        text_from=text_from,
    )
