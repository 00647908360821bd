"""Memory for counters: one block for each CPU, or one block for all CPUs.

Trampolines find a CPU's block from its per-CPU base register. The displacement between base and
block is the same for all CPUs.

Tested by tests/session/test_place.py.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from itertools import pairwise

from kinst.core.errors import KinstError
from kinst.core.layout import LEAF
from kinst.core.machine import Planting
from kinst.session.sizes import counters_room
from kinst.session.values import Counters, ScratchMemory, StartedMachine

REACH = 1 << 31  # of a signed 32-bit displacement
STEP = 64 << 20
SLACK = 16 << 20  # bytes of the reach, kept for the blocks themselves
# Blocks must not have the page colour of the per-CPU base page, which kernel code uses all the time
# (current, the stack canary): in a direct-mapped TLB, as QEMU's is, they would evict each other at
# each hit.  Any distance works that is not near a multiple of 64 pages.
COLOUR = 0x95000
LINE = 64  # bytes of a cache line: blocks of different traces share none


def share_counters(address: int, offset: int, block_size: int, room: int) -> Counters | None:
    """Return one block of counters for all CPUs, for ISAs that add to memory atomically.

    None if the program has no counters, or the block does not fit.

    Args:
        address: address of scratch in the target.
        offset: offset in scratch of the area for counters.
        block_size: bytes of the block.
        room: bytes of the area for counters.
    """
    if not block_size or block_size > room:
        return None
    return Counters(address + offset, (offset,))


def _addresses(lowest: int, highest: int, block_size: int) -> Iterator[int]:
    """Yield the virtual addresses at which counters may be mapped, nearest to the per-CPU bases
    first.

    The addresses lie above the highest base or below the lowest base, in reach of all bases; the
    last ones lie between the bases, which need not be addresses of memory.

    Args:
        lowest: the lowest value of a CPU's per-CPU base register.
        highest: the highest value of a CPU's per-CPU base register.
        block_size: bytes of each CPU's block.
    """
    span, reach = highest - lowest, REACH - max(SLACK, block_size + LEAF)
    for distance in range(STEP, reach - span, STEP):
        yield (highest + distance) & -LEAF
        yield (lowest - distance) & -LEAF
    for distance in range(STEP, min(span, reach), STEP):
        yield (lowest + distance) & -LEAF


def mapped_size(bases: Sequence[int], block_size: int) -> int:
    """Return how many bytes to map for the counter blocks of all CPUs, a multiple of 2 MB (LEAF).

    The first block need not start at a multiple of LEAF, so the size includes one more LEAF.

    Args:
        bases: values of the per-CPU base register, one for each CPU.
        block_size: bytes of each CPU's block.
    """
    span = max(bases) - min(bases) + block_size + LEAF
    return (span + LEAF - 1) & -LEAF


def map_counters(
    target: Planting, bases: Sequence[int], scratch_size: int, block_size: int, room: int = 0
) -> Counters | None:
    """Map the end of scratch near the per-CPU bases. Each CPU's block of counters then has the same
    displacement from the CPU's base.

    The machine is stopped. Returns None if there are no counters, if the bases are too close
    together or too far apart, or if the page tables have no room near them.

    Raises KinstError if the page tables have no room and the machine can count in no other way
    (Planting.no_counters).

    Args:
        bases: values of the per-CPU base register, in CPU order.
        scratch_size: bytes of all scratch.
        block_size: bytes of each CPU's block.
        room: bytes at the end of scratch that counters may use; 0 for the usual number,
            counters_room(len(bases)).
    """
    if not bases or not block_size:
        return None
    lowest, highest = min(bases), max(bases)
    ordered = sorted(bases)
    gaps = [b - a for a, b in pairwise(ordered)]
    room = room or counters_room(len(bases))
    offset = scratch_size - room
    size = mapped_size(bases, block_size)
    if size > room or any(gap < block_size for gap in gaps):
        return None
    for virtual in _addresses(lowest, highest, block_size):
        if target.map_alias(virtual, offset, size):
            within = (lowest + COLOUR) % LEAF
            start, inside = virtual + within, offset + within
            return Counters(start - lowest, tuple(inside + base - lowest for base in bases))
    if target.no_counters[0]:
        raise KinstError(*target.no_counters)
    return None


class CounterBlocks:
    """Allocator of counter blocks for the traces of one machine.

    Each CPU has an area for the counters of all traces, at the end of scratch; it is mapped for the
    first trace that counts. In a machine that is planted while it runs, each CPU counts in memory
    that the kernel allocated, and kinst copies the counts to the end of scratch.

    Each trace has blocks of its own: a thread that was preempted in a trampoline may continue and
    count after the trace has ended. The blocks are used again once no thread can be in the trace's
    code (release()).
    """

    def __init__(self, machine: StartedMachine) -> None:
        self._machine = machine
        self._first: Counters | None = None  # offsets are from the start of all scratch
        # Offsets [low, high) of the bytes that traces use in each CPU's area.
        self._used: list[tuple[int, int]] = []
        self._limit = 0

    def place(self, memory: ScratchMemory, block_size: int, more: int = 0) -> Counters | None:
        """Return counter blocks of `block_size + more` bytes each. If these do not fit, return
        blocks of `block_size` bytes.

        None if the program has no counters, or no block fits. Without reserve(), the next call
        may return the same blocks.

        Args:
            memory: the trace's scratch.
            block_size: bytes that each CPU's block must have.
            more: bytes for counters of basic blocks, which are left out if they do not fit.
        """
        if more and block_size:
            larger = self.place(memory, block_size + more)
            if larger is not None:
                return larger
        if not block_size or not memory.counters_room or not memory.address:
            return None
        if self._first is None:
            self._map(memory, block_size)
        at = self._free(block_size)
        if self._first is None or at is None:
            return None
        offsets = tuple(offset - memory.offset + at for offset in self._first.offsets)
        return Counters(self._first.displacement + at, offsets, block_size)

    def _free(self, size: int) -> int | None:
        """Return the lowest offset in each CPU's area at which `size` bytes are free; None if
        `size` bytes are free nowhere.
        """
        at = 0
        for low, high in (*self._used, (self._limit, self._limit)):
            if at + size <= low:
                return at
            at = high
        return None

    def has_room(self, size: int) -> bool:
        """Return whether a block of `size` bytes fits, or may fit since nothing is mapped yet."""
        return self._first is None or self._free(size) is not None

    def reserve(self, counters: Counters | None) -> tuple[int, int]:
        """Reserve the counter blocks that place() returned last.

        Returns offsets [low, high) of the reserved bytes in each CPU's area; release() takes them.
        (0, 0) if `counters` is None.
        """
        if counters is None or self._first is None:
            return 0, 0
        at = counters.displacement - self._first.displacement
        own = at, at + -(-counters.size // LINE) * LINE
        insort(self._used, own)
        return own

    def release(self, reserved: tuple[int, int], view: memoryview) -> None:
        """Free and zero the bytes of each CPU's area that a trace has reserved.

        Args:
            reserved: offsets [low, high), as reserve() returned them.
            view: all scratch of the machine.
        """
        if self._first is None or reserved not in self._used:
            return
        self._used.remove(reserved)
        low, high = reserved
        for offset in self._first.offsets:
            view[offset + low : offset + high] = bytes(high - low)

    def start_again(self) -> None:
        """Free the blocks of all traces.

        The caller knows that no thread is in any trace's code any more, and that all counters are
        zero.
        """
        self._used = []

    def _map(self, memory: ScratchMemory, block_size: int) -> None:
        machine, room = self._machine, memory.counters_room
        offset = memory.counters_at
        if machine.isa.shared_counters:
            self._first = share_counters(memory.address - memory.offset, offset, block_size, room)
            self._limit = room
            return
        bases = machine.facts.per_cpu_bases
        if machine.target.planter is not None:
            displacement, size = machine.target.planter.allocate_counters(
                offset, room // len(bases)
            )
            if size:
                places = range(offset, offset + size * len(bases), size)
                self._first, self._limit = Counters(displacement, tuple(places)), size
            return
        self._first = map_counters(machine.target, bases, offset + room, block_size, room)
        if self._first is not None:
            end = offset + mapped_size(bases, block_size) - max(self._first.offsets)
            self._limit = min([end, *(b - a for a, b in pairwise(sorted(bases)))])
