"""The counter blocks: one for each CPU, in reach of its per-CPU base register."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from kinst.core.layout import LEAF
from kinst.core.target import Target
from kinst.session.sizes import counters_room
from kinst.session.values import Counters, ScratchMemory, TracedMachine

REACH = 1 << 31  # of a signed 32-bit displacement
STEP = 64 << 20
SLACK = 16 << 20  # of the reach, kept for the blocks themselves
# Blocks must not have the page colour of the per-CPU base page, which kernel code touches all
# the time (current, the stack canary): in a direct-mapped TLB, as QEMU's is, they would evict
# each other at every hit.  Any distance does that is no multiple of 64 pages or so.
COLOUR = 0x95000


def share_counters(address: int, offset: int, block_size: int, room: int) -> Counters | None:
    """One block for all CPUs, where the blocks of each CPU would be: for ISAs that add to
    memory atomically.  address: of scratch; offset, room: of the place kept for it there.  None
    without counters."""
    if not block_size or block_size > room:
        return None
    return Counters(address + offset, (offset,))


def _places(lowest: int, highest: int) -> Iterator[int]:
    """Virtual addresses to try, beyond the highest base and then below the lowest."""
    for distance in range(STEP, REACH - SLACK, STEP):
        if highest + distance - lowest < REACH - SLACK:
            yield (highest + distance) & -LEAF
        if highest - lowest + distance < REACH - SLACK:
            yield (lowest - distance) & -LEAF


def map_counters(
    target: Target, bases: tuple[int, ...], scratch_size: int, block_size: int
) -> Counters | None:
    """Map the end of scratch so that every CPU finds a block of block_size bytes of its own at
    one displacement from its base.

    bases: values of the per-CPU base register, in CPU order.  None where the bases lie too
    close together or too far apart, or the page tables have no room near them.  Stopped.
    """
    if not bases or not block_size:
        return None
    lowest, highest = min(bases), max(bases)
    ordered = sorted(bases)
    gaps = [b - a for a, b in pairwise(ordered)]
    room = counters_room(len(bases))
    offset = scratch_size - room
    # The first block starts somewhere in its leaf.
    span = highest - lowest + block_size + LEAF
    if span > room or any(gap < block_size for gap in gaps):
        return None
    size = (span + LEAF - 1) & -LEAF
    for virtual in _places(lowest, highest):
        if target.map_alias(virtual, offset, size):
            within = (lowest + COLOUR) % LEAF
            start, inside = virtual + within, offset + within
            return Counters(start - lowest, tuple(inside + base - lowest for base in bases))
    return None


def place_counters(
    traced: TracedMachine, memory: ScratchMemory, block_size: int
) -> Counters | None:
    """Counter blocks of block_size bytes behind the rest of scratch; None where there are none."""
    room = memory.counters_room
    if traced.target is None or traced.facts is None or not memory.address or not room:
        return None
    if traced.isa.shared_counters:
        return share_counters(memory.address, memory.size, block_size, room)
    end = memory.offset + memory.size + room
    made = map_counters(traced.target, traced.facts.per_cpu_bases, end, block_size)
    if made is None:
        return None
    return replace(made, offsets=tuple(at - memory.offset for at in made.offsets))
