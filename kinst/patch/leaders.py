"""Analysis of the kernel's code for basic-block leaders, and for the runs that contain no leader
after their first instruction.

A leader is an instruction that control can enter other than from the instruction before it. An
instruction may be inside a run only if it is not a leader. Control can enter by:
- direct branches and calls. Those in the same function are known from its instructions. In all
  other code, any bytes that could be a branch or a call are taken to be one (Isa.branches). A
  branch in the same function does not count if it is planted: its displaced copy runs in its place,
  and leads to the trampoline of the target instead of the target;
- addresses that instructions compute, such as the address of a function that is called through a
  pointer; Isa.branches finds these, too;
- computed jumps, by their tables; a function with such a jump and no known table has no runs;
- the kernel's tables of fix-ups and of static keys (System.landings);
- return addresses: a call is the last instruction of its run;
- symbols;
- addresses in data, among them saved program counters: session/apply.py searches all of the
  machine's memory for those when it plants.

Many functions are analysed together. Their instructions have indexes, in address order. Their bytes
have consecutive positions, one function after another. Each function is followed by the padding
that a run at its end may cover; these bytes have positions as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import cached_property

import numpy as np

from kinst.core.columns import (
    FLOW_KINDS,
    I32,
    I64,
    U8,
    U64,
    Bools,
    Columns,
    Flows,
    distinct,
    instructions_of,
    ragged,
)
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.instruction import Flow
from kinst.core.isa import Isa
from kinst.core.kernel import PlantableKernel
from kinst.core.probe import Function, Site
from kinst.core.system import System
from kinst.core.words import COLD
from kinst.patch.flows import BRANCH, INDIRECT, JUMP
from kinst.patch.gates import predecessors_of
from kinst.patch.runs import (
    NO_RUNS,
    ChosenRuns,
    CodeLines,
    Runs,
    bounds_of,
    ended_of,
    find_runs,
    idle_of,
    joined_runs,
    lines_of,
    near,
)
from kinst.patch.ways import LONGEST

TOGETHER = 1024  # functions that are analysed at once; bounds the memory that it takes
NO_ADDRESSES: U64 = np.zeros(0, np.uint64)


def _ignore(done: float) -> None:
    """Do nothing: the default for reports of progress."""


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """Runs and gates of some functions.

    Attributes:
        runs: groups of instructions; one jump may cover all instructions of a group.
        unprobed: instructions in the runs that have no probe.
        dead_registers: the dead registers at the functions' instructions (Isa.dead_registers), by
            address.
        gates: instructions without a probe that are to be displaced, each by its own jump.
        gated: addresses of trap-planted instructions whose predecessors are all known and
            displaced.
    """

    runs: Runs = NO_RUNS
    unprobed: tuple[Site, ...] = ()
    dead_registers: Mapping[int, int] = field(default_factory=dict)
    gates: tuple[Site, ...] = ()
    gated: frozenset[int] = frozenset()

    def outside(self, functions: Sequence[Function]) -> FoundRuns:
        """Return the runs and gates that are not in these functions."""
        ordered = sorted((f.address, f.address + f.size) for f in functions)
        starts = np.array([low for low, _ in ordered], np.uint64)
        ends = np.array([high for _, high in ordered], np.uint64)

        def is_outside(addresses: U64) -> Bools:
            at = np.searchsorted(starts, addresses, side="right") - 1
            inside: Bools = (at >= 0) & (addresses < ends[np.maximum(at, 0)])
            return ~inside

        def kept(sites: Sequence[Site]) -> tuple[Site, ...]:
            there = is_outside(np.array([site.address for site in sites], np.uint64))
            return tuple(site for site, keep in zip(sites, there.tolist(), strict=True) if keep)

        gated = np.array(sorted(self.gated), np.uint64)
        return FoundRuns(
            self.runs.take(np.flatnonzero(is_outside(self.runs.start))), kept(self.unprobed),
            self.dead_registers, kept(self.gates), frozenset(gated[is_outside(gated)].tolist()),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _FunctionRows:
    """Functions that are analysed together, with columns of their instructions. The bytes of all
    functions have positions: those of one function, then some bytes of padding that a run may
    cover, then the next function.

    Attributes:
        functions: the functions, in address order.
        columns: their instructions.
        flows: where control goes from each instruction.
        of: index of each instruction's function.
        position: position of each instruction's first byte (CodeLines.position).
        follows: for each instruction, whether the previous one is in the same function.
        base: position of the first byte of each function; as a last element, the number of all
            positions.
        row_at: for each position, the index of the instruction that begins there, or -1.
    """

    functions: Sequence[Function]
    columns: Columns
    flows: Flows
    of: I64
    position: I64
    follows: Bools
    base: I64
    row_at: I32

    @property
    def start(self) -> U64:
        """Address of each function."""
        return np.array([f.address for f in self.functions], np.uint64)

    @property
    def end(self) -> I64:
        """Position of the first byte after each instruction."""
        return self.position + self.columns.size

    def rows_of(self, addresses: U64, of: I64) -> I64:
        """Return the index of the instruction at each address, or -1 if none begins there.

        Args:
            addresses: addresses of code.
            of: for each address, the index of the function in which to look.
        """
        return self.row_at[self.base[of] + (addresses - self.start[of]).view(np.int64)].astype(
            np.int64
        )

    def within(self, addresses: U64) -> tuple[I64, I64]:
        """Find which addresses are in the functions or in the padding after them.

        An address may belong to several functions, since functions may overlap or lie in another
        one's padding. It is found once for each of them.

        Args:
            addresses: addresses, ascending.

        Returns:
            Two arrays with one element for each address that is found: its index in `addresses`,
            and the position of the byte at this address.
        """
        start = self.start
        size = np.diff(self.base)
        low = np.searchsorted(addresses, start)
        high = np.searchsorted(addresses, start + size.view(np.uint64))
        count = high - low
        which = ragged(low, count)
        moved = np.repeat(self.base[:-1] - start.view(np.int64), count)
        return which, addresses[which].view(np.int64) + moved


@dataclass(frozen=True, slots=True, eq=False)
class _Entered:
    """Where control may enter functions: facts about each byte, and about each instruction, of the
    functions that are analysed together.

    Attributes:
        code: the functions.
        text: for each byte, its live value.
        branched_to: for each byte, whether a direct branch of its own function leads there.
        elsewhere: for each byte, whether control may come there in another way: from outside of the
            function, by a computed jump, or by one of the kernel's own tables (System.landings).
        undisplaced: for each byte, whether an instruction of its own function leads there and
            continues to do so after planting: a branch that is not planted, or a call.
        returned_to: for each byte, whether it may be at a live return address.
        blind: for each instruction, whether its function has a computed jump whose targets are not
            known.
        idle: for each instruction, whether it is padding that control never reaches.
        begins: for each instruction, whether a jump can be written there.
    """

    code: _FunctionRows
    text: U8
    branched_to: Bools
    elsewhere: Bools
    undisplaced: Bools
    returned_to: Bools
    blind: Bools
    idle: Bools
    begins: Bools

    @property
    def leaders(self) -> Bools:
        """For each instruction, whether it is a leader: whether control may come to its place in
        the kernel's text other than from the instruction before."""
        return (self.undisplaced | self.elsewhere | self.returned_to)[self.code.position]


