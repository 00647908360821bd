"""Runs: one jump over several short instructions, if nothing enters its middle (docs/chains.md).

Most instructions are shorter than a jump.  Several in a row have room for one, which leads to a
trampoline that holds them all.  Control that comes to an instruction inside a run from elsewhere
than the instruction before it would enter the middle of the jump.  So CodeLines must mark all such
instructions.  This module chooses runs so that as few planted instructions as possible are left to
traps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kinst.core.columns import I64, U8, U64, Bools, Flows, ragged
from kinst.patch.flows import BRANCH, INDIRECT, JUMP, RETURN, TRAP
from kinst.patch.patches import ColumnSequence

# Worth of a planted instruction that needs no trap, and of one whose trap is not known to be
# reached; cost of displacing an instruction without a probe, and of a patch.
_SERVED, _UNREACHED, _UNPROBED, _PATCH = 10000, 100, 2, 1


@dataclass(frozen=True, slots=True, eq=False)
class CodeLines:
    """Instructions of functions, one function after another, in the order of their addresses.

    Attributes:
        place: number of each instruction's first byte.  Functions are further apart than a jump is
            long, so that no run spans two.
        size: in bytes.
        room: bytes after each that a patch may cover as well, since control never reaches them
            (padding after a return).
        joins: whether it can be in a run with the instruction before it: control reaches it only
            from there, by falling through, and it is not expected to fault.
        fits: whether it can be in a run at all.
        begins: whether a jump can be made there.
    """

    place: I64
    size: U8
    room: I64
    joins: Bools
    fits: Bools
    begins: Bools


@dataclass(frozen=True, slots=True)
class Run:
    """Instructions that one jump replaces.

    Attributes:
        members: their addresses, in order; the jump is at the first.
        size: bytes of the patch: all members, and padding after them as far as the jump needs it.
        code: those bytes, if known.
    """

    members: tuple[int, ...]
    size: int
    code: bytes = b""

    @property
    def start(self) -> int:
        """Address of the jump."""
        return self.members[0]


@dataclass(frozen=True, slots=True, eq=False)
class Runs(ColumnSequence[Run]):
    """Runs as columns.

    Attributes:
        member: addresses of the members of all runs, joined.
        member_at: where those of each run begin in member, then where the last end.
        code: bytes of all runs, joined.
        code_at: where those of each run begin in code, then where the last end.
    """

    member: U64
    member_at: I64
    code: bytes
    code_at: I64

    @property
    def start(self) -> U64:
        """Address of each run's jump."""
        return self.member[self.member_at[:-1]]

    def __len__(self) -> int:
        return len(self.member_at) - 1

    def row(self, index: int) -> Run:
        first, end = self.member_at[index : index + 2].tolist()
        low, high = self.code_at[index : index + 2].tolist()
        return Run(tuple(self.member[first:end].tolist()), high - low, self.code[low:high])

    def take(self, which: I64) -> Runs:
        """Return the runs with these indexes."""
        members, sizes = np.diff(self.member_at)[which], np.diff(self.code_at)[which]
        code = np.frombuffer(self.code, np.uint8)[ragged(self.code_at[:-1][which], sizes)]
        return Runs(
            self.member[ragged(self.member_at[:-1][which], members)], bounds_of(members),
            code.tobytes(), bounds_of(sizes),
        )  # fmt: skip

    def without(self, addresses: U64) -> Runs:
        """Return the runs that have none of these members."""
        lost = np.isin(self.member, addresses)
        return self.take(np.flatnonzero(np.add.reduceat(lost, self.member_at[:-1]) == 0))


def bounds_of(sizes: I64) -> I64:
    """Return where each of these begins if they are joined, then where the last ends."""
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def runs_of(runs: Iterable[Run]) -> Runs:
    """Return runs as columns."""
    rows = list(runs)
    return Runs(
        np.array([at for run in rows for at in run.members], np.uint64),
        bounds_of(np.array([len(run.members) for run in rows], np.int64)),
        b"".join(run.code for run in rows),
        bounds_of(np.array([len(run.code) for run in rows], np.int64)),
    )


NO_RUNS = runs_of(())


def joined_runs(parts: Sequence[Runs]) -> Runs:
    """Join runs."""
    if not parts:
        return NO_RUNS
    return Runs(
        np.concatenate([p.member for p in parts]),
        bounds_of(np.concatenate([np.diff(p.member_at) for p in parts])),
        b"".join(p.code for p in parts),
        bounds_of(np.concatenate([np.diff(p.code_at) for p in parts])),
    )


def idle_of(flows: Flows, padding: Bools, follows: Bools) -> Bools:
    """Return the instructions that only fill room after code that does not fall through.

    Args:
        flows: of the instructions.
        padding: those that do nothing.
        follows: those whose row directly follows another one of the same function.
    """
    unreached = follows.copy()
    unreached[1:] &= ~flows.falls[:-1]
    return _spread(unreached, padding & follows)


def _spread(begins: Bools, within: Bools) -> Bools:
    """Return the rows in an unbroken stretch of `within` at or after a row of `begins`."""
    rows = np.arange(len(within))
    began = np.maximum.accumulate(np.where(begins & within, rows, -1))
    broken = np.maximum.accumulate(np.where(~within, rows, -1))
    return within & (began > broken)


