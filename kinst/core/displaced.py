"""Values for a displaced instruction: its code, or the reason why it has none, and where control
goes after it.

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
    """Code for another address that has the effect of an instruction, and then leads control to
    where the original instruction would lead it.

    Attributes:
        code: the bytes. They are right only at the address for which they were made. Control leaves
            them by a jump to the original successor, by a jump to a branch target, or by a call.
        original_at: offset in `code` of the instruction that may fault in place of the original
            instruction; -1 if none may fault (a direct branch). If it faults, the kernel must
            search its exception table for the address of the original instruction.
    """

    code: bytes
    original_at: int = -1


@dataclass(frozen=True, slots=True)
class Refused:
    """Refusal to plant a site, with its reason in words for the user."""

    reason: str


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class OutOfReach(Exception):  # noqa: N818 - it is a result on its way up, not an error
    """Signals that a branch or address operand of an instruction cannot reach its target.

    Attributes:
        what: the reason, in words for the user.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def refuses_out_of_reach(
    make: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result | Refused]:
    """Decorate a function so that it returns Refused instead of raising OutOfReach."""

    @wraps(make)
    def refusing(*args: _Parameters.args, **named: _Parameters.kwargs) -> _Result | Refused:
        try:
            return make(*args, **named)
        except OutOfReach as far:
            return Refused(far.what)

    return refusing


@dataclass(frozen=True, slots=True)
class Moved:
    """Code of one displaced instruction, without the jump back to the original successor.

    Attributes:
        falls_through: whether control can reach the end of the code. Then it must go on to the
            original successor.
        original_at: offset in `code` of the instruction that may fault in place of the original
            instruction; -1 if none may fault.
    """

    code: bytes
    falls_through: bool
    original_at: int = -1


@dataclass(frozen=True, slots=True)
class Onward:
    """Where control goes after the displaced instruction of a trampoline. If the next instruction
    is planted, control goes to its trampoline (a chain); otherwise, to the original code.

    Attributes:
        links: address of each planted instruction -> address of its trampoline.
        falls_into: the planted instruction whose trampoline lies directly after this trampoline:
            its original address; -1 if there is none.
        head: whether the trampoline must begin with an instruction that is long enough for a jump.
            When kinst unplants, it writes a jump back to the site over this instruction, so that
            threads leave the chain.
        dead: address of an original instruction -> mask of the registers that a jump there may
            change (Isa.dead_registers).
    """

    links: Mapping[int, int] = field(default_factory=dict)
    falls_into: int = -1
    head: bool = False
    dead: Mapping[int, int] = field(default_factory=dict)

    def of(self, address: int) -> int:
        """Return the address of the trampoline of the original instruction at `address`; `address`
        itself if this instruction has no trampoline."""
        return self.links.get(address, address)


UNCHAINED = Onward()


@refuses_out_of_reach
def with_way_back(
    moved: Moved | Refused, to: int, back: Callable[[int], bytes]
) -> Relocated | Refused:
    """Return displaced code as a whole: if control can reach its end, with a jump back to the
    original successor. If `moved` is a refusal, return the refusal.

    Args:
        moved: the code, or the refusal.
        to: address of the code.
        back: called with the address at which the jump back will lie; returns the jump's bytes, or
            b"" if the trampoline of the successor follows directly. If it raises OutOfReach, the
            result is a refusal.
    """
    if isinstance(moved, Refused):
        return moved
    if not moved.falls_through:
        return Relocated(moved.code, moved.original_at)
    return Relocated(moved.code + back(to + len(moved.code)), moved.original_at)
