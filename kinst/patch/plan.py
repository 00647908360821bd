"""The patch plan: every write that planting needs, with the original bytes to restore.

The ISA makes each site's trampoline (Isa.trampoline). If kinst plants many sites, most of them are
instructions of a few kinds. If such sites only count, or only make one call, their trampolines
differ only in numbers. The ISA marks instructions of these kinds when it decodes them, and makes
all of their trampolines in one call (Isa.trampolines). The bytes are the same as those that
Isa.trampoline would make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial

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
    Bools,
    Columns,
    Pairs,
    TrampolineBatch,
    columns_of,
    distinct,
    ragged,
)
from kinst.core.dataclass import dataclass
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
    ColumnSequence,
    Patch,
    Patches,
    Pieces,
    patches_of,
    pieces_of,
)
from kinst.patch.runs import NO_RUNS, Runs, bounds_of
from kinst.patch.wanted import WantedSite

ALIGN = 16
NO_DEAD: Mapping[int, int] = {}
MOST_ROUNDS = 8  # attempts to lay trampolines out
TOGETHER = 1 << 15  # trampolines that are made at once; bounds the memory that it takes


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A jump over several instructions, with the patches to write in its place if the jump is not
    possible.

    Attributes:
        patch: the jump.
        insides: addresses of the instructions after the first. If such an address may be a live
            return address or a program counter, planting writes `instead` and not `patch`.
        instead: patches of the planted instructions one by one.
    """

    patch: Patch
    insides: tuple[int, ...]
    instead: tuple[Patch, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRuns(ColumnSequence[PlannedRun]):
    """A sequence of planned runs, stored as columns.

    Attributes:
        patches: the jump of each run.
        insides: addresses of the instructions after the first, of all runs, joined.
        inside_at: index in `insides` of each run's first address; as a last element, the length of
            `insides`.
        instead: the patches to write in place of the jumps, of all runs, joined.
        instead_at: index in `instead` of each run's first patch; as a last element, the length of
            `instead`.
        target: address that the jump of each run leads to.
    """

    patches: Patches
    insides: U64
    inside_at: I64
    instead: Patches
    instead_at: I64
    target: U64

    def __len__(self) -> int:
        return len(self.patches)

    def row(self, index: int) -> PlannedRun:
        low, high = self.inside_at[index : index + 2].tolist()
        first, last = self.instead_at[index : index + 2].tolist()
        return PlannedRun(
            self.patches[index], tuple(self.insides[low:high].tolist()),
            tuple(self.instead[first:last]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PlannedSites(ColumnSequence[tuple[int, bytes, str]]):
    """A sequence of (address, original bytes, way) of the sites that have trampolines, stored as
    columns.

    Attributes:
        columns: the sites.
        way: how each site is planted, as an index in WAYS_PLANNED.
    """

    columns: Columns
    way: U8

    def __len__(self) -> int:
        return len(self.columns)

    def row(self, index: int) -> tuple[int, bytes, str]:
        size = int(self.columns.size[index])
        return (
            int(self.columns.address[index]), self.columns.code[index, :size].tobytes(),
            WAYS_PLANNED[int(self.way[index])],
        )  # fmt: skip


WAYS_PLANNED = ("", "jump", "trap", "run", "gate", "chain")
_JUMP, _TRAP, _RUN, _GATE, _CHAIN = range(1, len(WAYS_PLANNED))
NO_TRAPS = "only a trap could plant it, and a user program gets no traps"
_PROBED = ("jump", "trap")  # the ways of sites that have a probe
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
    """Everything that planting writes.

    Attributes:
        patches: patches of kernel text, except those of runs.
        text: the trampolines.
        traps: (site, trampoline) addresses of trap-planted sites, including those that are
            trap-planted only if their run's jump is not possible.
        copies: (address in a trampoline, address in the kernel's text) of each displaced
            instruction that may fault.
        refused: sites that turned out to be impossible to plant, with reasons.
        end: first free address after the trampolines and stubs.
        exits: patches of trampolines that begin a loop of trampolines (heads, chains.py). Each is a
            jump from there to the kernel's text. Unplanting writes these patches after it has
            undone all others, so that a thread in the loop leaves it within one turn.
        chained: addresses of the sites that another site's trampoline leads to, ascending.
        runs: jumps over several instructions; planting decides between each jump and its `instead`.
        sites: the site of each trampoline, in the order of `text`, with its way. The way is "run"
            for an instruction with a probe in a planned run. It is "chain" for an instruction that
            is reached only from displaced instructions, if no traps are planted. Otherwise it is
            WantedSite.way.
        stubs: code for control that enters a block in the middle (blocks.py). A patch leads to a
            stub, which counts and jumps to the site's trampoline.
        sums: how to compute the counters of instructions from those of blocks and stubs.
        branches: addresses in the kernel's text that branches of trampolines lead to, including
            branches that exist only after unplanting has written `exits`.
    """

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
    """A kernel function that kinst detours to code of its own.

    Attributes:
        address: address of the function.
        code: its first bytes.
        handler: address of kinst's code.
        translate: True if kinst's code returns a new first argument, with which the function then
            runs (Isa.translate_detour); False if kinst's code returns whether the function runs
            (Isa.detour).
    """

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
    dead_registers: Mapping[int, int] = NO_DEAD,
    table: CodeTable | None = None,
    near: Sequence[int] = (),
    traps: bool = True,
) -> Plan:
    """Plan the planting of sites: lay out their trampolines, and make the patches that lead to
    them.

    Args:
        wanted: the sites, including all members of runs.
        isa: the kernel's ISA.
        start: start of the memory for trampolines.
        limit: end of that memory (exclusive).
        chained: whether trampolines lead straight into the trampolines of the instructions that
            come next.
        runs: groups of sites; one jump covers all sites of a group. Ignored if `chained` is False.
        blocks: rules by which sites that are only counted share counters; None if no counters are
            shared.
        dead_registers: the dead registers at instructions (Isa.dead_registers), by address.
        table: the machine's table of translated code (Abilities), if no two trampolines should
            share an entry of it; otherwise None.
        near: addresses of code that runs at hits, besides the sites and their branch targets.
        traps: whether traps are planted. If not, a site whose way is "trap" gets no patch: it must
            be in a run, or reached only from displaced instructions.

    Raises:
        KinstError: the trampolines do not fit before `limit`.
    """
    refused: list[tuple[Site, str]] = []
    read = _read_by(wanted)
    dead_registers = {at: bits & ~read for at, bits in dead_registers.items() if bits & ~read}
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
            counted.wanted, sites, isa, chains, _aligned(start), limit, dead_registers, apart
        )
        if not layout.settle() or (runs and not chained):
            chained = False
            ways = _PROBED if traps else ("jump",)
            refused += [(work.site, NO_TRAPS) for work in wanted
                        if work.way in _PROBED and work.way not in ways]  # fmt: skip
            wanted, runs = [work for work in wanted if work.way in ways], NO_RUNS
            continue
        entry, stubs = layout.stubs(counted, free)
        if stubs is None:
            blocks = None
            continue
        patched, patches = layout.patches(entry)
        if not layout.refused:
            break
        dropped = {wanted[k].site.address for k in layout.refused}
        # The original instruction of a refused site may lead into the middle of a run.
        aimed = chains.target[list(layout.refused)]
        entered = sites.address[aimed[aimed >= 0]].tolist()
        probed = [(k, reason) for k, reason in layout.refused.items() if wanted[k].way in _PROBED]
        refused += [(wanted[k].site, reason) for k, reason in sorted(probed)]
        # If a member of a run is left out, so are the run and its members without a probe.
        runs = runs.without(np.array(sorted({*dropped, *entered}), np.uint64))
        dropped |= {work.site.address for work in wanted if not work.way}
        if not traps:  # what led to these may be dropped
            gated = {w.site.address for w in wanted if w.way == "trap"} - {*runs.member.tolist()}
            refused += [(w.site, NO_TRAPS) for w in wanted if w.site.address in gated - dropped]
            dropped |= gated
        dropped -= set(runs.member.tolist())
        wanted = [work for work in wanted if work.site.address not in dropped]
    text, original_at = layout.text()
    way = np.array([WAYS_PLANNED.index(work.way) for work in wanted], np.uint8)
    # Leaders displaces no instruction without a probe that is expected to fault.
    trapped, copied = way == _TRAP, (original_at >= 0) & ((way == _TRAP) | (way == _JUMP))
    planned = _NO_RUNS
    if runs:
        planned, inside = _plan_runs(runs, isa, sites, entry, patched, patches, dead_registers)
        patches = patches.take(np.flatnonzero(~inside[patched]))
        way[inside & (way > 0)] = _RUN
    if not traps:
        trapped = np.zeros(len(way), np.bool_)
        own = np.isin(patches.address, sites.address[way == _TRAP], invert=True)
        patches = patches.take(np.flatnonzero(own))
        way[way == _TRAP] = _CHAIN
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
    """Return a function that makes an allocator of addresses for trampolines (apart.py). Each
    attempt to lay out the trampolines calls the function once, to begin with a new allocator.

    Return None if trampolines should lie as close together as possible: the machine has no table of
    translated code, or one that is too small to give each trampoline its own entry.
    """
    if table is None or not fits(table, len(sites), 2 * len(sites) + len(near)):
        return None
    target = leads_of(sites, isa).target
    addresses = [sites.address, sites.after, target[target > 0], np.array(near, np.uint64)]
    taken = distinct(np.concatenate(addresses))
    return partial(Apart, table, taken, ALIGN)


def _branches(sites: Columns, isa: Isa, chains: Chains) -> U64:
    """Return the addresses in the kernel's text that branches of trampolines lead to, ascending.
    These include branches that unplanting writes into trampolines (Plan.exits)."""
    target = leads_of(sites, isa).target
    out = target[(target > 0) & (chains.target < 0)]
    return distinct(np.concatenate([out, sites.address[chains.head]]))


def _read_by(wanted: Sequence[WantedSite]) -> int:
    """Return the registers that the work of any site reads, as bits by frame slot. Patches must
    preserve these registers even if they are dead."""
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
    dead_registers: Mapping[int, int],
) -> tuple[PlannedRuns, Bools]:
    """Plan the jumps of runs. A run for which the ISA cannot make a jump is left out.

    Args:
        runs: the runs.
        isa: the kernel's ISA.
        sites: all sites, in address order.
        at: for each site, the address that its patch leads to.
        patched: indexes of the sites that have a patch of their own.
        patches: these patches, in the same order.
        dead_registers: the dead registers at instructions (Isa.dead_registers), by address.

    Returns:
        The planned runs and, for each site, whether it is in a planned run.
    """
    inside = np.zeros(len(sites), np.bool_)
    members = np.searchsorted(sites.address, runs.member)
    start = runs.start
    target = at[members[runs.member_at[:-1]]]
    dead = [dead_registers.get(one, 0) for one in start.tolist()] if dead_registers else []
    possible, new = isa.run_patches(
        start, runs.code_at, runs.code, target, dead or [0] * len(start)
    )
    every = Patches(start, runs.code_at, new, runs.code)
    kept = np.flatnonzero(possible)
    count = np.diff(runs.member_at)[kept]
    which = ragged(runs.member_at[kept], count)
    inside[members[which]] = True
    # For each site, the index of the patch that it has by itself, or -1.
    patch_of: I64 = np.full(len(sites), -1, np.int64)
    patch_of[patched] = np.arange(len(patched))
    instead = patch_of[members[which]]
    instead_at = bounds_of((instead >= 0).astype(np.int64))[bounds_of(count)]
    return PlannedRuns(
        every.take(kept), runs.member[ragged(runs.member_at[kept] + 1, count - 1)],
        bounds_of(count - 1), patches.take(instead[instead >= 0]), instead_at, target[kept],
    ), inside  # fmt: skip


