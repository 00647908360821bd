"""Blocks: one counter for all instructions of a straight line that are only counted.

Where trampolines fall into one another, whoever runs the first of them runs them all, unless an
instruction faults and the kernel goes on elsewhere; so an instruction that may fault on purpose
ends its block, as does one that goes elsewhere, and one that a branch of the chain leads to begins
one.  A block counts once, at the first instruction where the flags that counting changes are dead.

Somebody may also come to an instruction in the middle, by its own patch: a thread that slept there
while it was planted, a return, a computed jump.  That patch leads to a *stub*, which adds to a
counter of its own and then joins the block.  Let the block count C at instruction p, and stubs
count E[m] at instruction m.  Who joins at m runs m and all behind it, and passes p if m <= p.  So

    hits of instruction i = C - sum of E[m], i < m <= p     for i <= p
                            C + sum of E[m], p < m <= i     for i >= p

which is worked out when counters are read (BlockSums).  What is read while the kernel runs may be
ahead by the instructions of a block that a CPU is in, and is exact when none is; a thread that is
preempted within a block when the trace ends has been counted for all of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kinst.core.columns import I64, Bools
from kinst.core.isa import CountBody
from kinst.patch.chains import Chains
from kinst.patch.wanted import Wanted

MOST_MEMBERS = 24  # of a block: what its sums take grows with the square


@dataclass(frozen=True, slots=True)
class BlockRules:
    """first: the place of the first counter that blocks may have (as CountBody's offsets); the
    others follow, `room` in all.  faulting: addresses of instructions that are expected to fault.
    """

    first: int
    room: int
    faulting: Collection[int]


@dataclass(frozen=True, slots=True, eq=False)
class BlockSums:
    """What the counters of blocks and stubs add to the counters of instructions: weight times the
    counter at place `source`, to what the one at place `target` says.  Places are signed."""

    source: I64
    target: I64
    weight: I64


NO_SUMS = BlockSums(*(np.zeros(0, np.int64) for _ in range(3)))


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """wanted: the same sites, counting in blocks.  entered: index of each that needs a stub, and
    the place of the stub's counter."""

    wanted: Sequence[Wanted]
    entered: dict[int, int] = field(default_factory=dict)
    sums: BlockSums = NO_SUMS


def arrange(wanted: Sequence[Wanted], chains: Chains, free: Bools, rules: BlockRules) -> Blocks:
    """The blocks of sites in the order of their addresses.  free: where counting need not save
    anything."""
    made = _Maker(list(wanted), free.tolist(), rules)
    joins = _joins(wanted, chains, rules)
    low = 0
    for k in range(1, len(wanted) + 1):
        if k == len(wanted) or not joins[k] or k - low == MOST_MEMBERS:
            if k - low > 1:
                made.block(low, k)
            low = k
    sums = np.frombuffer(made.sums, np.int64).reshape(-1, 3)
    return Blocks(made.wanted, made.entered, BlockSums(sums[:, 0], sums[:, 1], sums[:, 2]))


def _joins(wanted: Sequence[Wanted], chains: Chains, rules: BlockRules) -> list[bool]:
    """Which sites are in the block of the one before, when that has one."""
    counting = np.fromiter(map(only_counts, wanted), np.bool_, len(wanted))
    faulting = np.fromiter(
        (w.site.address in rules.faulting for w in wanted), np.bool_, len(wanted)
    )
    aimed = np.zeros(len(wanted), np.bool_)
    aimed[chains.target[chains.target >= 0]] = True
    joins = np.zeros(len(wanted), np.bool_)
    joins[1:] = (chains.straight & counting & ~faulting)[:-1] & (counting & ~aimed)[1:]
    found: list[bool] = joins.tolist()
    return found


def only_counts(work: Wanted) -> bool:
    """Whether a site does nothing but add to counters, if that."""
    counts = all(isinstance(body, CountBody) and body.guard is None for body in work.bodies)
    return counts and not work.rerun_prefix


@dataclass(slots=True)
class _Maker:
    wanted: list[Wanted]
    free: list[bool]
    rules: BlockRules
    used: int = 0
    entered: dict[int, int] = field(default_factory=dict)
    sums: array[int] = field(default_factory=lambda: array("q"))

    def block(self, low: int, high: int) -> None:
        """Make a block of the sites [low, high), if it spares any counting."""
        targets = [_offsets(self.wanted[k]) for k in range(low, high)]
        joined = [k for k in range(low + 1, high) if self.wanted[k].way]
        if sum(map(bool, targets)) < 2 or self.used + 1 + len(joined) > self.rules.room:
            return
        common = self._counter()
        stubs = {k: self._counter() for k in joined}
        self.entered.update(stubs)
        counts_at = next((k for k in range(low, high) if self.free[k]), low)
        for k, places in enumerate(targets, low):
            below = [(stubs[m], -1) for m in range(k + 1, counts_at + 1) if m in stubs]
            above = [(stubs[m], 1) for m in range(counts_at + 1, k + 1) if m in stubs]
            for source, weight in ((common, 1), *below, *above):
                for place in places:
                    self.sums.extend((_signed(source), _signed(place), weight))
            bodies = (CountBody((common,)),) if k == counts_at else ()
            self.wanted[k] = replace(self.wanted[k], bodies=bodies)

    def _counter(self) -> int:
        self.used += 1
        return self.rules.first + 8 * (self.used - 1)


def _signed(place: int) -> int:
    """A place as 64 bits with a sign: those of shared counters are addresses."""
    place &= (1 << 64) - 1
    return place - (1 << 64) if place >> 63 else place


def _offsets(work: Wanted) -> list[int]:
    return [at for body in work.bodies if isinstance(body, CountBody) for at in body.offsets]
