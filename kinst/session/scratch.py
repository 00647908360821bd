"""Scratch memory of a machine, allocated to one trace after another.

Tested by tests/session/test_reused_scratch.py.
"""

from __future__ import annotations

from contextlib import suppress

from kinst.core.errors import KinstError, ScratchUsedUpError, TargetError
from kinst.core.layout import LEAF, STATE_SEQUENCE
from kinst.core.words import PAGE
from kinst.patch.descriptors import descriptor_size
from kinst.session.compiled import Compiled
from kinst.session.sizes import SITE_CODE, counters_room
from kinst.session.values import (
    EnabledProgram,
    PlacedProgram,
    ScratchMemory,
    StartedMachine,
)
from kinst.wire import native
from kinst.wire.memory import discard, private_memory

NAMES_ROOM = 2 << 20  # for the names of all functions of a kernel, and of offsets in them
SPREAD = 2  # a batch may need this many times the scratch of another batch with as much code
TABLE_ROOM = 128  # trap and fault tables: bytes for each site, if both are as sparse as they get


class ScratchPool:
    """Scratch memory of one machine, allocated to one trace after another.

    A thread that was preempted in a trampoline, or that sleeps in a displaced access to user
    memory, continues in the trampoline after its trace has ended. So kinst does not overwrite the
    code of an ended trace until no thread can be in it (release()). Until then, the trace's header
    page and CPU state pages tell this code to do nothing (HEADER_ACTIVE, STATE_CLOSED). kinst does
    not overwrite these pages: the data of the next trace begin after them. Other data of an ended
    trace are zeroed, and their memory is used again.

        | headers of ended traces, data of the trace | code of all -> | free | counter blocks |

    When the headers (header and state pages) fill the area for data, allocation begins anew: at the
    start if no code is in use (start_again()), otherwise after all code.
    """

    def __init__(self, machine: StartedMachine, size: int, reserved: int, data: int) -> None:
        """Map scratch in a stopped machine.

        Args:
            size: bytes of scratch.
            reserved: bytes at the start of scratch for the data of each trace; no code is put
                there. 0 if the machine is opened for one program only.
            data: bytes at the start of scratch that may be out of reach of the kernel's code:
                `reserved` or, if that is 0, the bytes of the program's data.

        Raises TargetError if the target should have scratch but has no place for it.
        """
        self._cpus = machine.cpus
        self._data = reserved
        self._whole = size, data
        address = _map(machine, size, data)
        self.in_target = address is not None  # whether the machine has scratch memory
        self._address = address or 0
        boots = machine.target.abilities.traces_boot and not machine.isa.no_trampolines
        has_view = self.in_target or boots
        # A view of all scratch.
        self.view = machine.target.scratch_view()[:size] if has_view else memoryview(b"")
        # Whether there is memory for scratch that the machine cannot map yet.
        self._waits = boots and len(self.view) == size
        self._heads = 0  # offset of the next trace's header and state pages
        self._sequences: list[int] = []  # offsets of STATE_SEQUENCE of all CPUs in all traces
        self._first_code = self._last_code = 0  # offsets of the code of ended traces; 0 for none
        # Offsets [low, high) of free pieces between the code of ended traces.
        self._released: list[tuple[int, int]] = []
        self._room = machine.counters_room  # bytes at the end that are not allocated here
        self._size = size - self._room

    def take(self, program: EnabledProgram) -> ScratchMemory:
        """Return scratch for a program and its probes, with all its data zeroed. Without reserve(),
        the next call may return the same scratch.

        If the target has no scratch, the memory is kinst's own. During a traced boot the scratch
        has no address in the kernel yet (boot_over()).

        Raises ScratchUsedUpError if too little is left.
        """
        if not self.in_target and not self._waits:
            return own_memory(program.compiled, self._cpus)
        data = self._data_of(program)
        base, (code, end) = self._heads, self._most_room()
        if self._first_code and base + data > self._first_code:
            base, code = self._after_all_code(data)
            end = self._size
        size = end - base
        if size <= max(data, code - base):
            raise ScratchUsedUpError(
                f"the scratch memory of this machine is used up: {len(self.view)} bytes",
                "boot it again, with more scratch",
            )
        if self._first_code:  # an ended trace's data may reach up to there
            discard(self.view[base : self._first_code])
        elif not self.in_target:  # an earlier trace of the same boot used it too
            discard(self.view[base : base + data])
        view = self.view[base:]
        address = self._address + base if self.in_target else 0
        return ScratchMemory(
            view, address, native.address_of(view), size, self._room, base, code - base,
            self._size,
        )  # fmt: skip

    def boot_over(self, machine: StartedMachine) -> None:
        """Map scratch into the kernel, whose boot has been traced.

        The trace of the boot has used the same memory without a mapping in the kernel.

        Args:
            machine: the machine, whose kernel is up.

        Raises TargetError if the kernel has no place for scratch, and KinstError if the data of the
        trace are not in the machine's memory.
        """
        if not self._waits:
            raise KinstError("its data are not in the guest's memory", "use smaller buffers")
        address = _map(machine, *self._whole)
        self.in_target, self._address = address is not None, address or 0
        self.view = machine.target.scratch_view()[: self._whole[0]]

    def _most_room(self) -> tuple[int, int]:
        """Return the offsets [low, high) of the largest free area for code."""
        behind = max(self._data, self._last_code), self._size
        return max((behind, *self._released), key=lambda piece: piece[1] - piece[0])

    def _data_of(self, program: EnabledProgram) -> int:
        data = program.compiled.sizes.data(self._cpus)
        return data + _described(program) + PAGE - 1 & -PAGE

    def is_short(self, program: EnabledProgram) -> bool:
        """Return whether a program's code or data may not fit into scratch as long as the code of
        ended traces stays there.
        """
        if not self._first_code:
            return False
        low, high = self._most_room()
        crowded = self._heads + self._data_of(program) > self._first_code
        return crowded or high - low < SITE_CODE * len(program.enabled)

    def start_again(self) -> None:
        """Free all scratch.  The caller knows that no thread is in any trace's code any more."""
        self._heads = self._first_code = self._last_code = 0
        self._released = []
        self._sequences = []

    def _after_all_code(self, data: int) -> tuple[int, int]:
        """Choose the offsets for a trace's data and code after the code of all traces so far.

        This is for a trace whose data have no room before that code. Returns (offset of the data,
        offset of the code).

        Args:
            data: bytes of data.
        """
        start = self._heads = self._last_code
        self._first_code = 0
        self._released = []
        several = self._size - start > self._data + data  # room for the data of later traces too
        return start, start + (self._data if several else 0)

    def reserve(self, placed: PlacedProgram, code_end: int) -> None:
        """Reserve the scratch that take() returned last, so that later traces do not overwrite it.

        Args:
            placed: the program in that scratch.
            code_end: the first address after the trace's code.
        """
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
        self._heads = memory.offset + scratch.ring  # the first area after the state pages
        states = (memory.offset + scratch.state_of(cpu) for cpu in range(scratch.cpus))
        self._sequences += (state + STATE_SEQUENCE for state in states)

    @property
    def in_clause(self) -> bool:
        """Whether any CPU is executing a clause of any trace."""
        return any(self.view[at] & 1 for at in self._sequences)

    def release(self, code: tuple[int, int]) -> None:
        """Free reserved code.  The caller knows that no thread is in it, nor can come there.

        Args:
            code: addresses [low, high).
        """
        low, high = code[0] - self._address & -PAGE, code[1] - self._address + PAGE - 1 & -PAGE
        if not self._first_code or low < self._first_code:
            return  # data may be there now
        pieces = list[tuple[int, int]]()
        for start, end in sorted([*self._released, (low, high)]):
            if pieces and pieces[-1][1] == start:
                start, _ = pieces.pop()
            pieces.append((start, end))
        self._released = pieces