def _columns(wanted: Sequence[WantedSite]) -> Columns:
    columns = columns_of([w.site.address for w in wanted], [w.site.code for w in wanted])
    columns.marks[:] = [w.marks for w in wanted]
    return columns


def _counters(wanted: Sequence[WantedSite]) -> list[tuple[int, ...] | None]:
    """Return, for each site, the offsets of the counters that its trampoline adds to. None if
    Isa.trampolines cannot make the trampoline for these offsets: if the site has other work than
    unconditional counts, if it has more than 255 counters, or if the trampoline runs earlier
    instructions again.
    """
    counters_of: dict[int, tuple[int, ...] | None] = {}
    for work in wanted:
        key = id(work.bodies)
        if key not in counters_of:
            counting = [b for b in work.bodies if isinstance(b, CountBody) and b.guard is None]
            alone = len(counting) == len(work.bodies)
            offsets = tuple(signed(at) for body in counting for at in body.offsets)
            counters_of[key] = offsets if alone and len(offsets) < 256 else None
    return [None if work.rerun_prefix else counters_of[id(work.bodies)] for work in wanted]


def _calls(wanted: Sequence[WantedSite]) -> list[CallBody | None]:
    """Return, for each site, the call of the probe's clauses that its trampoline makes, if
    Isa.trampolines can make the trampoline for this call. None if the site has other work, if the
    call is conditional or may perturb, or if the trampoline runs earlier instructions again.
    """
    return [
        body
        if len(work.bodies) == 1
        and isinstance(body := work.bodies[0], CallBody)
        and body.guard is None
        and not body.perturbs
        and not work.rerun_prefix
        else None
        for work in wanted
    ]


