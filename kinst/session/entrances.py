"""Where control may come into the kernel's code, and which runs can therefore be planted in it.

An instruction may be inside a run only when nothing leads to it but the instruction before it.
What may lead somewhere:
- direct branches and calls, wherever they are: of the function itself by its instructions, of all
  other code by whatever its bytes could be (Isa.branches);
- addresses that code makes, by the same;
- computed jumps, by their tables; a function with such a jump and no known table has no runs;
- the kernel's tables of fix-ups and of static keys (System.landings);
- return addresses: a call is the last in its run;
- a symbol;
- addresses in data, saved program counters among them: session/plant.py looks for those in all of
  the machine's memory when it plants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kinst.core.errors import KinstError
from kinst.core.isa import Flow, Instruction, Isa
from kinst.core.kernel import LiveKernel
from kinst.core.probe import Function, Site
from kinst.core.system import System
from kinst.patch.gates import Ways, ways_to
from kinst.patch.runs import Run, find_runs, line_of, near
from kinst.patch.ways import LONGEST

U64 = npt.NDArray[np.uint64]
TOGETHER = 256  # functions that are looked at at once: what is known of them takes a lot of memory
_DIRECT = ("jump", "branch", "call")


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """runs: what one jump may lie over.  silent: instructions in them that nobody asked for.
    spare: Isa.spare of their functions' instructions, by address.  gates: instructions that nobody
    asked for, to have jumps of their own.  gated: planted ones, left to traps, to which all ways
    that are known lead through what is displaced."""

    runs: tuple[Run, ...]
    silent: tuple[Site, ...]
    spare: Mapping[int, int]
    gates: tuple[Site, ...] = ()
    gated: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Entered:
    """Addresses that control may come to other than from the instruction before.  own: by direct
    branches of the function itself.  elsewhere: by anything else."""

    own: set[int]
    elsewhere: set[int]


class Entrances:
    """The kernel's code as runs see it; what is the same for all programs is kept."""

    def __init__(self, isa: Isa, system: System, kernel: LiveKernel) -> None:
        self._isa = isa
        self._system = system
        self._kernel = kernel
        self._branches: dict[tuple[int, int], tuple[U64, U64]] = {}
        self._spares: dict[int, dict[int, int]] = {}

    def runs(
        self,
        planted: Mapping[Function, Mapping[int, bool]],
        taken: Collection[int],
        *,
        gates: bool = False,
    ) -> FoundRuns:
        """The runs for these planted instructions.

        planted: address of each to whether it has room for a jump, by function.  taken: addresses
        of instructions that must stay where they are.  gates: where a trap would be left, what
        leads there is displaced, too."""
        short = [(f, sites) for f, sites in planted.items() if not all(sites.values())]
        every = []
        for low in range(0, len(short), TOGETHER):
            some = dict(short[low : low + TOGETHER])
            every.append(self._look(some, taken, gates=gates))
            self._kernel.forget(some)
        return FoundRuns(
            tuple(run for found in every for run in found.runs),
            tuple(site for found in every for site in found.silent),
            {at: bits for found in every for at, bits in found.spare.items()},
            tuple(site for found in every for site in found.gates),
            frozenset(at for found in every for at in found.gated),
        )

    def _look(
        self,
        short: Mapping[Function, Mapping[int, bool]],
        taken: Collection[int],
        *,
        gates: bool,
    ) -> FoundRuns:
        """The same in some functions, which are short of room."""
        runs = self._runs(short, short, taken)
        if not gates:
            return self._found(short, runs, {}, frozenset())
        ways = {f: self._ways(f, _left(sites, runs[f])) for f, sites in short.items()}
        helped = self._helped(short, ways, taken)
        for function, found in self._runs(helped, short, taken).items():
            before = _left(short[function], runs[function])
            if before.issuperset(_left(short[function], found)):
                runs[function] = found
        gated = {f: _alone(sites, short[f], runs[f]) for f, sites in helped.items()}
        done = frozenset(
            at
            for f, found in ways.items()
            for at, way in found.items()
            if way.known and _covers(way, short[f], runs[f], gated.get(f, ()))
        )
        return self._found(short, runs, gated, done)

    def _found(
        self,
        short: Mapping[Function, Mapping[int, bool]],
        runs: Mapping[Function, Sequence[Run]],
        gates: Mapping[Function, Collection[int]],
        gated: frozenset[int],
    ) -> FoundRuns:
        silent, jumps, spare = list[Site](), list[Site](), dict[int, int]()
        for function, sites in short.items():
            inside = {at for run in runs[function] for at in run.members}
            silent += self._sites(function, inside.difference(sites))
            jumps += self._sites(function, gates.get(function, ()))
            spare |= self._spare(function)
        every = tuple(run for found in runs.values() for run in found)
        return FoundRuns(every, tuple(silent), spare, tuple(jumps), gated)

    def _sites(self, function: Function, addresses: Collection[int]) -> list[Site]:
        """Instructions of a function, in order."""
        return [
            Site(function, one.address - function.address, one.code)
            for one in (self._kernel.instructions(function) if addresses else ())
            if one.address in addresses
        ]

    def _runs(
        self,
        short: Mapping[Function, Mapping[int, bool]],
        asked: Mapping[Function, Mapping[int, bool]],
        taken: Collection[int],
    ) -> dict[Function, list[Run]]:
        """The best runs around these instructions.  asked: those of them that are probed."""
        around = {f: self._around(f, sites) for f, sites in short.items()}
        unfit = set(taken) | self._unfit(asked, around)
        return {f: self._of(f, sites, around[f], unfit) for f, sites in short.items()}

    def _helped(
        self,
        short: Mapping[Function, Mapping[int, bool]],
        ways: Mapping[Function, Mapping[int, Ways]],
        taken: Collection[int],
    ) -> dict[Function, dict[int, bool]]:
        """Planted instructions and, besides them, those on the ways to traps that nobody has asked
        for and that may be displaced; only of functions that have any of these."""
        before = {f: self._before(f, ways[f], sites) for f, sites in short.items()}
        unfit = set(taken) | self._unfit(short, before)
        found = {}
        for function, some in before.items():
            more = {i.address: i.size >= self._isa.RUN_SIZE for i in some if i.address not in unfit}
            if more:
                found[function] = {**short[function], **more}
        return found

    def _ways(self, function: Function, traps: Collection[int]) -> dict[int, Ways]:
        """How control comes to the sites of a function that are left to traps."""
        if not traps:
            return {}
        entered = self._entered(function)
        if entered is None:
            return {}
        elsewhere = entered.elsewhere | {function.address}
        kernel = self._kernel
        return ways_to(traps, kernel.instructions(function), kernel.flows(function), elsewhere)

    def _before(
        self, function: Function, ways: Mapping[int, Ways], sites: Mapping[int, bool]
    ) -> list[Instruction]:
        """The instructions on these ways that nobody has asked for."""
        wanted = {at for way in ways.values() for at in way.before}.difference(sites)
        instructions = self._kernel.instructions(function) if wanted else ()
        return [one for one in instructions if one.address in wanted]

    def _spare(self, function: Function) -> dict[int, int]:
        """Isa.spare, by address."""
        if not self._isa.needs_spare:
            return {}
        known = self._spares.get(function.address)
        if known is None:
            instructions = self._kernel.instructions(function)
            free = self._isa.spare(instructions, self._kernel.flows(function))
            known = {
                one.address: bits for one, bits in zip(instructions, free, strict=True) if bits
            }
            self._spares[function.address] = known
        return known

    def _around(self, function: Function, sites: Mapping[int, bool]) -> list[Instruction]:
        """The instructions of which its runs can be."""
        instructions = self._kernel.instructions(function)
        starts = [one.address for one in instructions]
        pieces = near(starts, sites, self._isa.RUN_SIZE)
        return [one for low, high in pieces for one in instructions[low:high]]

    def _unfit(
        self,
        planted: Mapping[Function, Mapping[int, bool]],
        around: Mapping[Function, Sequence[Instruction]],
    ) -> set[int]:
        """Which of them cannot be in a run.  Nobody has asked yet whether those that are not
        planted can be."""
        every = [(one.address, one.size) for some in around.values() for one in some]
        unasked = [
            (one.address, one.size)
            for function, some in around.items()
            for one in some
            if one.address not in planted[function]
        ]
        changing = self._system.rewritten(every) if every else ()
        refused = self._kernel.refused(unasked) if unasked else ()
        found = {at for (at, _), no in zip(every, changing, strict=True) if no}
        found |= {at for (at, _), no in zip(unasked, refused, strict=True) if no}
        # Who asked for one that faults or traps has the hook that it needs.
        return found | {
            at for at, _ in unasked if self._system.fixup(at) is not None or self._system.is_bug(at)
        }

    def _of(
        self,
        function: Function,
        sites: Mapping[int, bool],
        around: Sequence[Instruction],
        unfit: Collection[int],
    ) -> list[Run]:
        kernel = self._kernel
        instructions, flows = kernel.instructions(function), kernel.flows(function)
        entered = self._entered(function)
        if entered is None:
            return []
        faulting = {
            one.address
            for one, flow in zip(instructions, flows, strict=True)
            if flow.fault is not None
        }
        code = self._live(function)
        ended = [
            one for one, flow in zip(instructions, flows, strict=True) if not flow.falls_through
        ]
        everywhere = entered.own | entered.elsewhere
        padding = self._padding(function, code, ended, around, everywhere)
        line = line_of(
            instructions, flows,
            entered=everywhere, faulting=faulting, unfit=unfit,
            idle=self._idle(instructions, flows), padding=padding,
        )  # fmt: skip
        if self._isa.needs_spare:
            spare = self._spare(function)
            line = replace(line, begins=[at in spare for at in line.starts])
        found = find_runs(line, sites, self._isa.RUN_SIZE)
        low = function.address
        return [
            replace(run, code=code[run.start - low : run.start - low + run.size]) for run in found
        ]

    def _live(self, function: Function) -> bytes:
        """The bytes of a function and, where there are more, some behind it."""
        for beyond in (self._isa.RUN_SIZE + LONGEST, 0):
            with suppress(KinstError):
                return self._kernel.live(function.address, function.size + beyond)
        return b""

    def _idle(self, instructions: Sequence[Instruction], flows: Sequence[Flow]) -> set[int]:
        """Instructions behind code that does not go on which only fill room."""
        found, over = set(), False
        for one, flow in zip(instructions, flows, strict=True):
            over = over and self._isa.padding(one.code) == one.size
            if over:
                found.add(one.address)
            over = over or not flow.falls_through
        return found

    def _entered(self, function: Function) -> Entered | None:
        """Addresses in a function that anything leads to but the instruction before; None where
        that cannot be known."""
        low, high = function.address, function.address + function.size
        flows = self._kernel.flows(function)
        computed: Sequence[int] = ()
        if any(flow.kind == "indirect" for flow in flows):
            parts = self._kernel.parts(function)
            computed = self._kernel.computed(parts)
            # Without an address that could be a table's it leads out of the function.
            if not computed and any(
                self._isa.jump_tables(self._kernel.instructions(part)) for part in parts
            ):
                return None
        own = {flow.target for flow in flows if flow.kind in _DIRECT and flow.target is not None}
        found = set(computed)
        # Addresses that it makes itself, of labels, are found where those of tables are.
        tables = self._isa.jump_tables(self._kernel.instructions(function))
        found.update(table.address for table in tables)
        places, targets = self._branches_of(function)
        there = slice(
            *np.searchsorted(targets, [np.uint64(low), np.uint64(high + self._isa.RUN_SIZE)])
        )
        elsewhere = (places[there] < np.uint64(low)) | (places[there] >= np.uint64(high))
        found.update(targets[there][elsewhere].tolist())
        for known in (self._landings, self._symbols):
            found.update(_between(known, low, high + self._isa.RUN_SIZE).tolist())
        return Entered(own, found)

    def _padding(
        self,
        function: Function,
        code: bytes,
        ended: Sequence[Instruction],
        around: Sequence[Instruction],
        entered: Collection[int],
    ) -> dict[int, int]:
        """Address behind each instruction that does not go on, of those around, to the bytes of
        padding there, as far as a jump may need them."""
        found, known = {}, {one.address for one in around}
        for one in ended:
            if one.address not in known or one.end in known:
                continue
            at = one.end - function.address
            size = min(self._isa.padding(code[at : at + LONGEST]), self._isa.RUN_SIZE)
            size = next((k for k in range(size) if one.end + k in entered), size)
            span = [(one.end, size)]
            refused = size and any(self._system.site_refusals(span))
            if size and not refused and not any(self._system.rewritten(span)):
                found[one.end] = size
        return found

    def _branches_of(self, function: Function) -> tuple[U64, U64]:
        """Isa.branches of the code that the function is in: the kernel's, or a module's."""
        ranges = [self._system.text, *(m.text for m in self._system.modules())]
        inside = [r for r in ranges if r[0] <= function.address < r[1]]
        where = inside[0] if inside else (function.address, function.address + function.size)
        if where not in self._branches:
            code = self._system.code(where[0], where[1] - where[0])
            self._branches[where] = self._isa.branches(code, where[0])
        return self._branches[where]

    @cached_property
    def _landings(self) -> U64:
        return self._system.landings()

    @cached_property
    def _symbols(self) -> U64:
        return np.unique(np.array([f.address for f in self._system.functions()], np.uint64))


