"""Search of memory for words that are addresses, such as saved program counters.

Tested by tests/machines/attach/test_parts.py and tests/vm/other_systems.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from kinst.core.columns import distinct

_CHUNK = 1 << 17  # words at a time, so that intermediate arrays stay in the processor's cache


def pointers_in(
    pieces: Iterable[memoryview], ranges: Sequence[tuple[int, int]]
) -> npt.NDArray[np.uint64]:
    """Return the pointers in memory that point into any of the ranges, each once, in ascending
    order. A pointer is the value of an aligned 8-byte word.

    Args:
        pieces: parts of memory, aligned to 8 bytes.
        ranges: addresses [low, high).
    """
    matches = [np.zeros(0, np.uint64)]
    for piece in pieces:
        words = np.frombuffer(piece, "<u8", len(piece) // 8)
        for at in range(0, len(words), _CHUNK):
            some = words[at : at + _CHUNK]
            for low, high in ranges:
                # Values below low become large numbers.
                inside = some[some - np.uint64(low) < np.uint64(high - low)]
                if len(inside):
                    matches.append(distinct(inside))
    return distinct(np.concatenate(matches))


def replace_in(pieces: Iterable[memoryview], places: Mapping[int, int]) -> None:
    """Replace each aligned 8-byte word of memory that equals a key of `places` by the key's value.

    Args:
        pieces: parts of memory, aligned to 8 bytes, which are changed in place.
    """
    if not places:
        return
    low, high = min(places), max(places) + 1
    for piece in pieces:
        words = np.frombuffer(piece, "<u8", len(piece) // 8)
        for at in range(0, len(words), _CHUNK):
            some = words[at : at + _CHUNK]
            near = np.flatnonzero(some - np.uint64(low) < np.uint64(high - low))
            for k in near.tolist():
                replacement = places.get(int(some[k]))
                if replacement is not None:
                    some[k] = replacement