class _TrampolineLayout:
    """The trampolines of sites and their addresses, in the order of the sites.

    The address of a trampoline appears in the jumps of other trampolines, and so may change their
    size. So kinst lays out the trampolines again until none moves. One attempt is enough if all
    sizes are known beforehand. Two are needed if kinst must make a trampoline to know its size. On
    riscv64 three are needed, since code becomes shorter if a short jump proves to reach.
    """

    def __init__(
        self,
        wanted: Sequence[WantedSite],
        sites: Columns,
        isa: Isa,
        chains: Chains,
        start: int,
        limit: int,
        dead_registers: Mapping[int, int],
        apart: Callable[[], Apart] | None,
    ) -> None:
        self._dead_registers, self._apart = dead_registers, apart
        self._wanted, self._sites, self._isa, self._chains = wanted, sites, isa, chains
        self._start, self._limit = start, limit
        self.end = self._text_end = start  # end of the stubs, end of the trampolines
        self.at: U64 = np.zeros(len(wanted), np.uint64)
        self.refused: dict[int, str] = {}  # reason by the index of a site
        self._batch, self._which = self._batched()
        self._size: I32 = np.full(len(wanted), -1, np.int32)
        self._size[self._which] = isa.trampoline_sizes(self._batch)
        # Trampolines that were made one by one, by the index of a site: (address, the addresses of
        # other trampolines that it jumps to, trampoline).
        self._made: dict[int, tuple[int, dict[int, int], Relocated]] = {}

    def _batched(self) -> tuple[TrampolineBatch, I64]:
        """Return the trampolines that the ISA can make in one call (Isa.trampolines), and the
        indexes of their sites."""
        counters, calls = _counters(self._wanted), _calls(self._wanted)
        marked = np.flatnonzero(self._sites.marks).tolist()
        which = [k for k in marked if counters[k] is not None or calls[k] is not None]
        rows = [counters[k] or () for k in which]
        number: dict[tuple[int, frozenset[int]], int] = {}
        call, argument = np.full(len(which), -1), np.zeros(len(which), np.uint64)
        for row, k in enumerate(which):
            body = calls[k]
            if body is not None:
                call[row] = number.setdefault((body.entry, body.slots), len(number))
                argument[row] = body.argument
        count = np.fromiter(map(len, rows), np.uint8, len(rows))
        width = max(map(len, rows), default=0)
        offsets = np.zeros((len(rows), width), np.int64)
        for column in range(width):
            there = np.flatnonzero(count > column)
            offsets[there, column] = [rows[k][column] for k in there.tolist()]
        index = np.array(which, np.int64)
        return TrampolineBatch(
            self._sites.take(index), offsets, count, tuple(number), call, argument,
            self._chains.falls_into[index], self._chains.head[index], self._start, self._limit,
        ), index  # fmt: skip

    def settle(self) -> bool:
        """Lay out the trampolines until none moves or one is refused. Return False if trampolines
        still move after MOST_ROUNDS attempts."""
        unknown = bool((self._size < 0).any())
        before: U64 | None = None
        for _ in range(MOST_ROUNDS):
            self._lay_out(before)
            if self.refused or not unknown or not self._chains:
                return True
            if before is not None and np.array_equal(before, self.at):
                return True
            before = self.at
        return False

    def _lay_out(self, before: U64 | None) -> None:
        """Give each trampoline an address, in one attempt.

        Args:
            before: addresses of the trampolines in the previous attempt; None in the first attempt.
        """
        joined = [False, *self._chains.falls_into.tolist()]
        next_place = self._apart().place if self._apart is not None else _aligned
        at, places = self._start, []
        for k, size in enumerate(self._size.tolist()):
            if not joined[k]:
                at = next_place(at)
            if size < 0:
                trampoline = self._one(k, at, before)
                if trampoline is None:
                    places.append(at)
                    continue
                size = len(trampoline.code)
            places.append(at)
            at += size
            if at > self._limit and self._apart is not None:
                self._apart = None  # trampolines that lie closer together may fit
                self._lay_out(before)
                return
            if at > self._limit:
                raise KinstError(
                    f"{len(self._wanted)} probes need more memory than there is for trampolines",
                    "name fewer instructions, or give more with -x scratch=SIZE",
                )
        self.end = self._text_end = at
        self.at = np.array(places, np.uint64)

    def _one(self, k: int, at: int, before: U64 | None) -> Relocated | None:
        """Make the trampoline of one site, and return it; None if the site is refused.

        Args:
            k: index of the site.
            at: address of the trampoline.
            before: addresses of all trampolines in the previous attempt, to which this one may
                jump; None in the first attempt.
        """
        work, target = self._wanted[k], int(self._chains.target[k])
        address = work.site.address
        links = {}
        if before is not None and target >= 0:
            links[int(self._sites.address[target])] = int(before[target])
        cached = self._made.get(k)
        if cached is not None and cached[:2] == (at, links):
            return cached[2]
        falls_into = address + len(work.site.code) if self._chains.falls_into[k] else -1
        trampoline = self._isa.trampoline(
            work.site, work.following, at, work.bodies, work.rerun_prefix,
            Onward(links, falls_into, bool(self._chains.head[k]), self._dead_registers),
        )  # fmt: skip
        if isinstance(trampoline, Refused):
            self.refused[k] = trampoline.reason
            return None
        self._made[k] = at, links, trampoline
        return trampoline

    def stubs(self, counted: Blocks, free: Bools) -> tuple[U64, Pieces | None]:
        """Lay out the stubs of blocks after the trampolines.

        Args:
            counted: the blocks.
            free: for each site, whether a stub can count there without saving the flags or a
                register, because what it changes is dead.

        Returns:
            For each site, the address that its patch leads to; and the stubs, or None if they
            cannot be made or do not fit into memory.
        """
        entry = self.at.copy()
        if not len(counted.entered):
            return entry, NO_PIECES
        kept = ~np.isin(counted.entered, list(self.refused))
        which = counted.entered[kept]
        if not len(which):
            return entry, NO_PIECES
        laid_out = self._isa.stubs(self.end, counted.counters[kept], self.at[which], free[which])
        if laid_out is None or self.end + len(laid_out[0]) > self._limit:
            return entry, None
        code, size = laid_out
        start = np.cumsum(size) - size
        entry[which] = np.uint64(self.end) + start.astype(np.uint64)
        stubs = Pieces(self.end, code.tobytes(), start, size)
        self.end += len(code)
        return entry, stubs

    def patches(self, entry: U64) -> tuple[I64, Patches]:
        """Make the patches of sites. Return the indexes of the sites that have a patch and, in the
        same order, their patches. A site whose jump does not reach is added to `refused`.

        Args:
            entry: for each site, the address that its patch leads to: its trampoline or its stub.
        """
        isa, sites = self._isa, self._sites
        ways = np.array([WAYS_PLANNED.index(work.way) for work in self._wanted], np.uint8)
        jumping = (ways == _JUMP) | (ways == _GATE)
        jumps = np.flatnonzero(jumping)
        rows = sites.code.copy()
        reached, rows[jumps] = isa.jump_patches(sites.take(jumps), entry[jumps])
        for k in jumps[~reached].tolist():
            self.refused[k] = "the trampoline is out of a jump's reach"
        for size in distinct(sites.size).tolist():
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
        """Return the code of all trampolines and, for each trampoline, the offset in it at which
        the copy of the original instruction begins; -1 if the copy cannot fault."""
        start = (self.at - np.uint64(self._start)).view(np.int64)
        block = np.zeros(self._text_end - self._start, np.uint8)
        original_at: I32 = np.full(len(start), -1, np.int32)
        size = self._size.astype(np.int64)
        for k, (_, _, one) in self._made.items():
            low = int(start[k])
            block[low : low + len(one.code)] = np.frombuffer(one.code, np.uint8)
            original_at[k], size[k] = one.original_at, len(one.code)
        at_once: Bools = self._size[self._which] >= 0
        batch, which = self._batch.take(at_once), self._which[at_once]
        link = self._chains.target[which]
        original = self._isa.leads(batch.columns).target
        target = np.where(link >= 0, self.at[link], original)
        for low in range(0, len(which), TOGETHER):
            some = np.arange(low, min(low + TOGETHER, len(which)))
            here = which[some]
            made = self._isa.trampolines(batch.take(some), self.at[here], target[some])
            block[ragged(start[here], size[here])] = made.code
            original_at[here] = made.original_at
        return Pieces(self._start, block.tobytes(), start, size), original_at


