"""The patch plan: every write that planting needs, and the writes that undo it.

A site's trampoline is made by its ISA, one by one (Isa.trampoline).  Of the many sites that are
only counted, most are instructions of a few kinds whose trampolines differ in nothing but numbers:
the ISA marks those when it decodes them, and makes them all at once (Isa.trampolines), byte for
byte the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import overload

import numpy as np

from kinst.core.bodies import CallBody, CountBody, IndexedBody, RecordBody
from kinst.core.columns import (
    I32,
    I64,
    NO_COLUMNS,
    NO_PAIRS,
    U8,
    U64,
    WIDTH,
    Batch,
    Bools,
    Columns,
    Pairs,
    columns_of,
    ragged,
)
from kinst.core.displaced import Onward, Refused, Relocated
from kinst.core.errors import KinstError
from kinst.core.isa import Isa
from kinst.core.machine import CodeTable
from kinst.core.probe import Site
from kinst.patch.apart import Apart, fits
from kinst.patch.blocks import NO_SUMS, BlockRules, Blocks, BlockSums, arrange, signed
from kinst.patch.chains import Chains, find_chains, leads_of, no_chains, reached_sites
from kinst.patch.patches import (
    NO_PATCHES,
    NO_PIECES,
    Patch,
    Patches,
    Pieces,
    patches_of,
    pieces_of,
)
from kinst.patch.runs import NO_RUNS, Runs, bounds_of
from kinst.patch.wanted import WantedSite

ALIGN = 16
NO_SPARE: Mapping[int, int] = {}
MOST_ROUNDS = 8  # of laying trampolines out
TOGETHER = 1 << 15  # trampolines that are made at once: what bounds the memory that it takes


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One jump over several instructions.

    insides: addresses of instructions that it lies over, but not at.  Where a CPU or a thread may
    be about to go on at one of them, `instead` is written in its place: patches of the planted
    instructions one by one.
    """

    patch: Patch
    insides: tuple[int, ...]
    instead: tuple[Patch, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRuns(Sequence[PlannedRun]):
    """Runs as columns.  patches: one of each.  insides, instead: of all, one after another; those
    of each run begin at inside_at and instead_at, which have one number more at the end.  goal:
    where the jump of each leads."""

    patches: Patches
    insides: U64
    inside_at: I64
    instead: Patches
    instead_at: I64
    goal: U64

    def __len__(self) -> int:
        return len(self.patches)

    @overload
    def __getitem__(self, index: int) -> PlannedRun: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PlannedRun]: ...
    def __getitem__(self, index: int | slice) -> PlannedRun | Sequence[PlannedRun]:
        if isinstance(index, slice):
            return [self[k] for k in range(len(self))[index]]
        low, high = self.inside_at[index : index + 2].tolist()
        first, last = self.instead_at[index : index + 2].tolist()
        return PlannedRun(
            self.patches[index], tuple(self.insides[low:high].tolist()),
            tuple(self.instead[first:last]),
        )  # fmt: skip

    def __iter__(self) -> Iterator[PlannedRun]:
        return (self[k] for k in range(len(self)))


@dataclass(frozen=True, slots=True, eq=False)
class PlannedSites(Sequence[tuple[int, bytes, str]]):
    """What trampolines are of: (address, original bytes, way) of each site, as columns."""

    columns: Columns
    way: U8  # indexes of WAYS_PLANNED

    def __len__(self) -> int:
        return len(self.columns)

    @overload
    def __getitem__(self, index: int) -> tuple[int, bytes, str]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[int, bytes, str]]: ...
    def __getitem__(
        self, index: int | slice
    ) -> tuple[int, bytes, str] | Sequence[tuple[int, bytes, str]]:
        if isinstance(index, slice):
            return [self[k] for k in range(len(self))[index]]
        size = int(self.columns.size[index])
        return (
            int(self.columns.address[index]), self.columns.code[index, :size].tobytes(),
            WAYS_PLANNED[int(self.way[index])],
        )  # fmt: skip

    def __iter__(self) -> Iterator[tuple[int, bytes, str]]:
        return (self[k] for k in range(len(self)))


