"""Many small reads of memory, done as few large reads.

A read of another process, or through a stub, takes as long for 8 bytes as for a page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Read = Callable[[int, int], bytes]

# Less than a page, so that all bytes between two mapped addresses are mapped.
NEAR = 2048


def read_ranges(read: Read, ranges: Sequence[tuple[int, int]], near: int = NEAR) -> list[bytes]:
    """Read many ranges of memory with few reads; return the bytes of each range, in the same order.

    Args:
        read: reads memory, by address and size.
        ranges: (address, size) of each range.
        near: the largest gap, in bytes, between two ranges that are read together.

    Raises what `read` raises.
    """
    if len(ranges) < 2:
        return [read(low, size) for low, size in ranges]
    address = np.array([low for low, _ in ranges], np.uint64)
    end = address + np.array([size for _, size in ranges], np.uint64)
    order = np.argsort(address, kind="stable")
    start, reached = address[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > reached[:-1] + np.uint64(near)])
    begins = np.flatnonzero(first)
    spans = start[begins], reached[np.concatenate([begins[1:], [len(start)]]) - 1]
    blocks = [read(low, high - low) for low, high in zip(*(s.tolist() for s in spans), strict=True)]
    block = np.empty(len(ranges), np.int64)
    block[order] = np.cumsum(first) - 1
    inside = address - spans[0][block]
    rows = zip(block.tolist(), inside.tolist(), ranges, strict=True)
    return [blocks[k][at : at + size] for k, at, (_, size) in rows]