def _left(sites: Mapping[int, bool], runs: Sequence[Run]) -> set[int]:
    """The planted instructions that have no room for a jump and are in no run."""
    inside = {at for run in runs for at in run.members}
    return {at for at, room in sites.items() if not room and at not in inside}


def _alone(sites: Mapping[int, bool], asked: Mapping[int, bool], runs: Sequence[Run]) -> list[int]:
    """Those that nobody asked for, with room for a jump, that are in no run."""
    inside = {at for run in runs for at in run.members}
    return [at for at, room in sites.items() if room and at not in asked and at not in inside]


def _covers(
    way: Ways, asked: Mapping[int, bool], runs: Sequence[Run], gates: Collection[int]
) -> bool:
    """Whether all that leads there is displaced."""
    inside = {at for run in runs for at in run.members}
    return all(at in asked or at in inside or at in gates for at in way.before)


def _between(known: U64, low: int, high: int) -> U64:
    first, last = np.searchsorted(known, [np.uint64(low), np.uint64(high)])
    return known[first:last]


def by_function(sites: Sequence[tuple[Site, bool]]) -> dict[Function, dict[int, bool]]:
    """Planted instructions, with whether they have room for a jump, as Entrances.runs takes
    them."""
    found: dict[Function, dict[int, bool]] = defaultdict(dict)
    for site, room in sites:
        found[site.function][site.address] = room
    return found
