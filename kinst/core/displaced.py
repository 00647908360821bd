"""Results of displacing an instruction, and where control goes on after it.

Tested by tests/isa.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import wraps
from typing import ParamSpec, TypeVar

from kinst.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Relocated:
    """Displaced code for one place: it has the instruction's effect, then goes where that went.

    Attributes:
        code: bytes valid at the address they were made for; control leaves it at the original
            successor (the jump back is part of it), at a branch target, or at a callee.
        original_at: offset in code of the copy that can fault as the original did, or -1 if nothing
            in it can (a direct branch). A fault there must be reported to the kernel's exception
            tables as at the original address.
    """

    code: bytes
    original_at: int = -1


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a site cannot be planted, in words for the user."""

    reason: str


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class OutOfReach(Exception):  # noqa: N818 - it is a result on its way up, not an error
    """An instruction cannot reach its target. what: in words for the user."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def refuses_out_of_reach(
    make: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result | Refused]:
    """Make a function return Refused instead of raising OutOfReach."""

    @wraps(make)
    def refusing(*args: _Parameters.args, **named: _Parameters.kwargs) -> _Result | Refused:
        try:
            return make(*args, **named)
        except OutOfReach as far:
            return Refused(far.what)

    return refusing


@dataclass(frozen=True, slots=True)
class Moved:
    """One displaced instruction without its way back.

    Attributes:
        falls_through: control can run off its end, and must then go to the original successor.
        original_at: as in Relocated.
    """

    code: bytes
    falls_through: bool
    original_at: int = -1


@dataclass(frozen=True, slots=True)
class Onward:
    """Where a chained trampoline sends control, in place of original code that is planted too.

    Attributes:
        links: address of a planted instruction -> address of its trampoline.
        falls_into: the planted instruction whose trampoline lies directly after this one, or -1.
        head: the trampoline begins with one instruction that a jump fits over, so that unplanting
            can turn it into the way back.
        dead: address of an original instruction -> registers that the way there may change
            (Isa.dead_registers).
    """

    links: Mapping[int, int] = field(default_factory=dict)
    falls_into: int = -1
    head: bool = False
    dead: Mapping[int, int] = field(default_factory=dict)

    def of(self, address: int) -> int:
        """Return where control goes instead of to this original instruction."""
        return self.links.get(address, address)


UNCHAINED = Onward()


@refuses_out_of_reach
def with_way_back(
    moved: Moved | Refused, to: int, back: Callable[[int], bytes]
) -> Relocated | Refused:
    """Return displaced code at `to`, with what leads from its end to the original successor.

    back: makes that at an address (nothing if the successor's trampoline is right there); it may
    raise OutOfReach."""
    if isinstance(moved, Refused):
        return moved
    if not moved.falls_through:
        return Relocated(moved.code, moved.original_at)
    return Relocated(moved.code + back(to + len(moved.code)), moved.original_at)
