"""Where somebody may be about to go on, by the words of memory and the registers of all CPUs: in a
function, or in code of a trace that has ended, which leads back to one.

Whoever is in a piece of code has its address, as a program counter or as where a call is to return
to: in a register of the CPU that it runs on or, when it sleeps or was interrupted, in an aligned
word of memory.  So code of which no such word is found has nobody in it.  The opposite is not so:
most words are left over from interrupts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinst.core.columns import U64
from kinst.core.machine import Target


@dataclass(frozen=True, slots=True, eq=False)
class EndedCode:
    """Code of one trace that has ended, in which a thread may still be.

    range: of addresses [low, high) where it is.  ways_back: where it leads back to, ascending.
    counters: the bytes [low, high) of the room for counters that it adds to.
    """

    range: tuple[int, int]
    ways_back: U64
    counters: tuple[int, int] = (0, 0)


def words_in(target: Target, ranges: Sequence[tuple[int, int]]) -> U64 | None:
    """The values in any of the ranges [low, high) that words of memory have, and the values of all
    CPUs' registers, each once, ascending; None where memory cannot be looked through.  Stopped."""
    words = target.pointers(ranges)
    if words is None:
        return None
    every = [target.registers(cpu).values() for cpu in range(target.cpus)]
    own = np.array([v for values in every for v in values if 0 <= v < 1 << 64], np.uint64)
    return np.unique(np.concatenate([words, own]))


def left(target: Target, ended: Sequence[EndedCode]) -> tuple[EndedCode, ...]:
    """The code that nobody is in any more, nor will be: nothing leads to code of an ended trace but
    itself.  Stopped."""
    held = words_in(target, around(ended)) if ended else None
    return () if held is None else tuple(one for one in ended if not is_held(one, held))


def around(ended: Sequence[EndedCode]) -> list[tuple[int, int]]:
    """One range with all of them, or none."""
    starts, ends = [one.range[0] for one in ended], [one.range[1] for one in ended]
    return [(min(starts), max(ends))] if ended else []


def with_ways_back(held: U64, ended: Sequence[EndedCode]) -> U64:
    """These addresses, ascending, and those to which ended code leads back that has one of them."""
    back = [one.ways_back for one in ended if is_held(one, held)]
    return np.unique(np.concatenate([held, *back]))


def held_in(target: Target, low: int, high: int, ended: Sequence[EndedCode]) -> U64:
    """Where somebody may be about to go on in [low, high), by the words of memory.  Stopped."""
    held = target.pointers([(low, high), *around(ended)])
    return with_ways_back(np.zeros(0, np.uint64) if held is None else held, ended)


def is_held(one: EndedCode, held: U64) -> bool:
    """Whether one of these addresses is in it."""
    low, high = np.searchsorted(held, np.array(one.range, np.uint64)).tolist()
    return bool(low < high)
