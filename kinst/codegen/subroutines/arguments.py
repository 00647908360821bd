"""The decorator that declares a subroutine, and conversions of a subroutine's arguments and
results.

Tested by tests/codegen/subroutines/test_subroutines.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinst.codegen.firing import Firing, Lowered, Text
from kinst.codegen.helpers.strings_in_memory import copy_text
from kinst.codegen.ssa import IrValue, const
from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.core.layout import FAULT_BADADDR, FAULT_ILLOP
from kinst.dlang.vocabulary.subroutines import Prototype, prototype

SLASH, DOT = ord("/"), ord(".")

Args = Sequence[Lowered]


@dataclass(frozen=True, slots=True)
class SubroutineCode:
    """A subroutine of D, as the code generator knows it.

    Attributes:
        prototype: types of the result and the parameters, for the checker.
        emit: emits the code of one call and returns the call's result.
    """

    prototype: Prototype
    emit: Callable[[Firing, Args], Lowered]


def subroutine(
    text: str, *, destructive: bool = False
) -> Callable[[Callable[[Firing, Args], Lowered]], SubroutineCode]:
    """Decorator that declares a generator function as a subroutine of D.

    Args:
        text: the prototype in C (vocabulary.subroutines.prototype()).
        destructive: whether the subroutine changes the traced system.
    """
    return lambda emit: SubroutineCode(prototype(text, destructive), emit)


def text_words(firing: Firing, value: Lowered) -> tuple[IrValue, IrValue]:
    """Return the address of a string argument and the largest number of its bytes that may be read,
    which is at most strsize.
    """
    if not isinstance(value, Text):
        raise KinstError("the argument of a subroutine is not a string")
    return value.address, const(min(value.bound, firing.unit.layout.strsize))


def wide(firing: Firing, value: Lowered, signed: bool = True) -> IrValue:
    """Emit LLVM IR that extends an integer to 64 bits; return the i64.  For a string, return its
    address.
    """
    number = value.address if isinstance(value, Text) else value
    return firing.code.convert(number, 64, signed)


def new_text(firing: Firing) -> tuple[IrValue, IrValue, Text]:
    """Reserve strsize bytes of working memory for a new string; return their address, strsize as an
    i64, and the string.
    """
    size = firing.unit.layout.strsize
    room = firing.text_room(size)
    return room, const(size), Text(room, size)


def base_of(firing: Firing, args: Args) -> IrValue:
    """Emit LLVM IR that checks the number base in a subroutine's second argument; return the base,
    or 10 if there is no second argument.  A base outside 2 to 36 faults.
    """
    if len(args) == 1:
        return const(10)
    code = firing.code
    base = wide(firing, args[1])
    bad = code.icmp("ugt", code.op("sub", base, const(2)), 34)
    firing.faults.add(code, bad, FAULT_ILLOP, const(0))
    return base


def number(firing: Firing, value: Lowered) -> IrValue:
    """Emit LLVM IR that extends an integer or pointer to 64 bits by zeros; return the i64.  Zeros
    are right, because no prototype has a signed type that is narrower than 64 bits.
    """
    if isinstance(value, Text):
        raise KinstError("the argument of a subroutine is a string, not a number")
    return firing.code.convert(value, 64, signed=False)


def pointer(firing: Firing, value: Lowered) -> IrValue:
    """Return the address that an argument holds. For a string, emit a copy of the string to strsize
    bytes of working memory, padded with zeros, and return the copy's address. So a subroutine can
    read strsize bytes, even if the string is shorter.
    """
    if isinstance(value, Text):
        size = firing.unit.layout.strsize
        room = firing.text_room(size)
        copy_text(firing, value, room, size, pad=True)
        return room
    return number(firing, value)


def fault_if_failed(firing: Firing, failed: IrValue, address: IrValue) -> None:
    """Emit LLVM IR that faults as a bad address if a copy has failed.

    Args:
        failed: result of the copy, 0 if it succeeded.
        address: the address to report.
    """
    firing.faults.add(firing.code, firing.code.icmp("ne", failed, 0), FAULT_BADADDR, address)
