"""The header page of scratch, as kinst writes it: whether clauses run, how they speculate."""

from __future__ import annotations

from kinst.core.layout import HEADER_ACTIVE, HEADER_NSPEC, HEADER_SPECSIZE, STATE_CLOSED, Scratch


def set_speculations(view: memoryview, count: int, size: int) -> None:
    """How many speculations there are, and the bytes of each on one CPU."""
    view[HEADER_NSPEC : HEADER_NSPEC + 8] = count.to_bytes(8, "little")
    view[HEADER_SPECSIZE : HEADER_SPECSIZE + 8] = size.to_bytes(8, "little")


def set_active(view: memoryview, scratch: Scratch, active: bool) -> None:
    """Let in-target clauses run, or not."""
    for slot in range(scratch.cpus + 1):
        at = scratch.state_of(slot) + STATE_CLOSED
        view[at : at + 4] = int(not active).to_bytes(4, "little")
    view[HEADER_ACTIVE : HEADER_ACTIVE + 8] = int(active).to_bytes(8, "little")


def is_active(view: memoryview) -> bool:
    """False before the start and after an exit()."""
    return view[HEADER_ACTIVE] == 1
