"""Conservative search for live return addresses: registers and words of memory that point into a
function, or into code of an ended trace.

Suppose that a thread executes in a piece of code or will return there. Then an address inside that
code is in a register of the thread's CPU or, if the thread sleeps or was interrupted, in an aligned
word of memory. So if no word points into the code, no thread is in it. The converse does not hold:
most words that point into code are old values, left on stacks by interrupts.

Tested by tests/fake/test_runs.py and tests/machines/attach/test_parts.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kinst.core.columns import U64, distinct
from kinst.core.dataclass import dataclass
from kinst.core.machine import Target


@dataclass(frozen=True, slots=True, eq=False)
class EndedCode:
    """Code of a trace that has ended, in which a thread may still execute.

    Attributes:
        range: addresses [low, high) of the code.
        ways_back: addresses of original code to which the code leads back, ascending.
        counters: bytes [low, high) of the counter area that the code adds to.
    """

    range: tuple[int, int]
    ways_back: U64
    counters: tuple[int, int] = (0, 0)


def pointers_into(target: Target, ranges: Sequence[tuple[int, int]]) -> U64 | None:
    """Search memory and the registers of all CPUs for values that point into any of the ranges
    [low, high). Return each value once, ascending; None if memory cannot be searched. The machine
    must be stopped."""
    words = target.pointers(ranges)
    if words is None:
        return None
    every = [target.registers(cpu).values() for cpu in range(target.cpus)]
    saved = np.array([v for values in every for v in values if 0 <= v < 1 << 64], np.uint64)
    return distinct(np.concatenate([words, saved]))


def unused(target: Target, ended: Sequence[EndedCode]) -> tuple[EndedCode, ...]:
    """Return those pieces of ended code that no thread executes, or will return to; () if memory
    cannot be searched. The machine must be stopped.

    No thread will enter this code later, since only code of ended traces leads to it."""
    live = pointers_into(target, around(ended)) if ended else None
    return (
        ()
        if live is None
        else tuple(trace_code for trace_code in ended if not is_entered(trace_code, live))
    )


def around(ended: Sequence[EndedCode]) -> list[tuple[int, int]]:
    """Return a list with the smallest range that contains the code of all ended traces; [] if no
    trace has left code.
    """
    starts, ends = (
        [trace_code.range[0] for trace_code in ended],
        [trace_code.range[1] for trace_code in ended],
    )
    return [(min(starts), max(ends))] if ended else []


def with_ways_back(live: U64, ended: Sequence[EndedCode]) -> U64:
    """Return the addresses `live`, and for each of them that points into ended code also the
    addresses to which this code leads back. The result is sorted, and has each address once."""
    back = [trace_code.ways_back for trace_code in ended if is_entered(trace_code, live)]
    return distinct(np.concatenate([live, *back]))


def live_addresses_in(target: Target, low: int, high: int, ended: Sequence[EndedCode]) -> U64:
    """Return possible live return addresses in [low, high), found by a search of all words of
    memory. The machine must be stopped.

    If a word points into code of an ended trace, the addresses that this code leads back to are
    included."""
    live = target.pointers([(low, high), *around(ended)])
    return with_ways_back(np.zeros(0, np.uint64) if live is None else live, ended)


def is_entered(code: EndedCode, live: U64) -> bool:
    """Whether any address of `live`, which is sorted, points into the code."""
    low, high = np.searchsorted(live, np.array(code.range, np.uint64)).tolist()
    return bool(low < high)
