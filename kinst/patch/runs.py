"""Choice of runs: groups of short instructions that one jump covers, because control never enters
their middle (docs/chains.md).

Most instructions are shorter than a jump. Several in a row have room for a jump, which leads to a
trampoline that holds them all. A branch to an instruction inside a run would enter the middle of
the jump. So control must reach each instruction of a run, except the first, only from the
instruction before it (CodeLines.joins). This module chooses runs so that as few planted
instructions as possible are left to traps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kinst.core.columns import I64, U8, U64, Bools, Flows, ragged
from kinst.core.dataclass import dataclass
from kinst.patch.flows import BRANCH, INDIRECT, JUMP, RETURN, TRAP
from kinst.patch.patches import ColumnSequence

# A run is worth _SERVED for each planted instruction that needs no trap because of the run, or
# _COVERED if control would hardly ever reach that trap. Displacing an instruction without a probe
# costs _UNPROBED, and a patch costs _PATCH.
_SERVED, _COVERED, _UNPROBED, _PATCH = 10000, 100, 2, 1


@dataclass(frozen=True, slots=True, eq=False)
class CodeLines:
    """What the choice of runs needs to know about the instructions of functions. All fields have
    one entry for each instruction, one function after another, in address order.

    Attributes:
        position: position of the instruction's first byte. Positions of adjacent bytes of a
            function differ by 1. Functions are further apart than a jump is long, so that no run
            spans two functions.
        size: size of the instruction in bytes.
        padding: number of bytes after the instruction that a patch may cover as well, since control
            never reaches them (padding after a return).
        joins: whether the instruction can be in a run together with the instruction before it:
            control reaches it only by falling through from there, and it is not expected to fault.
        fits: whether the instruction can be in a run at all.
        begins: whether a jump can be written at the instruction.
    """

    position: I64
    size: U8
    padding: I64
    joins: Bools
    fits: Bools
    begins: Bools


@dataclass(frozen=True, slots=True)
class Run:
    """Instructions that one jump replaces.

    Attributes:
        members: addresses of the instructions, in order; the jump is at the first address.
        size: number of bytes that the jump replaces: all members, and padding after them as far as
            the jump needs it.
        code: the original bytes, if known.
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
    """A sequence of runs, stored as columns.

    Attributes:
        member: addresses of the members of all runs, joined.
        member_at: index in `member` of each run's first member; as a last element, the length of
            `member`.
        code: original bytes of all runs, joined.
        code_at: offset in `code` of each run's first byte; as a last element, the length of `code`.
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
        """Return the runs with these indexes, in this order."""
        members, sizes = np.diff(self.member_at)[which], np.diff(self.code_at)[which]
        code = np.frombuffer(self.code, np.uint8)[ragged(self.code_at[:-1][which], sizes)]
        return Runs(
            self.member[ragged(self.member_at[:-1][which], members)], bounds_of(members),
            code.tobytes(), bounds_of(sizes),
        )  # fmt: skip

    def without(self, addresses: U64) -> Runs:
        """Return the runs that have none of these addresses among their members."""
        lost = np.isin(self.member, addresses)
        return self.take(np.flatnonzero(np.add.reduceat(lost, self.member_at[:-1]) == 0))


def bounds_of(sizes: I64) -> I64:
    """Return where each item begins if items of these sizes are joined. The last element of the
    result is where the last item ends."""
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def runs_of(runs: Iterable[Run]) -> Runs:
    """Convert runs to numpy columns."""
    rows = list(runs)
    return Runs(
        np.array([at for run in rows for at in run.members], np.uint64),
        bounds_of(np.array([len(run.members) for run in rows], np.int64)),
        b"".join(run.code for run in rows),
        bounds_of(np.array([len(run.code) for run in rows], np.int64)),
    )


NO_RUNS = runs_of(())


def joined_runs(parts: Sequence[Runs]) -> Runs:
    """Return the runs of all parts, one part after another."""
    if not parts:
        return NO_RUNS
    return Runs(
        np.concatenate([p.member for p in parts]),
        bounds_of(np.concatenate([np.diff(p.member_at) for p in parts])),
        b"".join(p.code for p in parts),
        bounds_of(np.concatenate([np.diff(p.code_at) for p in parts])),
    )


def idle_of(flows: Flows, padding: Bools, follows: Bools) -> Bools:
    """Return, for each instruction, whether it is padding that control never reaches: padding after
    code that does not fall through.

    Args:
        flows: where control goes from each instruction.
        padding: for each instruction, whether it does nothing.
        follows: for each instruction, whether the previous one is in the same function and directly
            before it.
    """
    unreached = follows.copy()
    unreached[1:] &= ~flows.falls[:-1]
    return _spread(unreached, padding & follows)


def _spread(begins: Bools, within: Bools) -> Bools:
    """Return, for each instruction, whether it is in `within` and is reached from an instruction of
    `begins` by going forward through instructions of `within` only.

    Args:
        begins: for each instruction, whether to begin there; it must be in `within` as well.
        within: for each instruction, whether it is in the set `within`.
    """
    rows = np.arange(len(within))
    began = np.maximum.accumulate(np.where(begins & within, rows, -1))
    broken = np.maximum.accumulate(np.where(~within, rows, -1))
    return within & (began > broken)


def ended_of(flows: Flows) -> Bools:
    """Return, for each instruction, whether control can neither fall through to the next
    instruction nor return there."""
    ends = np.isin(flows.kind, (JUMP, RETURN, INDIRECT, TRAP))
    return ends & ~flows.falls


def lines_of(
    position: I64,
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
    """Return what the choice of runs needs to know about the instructions of functions. All
    arguments have one entry for each instruction, in address order.

    Args:
        position: position of the instruction's first byte (CodeLines.position).
        size: size of the instruction in bytes.
        flows: where control goes from the instruction.
        follows: whether the previous instruction is in the same function.
        entered: whether control can enter the instruction other than from the instruction before.
        unfit: whether the instruction cannot be in a run.
        idle: whether the instruction is padding that control never reaches.
        padding: number of bytes of padding after the instruction that control never reaches.
        begins: whether a jump can be written at the instruction.
    """
    ended, count = ended_of(flows), len(position)
    over, goes_on = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    over[1:] = ended[:-1]
    # Padding after a jump never runs; it may be in the jump's run.
    idling = _spread(over & follows, idle & ~entered & follows)
    # A call ends a run, since it returns to its return address; so does a trap, since control
    # continues where its handler says.
    on = flows.falls & ((flows.kind < JUMP) | (flows.kind == BRANCH)) & ~idling
    goes_on[1:] = on[:-1] & (position[:-1] + size[:-1] == position[1:])
    idling[1:] &= position[:-1] + size[:-1] == position[1:]
    joins = ((goes_on & follows) | idling) & ~entered & ~flows.fault
    return CodeLines(position, size, np.where(ended, padding, 0), joins, ~unfit, begins)


def near(position: I64, short: Bools, jump: int) -> Bools:
    """Return, for each instruction, whether it is so near to a short instruction that one run may
    contain both instructions.

    Args:
        position: for each instruction, the position of its first byte (CodeLines.position).
        short: for each instruction, whether it has no room for a jump.
        jump: size of a jump in bytes.
    """
    if not len(position):
        return short
    at = position[short]
    length = int(position[-1]) + jump + 1
    change = np.bincount(np.maximum(at - jump + 1, 0), minlength=length)
    change -= np.bincount(at + jump, minlength=length)[:length]
    around: Bools = np.cumsum(change)[position] > 0
    return around


@dataclass(frozen=True, slots=True, eq=False)
class ChosenRuns:
    """A sequence of runs, given by the indexes of their instructions.

    Attributes:
        first: index of the first instruction of each run.
        end: index after the last instruction of each run.
        size: size of each run in bytes.
    """

    first: I64
    end: I64
    size: I64

    def inside(self, count: int) -> Bools:
        """Return, for each of the first `count` instructions, whether it is in a run."""
        change = np.bincount(self.first, minlength=count + 1)
        change -= np.bincount(self.end, minlength=count + 1)
        inside_one: Bools = np.cumsum(change)[:count] > 0
        return inside_one

    def take(self, which: I64 | Bools) -> ChosenRuns:
        """Return the runs with these indexes, in this order."""
        return ChosenRuns(self.first[which], self.end[which], self.size[which])


def find_runs(
    lines: CodeLines, planted: Bools, own: Bools, jump: int, covered: Bools | None = None
) -> ChosenRuns:
    """Choose runs so that as few planted instructions as possible need a trap, and return the runs
    in address order.

    Args:
        lines: the instructions of functions.
        planted: for each instruction, whether it is planted.
        own: for each instruction, whether it is planted and has room for a jump of its own.
        jump: size of a jump in bytes.
        covered: for each instruction, whether all its predecessors are displaced; None if this is
            so for no instruction. A trap at such an instruction is hardly ever reached, so it is
            more important to avoid traps at other instructions.
    """
    around = near(lines.position, planted & ~own, jump)
    row = np.flatnonzero(around)
    at = shortest_runs(lines, row, jump)
    alone = (planted & own)[row]
    worth = np.where(planted, _SERVED, 0)
    if covered is not None:
        worth[planted & covered] = _COVERED
    planted_before, worth_before = bounds_of(planted.astype(np.int64)), bounds_of(worth)
    served = planted_before[at.end] - planted_before[row]
    gain = worth_before[at.end] - worth_before[row] - _PATCH
    gain -= (at.end - row - served) * _UNPROBED
    useful = (served > 0) & (at.end > 0) & ~alone
    pieces = np.ones(len(row), np.bool_)
    pieces[1:] = lines.position[row[1:]] != (lines.position + lines.size)[row[:-1]]
    own_worth = np.where(alone, worth[row] - _PATCH, 0)
    return at.take(_choose(row, at.end, gain, useful, own_worth, pieces))


def shortest_runs(lines: CodeLines, row: I64, jump: int) -> ChosenRuns:
    """Return, for each instruction of `row`, the shortest run that begins there. If no run can
    begin at an instruction, ChosenRuns.end of its run is 0.

    Args:
        lines: the instructions of functions.
        row: indexes of the instructions at which to begin.
        jump: size of a jump in bytes.
    """
    run_end, size = np.zeros(len(row), np.int64), np.zeros(len(row), np.int64)
    start, last = lines.position[row], row.copy()
    active = np.flatnonzero(lines.begins[row])
    while len(active):
        active = active[lines.fits[last[active]]]
        at = last[active]
        end = lines.position[at] + lines.size[at] - start[active]
        done, filled = end >= jump, end + lines.padding[at] >= jump
        there = done | filled
        run_end[active[there]] = at[there] + 1
        size[active[there]] = np.where(done, end, jump)[there]
        active = active[~there & (at + 1 < len(lines.position))]
        last[active] += 1
        active = active[lines.joins[last[active]]]
    return ChosenRuns(row, run_end, size)


def _choose(row: I64, end: I64, gain: I64, useful: Bools, alone: I64, first: Bools) -> I64:
    """Choose runs that do not overlap, for the greatest total worth, and return their indexes,
    ascending.

    Args:
        row: index of the instruction at which each run begins, ascending.
        end: for each run, index after its last instruction.
        gain: for each run, what choosing the run adds to the total worth.
        useful: for each run, whether it may be chosen.
        alone: for each run, what its first instruction adds to the total worth if it is in no
            chosen run.
        first: for each run, whether a new stretch of code begins at its first instruction: the
            instruction is not adjacent to the first instruction of the run before.
    """
    if not len(row):
        return row
    piece = np.cumsum(first) - 1
    ends = row[np.append(np.flatnonzero(first)[1:], len(row)) - 1] + 1
    # `worth` has an entry for each run, and an entry of worth 0 after each stretch of code.
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