WAYS_PLANNED = ("", "jump", "trap", "run", "gate")
_JUMP, _TRAP, _RUN, _GATE = (WAYS_PLANNED.index(way) for way in ("jump", "trap", "run", "gate"))
_ASKED = ("jump", "trap")  # the ways of what has a probe
_NO_RUNS = PlannedRuns(
    NO_PATCHES,
    NO_PAIRS.first,
    np.zeros(1, np.int64),
    NO_PATCHES,
    np.zeros(1, np.int64),
    NO_PAIRS.first,
)
_NO_SITES = PlannedSites(NO_COLUMNS, np.zeros(0, np.uint8))


def _no_addresses() -> U64:
    return np.zeros(0, np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """patches: to kernel text, the hooks' first.  text: (address, code) of trampolines and stubs.
    traps: (site, trampoline) pairs, those that runs have instead among them.  copies: (address of
    a copied instruction that may fault, address of the original).  refused: sites that turned out
    impossible, with reasons.  end: first free address after the trampolines.  runs: patches that
    are decided on when they are written.  sites: what each trampoline of text is of, where the way
    of what is in a run is run, or "" if nobody asked for it.

    exits: to be written when the patches have been undone, over the starts of trampolines that
    others lead back to, so that a thread that is inside a chain leaves it with the next turn of
    its loop.  chained: sites that are reached from another one's trampoline, ascending.

    branches: originals to which branches of trampolines lead, or will once exits are written.

    stubs: what patches within blocks lead to.  sums: what the counters of blocks mean."""

    patches: Patches = NO_PATCHES
    text: Pieces = NO_PIECES
    traps: Pairs = NO_PAIRS
    copies: Pairs = NO_PAIRS
    refused: tuple[tuple[Site, str], ...] = ()
    end: int = 0
    exits: Patches = NO_PATCHES
    chained: U64 = field(default_factory=_no_addresses)
    runs: PlannedRuns = _NO_RUNS
    sites: PlannedSites = _NO_SITES
    stubs: Pieces = NO_PIECES
    sums: BlockSums = NO_SUMS
    branches: U64 = field(default_factory=_no_addresses)


@dataclass(frozen=True, slots=True)
class Hook:
    """A function of the kernel to detour.  translate: the hook replaces its first argument."""

    address: int
    code: bytes
    handler: int
    translate: bool


def _aligned(address: int) -> int:
    return (address + ALIGN - 1) & -ALIGN


def plan_sites(
    wanted: Sequence[WantedSite],
    isa: Isa,
    start: int,
    limit: int,
    *,
    chained: bool = False,
    runs: Runs = NO_RUNS,
    blocks: BlockRules | None = None,
    spare: Mapping[int, int] = NO_SPARE,
    table: CodeTable | None = None,
    near: Sequence[int] = (),
) -> Plan:
    """Lay out trampolines from `start` on; raises KinstError when `limit` is passed.

    chained: trampolines lead straight into those of the instructions that come next.  runs: of
    chained sites; all of their members are in `wanted`.  blocks: sites that are only counted may
    share counters, where they are chained.  spare: registers of
    instructions (Isa.dead_registers) by their addresses.
    table: in which the machine finds code, as of Abilities.  near: addresses at which it finds
    code when sites are hit, besides the sites and where those lead."""
    refused: list[tuple[Site, str]] = []
    read = _read_by(wanted)
    spare = {at: free & ~read for at, free in spare.items() if free & ~read}
    if chained:
        wanted = sorted(wanted, key=lambda work: work.site.address)
    while True:
        sites = _columns(wanted)
        chains = find_chains(sites, isa) if chained else no_chains(len(sites))
        counted, free = Blocks(wanted), chains.straight
        if blocks is not None and chains:
            free = isa.counts_freely(sites, [work.following for work in wanted])
            counted = arrange(wanted, chains, free, blocks, runs.start)
        apart = _apart(sites, isa, table, near)
        layout = _TrampolineLayout(
            counted.wanted, sites, isa, chains, _aligned(start), limit, spare, apart
        )
        if not layout.settle() or (runs and not chained):
            chained = False
            wanted, runs = [work for work in wanted if work.way in _ASKED], NO_RUNS
            continue
        entry, stubs = layout.stubs(counted, free)
        if stubs is None:
            blocks = None
            continue
        patched, patches = layout.patches(entry)
        if not layout.refused:
            break
        left = {wanted[k].site.address for k in layout.refused}
        # The original of one that is refused may lead into the middle of a run.
        aimed = chains.target[list(layout.refused)]
        entered = sites.address[aimed[aimed >= 0]].tolist()
        asked = [(k, reason) for k, reason in layout.refused.items() if wanted[k].way in _ASKED]
        refused += [(wanted[k].site, reason) for k, reason in sorted(asked)]
        # A run is left out with any of its members, and so is what was in it unasked.
        runs = runs.without(np.array(sorted({*left, *entered}), np.uint64))
        left |= {work.site.address for work in wanted if not work.way}
        left -= set(runs.member.tolist())
        wanted = [work for work in wanted if work.site.address not in left]
    text, original_at = layout.text()
    way = np.array([WAYS_PLANNED.index(work.way) for work in wanted], np.uint8)
    # What nobody asked for is not expected to fault.
    trapped, copied = way == _TRAP, (original_at >= 0) & ((way == _TRAP) | (way == _JUMP))
    planned = _NO_RUNS
    if runs:
        planned, inside = _plan_runs(runs, isa, sites, entry, patched, patches, spare)
        patches = patches.take(np.flatnonzero(~inside[patched]))
        way[inside & (way > 0)] = _RUN
    exits = []
    for k in np.flatnonzero(chains.head).tolist():
        at, code = text[k]
        leave = isa.leave_patch(at, wanted[k].site.address)
        exits.append(Patch(at, leave, code[: len(leave)]))
    return Plan(
        patches,
        text,
        Pairs(sites.address[trapped], entry[trapped]),
        Pairs((layout.at + original_at.astype(np.uint64))[copied], sites.address[copied]),
        tuple(refused),
        _aligned(layout.end),
        patches_of(exits),
        reached_sites(chains, sites),
        planned,
        PlannedSites(sites, way),
        stubs,
        counted.sums,
        _branches(sites, isa, chains),
    )


def _apart(
    sites: Columns, isa: Isa, table: CodeTable | None, near: Sequence[int]
) -> Callable[[], Apart] | None:
    """Return a function that starts choosing places anew, for one layout; None if trampolines may
    lie as close together as they can."""
    if table is None or not fits(table, len(sites), 2 * len(sites) + len(near)):
        return None
    target = leads_of(sites, isa).target
    own = [sites.address, sites.after, target[target > 0], np.array(near, np.uint64)]
    taken = np.unique(np.concatenate(own))
    return partial(Apart, table, taken, ALIGN)


def _branches(sites: Columns, isa: Isa, chains: Chains) -> U64:
    """Plan.branches."""
    target = leads_of(sites, isa).target
    out = target[(target > 0) & (chains.target < 0)]
    return np.union1d(out, sites.address[chains.head])


def _read_by(wanted: Sequence[WantedSite]) -> int:
    """The registers that any site's work reads, as bits by frame slot: what it is told of them must
    be so, whether the kernel still needs them or not."""
    slots = set[int]()
    for bodies in {id(work.bodies): work.bodies for work in wanted}.values():
        for body in bodies:
            snippets = [body.guard, body.index if isinstance(body, IndexedBody) else None]
            slots.update(*(one.reads for one in snippets if one is not None))
            call = body.otherwise if isinstance(body, IndexedBody | RecordBody) else body
            slots.update(call.slots if isinstance(call, CallBody) else ())
    return sum(1 << slot for slot in slots)


def _plan_runs(
    runs: Runs,
    isa: Isa,
    sites: Columns,
    at: U64,
    patched: I64,
    patches: Patches,
    spare: Mapping[int, int],
) -> tuple[PlannedRuns, Bools]:
    """The runs, but those for which the ISA has no patch, and which sites are in one.

    at: where what comes to the sites by their patches goes.  patched: the sites that have patches
    of their own."""
    inside = np.zeros(len(sites), np.bool_)
    members = np.searchsorted(sites.address, runs.member)
    start = runs.start
    goal = at[members[runs.member_at[:-1]]]
    free = [spare.get(one, 0) for one in start.tolist()] if spare else [0] * len(start)
    known, new = isa.run_patches(start, runs.code_at, runs.code, goal, free)
    every = Patches(start, runs.code_at, new, runs.code)
    kept = np.flatnonzero(known)
    count = np.diff(runs.member_at)[kept]
    which = ragged(runs.member_at[kept], count)
    inside[members[which]] = True
    # What each member has by itself, of those that have something.
    place: I64 = np.full(len(sites), -1, np.int64)
    place[patched] = np.arange(len(patched))
    instead = place[members[which]]
    own = bounds_of((instead >= 0).astype(np.int64))[bounds_of(count)]
    return PlannedRuns(
        every.take(kept), runs.member[ragged(runs.member_at[kept] + 1, count - 1)],
        bounds_of(count - 1), patches.take(instead[instead >= 0]), own, goal[kept],
    ), inside  # fmt: skip


def _columns(wanted: Sequence[WantedSite]) -> Columns:
    found = columns_of([w.site.address for w in wanted], [w.site.code for w in wanted])
    found.marks[:] = [w.marks for w in wanted]
    return found


def _counters(wanted: Sequence[WantedSite]) -> list[tuple[int, ...] | None]:
    """The counters that each site's work adds to, or None where it is not counting alone, more than
    the one instruction is run, or there are more counters than a byte counts (Batch.count)."""
    known: dict[int, tuple[int, ...] | None] = {}
    for work in wanted:
        key = id(work.bodies)
        if key not in known:
            counting = [b for b in work.bodies if isinstance(b, CountBody) and b.guard is None]
            alone = len(counting) == len(work.bodies)
            offsets = tuple(signed(at) for body in counting for at in body.offsets)
            known[key] = offsets if alone and len(offsets) < 256 else None
    return [None if work.rerun_prefix else known[id(work.bodies)] for work in wanted]


class _TrampolineLayout:
    """Trampolines and where they lie, in the order of `wanted`.

    Where a trampoline lies decides what others lead to, so they are laid out until none moves:
    once where the sizes of all are known, twice where one was made that is not, and three times on
    riscv64, where code shrinks when a short jump is found to reach."""

    def __init__(
        self,
        wanted: Sequence[WantedSite],
        sites: Columns,
        isa: Isa,
        chains: Chains,
        start: int,
        limit: int,
        spare: Mapping[int, int],
        apart: Callable[[], Apart] | None,
    ) -> None:
        self._spare, self._apart = spare, apart
        self._wanted, self._sites, self._isa, self._chains = wanted, sites, isa, chains
        self._start, self._limit = start, limit
        self.end = self._behind = start  # of all, of the trampolines
        self.at: U64 = np.zeros(len(wanted), np.uint64)
        self.refused: dict[int, str] = {}  # by index
        self._batch, self._which = self._batched()
        self._size: I32 = np.full(len(wanted), -1, np.int32)
        self._size[self._which] = isa.trampoline_sizes(self._batch)
        # Made one by one: the place, what it leads to, and the trampoline.
        self._made: dict[int, tuple[int, dict[int, int], Relocated]] = {}

    def _batched(self) -> tuple[Batch, I64]:
        """What may be made at once, and which sites that is."""
        counters = _counters(self._wanted)
        marked = self._sites.marks != 0
        found = ((k, counters[k]) for k in np.flatnonzero(marked).tolist())
        made = [(k, own) for k, own in found if own is not None]
        which, rows = [k for k, _ in made], [own for _, own in made]
        count = np.fromiter(map(len, rows), np.uint8, len(rows))
        width = max(map(len, rows), default=0)
        offsets = np.zeros((len(rows), width), np.int64)
        for column in range(width):
            there = np.flatnonzero(count > column)
            offsets[there, column] = [rows[k][column] for k in there.tolist()]
        index = np.array(which, np.int64)
        return Batch(
            self._sites.take(index), offsets, count, self._chains.falls_into[index],
            self._chains.head[index], self._start, self._limit,
        ), index  # fmt: skip

    def settle(self) -> bool:
        """Lay out until no trampoline moves or one is refused; False should that not happen."""
        asked = bool((self._size < 0).any())
        before: U64 | None = None
        for _ in range(MOST_ROUNDS):
            self._lay_out(before)
            if self.refused or not asked or not self._chains:
                return True
            if before is not None and np.array_equal(before, self.at):
                return True
            before = self.at
        return False

    def _lay_out(self, before: U64 | None) -> None:
        """One round.  before: where trampolines lay in the one before, None for the first."""
        joined = [False, *self._chains.falls_into.tolist()]
        next_place = self._apart().place if self._apart is not None else _aligned
        at, places = self._start, []
        for k, size in enumerate(self._size.tolist()):
            if not joined[k]:
                at = next_place(at)
            if size < 0:
                made = self._one(k, at, before)
                if made is None:
                    places.append(at)
                    continue
                size = len(made.code)
            places.append(at)
            at += size
            if at > self._limit and self._apart is not None:
                self._apart = None  # closer together they may fit
                self._lay_out(before)
                return
            if at > self._limit:
                raise KinstError(
                    f"{len(self._wanted)} probes need more memory than there is for trampolines",
                    "name fewer instructions, or give more with -x scratch=SIZE",
                )
        self.end = self._behind = at
        self.at = np.array(places, np.uint64)

    def _one(self, k: int, at: int, before: U64 | None) -> Relocated | None:
        """The trampoline of one site at `at`; None where it is refused."""
        work, target = self._wanted[k], int(self._chains.target[k])
        address = work.site.address
        links = {}
        if before is not None and target >= 0:
            links[int(self._sites.address[target])] = int(before[target])
        known = self._made.get(k)
        if known is not None and known[:2] == (at, links):
            return known[2]
        falls_into = address + len(work.site.code) if self._chains.falls_into[k] else -1
        made = self._isa.trampoline(
            work.site, work.following, at, work.bodies, work.rerun_prefix,
            Onward(links, falls_into, bool(self._chains.head[k]), self._spare),
        )  # fmt: skip
        if isinstance(made, Refused):
            self.refused[k] = made.reason
            return None
        self._made[k] = at, links, made
        return made

    def stubs(self, counted: Blocks, free: Bools) -> tuple[U64, Pieces | None]:
        """Where what comes to each site by its patch goes, and the stubs, which are laid behind
        the trampolines; None where one cannot be made.  free: where counting saves nothing."""
        entry = self.at.copy()
        kept = ~np.isin(counted.entered, list(self.refused))
        which = counted.entered[kept]
        if not len(which):
            return entry, NO_PIECES
        made = self._isa.stubs(self.end, counted.counters[kept], self.at[which], free[which])
        if made is None or self.end + len(made[0]) > self._limit:
            return entry, None
        code, size = made
        start = np.cumsum(size) - size
        entry[which] = np.uint64(self.end) + start.astype(np.uint64)
        found = Pieces(self.end, code.tobytes(), start, size)
        self.end += len(code)
        return entry, found

    def patches(self, entry: U64) -> tuple[I64, Patches]:
        """What leads to the trampolines, or to their stubs, and of which sites; one that a jump
        does not reach is refused."""
        isa, sites = self._isa, self._sites
        ways = np.array([WAYS_PLANNED.index(work.way) for work in self._wanted], np.uint8)
        jumping = (ways == _JUMP) | (ways == _GATE)
        jumps = np.flatnonzero(jumping)
        rows = sites.code.copy()
        reached, rows[jumps] = isa.jump_patches(sites.take(jumps), entry[jumps])
        for k in jumps[~reached].tolist():
            self.refused[k] = "the trampoline is out of a jump's reach"
        for size in np.unique(sites.size).tolist():
            trap = np.frombuffer(isa.trap_patch(size), np.uint8)
            trapped = np.flatnonzero((sites.size == size) & (ways > 0) & ~jumping)
            rows[trapped, : len(trap)] = trap
        which = np.flatnonzero(ways > 0)
        there = np.arange(WIDTH) < sites.size[which, None]
        start = np.zeros(len(which) + 1, np.int64)
        np.cumsum(sites.size[which], out=start[1:])
        return which, Patches(
            sites.address[which], start, rows[which][there].tobytes(),
            sites.code[which][there].tobytes(),
        )  # fmt: skip

    def text(self) -> tuple[Pieces, I32]:
        """The code of all trampolines, and where in each its copied instruction is, or -1."""
        start = (self.at - np.uint64(self._start)).view(np.int64)
        block = np.zeros(self._behind - self._start, np.uint8)
        original_at: I32 = np.full(len(start), -1, np.int32)
        size = self._size.astype(np.int64)
        for k, (_, _, made) in self._made.items():
            low = int(start[k])
            block[low : low + len(made.code)] = np.frombuffer(made.code, np.uint8)
            original_at[k], size[k] = made.original_at, len(made.code)
        known: Bools = self._size[self._which] >= 0
        batch, which = self._batch.take(known), self._which[known]
        target = self._chains.target[which]
        original = self._isa.leads(batch.columns).target
        goal = np.where(target >= 0, self.at[target], original)
        for low in range(0, len(which), TOGETHER):
            some = np.arange(low, min(low + TOGETHER, len(which)))
            here = which[some]
            made_at_once = self._isa.trampolines(batch.take(some), self.at[here], goal[some])
            block[ragged(start[here], size[here])] = made_at_once.code
            original_at[here] = made_at_once.original_at
        return Pieces(self._start, block.tobytes(), start, size), original_at


def ways_back(plan: Plan) -> U64:
    """Addresses, ascending, to which trampolines lead back: behind sites and, where those are
    chained, only behind the last of them; and where branches lead."""
    sites = plan.sites.columns
    after = sites.after
    if len(plan.chained):
        after = after[~np.isin(after, sites.address)]
    return np.union1d(after, plan.branches)


def plan_hooks(hooks: Sequence[Hook], isa: Isa, start: int) -> Plan:
    """Detours of the kernel's own functions; raises KinstError where one cannot be made."""
    patches, text = [], []
    at = _aligned(start)
    for hook in hooks:
        make = isa.translate_detour if hook.translate else isa.detour
        made = make(hook.code, hook.address, at, hook.handler)
        if isinstance(made, Refused):
            raise KinstError(f"the function at {hook.address:#x} cannot be hooked: {made.reason}")
        patch, stub = made
        patches.append(Patch(hook.address, patch, hook.code[: len(patch)]))
        text.append((at, stub))
        at = _aligned(at + len(stub))
    of = columns_of([p.address for p in patches], [p.old[:WIDTH] for p in patches])
    way = np.full(len(of), WAYS_PLANNED.index("jump"), np.uint8)
    return Plan(patches_of(patches), pieces_of(text), end=at, sites=PlannedSites(of, way))
