"""State that a machine keeps between traces: scratch, counters, ended code, decoded text.

Tested by tests/fake, through the whole path.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from kinst.core.errors import TargetError
from kinst.core.layout import LEAF
from kinst.core.return_addresses import EndedCode, unused
from kinst.core.threads_inside import unused_by_stacks
from kinst.patch.leaders import Leaders
from kinst.patch.plan import ways_back
from kinst.session.counters import CounterBlocks
from kinst.session.kernel import RunningKernel
from kinst.session.scratch import ScratchPool, data_reserved, pool_size
from kinst.session.sizes import code_borrowed
from kinst.session.values import (
    Counters,
    EnabledProgram,
    ScratchMemory,
    StartedMachine,
    TracePlan,
)

# Bytes of scratch for data and for code, in a machine that is opened for any programs.
ROOM_FOR_DATA, ROOM_FOR_CODE = 64 << 20, 32 << 20
ROOM_FOR_BATCHES = 96 << 20  # bytes for code and counters: in reach of all ISAs' jumps
LEAST_FOR_BATCHES = 24 << 20  # two of them fit
COUNTER = 8  # bytes


class Workspace:
    """Started machine, and the state that its traces leave to later ones.

    Attributes:
        machine: with the functions and instructions that stand() read last.
        ended: code of all traces so far that a thread may still be in.
    """

    def __init__(self, machine: StartedMachine, set_aside: int, *, for_any: bool) -> None:
        """Begin with a machine that has just been started.

        Args:
            set_aside: bytes of scratch that it was started with.
            for_any: whether it was started for any programs, rather than for one.
        """
        self.machine = machine
        self.ended: tuple[EndedCode, ...] = ()
        self._set_aside = set_aside
        self._for_any = for_any
        self._system = machine.system  # it plants call sites of the kernel's own tracer too
        self._counters = CounterBlocks(machine)
        self._pool: ScratchPool | None = None
        self._leaders: Leaders | None = None
        self._text = b""
        self._among: Collection[int] | None = None
        self._call_sites = True

    # Decoded text.

    def stand(self, among: Collection[int] | None = None, *, call_sites: bool = True) -> None:
        """Stop the machine, and forget decoded instructions if its text has changed.

        The kernel changes jump labels.  The machine stays stopped for the next reads and writes.

        Args:
            among: addresses of the functions that find() returns, None for all.
            call_sites: as in PlantRules.
        """
        machine, system = self.machine, self._system
        target = machine.target
        if not target.abilities.reads_running:
            target.stop()
        low, high = machine.text
        # Reading all text through a bare stub would take seconds; there little is decoded, and each
        # time anew.
        text = target.read(low, high - low) if self._pool and self._pool.in_target else b""
        changed = not text or text != self._text or call_sites is not self._call_sites
        if changed or among is not self._among:
            system = system if call_sites else system.leaving_call_sites()
            inlines = machine.images.kernel.debug.has_dwarf
            kernel = RunningKernel(target, system, machine.isa, among, inlines=inlines)
            self.machine = replace(machine, system=system, kernel=kernel)
            if changed:
                self._leaders = None
        self._text, self._among, self._call_sites = text, among, call_sites

    @property
    def in_batches(self) -> bool:
        """Whether only some of the functions are traced at a time."""
        return self._among is not None

    @property
    def leaders(self) -> Leaders | None:
        """Leaders of the kernel's code; None if no runs can be planted.

        The ISA needs none, or the machine stops to be planted and its memory cannot be searched.
        """
        machine = self.machine
        if not machine.isa.RUN_SIZE:
            return None
        if not machine.never_stands and machine.target.pointers(()) is None:
            return None
        known = self._leaders or Leaders(machine.isa, machine.system, machine.kernel)
        self._leaders = known.seen_by(machine.kernel)
        return self._leaders

    # Scratch.

    def take(self, program: EnabledProgram) -> ScratchMemory:
        """Return scratch for a program and its probes; keep() makes it the program's own.

        Raises KinstError if there is not enough left.
        """
        if self._pool is None:
            self._pool = self._new_pool(program)
        self._release_ended(self._pool, program)
        return self._pool.take(program)

    def place_counters(self, memory: ScratchMemory, size: int, more: int) -> Counters | None:
        """Return counter blocks of `size` bytes, and `more` if there is room.

        None if there can be no blocks.
        """
        return self._counters.place(memory, size, more)

    def keep(self, plan: TracePlan) -> None:
        """Keep the scratch, the counters and the code of a trace from being overwritten."""
        placed = plan.placed
        if self._pool is not None:
            self._pool.keep(placed, plan.code_end)
        start = placed.scratch.address + placed.scratch.text
        counters = self._counters.keep(placed.counters)
        if start < plan.code_end:
            back = ways_back(plan.sites)
            self.ended += (EndedCode((start, plan.code_end), back, counters),)

    def _new_pool(self, program: EnabledProgram) -> ScratchPool:
        """Return scratch for this program or, in a machine that was started for any, for more."""
        compiled, machine = program.compiled, self.machine
        data = compiled.sizes.data(machine.cpus)
        if compiled.batch:
            data = data_reserved(program, machine.cpus)
            return self._pool_of_batches(data, machine.target.most_scratch)
        code = compiled.trampolines
        if machine.target.abilities.reads_running:
            code = code_borrowed(code, len(program.enabled))
        size = pool_size(program, machine.cpus, code)
        if not self._for_any:
            return ScratchPool(machine, size, 0, data)
        data = max(data, ROOM_FOR_DATA)
        return ScratchPool(machine, max(size, self._set_aside), data, data)

    def _pool_of_batches(self, data: int, most: int) -> ScratchPool:
        """Return scratch for batches, as much as is free near the kernel.

        With less scratch, code of ended batches is freed more often.

        Args:
            most: bytes of the machine's scratch, 0 for any number.
        """
        room = ROOM_FOR_BATCHES
        while True:
            size = data + room + LEAF - 1 & -LEAF
            try:
                return ScratchPool(self.machine, min(size, most or size), data, data)
            except TargetError:
                if room <= LEAST_FOR_BATCHES:
                    raise
                room //= 2

    def _release_ended(self, pool: ScratchPool, program: EnabledProgram) -> None:
        """Free code of ended traces that no thread is in.

        Nothing is freed while that code and its counters leave enough room for this program.
        """
        machine = self.machine
        target = machine.target
        # The counters of a site: the program's, and its basic block's.
        each = COUNTER * (2 if program.compiled.plant.blocks else 1)
        short = partial(pool.is_short, program)
        if not short() and self._counters.has_room(each * len(program.enabled)):
            return
        if target.planter is not None:
            if self.ended:
                target.planter.empty()
                pool.start_again()
                self._counters.start_again()
                self.ended = ()
            return
        if machine.isa.signature_bits and pool.in_clause:
            return  # a function that it calls may have signed its return address
        self._release(pool, unused(target, self.ended))
        if short():
            # Interrupts leave such words in all memory if there are many CPUs: search stacks only.
            allocator = machine.system.allocator
            if allocator is not None:
                free = unused_by_stacks(target, machine.isa, allocator.threads, self.ended)
                self._release(pool, free)
        if short() and not self.ended:
            pool.start_again()

    def _release(self, pool: ScratchPool, free: Sequence[EndedCode]) -> None:
        """Free code of ended traces, and its counters."""
        trap = self.machine.isa.breakpoint
        # Write through QEMU, which then drops its translations of the code.
        pieces = [(one.range[0], one.range[1] - one.range[0]) for one in free]
        self.machine.target.write_text([(low, trap * (size // len(trap))) for low, size in pieces])
        for one in free:
            pool.release(one.range)
            self._counters.release(one.counters, pool.view)
        self.ended = tuple(one for one in self.ended if one not in free)
