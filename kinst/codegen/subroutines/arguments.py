"""The declaration of subroutines, their arguments as words, and room for their results.

Tested by tests/codegen/subroutines/test_subroutines.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kinst.codegen.firing import Firing, Lowered, Text
from kinst.codegen.helpers.strings_in_memory import copy_text
from kinst.codegen.ssa import IrValue, const
from kinst.core.errors import KinstError
from kinst.core.layout import FAULT_BADADDR, FAULT_ILLOP
from kinst.dlang.vocabulary.subroutines import Prototype, prototype

SLASH, DOT = ord("/"), ord(".")

Args = Sequence[Lowered]


@dataclass(frozen=True, slots=True)
class SubroutineCode:
    """A subroutine of D.

    Attributes:
        prototype: for the checker.
        emit: emits the code of a call.
    """

    prototype: Prototype
    emit: Callable[[Firing, Args], Lowered]


def subroutine(
    text: str, *, destructive: bool = False
) -> Callable[[Callable[[Firing, Args], Lowered]], SubroutineCode]:
    """Make a function D's subroutine of this prototype (vocabulary.subroutines.prototype())."""
    return lambda emit: SubroutineCode(prototype(text, destructive), emit)


def text_words(firing: Firing, value: Lowered) -> tuple[IrValue, IrValue]:
    """Return the address of a string argument, and its bound, at most strsize."""
    if not isinstance(value, Text):
        raise KinstError("a string was expected")
    return value.address, const(min(value.bound, firing.unit.layout.strsize))


def wide(firing: Firing, value: Lowered, signed: bool = True) -> IrValue:
    """Return an integer, or the address of a string, as 64 bits."""
    number = value.address if isinstance(value, Text) else value
    return firing.code.convert(number, 64, signed)


def new_text(firing: Firing) -> tuple[IrValue, IrValue, Text]:
    """Reserve strsize bytes for a new string; return address and size of the room, and the
    string."""
    size = firing.unit.layout.strsize
    room = firing.text_room(size)
    return room, const(size), Text(room, size)


def base_of(firing: Firing, args: Args) -> IrValue:
    """Return the second argument as a number base, or 10 if there is none; a bad base faults."""
    if len(args) == 1:
        return const(10)
    code = firing.code
    base = wide(firing, args[1])
    bad = code.icmp("ugt", code.op("sub", base, const(2)), 34)
    firing.faults.add(code, bad, FAULT_ILLOP, const(0))
    return base


def number(firing: Firing, value: Lowered) -> IrValue:
    """Return an integer or pointer as 64 bits; prototypes have no signed types narrower than
    that."""
    if isinstance(value, Text):
        raise KinstError("a number was expected")
    return firing.code.convert(value, 64, signed=False)


def pointer(firing: Firing, value: Lowered) -> IrValue:
    """Return an address.  A string is copied first, so that all its bytes are in scratch."""
    if isinstance(value, Text):
        size = firing.unit.layout.strsize
        room = firing.text_room(size)
        copy_text(firing, value, room, size, pad=True)
        return room
    return number(firing, value)


def fault_if_failed(firing: Firing, failed: IrValue, address: IrValue) -> None:
    """Fault with a bad address if a copy has failed (is not 0)."""
    firing.faults.add(firing.code, firing.code.icmp("ne", failed, 0), FAULT_BADADDR, address)
