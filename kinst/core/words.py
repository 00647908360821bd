"""Constants for every layer: the mask of a machine word, the page size, and the compiler's suffixes
of split and cloned functions.

Tested by tests/fake, through the whole path."""

from __future__ import annotations

MASK = (1 << 64) - 1  # all bits of a machine word: addresses and registers wrap at it
PAGE = 4096  # bytes of the smallest page of every instruction set that kinst knows
COLD = ".cold"  # suffix of the symbol of a function's unlikely part, which gcc splits off


def stem_of(name: str) -> str:
    """Return a function symbol's name as debug information spells it: without a suffix such as @2
    or .isra.0."""
    return name.partition("@")[0].partition(".")[0]
