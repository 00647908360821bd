"""Runs: one jump over several short instructions, where nothing enters its middle (docs/chains.md).

A jump has a size, and most instructions are shorter.  Several of them in a row have room for one,
which then leads to a trampoline that holds all of them.  An instruction inside a run is somebody's
next one as soon as anything leads to it but the instruction before it, so whoever describes a
function here (Line) must know all that does.  What this module does is choosing: which runs, so
that as few planted instructions as can be are left to traps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kinst.core.isa import Flow, Instruction

# What a choice is worth: a planted instruction that needs no trap; the cost of an instruction that
# is displaced although nobody asked for it; the cost of a patch.
_SPARED, _SILENT, _PATCH = 1000, 2, 1


@dataclass(frozen=True, slots=True)
class Line:
    """The instructions of a function, in the order of their addresses.

    starts, sizes: in bytes.  room: bytes behind each that a patch may cover as well, since control
    never comes to them (padding behind a return).  joins: whether the instruction can be inside a
    run, with the one before it: control comes to it from there alone, by falling through, and it
    is not expected to fault.  fits: whether it can be in a run at all.  begins: whether a jump can
    be made there; () where it always can."""

    starts: Sequence[int]
    sizes: Sequence[int]
    room: Sequence[int]
    joins: Sequence[bool]
    fits: Sequence[bool]
    begins: Sequence[bool] = ()


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


_GOES_ON = ("next", "landing", "branch")
_ENDS = ("jump", "return", "indirect", "trap")


def line_of(
    instructions: Sequence[Instruction],
    flows: Sequence[Flow],
    *,
    entered: Collection[int],
    faulting: Collection[int],
    unfit: Collection[int],
    idle: Collection[int],
    padding: Mapping[int, int],
) -> Line:
    """The line of a function.

    flows: of its instructions, in their order.  entered: addresses to which anything leads but the
    instruction before.  faulting: instructions that are expected to fault.  unfit: those that
    cannot be in a run.  idle: those that only fill room, and do nothing.  padding: address behind
    an instruction to the bytes there that nothing comes to."""
    ended = [flow.kind in _ENDS and not flow.falls_through for flow in flows]
    joins, idling = [False], False
    for (before, one), flow, over in zip(pairwise(instructions), flows, ended, strict=False):
        # A call comes back by its return address, a trap by what handles it.
        follows = flow.falls_through and flow.kind in _GOES_ON and not idling
        # What fills the room behind a jump is never run; it may as well be in the jump's run.
        idling = (over or idling) and one.address in idle and one.address not in entered
        alone = one.address in entered or one.address in faulting
        joins.append((follows or idling) and not alone and before.end == one.address)
    room = [
        padding.get(one.end, 0) if over else 0
        for one, over in zip(instructions, ended, strict=True)
    ]
    fits = [one.address not in unfit for one in instructions]
    starts, sizes = [one.address for one in instructions], [one.size for one in instructions]
    return Line(starts, sizes, room, joins, fits)


def find_runs(line: Line, planted: Mapping[int, bool], jump: int) -> list[Run]:
    """The runs that spare the most planted instructions a trap, in order.

    planted: address of each planted instruction to whether it has room for a jump of its own.
    jump: bytes of one."""
    if all(planted.values()):
        return []
    runs = []
    for low, high in near(line.starts, planted, jump):
        runs += _best(line, low, high, planted, jump)
    return runs


def near(
    starts: Sequence[int], planted: Mapping[int, bool], jump: int
) -> Iterator[tuple[int, int]]:
    """Ranges of instructions, apart from each other, in which the runs lie that planted
    instructions need.  starts: of a function's instructions.  Else as in find_runs."""
    count = len(starts)
    marked = [False] * count
    for k, start in enumerate(starts):
        if planted.get(start, True):
            continue
        low = high = k
        while low > 0 and starts[low - 1] + jump > start:
            low -= 1
        while high + 1 < count and starts[high + 1] < start + jump:
            high += 1
        marked[low : high + 1] = [True] * (high + 1 - low)
    at = 0
    while at < count:
        end = at
        while end < count and marked[end]:
            end += 1
        if end > at:
            yield at, end
        at = end + 1


def _best(line: Line, low: int, high: int, planted: Mapping[int, bool], jump: int) -> list[Run]:
    """The best runs that begin in [low, high), found from the end backwards."""
    worth = [0] * (high - low + 1)
    chosen: list[tuple[int, int] | None] = [None] * (high - low)  # (behind its last, bytes)
    for k in range(high - 1, low - 1, -1):
        at = k - low
        alone = planted.get(line.starts[k], False)
        worth[at] = worth[at + 1] + (_SPARED - _PATCH if alone else 0)
        found = None if alone else run_at(line, k, jump)
        if found is None:
            continue
        behind = found[0]
        served = sum(line.starts[i] in planted for i in range(k, behind))
        gain = served * (_SPARED + _SILENT) - (behind - k) * _SILENT - _PATCH
        total = gain + worth[min(behind, high) - low]
        if served and total >= worth[at]:
            worth[at], chosen[at] = total, found
    runs, k = [], low
    while k < high:
        choice = chosen[k - low]
        if choice is None:
            k += 1
            continue
        runs.append(Run(tuple(line.starts[k : choice[0]]), choice[1]))
        k = choice[0]
    return runs


def run_at(line: Line, first: int, jump: int) -> tuple[int, int] | None:
    """The shortest run that begins with an instruction: (index behind its last, bytes), or None."""
    start, last = line.starts[first], first
    if line.begins and not line.begins[first]:
        return None
    while line.fits[last]:
        end = line.starts[last] + line.sizes[last]
        if end >= start + jump:
            return last + 1, end - start
        if end + line.room[last] >= start + jump:
            return last + 1, jump
        last += 1
        if last == len(line.starts) or not line.joins[last]:
            return None
    return None


def insides(runs: Sequence[Run]) -> npt.NDArray[np.uint64]:
    """Addresses of instructions that the jumps lie over, but not at: where nobody may be about to
    go on.  Ascending."""
    found = [at for run in runs for at in run.members[1:]]
    return np.array(sorted(found), dtype=np.uint64)
