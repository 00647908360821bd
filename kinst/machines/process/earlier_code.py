"""Code of earlier traces that is still mapped in a process: where control leaves it.

After a trace, its trampolines stay mapped, because a thread may sleep in them. They lead back to
the program's own code, and a later trace must not cover the addresses that they lead to.

Tested by tests/machines/process/test_running.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kinst.core.errors import TargetError
from kinst.core.isa import Isa

_PIECE = 16  # bytes to read for one instruction: no instruction is longer
UNUSED = 8  # so many zero bytes mean that no code was written there


def ways_back(
    entered: Iterable[int],
    regions: Sequence[tuple[int, int]],
    read: Callable[[int, int], bytes],
    isa: Isa,
) -> set[int]:
    """Return the addresses at which control may leave the code of earlier traces.

    Args:
        entered: addresses in that code at which control may be.
        regions: ranges [low, high) of memory with code of earlier traces.
        read: returns the bytes at an address: (address, size).
        isa: the code's instruction set.
    """
    found, seen, to_see = set[int](), set[int](), list(entered)
    while to_see:
        at: int | None = to_see.pop()
        while at is not None and at not in seen:
            region = next((one for one in regions if one[0] <= at < one[1]), None)
            if region is None:
                found.add(at)
                break
            seen.add(at)
            try:
                code = read(at, min(_PIECE, region[1] - at))
            except TargetError:
                break
            if not any(code[:UNUSED]):  # no code was ever written there
                break
            instruction = next(iter(isa.decode(code, at)), None)
            if instruction is None:  # control cannot be here
                break
            flow = isa.flow(instruction.code, at)
            if flow.target is not None:
                to_see.append(flow.target)
            at = instruction.end if flow.falls_through else None
    return found