def ended_of(flows: Flows) -> Bools:
    """Return the instructions that control neither falls through nor returns after."""
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
    """Describe the instructions of functions.

    Args:
        place: number of each one's first byte.
        size: in bytes.
        flows: where control goes from each.
        follows: those that have an instruction of their function before them.
        entered: those that control can enter other than from the instruction before.
        unfit: those that cannot be in a run.
        idle: those that only fill room, and do nothing.
        padding: bytes after each that control never reaches.
        begins: those at which a jump can be made.
    """
    ended, count = ended_of(flows), len(place)
    over, goes_on = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    over[1:] = ended[:-1]
    # What fills the room after a jump never runs; it may be in the jump's run.
    idling = _spread(over & follows, idle & ~entered & follows)
    # A call returns to its return address, a trap to where its handler says.
    on = flows.falls & ((flows.kind < JUMP) | (flows.kind == BRANCH)) & ~idling
    goes_on[1:] = on[:-1] & (place[:-1] + size[:-1] == place[1:])
    idling[1:] &= place[:-1] + size[:-1] == place[1:]
    joins = ((goes_on & follows) | idling) & ~entered & ~flows.fault
    return CodeLines(place, size, np.where(ended, padding, 0), joins, ~unfit, begins)


def near(place: I64, short: Bools, jump: int) -> Bools:
    """Return the instructions that a run over one of these short ones may contain."""
    if not len(place):
        return short
    at = place[short]
    length = int(place[-1]) + jump + 1
    change = np.bincount(np.maximum(at - jump + 1, 0), minlength=length)
    change -= np.bincount(at + jump, minlength=length)[:length]
    around: Bools = np.cumsum(change)[place] > 0
    return around


@dataclass(frozen=True, slots=True, eq=False)
class ChosenRuns:
    """Runs by the rows of their instructions.

    Attributes:
        first: row of the first instruction of each.
        end: row after the last.
        size: bytes of each.
    """

    first: I64
    end: I64
    size: I64

    def inside(self, count: int) -> Bools:
        """Return which of `count` rows are in one."""
        change = np.bincount(self.first, minlength=count + 1)
        change -= np.bincount(self.end, minlength=count + 1)
        inside_one: Bools = np.cumsum(change)[:count] > 0
        return inside_one

    def take(self, which: I64 | Bools) -> ChosenRuns:
        """Return the runs with these indexes."""
        return ChosenRuns(self.first[which], self.end[which], self.size[which])


def find_runs(
    lines: CodeLines, planted: Bools, own: Bools, jump: int, reached: Bools | None = None
) -> ChosenRuns:
    """Choose the runs that spare the most planted instructions a trap, in order.

    Args:
        lines: the instructions.
        planted: those that are planted.
        own: planted instructions that have room for a jump of their own.
        jump: bytes of a jump.
        reached: planted instructions whose traps control is not known to reach, since all their
            predecessors are displaced.  They only decide between choices that serve the others
            equally well.
    """
    around = near(lines.place, planted & ~own, jump)
    row = np.flatnonzero(around)
    at = shortest_runs(lines, row, jump)
    alone = (planted & own)[row]
    worth = np.where(planted, _SERVED, 0)
    if reached is not None:
        worth[planted & reached] = _UNREACHED
    planted_before, worth_before = bounds_of(planted.astype(np.int64)), bounds_of(worth)
    served = planted_before[at.end] - planted_before[row]
    gain = worth_before[at.end] - worth_before[row] - _PATCH
    gain -= (at.end - row - served) * _UNPROBED
    useful = (served > 0) & (at.end > 0) & ~alone
    pieces = np.ones(len(row), np.bool_)
    pieces[1:] = lines.place[row[1:]] != (lines.place + lines.size)[row[:-1]]
    own_worth = np.where(alone, worth[row] - _PATCH, 0)
    return at.take(_choose(row, at.end, gain, useful, own_worth, pieces))


def shortest_runs(lines: CodeLines, row: I64, jump: int) -> ChosenRuns:
    """Return the shortest run that begins with each of these rows; its end is 0 if none does."""
    run_end, size = np.zeros(len(row), np.int64), np.zeros(len(row), np.int64)
    start, last = lines.place[row], row.copy()
    active = np.flatnonzero(lines.begins[row])
    while len(active):
        active = active[lines.fits[last[active]]]
        at = last[active]
        end = lines.place[at] + lines.size[at] - start[active]
        done, filled = end >= jump, end + lines.room[at] >= jump
        there = done | filled
        run_end[active[there]] = at[there] + 1
        size[active[there]] = np.where(done, end, jump)[there]
        active = active[~there & (at + 1 < len(lines.place))]
        last[active] += 1
        active = active[lines.joins[last[active]]]
    return ChosenRuns(row, run_end, size)


def _choose(row: I64, end: I64, gain: I64, useful: Bools, alone: I64, first: Bools) -> I64:
    """Return the indexes of the runs that are worth the most together.

    Args:
        row: where each run begins.
        end: the row after its last.
        gain: worth of the run that begins at each row, if it is useful.
        useful: runs that may be chosen.
        alone: worth of each row if no run begins there.
        first: rows at which a piece begins that is independent of the one before.
    """
    if not len(row):
        return row
    piece = np.cumsum(first) - 1
    ends = row[np.append(np.flatnonzero(first)[1:], len(row)) - 1] + 1
    # A slot for each row, and one of worth 0 after each piece.
    slot = np.arange(len(row)) + piece
    following = slot + np.minimum(end, ends[piece]) - row
    worth = [0] * (len(row) + len(ends))
    chosen = [False] * len(row)
    rows = zip(*(of.tolist() for of in (slot, following, gain, useful, alone)), strict=True)
    for k, (at, after, of_run, allowed, of_row) in reversed(list(enumerate(rows))):
        best = worth[at + 1] + of_row
        if allowed and of_run + worth[after] >= best:
            best, chosen[k] = of_run + worth[after], True
        worth[at] = best
    taken, free = [], 0
    some = np.flatnonzero(chosen)
    for k, low, high in zip(some.tolist(), row[some].tolist(), end[some].tolist(), strict=True):
        if low >= free:
            taken.append(k)
            free = high
    return np.array(taken, np.int64)
