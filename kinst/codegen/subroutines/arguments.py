"""What the subroutines share: their arguments as words, and room for what they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinst.codegen.firing import Firing, Lowered, Text
from kinst.codegen.helpers.memory_access import copy_text
from kinst.codegen.ssa import Value, const
from kinst.core.errors import KinstError
from kinst.core.layout import FAULT_BADADDR, FAULT_ILLOP

SLASH, DOT = ord("/"), ord(".")

Args = Sequence[Lowered]
Subroutine = Callable[[Firing, Args], Lowered]


def text_words(firing: Firing, value: Lowered) -> tuple[Value, Value]:
    """(address, bound) of a string argument; no more than strsize bytes of it are looked at."""
    if not isinstance(value, Text):
        raise KinstError("a string was expected")
    return value.address, const(min(value.bound, firing.unit.layout.strsize))


def wide(firing: Firing, value: Lowered, signed: bool = True) -> Value:
    """An integer as 64 bits; of a string its address."""
    number = value.address if isinstance(value, Text) else value
    return firing.code.convert(number, 64, signed)


def new_text(firing: Firing) -> tuple[Value, Value, Text]:
    """(address, size, text) of room for a new string of strsize bytes."""
    size = firing.unit.layout.strsize
    room = firing.text_room(size)
    return room, const(size), Text(room, size)


def base_of(firing: Firing, args: Args) -> Value:
    """The second argument as a base; 10 where there is none."""
    if len(args) == 1:
        return const(10)
    code = firing.code
    base = wide(firing, args[1])
    bad = code.icmp("ugt", code.op("sub", base, const(2)), 34)
    firing.faults.add(code, bad, FAULT_ILLOP, const(0))
    return base


def number(firing: Firing, value: Lowered) -> Value:
    """An integer or pointer as 64 bits; those of the prototypes with less are unsigned."""
    if isinstance(value, Text):
        raise KinstError("a number was expected")
    return firing.code.convert(value, 64, signed=False)


def pointer(firing: Firing, value: Lowered) -> Value:
    """An address; that of a copy for a string, so that all its bytes are in scratch."""
    if isinstance(value, Text):
        size = firing.unit.layout.strsize
        room = firing.text_room(size)
        copy_text(firing, value, room, size, pad=True)
        return room
    return number(firing, value)


def fault_if_failed(firing: Firing, failed: Value, address: Value) -> None:
    """The fault of a bad address where a copy has failed (is not 0)."""
    firing.faults.add(firing.code, firing.code.icmp("ne", failed, 0), FAULT_BADADDR, address)
