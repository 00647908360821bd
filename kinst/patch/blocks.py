"""Blocks: groups of instructions that follow one another and share one counter, because their
probes only count and control passes them in order.

If control falls from each trampoline into the next one, a thread that runs the first of them runs
them all. The exception is an instruction that faults, after which the kernel continues elsewhere.
So an instruction that branches, or that may fault on purpose, is the last of its block. An
instruction that a branch of a planted site leads to is the first of its block. A block counts once,
at the first instruction where the flags that counting changes are dead.

Control may also enter a block in the middle: after a return, after a computed jump, or when a
thread wakes that slept while kinst planted. Then it comes through the patch of that instruction, or
of a run that begins there. Such a patch leads to a *stub*, which adds to a counter of its own and
then joins the block. Let C be the count of the block, which counts at instruction p. Let E[m] be
the count of the stub at instruction m. A thread that joins at m runs m and all instructions after
it. It passes p only if m <= p. So

    hits of instruction i = C - sum of E[m], i < m <= p     for i <= p
                            C + sum of E[m], p < m <= i     for i >= p

kinst computes these sums when it reads the counters (BlockSums). Counts are exact while no CPU and
no preempted thread is in a block. A CPU or thread inside a block has been counted for all of the
block's instructions, or for none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field

import numpy as np

from kinst.core.bodies import CountBody
from kinst.core.columns import I64, U64, Bools, ragged
from kinst.core.dataclass import dataclass
from kinst.patch.chains import Chains
from kinst.patch.wanted import WantedSite

MOST_MEMBERS = 24  # most sites of a block: the number of its sums grows with the square


@dataclass(frozen=True, slots=True)
class BlockRules:
    """What arrange() needs to form blocks: free counters, and instructions that end a block.

    Attributes:
        first: offset of the first free counter from the per-CPU base or, if all CPUs share the
            counters, the address of that counter.
        count: number of free counters, including the first one. They follow one another in memory.
        faulting: addresses of instructions that are expected to fault.
    """

    first: int
    count: int
    faulting: Collection[int]


@dataclass(frozen=True, slots=True, eq=False)
class BlockSums:
    """How to compute the counters of instructions from the counters of blocks and stubs, as a list
    of additions. A counter is given by its offset from the per-CPU base. If all CPUs share the
    counter, it is given by its address, as a signed number.

    Attributes:
        source: for each addition, the counter of the block or stub.
        target: for each addition, the counter of the instruction.
        weight: for each addition, 1 to add the source to the target or -1 to subtract it.
    """

    source: I64
    target: I64
    weight: I64


NO_SUMS = BlockSums(*(np.zeros(0, np.int64) for _ in range(3)))
_NO_ADDRESSES: U64 = np.zeros(0, np.uint64)


def _none() -> I64:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The sites of a program after blocks were formed. In a block, only one site's trampoline
    counts.

    Attributes:
        wanted: all sites, each with the work that its trampoline still has to do.
        entered: indexes of the sites that need a stub, since control may enter a block there.
        counters: the counter of each stub, in the order of `entered`; given as in BlockSums.
        sums: how to compute the counters of instructions from those of blocks and stubs.
    """

    wanted: Sequence[WantedSite]
    entered: I64 = field(default_factory=_none)
    counters: I64 = field(default_factory=_none)
    sums: BlockSums = NO_SUMS


def arrange(
    wanted: Sequence[WantedSite],
    chains: Chains,
    free: Bools,
    rules: BlockRules,
    started: U64 = _NO_ADDRESSES,
) -> Blocks:
    """Form the blocks of sites: sites that only count, and that always run one after another, share
    one counter. Return the sites with the work that their trampolines still have to do, and how to
    compute the counters of the sites from those of the blocks.

    Args:
        wanted: the sites, in address order.
        chains: the links between the trampolines of the sites.
        free: for each site, whether a trampoline can count there without saving the flags or a
            register, because what it changes is dead.
        rules: the counters that are free for blocks, and the instructions that end a block.
        started: addresses of the first sites of runs. The jump of a run leads to the trampoline of
            the run's first site, even if the site has no probe and so no patch of its own.
    """
    if not wanted:
        return Blocks(wanted)
    counters_of = _SiteCounters.of(wanted)
    every = np.arange(len(wanted))
    joins = _joins(wanted, chains, rules)
    lines = np.flatnonzero(~joins)
    rank = every - lines[np.cumsum(~joins) - 1]
    begins = ~joins | (rank % MOST_MEMBERS == 0)
    low = np.flatnonzero(begins)
    high = np.append(low[1:], len(wanted))
    block = np.cumsum(begins) - 1  # index of each site's block

    patched = np.fromiter((bool(w.way) for w in wanted), np.bool_, len(wanted))
    patched |= np.isin(np.array([w.site.address for w in wanted], np.uint64), started)
    joined = ~begins & patched
    need = 1 + np.add.reduceat(joined, low, dtype=np.int64)
    formed = np.add.reduceat(counters_of.count > 0, low, dtype=np.int64) >= 2
    formed = _within(formed & (high - low > 1), need, rules.count)
    first = signed(rules.first) + 8 * np.cumsum(np.where(formed, need, 0))
    common = first - 8 * need
    inside = np.cumsum(joined)
    entered = np.flatnonzero(joined & formed[block])
    of_entered = block[entered]
    counters = common[of_entered] + 8 * (inside[entered] - inside[low[of_entered]])
    counts_at = np.minimum.reduceat(np.where(free, every, len(wanted)), low)
    counts_at = np.where(counts_at < high, counts_at, low)

    # C misses executions that join after the counting instruction, and includes those that join
    # before it without having run the start of the block.
    before = entered <= counts_at[of_entered]
    start, end = (
        np.where(before, low[of_entered], entered),
        np.where(before, entered, high[of_entered]),
    )
    members = np.flatnonzero(formed[block])
    sums = _sums(
        counters_of,
        np.concatenate([members, ragged(start, end - start)]),
        np.concatenate([common[block[members]], np.repeat(counters, end - start)]),
        np.concatenate([np.ones(len(members), np.int64),
                        np.repeat(np.where(before, -1, 1), end - start)]),
    )  # fmt: skip
    offsets = common[formed] - signed(rules.first)
    counting = dict(zip(counts_at[formed].tolist(), offsets.tolist(), strict=True))
    changed = list(wanted)
    for k in members.tolist():
        old = wanted[k]
        bodies = (CountBody((rules.first + counting[k],)),) if k in counting else ()
        changed[k] = WantedSite(
            old.site, old.way, bodies, old.following, old.rerun_prefix, old.marks
        )
    return Blocks(changed, entered, counters, sums)