def own_memory(compiled: Compiled, cpus: int) -> ScratchMemory:
    """Return scratch in this process's own memory, for clauses that run on the host."""
    size = compiled.sizes.scratch(cpus, compiled.trampolines)
    view = private_memory(size)
    return ScratchMemory(view, 0, native.address_of(view), size)


def pool_size(program: EnabledProgram, cpus: int, trampolines: int = 0, room: int = 0) -> int:
    """Return how many bytes of scratch a machine needs for a program's probes, a multiple of 2 MB.

    Args:
        cpus: how many CPUs the machine has.
        trampolines: bytes of code; 0 for as many as the program's options ask for.
        room: bytes for counter blocks; 0 for counters_room(cpus), the usual number.
    """
    code = trampolines or program.compiled.trampolines
    own = program.compiled.sizes.scratch(cpus, code, len(program.enabled))
    return own + (_described(program) + LEAF - 1 & -LEAF) + (room or counters_room(cpus))


def data_reserved(program: EnabledProgram, cpus: int) -> int:
    """Return how many bytes to reserve at the start of scratch for the data of each batch of a
    program.

    Another batch may need twice as many bytes as this one for its probes.

    Args:
        program: the program with the probes of one batch.
    """
    described = SPREAD * _described(program)
    return program.compiled.sizes.data(cpus) + described + LEAF - 1 & -LEAF


def most_probes(compiled: Compiled, cpus: int, room: int) -> int:
    """Return for how many instructions a machine's scratch is large enough.

    Args:
        room: bytes of the machine's scratch.
    """
    one = descriptor_size(len(compiled.program.aggregations)) + TABLE_ROOM + SITE_CODE
    fixed = compiled.sizes.scratch(cpus, 0) + counters_room(cpus)
    strings = len(compiled.strings) + NAMES_ROOM
    return max((room - fixed - strings - 2 * LEAF) // one, 1)


def _described(program: EnabledProgram) -> int:
    """Return an upper bound for the bytes of a program's strings, site descriptors and trap
    tables.
    """
    count = len(program.enabled)
    descriptors = (count + 2) * descriptor_size(len(program.compiled.program.aggregations))
    return program.strings_size + descriptors + TABLE_ROOM * count + 8 * PAGE


def _map(machine: StartedMachine, size: int, data: int) -> int | None:
    """Map scratch in the target, if possible in reach of the loaded modules as well as the kernel.

    Returns its address; None if the target has no scratch memory, or the ISA has no trampolines.

    Args:
        size: bytes of scratch.
        data: bytes at its start that need not be in reach of the kernel's code.
    """
    target, (low, high) = machine.target, machine.text
    if machine.isa.no_trampolines:
        return None
    modules = machine.system.modules()
    low = min((low, *(m.text[0] for m in modules)))
    high = max((high, *(m.text[1] for m in modules)))
    if (low, high) != machine.text:
        with suppress(TargetError):
            return target.map_scratch(size, machine.text, (low, high), data)
    return target.map_scratch(size, machine.text, data=data)
