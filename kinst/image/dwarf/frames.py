"""What is known of the frame of one instruction (DWARF 5, 6.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Compilers leave room for ftrace at a function's start, in front of what is described of it.
ROOM = 16  # bytes


@dataclass(frozen=True, slots=True)
class Frame:
    """What the caller knows of an instruction.

    address: as the index has it (linked).  at_entry: it is the first one of its function.  cfa:
    the canonical frame address as a D expression, None where no unwinder knows.  place: where
    what is linked at an address lies as running; it raises NotHereError where nothing does.
    """

    address: int
    at_entry: bool
    cfa: str | None
    place: Callable[[int], int]