def ways_back(plan: Plan) -> U64:
    """Return the addresses in the kernel's text that trampolines lead to, ascending. These are the
    addresses after sites whose next instruction is not planted, and the targets in Plan.branches.
    """
    sites = plan.sites.columns
    after = sites.after
    if len(plan.chained):
        after = after[~np.isin(after, sites.address)]
    return distinct(np.concatenate([after, plan.branches]))


def plan_hooks(hooks: Sequence[Hook], isa: Isa, start: int) -> Plan:
    """Plan detours of kernel functions to kinst's own code. Raises KinstError if a detour cannot be
    made.

    Args:
        hooks: the functions.
        isa: the kernel's ISA.
        start: first address that is free for the detours.
    """
    patches, text = [], []
    at = _aligned(start)
    for hook in hooks:
        make = isa.translate_detour if hook.translate else isa.detour
        detour = make(hook.code, hook.address, at, hook.handler)
        if isinstance(detour, Refused):
            raise KinstError(f"the function at {hook.address:#x} cannot be hooked: {detour.reason}")
        patch, stub = detour
        patches.append(Patch(hook.address, patch, hook.code[: len(patch)]))
        text.append((at, stub))
        at = _aligned(at + len(stub))
    of = columns_of([p.address for p in patches], [p.old[:WIDTH] for p in patches])
    way = np.full(len(of), WAYS_PLANNED.index("jump"), np.uint8)
    return Plan(patches_of(patches), pieces_of(text), end=at, sites=PlannedSites(of, way))
