"""Workspace of a machine: what outlives a trace, such as scratch, counters, code of ended traces,
and decoded text.

Tested by tests/fake, through the whole path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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
from kinst.session.sizes import code_to_allocate, counters_room
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
LEAST_FOR_BATCHES = 24 << 20  # bytes in which the code of two batches fits
COUNTER = 8  # bytes


class Workspace:
    """Started machine, with the state that its traces leave to later traces.

    Attributes:
        machine: the machine; its `kernel` has the functions and instructions since the last
            prepare().
        ended: code of earlier traces that a thread may still be in.
    """

    def __init__(
        self,
        machine: StartedMachine,
        set_aside: int,
        *,
        for_any: bool,
        progress: Callable[[str, float | None], None],
    ) -> None:
        """Begin with a machine that has just been started.

        Args:
            set_aside: bytes that were set aside for scratch when the machine was started.
            for_any: True if the machine may trace any number of programs; False if it is opened for
                one known program.
            progress: called with the name of long work and the part of it that is done, 0 to 1.
        """
        self._progress = progress
        self.machine = machine
        self.ended: tuple[EndedCode, ...] = ()
        self._set_aside = set_aside
        self._for_any = for_any
        self._system = machine.system  # lets kinst plant call sites of the kernel's own tracer
        self._counters = CounterBlocks(machine)
        self._pool: ScratchPool | None = None
        self._leaders: Leaders | None = None
        self._text = b""
        self._among: Collection[int] | None = None
        self._call_sites = True

    def boot_over(self, machine: StartedMachine) -> None:
        """Note that the kernel, whose boot was traced, is up, and map the scratch of the trace into
        the kernel.

        Args:
            machine: the same machine, as one whose kernel is up.
        """
        self.machine, self._system = machine, machine.system
        self._counters = CounterBlocks(machine)
        self._leaders, self._text = None, b""
        if self._pool is not None:
            self._pool.boot_over(machine)

    # Decoded text.

    def prepare(self, among: Collection[int] | None = None, *, call_sites: bool = True) -> None:
        """Prepare the machine for the next reads and writes, and forget decoded instructions if the
        kernel has changed its text.

        This stops the machine and leaves it stopped, unless its memory can be read while it runs. A
        kernel changes its text when it switches jump labels, for example.

        Args:
            among: addresses of the functions that probe descriptions can match, such as those of a
                batch; None for all functions.
            call_sites: whether call sites of the kernel's own tracer may be planted (PlantRules).
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
            debug = machine.images.kernel.debug
            is_inlined = debug.is_inlined if debug.has_dwarf else None
            kernel = RunningKernel(
                target, system, machine.isa, among,
                is_inlined=is_inlined, progress=self._progress,
            )  # fmt: skip
            self.machine = replace(machine, system=system, kernel=kernel)
            if changed:
                self._leaders = None
        self._text, self._among, self._call_sites = text, among, call_sites

    @property
    def in_batches(self) -> bool:
        """Whether the machine traces in batches: only some functions at a time."""
        return self._among is not None

    @property
    def leaders(self) -> Leaders | None:
        """Leaders of the kernel's basic blocks, by which runs are chosen: control must not enter a
        run in its middle. None if no runs are planted.

        No runs are planted if the ISA needs none, or if the machine must stop to be planted and its
        memory cannot be searched.
        """
        machine = self.machine
        if not machine.isa.RUN_SIZE:
            return None
        if not machine.never_stops and machine.target.pointers(()) is None:
            return None
        known = self._leaders or Leaders(machine.isa, machine.system, machine.kernel)
        self._leaders = known.seen_by(machine.kernel)
        return self._leaders

    # Scratch.

    def take(self, program: EnabledProgram) -> ScratchMemory:
        """Return scratch for a program and its probes. Without reserve(), the next call may return
        the same scratch.

        Raises KinstError if too little is left.
        """
        if self._pool is None:
            self._pool = self._new_pool(program)
        self._release_ended(self._pool, program)
        return self._pool.take(program)

    def place_counters(self, memory: ScratchMemory, size: int, more: int) -> Counters | None:
        """Return counter blocks of `size + more` bytes or, if these do not fit, of `size` bytes.

        None if the program has no counters, or no block fits.

        Args:
            memory: the trace's scratch.
            size: bytes that each CPU's block must have.
            more: bytes for counters of basic blocks, which are left out if they do not fit.
        """
        return self._counters.place(memory, size, more)

    def reserve(self, plan: TracePlan) -> None:
        """Reserve the scratch, the counters and the code of a trace, so that later traces do not
        overwrite them.
        """
        placed = plan.placed
        if self._pool is not None:
            self._pool.reserve(placed, plan.code_end)
        start = placed.scratch.address + placed.scratch.text
        counters = self._counters.reserve(placed.counters)
        if start < plan.code_end:
            back = ways_back(plan.sites)
            self.ended += (EndedCode((start, plan.code_end), back, counters),)

    def _new_pool(self, program: EnabledProgram) -> ScratchPool:
        """Map scratch for a program, and return it.

        If the machine may trace other programs later (`for_any`), map more than this program needs.
        """
        compiled, machine = program.compiled, self.machine
        data = compiled.sizes.data(machine.cpus)
        if compiled.batch:
            data = data_reserved(program, machine.cpus)
            return self._pool_of_batches(data, machine.target.most_scratch)
        code = compiled.trampolines
        if machine.target.abilities.reads_running:
            code = code_to_allocate(code, len(program.enabled))
        size = pool_size(program, machine.cpus, code, machine.counters_room)
        if not self._for_any:
            return ScratchPool(machine, size, 0, data)
        data = max(data, ROOM_FOR_DATA)
        # The machine was started before it was known how many threads may count.
        counters = machine.counters_room - counters_room(machine.cpus)
        return ScratchPool(machine, max(size, self._set_aside + counters), data, data)

    def _pool_of_batches(self, data: int, most: int) -> ScratchPool:
        """Map scratch for a program that is traced in batches, as much as is free near the kernel.

        With less scratch, code of ended batches must be freed more often.

        Args:
            data: bytes for the data of a batch.
            most: bytes that the machine has for scratch, 0 if it has no limit.
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
        """Free code of ended traces that no thread is in, if a program might otherwise lack
        room.
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
            return  # a function that the clause calls may have signed its return address
        self._release(pool, unused(target, self.ended))
        if short():
            # With many CPUs, interrupts leave words that look like return addresses in all memory:
            # search only stacks.
            allocator = machine.system.allocator
            if allocator is not None:
                free = unused_by_stacks(target, machine.isa, allocator.threads, self.ended)
                self._release(pool, free)
        if short() and not self.ended:
            pool.start_again()

    def _release(self, pool: ScratchPool, free: Sequence[EndedCode]) -> None:
        """Free code of ended traces and its counters, and overwrite the code with breakpoints.

        Args:
            free: code that no thread is in any more.
        """
        trap = self.machine.isa.breakpoint
        # Write through QEMU, which then drops its translations of the code.
        pieces = [(one.range[0], one.range[1] - one.range[0]) for one in free]
        self.machine.target.write_text([(low, trap * (size // len(trap))) for low, size in pieces])
        for one in free:
            pool.release(one.range)
            self._counters.release(one.counters, pool.view)
        self.ended = tuple(one for one in self.ended if one not in free)
