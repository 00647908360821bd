"""Symbolic execution of code: values as D expressions over the registers at the first instruction.

Tested by tests/isa/test_symbolic_runs.py.
"""

from __future__ import annotations

from typing import Protocol, Self

from kinst.core.dataclass import dataclass
from kinst.core.instruction import Instruction
from kinst.core.probe import Argument
from kinst.core.words import MASK

WORD = 8  # bytes of a register


def signed(number: int, size: int = WORD) -> int:
    """Return the lowest `size` bytes of a number as a signed number."""
    sign = 1 << 8 * size - 1
    return (number + sign & 2 * sign - 1) - sign


@dataclass(frozen=True, slots=True)
class SymbolicValue:
    """A value that is known as a D expression: `term` plus `number`.

    Attributes:
        term: a D expression; "" if the value is the number alone.
        number: the number to add to the term.
        size: how many low bytes of the value may differ from 0.
        source: the address of the memory that `term` reads; None if `term` is something else.
    """

    term: str
    number: int = 0
    size: int = WORD
    source: SymbolicValue | None = None

    @property
    def text(self) -> str:
        """The value as a D expression, in parentheses if it is a sum."""
        if not self.term:
            return f"{self.number & MASK:#x}"
        if not self.number:
            return self.term
        return f"({self.term} {'-' if self.number < 0 else '+'} {abs(self.number):#x})"

    def plus(self, number: int) -> SymbolicValue:
        return SymbolicValue(self.term, signed(self.number + number), source=self.source)

    def loaded(self, size: int = WORD) -> SymbolicValue:
        """Return the value that is loaded from memory if this value is the address: `size` bytes,
        zero-extended."""
        return SymbolicValue(f"(uint64_t)*(uint{8 * size}_t *){self.text}", 0, size, self)


def number(value: int) -> SymbolicValue:
    return SymbolicValue("", signed(value))


class SymbolicRun(Protocol):
    """Symbolic execution of one path through code.

    D expressions are evaluated before the code runs, so they cannot see what the code stores. A
    load after a store has a known value in two cases: the load is from exactly the bytes that were
    stored (it gets the stored value), or it is certainly from other bytes.
    """

    def step(self, one: Instruction) -> None:
        """Run one instruction. Branches, jumps and calls have no effect here."""
        ...

    def forget_all(self) -> None:
        """Make all registers and memory unknown."""
        ...

    def take_numbers(self, other: Self) -> None:
        """Copy the registers whose value in the run `other` is a known number. All other registers
        of this run stay as they are."""
        ...

    def call(self) -> None:
        """Run a C function: what it may change becomes unknown."""
        ...

    def copy(self) -> Self: ...

    def ignore_stores(self) -> None:
        """From now on, treat each load as if the code had stored nothing: it gets what the memory
        contained at the first instruction. The value may be wrong, but it shows from which address
        it was loaded.
        """
        ...

    def join(self, other: Self) -> bool:
        """Combine this run with another run that comes to the same instruction. Registers whose
        values differ become unknown, and so does all memory. Return whether a register has become
        unknown."""
        ...

    def pointer_load(self, one: Instruction) -> SymbolicValue | None:
        """Return the address from which an instruction loads a whole register; None if it is no
        such load, or if the address is unknown."""
        ...

    def zero_test(self, one: Instruction) -> tuple[SymbolicValue, bool] | None:
        """Return the value that a conditional branch compares with 0, and whether the branch is
        taken if the value is 0. None if it compares something else, or if the value is unknown."""
        ...

    def destination(self, one: Instruction) -> SymbolicValue | None:
        """Return the address that an indirect call goes to; None if it is unknown."""
        ...

    def passed(self, index: int) -> SymbolicValue | None:
        """Return the argument with this index that the next instruction, a call, passes to the
        called C function; None if it is unknown.
        """
        ...

    def argument(self, index: int) -> Argument:
        """Return how a probe at the run's first instruction can find the value of passed(index).
        The kind is ARGUMENT_NONE, without an expression, if that value is unknown.
        """
        ...