def _within(candidates: Bools, need: I64, count: int) -> Bools:
    """Choose the blocks that get counters: in order, each block whose counters still fit into
    `count`. Return, for each block, whether it is chosen.

    Args:
        candidates: for each block, whether it may be chosen.
        need: number of counters of each block.
        count: number of counters that are free.
    """
    if int(need[candidates].sum()) <= count:
        return candidates
    kept = np.zeros(len(candidates), np.bool_)
    for k in np.flatnonzero(candidates).tolist():
        if need[k] <= count:
            kept[k] = True
            count -= int(need[k])
    return kept


@dataclass(frozen=True, slots=True, eq=False)
class _SiteCounters:
    """The counters that the work of each site adds to.

    A counter is given by its offset from the per-CPU base. If all CPUs share the counter, it is
    given by its address, as a signed number.

    Attributes:
        start: for each site, where its counters begin in `every`.
        count: for each site, how many counters it has.
        every: the counters' offsets, joined.
    """

    start: I64
    count: I64
    every: I64

    @classmethod
    def of(cls, wanted: Sequence[WantedSite]) -> _SiteCounters:
        row_of: dict[int, tuple[int, int]] = {}  # (start, count) by id() of shared work
        every: list[int] = []
        rows = []
        for work in wanted:
            row = row_of.get(id(work.bodies))
            if row is None:
                offsets = _offsets(work)
                row = row_of[id(work.bodies)] = len(every), len(offsets)
                every += map(signed, offsets)
            rows.append(row)
        table = np.array(rows, np.int64).reshape(-1, 2)
        return cls(table[:, 0], table[:, 1], np.array(every, np.int64))


def _sums(counters: _SiteCounters, sites: I64, source: I64, weight: I64) -> BlockSums:
    """Return the additions of block and stub counters to the counters of sites.

    The columns `sites`, `source` and `weight` have one entry for each addition. An addition adds
    the counter of a block or stub to all counters of one site.

    Args:
        counters: the counters of all sites.
        sites: for each addition, the index of the site.
        source: for each addition, the offset of the block's or stub's counter.
        weight: for each addition, 1 to add the counter or -1 to subtract it.
    """
    count = counters.count[sites]
    return BlockSums(
        np.repeat(source, count),
        counters.every[ragged(counters.start[sites], count)],
        np.repeat(weight, count),
    )


def _joins(wanted: Sequence[WantedSite], chains: Chains, rules: BlockRules) -> Bools:
    """Return, for each site, whether it is in the same block as the site before it."""
    counts = {id(work.bodies): only_counts(work) for work in wanted if not work.rerun_prefix}
    counting = np.array([counts[id(w.bodies)] if not w.rerun_prefix else False for w in wanted])
    faulting = np.zeros(len(wanted), np.bool_)
    if rules.faulting:
        faulting = np.isin(
            np.array([work.site.address for work in wanted], np.uint64),
            np.array(list(rules.faulting), np.uint64),
        )
    aimed = np.zeros(len(wanted), np.bool_)
    aimed[chains.target[chains.target >= 0]] = True
    joins = np.zeros(len(wanted), np.bool_)
    joins[1:] = (chains.straight & counting & ~faulting)[:-1] & (counting & ~aimed)[1:]
    return joins


def only_counts(work: WantedSite) -> bool:
    """Return whether a site's trampoline does nothing but add to counters, without a condition,
    before the displaced instruction.

    For a site without work, the result is True. It is False if the trampoline runs earlier
    instructions again.
    """
    counts = all(isinstance(body, CountBody) and body.guard is None for body in work.bodies)
    return counts and not work.rerun_prefix


def signed(offset: int) -> int:
    """Convert the offset of a counter (CountBody.offsets) to a signed 64-bit number, as numpy
    columns need it. If all CPUs share the counter, its offset is a kernel address, which becomes
    negative."""
    return offset - (1 << 64) if offset >> 63 > 0 else offset


def _offsets(work: WantedSite) -> list[int]:
    return [at for body in work.bodies if isinstance(body, CountBody) for at in body.offsets]
