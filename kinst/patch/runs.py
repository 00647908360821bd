"""Runs: one jump over several short instructions, where nothing enters its middle (docs/chains.md).

A jump has a size, and most instructions are shorter.  Several of them in a row have room for one,
which then leads to a trampoline that holds all of them.  Anything that leads to an instruction
inside a run, but the instruction before it, would enter the middle of the jump, so the code that
describes functions here (CodeLines) must know all that does.  This module chooses runs, so that as
few planted instructions as possible are left to traps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from kinst.core.columns import I64, U8, U64, Bools, Flows, ragged
from kinst.patch.flows import BRANCH, INDIRECT, JUMP, RETURN, TRAP

# What a choice is worth: a planted instruction that needs no trap, and one to whose trap control is
# not known to come; the cost of an instruction that is displaced although nobody asked for it; the
# cost of a patch.
_SPARED, _UNUSED, _SILENT, _PATCH = 10000, 100, 2, 1


@dataclass(frozen=True, slots=True, eq=False)
class CodeLines:
    """The instructions of functions, a row for each: of one function after the other, in the order
    of their addresses.

    place: the number of each one's first byte; functions are further apart than a jump is long, so
    that nothing of one is near to anything of another.  size: in bytes.  room: bytes behind each
    that a patch may cover as well, since control never comes to them (padding behind a return).
    joins: whether the instruction can be inside a run, with the one before it: control comes to it
    from there alone, by falling through, and it is not expected to fault.  fits: whether it can be
    in a run at all.  begins: whether a jump can be made there."""

    place: I64
    size: U8
    room: I64
    joins: Bools
    fits: Bools
    begins: Bools


@dataclass(frozen=True, slots=True)
class Run:
    """Instructions that one jump replaces.

    members: their addresses, in order; the jump is at the first.  size: bytes from there on that
    are the patch's: all of the members, and padding behind them as far as the jump needs it.
    code: those bytes, where they are known.
    """

    members: tuple[int, ...]
    size: int
    code: bytes = b""

    @property
    def start(self) -> int:
        """Where the jump is."""
        return self.members[0]


@dataclass(frozen=True, slots=True, eq=False)
class Runs(Sequence[Run]):
    """Runs as columns.  member, code: the addresses of the members of all, and the bytes of all,
    one run after another; those of each begin at member_at and code_at, which have one number more
    at the end."""

    member: U64
    member_at: I64
    code: bytes
    code_at: I64

    @property
    def start(self) -> U64:
        """Where the jump of each is."""
        return self.member[self.member_at[:-1]]

    def __len__(self) -> int:
        return len(self.member_at) - 1

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Runs: ...
    def __getitem__(self, index: int | slice) -> Run | Runs:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        at = range(len(self))[index]
        first, behind = self.member_at[at : at + 2].tolist()
        low, high = self.code_at[at : at + 2].tolist()
        return Run(tuple(self.member[first:behind].tolist()), high - low, self.code[low:high])

    def __iter__(self) -> Iterator[Run]:
        return (self[k] for k in range(len(self)))

    def take(self, which: I64) -> Runs:
        """Some of them, by their indexes."""
        members, sizes = np.diff(self.member_at)[which], np.diff(self.code_at)[which]
        code = np.frombuffer(self.code, np.uint8)[ragged(self.code_at[:-1][which], sizes)]
        return Runs(
            self.member[ragged(self.member_at[:-1][which], members)], bounds_of(members),
            code.tobytes(), bounds_of(sizes),
        )  # fmt: skip

    def without(self, addresses: U64) -> Runs:
        """Those that have none of these members."""
        lost = np.isin(self.member, addresses)
        return self.take(np.flatnonzero(np.add.reduceat(lost, self.member_at[:-1]) == 0))


def bounds_of(sizes: I64) -> I64:
    """Where each of these begins when they lie one behind the other, and where the last ends."""
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def runs_of(runs: Iterable[Run]) -> Runs:
    """Runs as columns."""
    rows = list(runs)
    return Runs(
        np.array([at for run in rows for at in run.members], np.uint64),
        bounds_of(np.array([len(run.members) for run in rows], np.int64)),
        b"".join(run.code for run in rows),
        bounds_of(np.array([len(run.code) for run in rows], np.int64)),
    )


NO_RUNS = runs_of(())


def joined_runs(parts: Sequence[Runs]) -> Runs:
    """Runs one behind the other."""
    if not parts:
        return NO_RUNS
    return Runs(
        np.concatenate([p.member for p in parts]),
        bounds_of(np.concatenate([np.diff(p.member_at) for p in parts])),
        b"".join(p.code for p in parts),
        bounds_of(np.concatenate([np.diff(p.code_at) for p in parts])),
    )


def idle_of(flows: Flows, padding: Bools, follows: Bools) -> Bools:
    """Instructions behind code that does not go on which only fill room.

    padding: those that could.  follows: those that have an instruction of their function straight
    before them in the rows."""
    behind = follows.copy()
    behind[1:] &= ~flows.falls[:-1]
    return _spreads(behind, padding & follows)


def _spreads(begins: Bools, within: Bools) -> Bools:
    """Which rows are reached from a row of `begins`, itself or downwards, all of them `within`."""
    rows = np.arange(len(within))
    began = np.maximum.accumulate(np.where(begins & within, rows, -1))
    broken = np.maximum.accumulate(np.where(~within, rows, -1))
    return within & (began > broken)


def ended_of(flows: Flows) -> Bools:
    """Instructions behind which control does not go on, and does not come back."""
    ends = np.isin(flows.kind, (JUMP, RETURN, INDIRECT, TRAP))
    return ends & ~flows.falls


def lines_of(
    place: I64,
    size: U8,
    flows: Flows,
    follows: Bools,
    *,
    entered: Bools,
    unfit: Bools,
    idle: Bools,
    padding: I64,
    begins: Bools,
) -> CodeLines:
    """The lines of functions.

    follows: those that have an instruction of their function before them.  entered: anything leads
    there but the instruction before.  unfit: those that cannot be in a run.  idle: those that only
    fill room, and do nothing.  padding: bytes behind each that nothing comes to."""
    ended, count = ended_of(flows), len(place)
    over, goes_on = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    over[1:] = ended[:-1]
    # What fills the room behind a jump is never run; it may as well be in the jump's run.
    idling = _spreads(over & follows, idle & ~entered & follows)
    # A call comes back by its return address, a trap by what handles it.
    on = flows.falls & ((flows.kind < JUMP) | (flows.kind == BRANCH)) & ~idling
    goes_on[1:] = on[:-1] & (place[:-1] + size[:-1] == place[1:])
    idling[1:] &= place[:-1] + size[:-1] == place[1:]
    joins = ((goes_on & follows) | idling) & ~entered & ~flows.fault
    return CodeLines(place, size, np.where(ended, padding, 0), joins, ~unfit, begins)


def near(place: I64, short: Bools, jump: int) -> Bools:
    """The instructions of which the runs are that these short ones need."""
    if not len(place):
        return short
    at = place[short]
    length = int(place[-1]) + jump + 1
    change = np.bincount(np.maximum(at - jump + 1, 0), minlength=length)
    change -= np.bincount(at + jump, minlength=length)[:length]
    found: Bools = np.cumsum(change)[place] > 0
    return found


@dataclass(frozen=True, slots=True, eq=False)
class ChosenRuns:
    """Rows of the first instruction of each run, and of the one behind its last; its bytes."""

    first: I64
    behind: I64
    size: I64

    def inside(self, count: int) -> Bools:
        """Which of `count` rows are in one."""
        change = np.bincount(self.first, minlength=count + 1)
        change -= np.bincount(self.behind, minlength=count + 1)
        found: Bools = np.cumsum(change)[:count] > 0
        return found

    def take(self, which: I64 | Bools) -> ChosenRuns:
        """Some of them."""
        return ChosenRuns(self.first[which], self.behind[which], self.size[which])


def find_runs(
    lines: CodeLines, planted: Bools, own: Bools, jump: int, reached: Bools | None = None
) -> ChosenRuns:
    """The runs that spare the most planted instructions a trap, in order.

    own: those of the planted that have room for a jump of their own.  jump: bytes of one.  reached:
    those of the planted to whose traps control would not come, as far as is known, because all that
    leads to them is displaced; they count only where the others are as well served."""
    around = near(lines.place, planted & ~own, jump)
    row = np.flatnonzero(around)
    at = shortest_runs(lines, row, jump)
    alone = (planted & own)[row]
    spared = np.where(planted, _SPARED, 0)
    if reached is not None:
        spared[planted & reached] = _UNUSED
    sum_of, worth_of = bounds_of(planted.astype(np.int64)), bounds_of(spared)
    served = sum_of[at.behind] - sum_of[row]
    gain = worth_of[at.behind] - worth_of[row] - _PATCH
    gain -= (at.behind - row - served) * _SILENT
    useful = (served > 0) & (at.behind > 0) & ~alone
    pieces = np.ones(len(row), np.bool_)
    pieces[1:] = lines.place[row[1:]] != (lines.place + lines.size)[row[:-1]]
    own_worth = np.where(alone, spared[row] - _PATCH, 0)
    return at.take(_choose(row, at.behind, gain, useful, own_worth, pieces))


def shortest_runs(lines: CodeLines, row: I64, jump: int) -> ChosenRuns:
    """The shortest run that begins with each of these rows; behind 0 where there is none."""
    behind, size = np.zeros(len(row), np.int64), np.zeros(len(row), np.int64)
    start, last = lines.place[row], row.copy()
    active = np.flatnonzero(lines.begins[row])
    while len(active):
        active = active[lines.fits[last[active]]]
        at = last[active]
        end = lines.place[at] + lines.size[at] - start[active]
        done, filled = end >= jump, end + lines.room[at] >= jump
        there = done | filled
        behind[active[there]] = at[there] + 1
        size[active[there]] = np.where(done, end, jump)[there]
        active = active[~there & (at + 1 < len(lines.place))]
        last[active] += 1
        active = active[lines.joins[last[active]]]
    return ChosenRuns(row, behind, size)


def _choose(row: I64, behind: I64, gain: I64, useful: Bools, alone: I64, first: Bools) -> I64:
    """Which runs are worth the most together.

    gain: of the run that begins at each row, where there is one that is useful.  alone: of none
    beginning there.  first: rows at which a piece begins that has nothing to do with the one
    before."""
    if not len(row):
        return row
    piece = np.cumsum(first) - 1
    ends = row[np.append(np.flatnonzero(first)[1:], len(row)) - 1] + 1
    # A slot for each row, and one with nothing behind each piece.
    slot = np.arange(len(row)) + piece
    goal = slot + np.minimum(behind, ends[piece]) - row
    worth = [0] * (len(row) + len(ends))
    chosen = [False] * len(row)
    rows = zip(*(of.tolist() for of in (slot, goal, gain, useful, alone)), strict=True)
    for k, (at, there, own, may, nothing) in reversed(list(enumerate(rows))):
        best = worth[at + 1] + nothing
        if may and own + worth[there] >= best:
            best, chosen[k] = own + worth[there], True
        worth[at] = best
    taken, free = [], 0
    ways = np.flatnonzero(chosen)
    for k, low, high in zip(ways.tolist(), row[ways].tolist(), behind[ways].tolist(), strict=True):
        if low >= free:
            taken.append(k)
            free = high
    return np.array(taken, np.int64)