class Leaders:
    """Finder of runs and gates in the kernel's code. An object keeps what it found out about the
    code, such as all branches, for later programs."""

    def __init__(self, isa: Isa, system: System, kernel: PlantableKernel) -> None:
        self._isa = isa
        self._system = system
        self._kernel = kernel
        self._branches: dict[tuple[int, int], tuple[U64, U64]] = {}
        self._spares: dict[int, dict[int, int]] = {}
        self._beyond = isa.RUN_SIZE + LONGEST  # byte numbers after each function

    def seen_by(self, kernel: PlantableKernel) -> Leaders:
        """Read the kernel through another object from now on, and return self. A new trace of the
        same kernel calls this, so that it need not analyse the kernel's code again."""
        self._kernel = kernel
        return self

    def runs(
        self,
        planted: Sequence[tuple[Site, bool]],
        taken: Collection[int],
        *,
        gates: bool = False,
        live: U64 = NO_ADDRESSES,
        progress: Callable[[float], None] = _ignore,
    ) -> FoundRuns:
        """Choose runs, and gates, for planted instructions, and return them.

        Args:
            planted: (instruction, whether it has room for a jump of its own).
            taken: addresses of instructions that must not be displaced.
            gates: whether to displace the predecessors of instructions that are left to traps.
            live: probable live return addresses, ascending. Only the first instruction of a run may
                be at such an address. If another were, planting would find the address inside the
                run, and would plant the run's instructions one by one.
            progress: called with the share of the work that is done, 0 to 1.
        """
        of = np.array([site.function.address for site, _ in planted], np.uint64)
        room = np.array([has for _, has in planted], np.bool_)
        at = np.array([site.offset for site, _ in planted], np.uint64) + of
        functions = {site.function.address: site.function for site, _ in planted}
        short = distinct(of[~room])
        every = []
        gone = np.array(sorted(taken), np.uint64)
        for low in range(0, len(short), TOGETHER):
            progress(low / len(short))
            some = short[low : low + TOGETHER]
            which = np.isin(of, some)
            code = self._code_of([functions[start] for start in some.tolist()])
            rows = code.rows_of(at[which], np.searchsorted(some, of[which]))
            asked, own = np.zeros((2, len(code.position)), np.bool_)
            asked[rows[rows >= 0]] = True
            own[rows[room[which] & (rows >= 0)]] = True
            every.append(self._look(code, asked, own, gone, live, gates=gates))
            self._kernel.forget(code.functions)
        return _joined(*every)

    def runs_without_traps(
        self,
        planted: Sequence[tuple[Site, bool]],
        taken: Collection[int],
        *,
        gates: bool = False,
        live: U64 = NO_ADDRESSES,
        progress: Callable[[float], None] = _ignore,
    ) -> FoundRuns:
        """Choose runs and gates as runs() does, for a kernel in which kinst plants no traps.

        Without traps, some instructions cannot be displaced. Such an instruction has no room for a
        jump, is in no run, and has a predecessor that is unknown or not displaced. It stays in the
        kernel's text. If it is a branch, its target becomes a leader, which can only be the first
        instruction of a run. This may prevent other runs. So kinst chooses runs again until no
        further instruction has to stay.

        Args:
            planted: (instruction, whether it has room for a jump of its own).
            taken: addresses of instructions that must not be displaced.
            gates: whether to displace the predecessors of instructions that have no room for a jump
                and are in no run.
            live: probable live return addresses, ascending. Only the first instruction of a run may
                be at such an address.
            progress: called with the share of the work that is done, 0 to 1.
        """
        left, lost = list(planted), set(taken)
        found = self.runs(left, lost, gates=gates, live=live, progress=progress)
        while True:
            served = found.gated | {*found.runs.member.tolist()}
            more = [s for s, own in left if not own and s.address not in served]
            if not more:
                return found
            # What is not displaced leads to its targets in the original text.
            lost |= {site.address for site in more}
            left = [(site, own) for site, own in left if site.address not in lost]
            again = {site.function.address: site.function for site in more}
            some = [(site, own) for site, own in left if site.function.address in again]
            new = self.runs(some, lost, gates=gates, live=live)
            found = _joined(found.outside(list(again.values())), new)

    def _code_of(self, functions: Sequence[Function]) -> _FunctionRows:
        scanned, flows = self._kernel.flow_columns(functions)
        count = np.diff(scanned.bounds)
        base = bounds_of(np.array([f.size for f in functions], np.int64) + self._beyond)
        of = np.repeat(np.arange(len(functions)), count)
        start = np.array([f.address for f in functions], np.uint64)
        position = (scanned.columns.address - start[of]).view(np.int64) + base[of]
        follows = np.ones(len(position), np.bool_)
        follows[scanned.bounds[:-1][count > 0]] = False
        row_at: I32 = np.full(base[-1], -1, np.int32)
        row_at[position] = np.arange(len(position))
        return _FunctionRows(functions, scanned.columns, flows, of, position, follows, base, row_at)

    def _look(
        self, code: _FunctionRows, asked: Bools, own: Bools, taken: U64, live: U64, *, gates: bool
    ) -> FoundRuns:
        """Choose runs, and gates, in functions that have planted instructions without room for a
        jump, and return them.

        Args:
            code: the functions.
            asked: for each instruction, whether it is planted.
            own: for each instruction, whether it is planted and has room for a jump of its own.
            taken: addresses of instructions that must not be displaced, ascending.
            live: probable live return addresses, ascending.
            gates: whether to displace the predecessors of instructions that are left to traps.
        """
        seen = self._see(code, live, asked)
        jump = self._isa.RUN_SIZE
        unfit = np.isin(code.columns.address, taken)
        unfit |= self._unfit(code, near(code.position, asked & ~own, jump), asked)
        elsewhere = seen.elsewhere[code.position] | ~code.follows
        targets, sighted = self._branch_targets(code), ~seen.blind
        before = predecessors_of(
            asked & ~own & sighted, code.flows, targets, code.follows, elsewhere
        )
        covered = before.covered(asked)
        runs = self._runs_in(seen, asked, own, unfit, covered)
        if not gates:
            return self._found(seen, asked, runs, np.zeros_like(asked), frozenset())
        count = len(asked)
        trapped = asked & ~own & ~runs.inside(count)
        before = predecessors_of(trapped & sighted, code.flows, targets, code.follows, elsewhere)
        more = np.zeros(count, np.bool_)
        more[before.row] = True
        more &= ~asked
        more &= ~np.isin(code.columns.address, taken) & ~self._unfit(code, more, asked)
        gated = np.zeros(count, np.bool_)
        if more.any():
            helped = np.zeros(len(code.functions), np.bool_)
            helped[code.of[more]] = True
            there = helped[code.of]
            both, rooms = (asked | more) & there, (own | (more & (code.columns.size >= jump)))
            rooms &= there
            unfit = np.isin(code.columns.address, taken)
            unfit |= self._unfit(code, near(code.position, both & ~rooms, jump), asked)
            others = self._runs_in(seen, both, rooms, unfit, covered)
            worse = np.zeros(len(code.functions), np.bool_)
            worse[code.of[asked & ~own & ~others.inside(count) & ~trapped & ~covered]] = True
            better = helped & ~worse
            runs = _merged(
                runs.take(~better[code.of[runs.first]]), others.take(better[code.of[others.first]])
            )
            gated = more & rooms & ~runs.inside(count)
        done = before.covered(asked | runs.inside(count) | gated)
        # Nothing leads to padding, so all of its predecessors are displaced.
        done |= trapped & seen.idle & sighted & ~seen.leaders & ~seen.branched_to[code.position]
        return self._found(seen, asked, runs, gated, frozenset(code.columns.address[done].tolist()))

    def _found(
        self, seen: _Entered, asked: Bools, runs: ChosenRuns, gates: Bools, gated: frozenset[int]
    ) -> FoundRuns:
        code = seen.code
        dead_registers = dict[int, int]()
        for k in range(len(code.functions)) if self._isa.needs_dead_register else ():
            dead_registers |= self._dead_registers(code, k)
        members = runs.end - runs.first
        columns = code.columns
        columns_of_runs = Runs(
            columns.address[ragged(runs.first, members)], bounds_of(members),
            seen.text[ragged(code.position[runs.first], runs.size)].tobytes(), bounds_of(runs.size),
        )  # fmt: skip
        unprobed = np.flatnonzero(runs.inside(len(asked)) & ~asked)
        return FoundRuns(
            columns_of_runs, self._sites(code, unprobed), dead_registers,
            self._sites(code, np.flatnonzero(gates)), gated,
        )  # fmt: skip

    def _sites(self, code: _FunctionRows, rows: I64) -> tuple[Site, ...]:
        some = code.columns.take(rows)
        row = zip(
            code.of[rows].tolist(), some.address.tolist(), some.size.tolist(),
            map(bytes, some.code), strict=True,
        )  # fmt: skip
        functions = code.functions
        return tuple(
            Site(functions[k], address - functions[k].address, text[:size])
            for k, address, size, text in row
        )

    def _runs_in(
        self, seen: _Entered, planted: Bools, own: Bools, unfit: Bools, covered: Bools
    ) -> ChosenRuns:
        """Choose runs so that as few planted instructions as possible need a trap, and return the
        runs.

        Args:
            seen: the functions, and where control may enter them.
            planted: for each instruction, whether it is planted.
            own: for each instruction, whether it is planted and has room for a jump of its own.
            unfit: for each instruction, whether it cannot be in a run.
            covered: for each instruction, whether all its predecessors are displaced.
        """
        code, jump = seen.code, self._isa.RUN_SIZE
        around = near(code.position, planted & ~own, jump)
        lines = self._lines(seen, around, unfit)
        return find_runs(lines, planted, own, jump, covered)

    def _lines(self, seen: _Entered, around: Bools, unfit: Bools) -> CodeLines:
        code = seen.code
        return lines_of(
            code.position, code.columns.size, code.flows, code.follows,
            entered=seen.leaders, unfit=unfit | seen.blind, idle=seen.idle,
            padding=self._padding(seen, around), begins=seen.begins,
        )  # fmt: skip

    def _branch_targets(self, code: _FunctionRows) -> I64:
        """Return, for each instruction, the index of the instruction that its direct branch leads
        to in its own function; -1 if there is no such target."""
        targets = np.full(len(code.position), -1, np.int64)
        which, places = self._own_targets(code)
        targets[which] = code.row_at[places]
        return targets

    def _own_targets(self, code: _FunctionRows) -> tuple[I64, I64]:
        """Find the direct branches that stay in their function. Return their indexes and, in the
        same order, the positions of the bytes that they lead to.
        """
        which = np.flatnonzero(code.flows.direct)
        of = code.of[which]
        offset = (code.flows.target[which] - code.start[of]).view(np.int64)
        there = (offset >= 0) & (offset < np.diff(code.base)[of])
        return which[there], (offset + code.base[of])[there]

    def _see(self, code: _FunctionRows, live: U64, asked: Bools) -> _Entered:
        """Return where control may enter functions.

        Args:
            code: the functions.
            live: probable live return addresses, ascending.
            asked: for each instruction, whether it is planted.
        """
        branched_to, undisplaced, elsewhere, returned_to = np.zeros((4, code.base[-1]), np.bool_)
        returned_to[code.within(live)[1]] = True
        branches, targets = self._own_targets(code)
        branched_to[targets] = True
        displaced = asked[branches] & np.isin(code.flows.kind[branches], (JUMP, BRANCH))
        undisplaced[targets[~displaced]] = True
        for addresses in (self._landings, self._symbols):
            elsewhere[code.within(addresses)[1]] = True
        blind = np.zeros(len(code.functions), np.bool_)
        text = np.zeros(code.base[-1], np.uint8)
        start = code.start
        for low, high in self._pieces(code):
            inside = np.flatnonzero((start >= np.uint64(low)) & (start < np.uint64(high)))
            self._read(code, inside, text)
            sources, aims = self._branches_of(low, high)
            which, there = code.within(aims)
            function = np.searchsorted(code.base, there, side="right") - 1
            first = start[function]
            size = np.diff(code.base)[function] - self._beyond
            out = (sources[which] < first) | (sources[which] >= first + size.view(np.uint64))
            elsewhere[there[out]] = True
        self._add_computed(code, elsewhere, blind)
        unreached = code.follows.copy()
        unreached[1:] &= ~code.flows.falls[:-1]
        fills = self._fills(code, unreached)
        begins = np.ones(len(code.position), np.bool_)
        if self._isa.needs_dead_register:
            dead = {at for k in range(len(code.functions)) for at in self._dead_registers(code, k)}
            begins = np.isin(code.columns.address, np.array(sorted(dead), np.uint64))
        idle = idle_of(code.flows, fills, code.follows)
        return _Entered(
            code, text, branched_to, elsewhere, undisplaced, returned_to, blind[code.of], idle,
            begins,
        )  # fmt: skip

    def _fills(self, code: _FunctionRows, unreached: Bools) -> Bools:
        """Return, for each instruction, whether it is padding: it does nothing, and it follows an
        instruction that does not fall through, or other padding.

        Args:
            code: the functions.
            unreached: for each instruction, whether the previous one is in the same function and
                does not fall through to it.
        """
        fills = np.zeros(len(unreached), np.bool_)
        columns, is_padding = code.columns, dict[bytes, bool]()
        rows = np.flatnonzero(unreached)
        while len(rows):
            kept = []
            for k in rows.tolist():
                text = columns.code[k, : columns.size[k]].tobytes()
                if text not in is_padding:
                    is_padding[text] = self._isa.padding(text) == len(text)
                if is_padding[text] and not fills[k]:
                    fills[k] = True
                    kept.append(k + 1)
            rows = np.array([k for k in kept if k < len(fills) and code.follows[k]], np.int64)
        return fills

    def _add_computed(self, code: _FunctionRows, elsewhere: Bools, blind: Bools) -> None:
        """Find where computed jumps of functions lead, and store the result in the arguments
        `elsewhere` and `blind`.

        Args:
            code: the functions.
            elsewhere: for each byte, set to True if a computed jump may lead there, or if a jump
                table may begin there, which no patch may cover.
            blind: for each function, set to True if it has a computed jump whose targets are not
                known.
        """
        kernel, isa, columns = self._kernel, self._isa, code.columns
        computing = np.zeros(len(code.functions), np.bool_)
        computing[code.of[code.flows.kind == INDIRECT]] = True
        making = np.flatnonzero(isa.may_make_tables(columns))
        first = np.searchsorted(making, np.searchsorted(code.of, np.arange(len(code.functions))))
        bounds = [*first.tolist(), len(making)]
        for k, (function, low, high) in enumerate(
            zip(code.functions, bounds, bounds[1:], strict=False)
        ):
            tables = isa.jump_tables(instructions_of(columns.take(making[low:high])))
            addresses = [table.address for table in tables]
            if computing[k] and (tables or not self._is_alone(function)):
                parts = kernel.parts(function)
                computed = kernel.computed(parts)
                addresses += computed
                # If the code makes no address that could be a table's, the jump leaves the
                # function.
                blind[k] = not computed and any(
                    isa.jump_tables(kernel.instructions(part)) for part in parts
                )
            room = int(code.base[k + 1] - code.base[k])
            offsets = [at - function.address for at in addresses]
            inside = [at for at in offsets if 0 <= at < room]
            elsewhere[int(code.base[k]) + np.array(inside, np.int64)] = True

    def _is_alone(self, function: Function) -> bool:
        """Return whether a function is in one piece: the compiler put no cold part elsewhere."""
        return COLD not in function.name and function.name.split("@")[0] not in self._parted

    @cached_property
    def _parted(self) -> frozenset[str]:
        names = (f.name.partition(COLD) for f in self._system.functions())
        return frozenset(stem for stem, cold, _ in names if cold)

    def _dead_registers(self, code: _FunctionRows, k: int) -> dict[int, int]:
        """Return the dead registers at the instructions of a function (Isa.dead_registers), by
        address.

        Args:
            code: the functions.
            k: index of the function.
        """
        start = code.functions[k].address
        dead = self._spares.get(start)
        if dead is None:
            rows = slice(*np.searchsorted(code.of, (k, k + 1)).tolist())
            columns, flows = code.columns.take(rows), code.flows
            fixup = self._system.fixup
            leads = zip(
                flows.kind[rows].tolist(), flows.falls[rows].tolist(), flows.target[rows].tolist(),
                columns.address.tolist(), strict=True,
            )  # fmt: skip
            free = self._isa.dead_registers(
                instructions_of(columns),
                [Flow(FLOW_KINDS[kind], falls, target or None, fault=fixup(at))
                 for kind, falls, target, at in leads],
            )  # fmt: skip
            pairs = zip(columns.address.tolist(), free, strict=True)
            dead = self._spares[start] = {at: bits for at, bits in pairs if bits}
        return dead

    def _unfit(self, code: _FunctionRows, some: Bools, asked: Bools) -> Bools:
        """Return, for each instruction, whether it cannot be in a run: because the system may
        rewrite it or, if it is not planted, because it cannot be displaced or may fault on purpose.
        For a planted instruction, this was checked before.

        Args:
            code: the functions.
            some: for each instruction, whether to check it; the result is False if not.
            asked: for each instruction, whether it is planted.
        """
        unfit = np.zeros(len(some), np.bool_)
        rows = np.flatnonzero(some)
        if len(rows):
            unfit[rows] = self._system.rewritten(_spans(code, rows))
        rows = np.flatnonzero(some & ~asked)
        spans = _spans(code, rows)
        if spans:
            refused = self._kernel.refused(spans, code.columns.take(rows))
            unfit[rows] |= np.array(refused, np.bool_)
            # For a probed instruction that faults or traps, kinst has the hook that it needs.
            fixup, is_bug = self._system.fixup, self._system.is_bug
            unfit[rows] |= [fixup(at) is not None or is_bug(at) for at, _ in spans]
        return unfit

    def _padding(self, seen: _Entered, around: Bools) -> I64:
        """Return how many bytes of padding after each instruction a jump may cover. The number is 0
        for an instruction from which control falls through.

        Args:
            seen: the functions, and where control may enter them.
            around: for each instruction, whether to look at it; the result is 0 if not.
        """
        code, jump = seen.code, self._isa.RUN_SIZE
        padding = np.zeros(len(around), np.int64)
        rows = np.flatnonzero(around & ended_of(code.flows))
        there = code.row_at[code.end[rows]]
        rows = rows[(there < 0) | ~around[there]]
        entered = seen.branched_to | seen.elsewhere
        spans, size_of = [], dict[bytes, int]()
        for k, at in zip(rows.tolist(), code.end[rows].tolist(), strict=True):
            text = seen.text[at : min(at + LONGEST, code.base[code.of[k] + 1])].tobytes()
            if text not in size_of:
                size_of[text] = min(self._isa.padding(text), jump)
            size = next((n for n in range(size_of[text]) if entered[at + n]), size_of[text])
            if size:
                end = int(code.columns.address[k]) + int(code.columns.size[k])
                spans.append((k, (end, size)))
        if spans:
            ranges = [span for _, span in spans]
            refused, rewritten = self._system.site_refusals(ranges), self._system.rewritten(ranges)
            for (k, (_, size)), reason, changing in zip(spans, refused, rewritten, strict=True):
                padding[k] = 0 if reason or changing else size
        return padding

    def _pieces(self, code: _FunctionRows) -> Sequence[tuple[int, int]]:
        """Return the ranges [low, high) of code in which branches to the functions are searched:
        the kernel's text, the texts of modules, and single functions outside of these."""
        ranges = [self._system.text, *(m.text for m in self._system.modules())]
        start = code.start
        used, covered = [], np.zeros(len(start), np.bool_)
        for low, high in ranges:
            inside = (start >= np.uint64(low)) & (start < np.uint64(high)) & ~covered
            if inside.any():
                used.append((low, high))
                covered |= inside
        alone = [code.functions[k] for k in np.flatnonzero(~covered).tolist()]
        return [*used, *((f.address, f.address + f.size) for f in alone)]

    def _read(self, code: _FunctionRows, which: I64, text: U8) -> None:
        """Read the live bytes of some functions, and of the padding after each of them.

        Args:
            code: the functions.
            which: indexes of the functions to read.
            text: the bytes are stored here, each at its position (_FunctionRows).
        """
        some = [(code.functions[k], int(code.base[k])) for k in which.tolist()]
        first = some[0][0].address
        end = max(f.address + f.size for f, _ in some) + self._beyond
        with suppress(KinstError):
            read = np.frombuffer(self._kernel.live(first, end - first), np.uint8)
            for function, at in some:
                low, size = function.address - first, function.size + self._beyond
                text[at : at + size] = read[low : low + size]
            return
        for function, at in some:
            for size in (function.size + self._beyond, function.size):
                with suppress(KinstError):
                    live = self._kernel.live(function.address, size)
                    text[at : at + size] = np.frombuffer(live, np.uint8)
                    break

    def _branches_of(self, low: int, high: int) -> tuple[U64, U64]:
        """Return the direct branches in the code [low, high), and the instructions there that
        compute an address. The result is two columns: the address of each instruction, and the
        address that it leads to or computes."""
        if (low, high) not in self._branches:
            code = self._system.code(low, high - low)
            self._branches[low, high] = self._isa.branches(code, low)
        return self._branches[low, high]

    @cached_property
    def _landings(self) -> U64:
        return self._system.landings()

    @cached_property
    def _symbols(self) -> U64:
        return distinct(np.array([f.address for f in self._system.functions()], np.uint64))


def _joined(*every: FoundRuns) -> FoundRuns:
    """Join runs and gates of different functions to one object, and return it."""
    return FoundRuns(
        joined_runs([found.runs for found in every]),
        tuple(site for found in every for site in found.unprobed),
        {at: bits for found in every for at, bits in found.dead_registers.items()},
        tuple(site for found in every for site in found.gates),
        frozenset(at for found in every for at in found.gated),
    )


def _spans(code: _FunctionRows, rows: I64) -> list[tuple[int, int]]:
    """Return (address, size) of each of the instructions with these indexes."""
    columns = code.columns
    return list(zip(columns.address[rows].tolist(), columns.size[rows].tolist(), strict=True))


def _merged(some: ChosenRuns, others: ChosenRuns) -> ChosenRuns:
    """Return the runs of two sequences in address order. Each sequence has the runs of other
    functions.
    """
    first = np.concatenate([some.first, others.first])
    order = np.argsort(first, kind="stable")
    return ChosenRuns(
        first[order], np.concatenate([some.end, others.end])[order],
        np.concatenate([some.size, others.size])[order],
    )  # fmt: skip
