"""Looking for addresses in a machine's memory: what saved program counters are among.

Tested by tests/machines/attach/test_parts.py and tests/vm/other_systems.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

_CHUNK = 1 << 17  # words at a time: what is worked out of them stays in the processor's cache


def pointers_in(
    pieces: Iterable[memoryview], ranges: Sequence[tuple[int, int]]
) -> npt.NDArray[np.uint64]:
    """The values in any of the ranges [low, high) that 8-byte words of these pieces of memory have,
    each once, ascending.  Words are aligned, as the pieces are."""
    found = [np.zeros(0, np.uint64)]
    for piece in pieces:
        words = np.frombuffer(piece, "<u8", len(piece) // 8)
        for at in range(0, len(words), _CHUNK):
            some = words[at : at + _CHUNK]
            for low, high in ranges:
                # Numbers below low wrap round to large ones.
                inside = some[some - np.uint64(low) < np.uint64(high - low)]
                if len(inside):
                    found.append(np.unique(inside))
    return np.unique(np.concatenate(found))


def replace_in(pieces: Iterable[memoryview], places: Mapping[int, int]) -> None:
    """Replace 8-byte words of these pieces of memory that are one of the places by what that is
    mapped to.  Words are aligned, as the pieces are."""
    if not places:
        return
    low, high = min(places), max(places) + 1
    for piece in pieces:
        words = np.frombuffer(piece, "<u8", len(piece) // 8)
        for at in range(0, len(words), _CHUNK):
            some = words[at : at + _CHUNK]
            near = np.flatnonzero(some - np.uint64(low) < np.uint64(high - low))
            for k in near.tolist():
                goal = places.get(int(some[k]))
                if goal is not None:
                    some[k] = goal
