"""Conservative search for live return addresses: registers and words of memory that point into a
function, or into code of an ended trace.

The address of a piece of code that a thread is in, as a program counter or a return address, is in
a register of its CPU or, if it sleeps or was interrupted, in an aligned word of memory. So no
thread is in code to which no such word points. The opposite does not hold: most words are left over
from interrupts.

Tested by tests/fake/test_runs.py and tests/machines/attach/test_parts.py.
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

    Attributes:
        range: its addresses [low, high).
        ways_back: addresses that it leads back to, ascending.
        counters: bytes [low, high) of the counter area that it adds to.
    """

    range: tuple[int, int]
    ways_back: U64
    counters: tuple[int, int] = (0, 0)


def pointers_into(target: Target, ranges: Sequence[tuple[int, int]]) -> U64 | None:
    """Return the words of memory that point into any of the ranges [low, high), and the values of
    all CPUs' registers, each once, ascending; None if memory cannot be searched.  Stopped."""
    words = target.pointers(ranges)
    if words is None:
        return None
    every = [target.registers(cpu).values() for cpu in range(target.cpus)]
    saved = np.array([v for values in every for v in values if 0 <= v < 1 << 64], np.uint64)
    return np.unique(np.concatenate([words, saved]))


def unused(target: Target, ended: Sequence[EndedCode]) -> tuple[EndedCode, ...]:
    """Return the code that no thread is in any more, nor will be: only code of an ended trace leads
    to code of an ended trace. Stopped."""
    live = pointers_into(target, around(ended)) if ended else None
    return () if live is None else tuple(one for one in ended if not is_entered(one, live))


def around(ended: Sequence[EndedCode]) -> list[tuple[int, int]]:
    """Return one range that contains all of them, or none."""
    starts, ends = [one.range[0] for one in ended], [one.range[1] for one in ended]
    return [(min(starts), max(ends))] if ended else []


def with_ways_back(live: U64, ended: Sequence[EndedCode]) -> U64:
    """Return `live` plus the ways back of every ended code that contains one of them, sorted."""
    back = [one.ways_back for one in ended if is_entered(one, live)]
    return np.unique(np.concatenate([live, *back]))


def live_addresses_in(target: Target, low: int, high: int, ended: Sequence[EndedCode]) -> U64:
    """Return probable live return addresses in [low, high), by the words of memory.  Stopped."""
    live = target.pointers([(low, high), *around(ended)])
    return with_ways_back(np.zeros(0, np.uint64) if live is None else live, ended)


def is_entered(code: EndedCode, live: U64) -> bool:
    """Whether one of these addresses, which are sorted, is in the code."""
    low, high = np.searchsorted(live, np.array(code.range, np.uint64)).tolist()
    return bool(low < high)
