"""Symbolic execution of straight-line code, for all instruction sets: operations on values,
registers and memory.

Tested by tests/isa/test_symbolic_runs.py and tests/isa/amd64/test_call_arguments.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Self

from kinst.core.dataclass import dataclass
from kinst.core.layout import ARGUMENT_CONSTANT, ARGUMENT_NONE, ARGUMENT_SLOT
from kinst.core.probe import Argument
from kinst.core.symbolic_run import WORD, SymbolicValue, signed

_MOST_CONSTANT = 1 << 31  # a descriptor has 32 bits for one (core/layout.py)

Known = SymbolicValue | None  # a value, or None for one that is not known


def low(value: Known, size: int) -> Known:
    """Return the lowest `size` bytes of a value, zero-extended."""
    if value is None or value.size <= size:
        return value
    mask = (1 << 8 * size) - 1
    if not value.term:
        return SymbolicValue("", value.number & mask)
    return SymbolicValue(f"({value.text} & {mask:#x})", size=size)


def extended(value: Known, size: int) -> Known:
    """Return the lowest `size` bytes of a value, sign-extended."""
    if value is None or size == WORD:
        return value
    if not value.term:
        return SymbolicValue("", signed(value.number, size))
    return SymbolicValue(f"(uint64_t)(int{8 * size}_t){value.text}")


def added(first: Known, second: Known) -> Known:
    if first is None or second is None:
        return None
    if first.term and second.term:
        return SymbolicValue(f"({first.text} + {second.text})")
    return first.plus(second.number) if first.term else second.plus(first.number)


def joined(operator: str) -> Callable[[Known, Known], Known]:
    """Return a function (first, second) that returns the D expression `first operator second`; None
    if one of the two values is not known."""

    def result(first: Known, second: Known) -> Known:
        if first is None or second is None:
            return None
        return SymbolicValue(f"({first.text} {operator} {second.text})")

    return result


def less(*, is_signed: bool) -> Callable[[Known, Known], Known]:
    """Return a function (first, second) that returns 1 if the first value is less than the second,
    otherwise 0."""
    cast = f"({'int64_t' if is_signed else 'uint64_t'})"

    def result(first: Known, second: Known) -> Known:
        if first is None or second is None:
            return None
        return SymbolicValue(f"(uint64_t)({cast}{first.text} < {cast}{second.text})", size=1)

    return result


def difference(first: Known, second: Known) -> Known:
    if first is not None and second is not None and not second.term:
        return first.plus(-second.number)
    return joined("-")(first, second)


def shift(operator: str, size: int, *, is_signed: bool) -> Callable[[Known, Known], Known]:
    """Return a function (value, count) that shifts a value of `size` bytes. The function uses only
    the low 5 bits of the count (6 bits if `size` is 8), as the processor does."""
    mask = 63 if size == WORD else 31

    def shifted(value: Known, count: Known) -> Known:
        if value is None or count is None:
            return None
        if not value.term and not count.term:
            bits = value.number & (1 << 8 * size) - 1
            first, by = (signed(bits, size) if is_signed else bits), count.number & mask
            return SymbolicValue("", signed(first << by if operator == "<<" else first >> by))
        few = f"({count.text} & {mask})" if count.term else f"{count.number & mask}"
        cast = f"(int{8 * size}_t)" if is_signed else "(uint64_t)"
        return SymbolicValue(f"(uint64_t)({cast}{value.text} {operator} {few})")

    return shifted


@dataclass(frozen=True, slots=True)
class MemoryWrite:
    """A write of the code to memory.

    Attributes:
        address: address of the first byte; None if it is not known.
        size: number of bytes.
        value: the value written; None if it is not known.
    """

    address: Known
    size: int
    value: Known


class SymbolicCode:
    """Symbolic execution of straight-line code: the values of registers and memory after the
    instructions that were run so far.

    Registers are named by numbers, which the instruction set chooses.
    """

    def __init__(
        self,
        slots: Mapping[int, tuple[str, int]],
        arguments: tuple[int, ...],
        stack: int,
        preserved: Collection[int],
    ) -> None:
        """Begin an execution: each register has the value that it has at the first instruction.

        Args:
            slots: (D name, frame slot) of each register, by the register's number.
            arguments: numbers of the registers that hold a C call's arguments, first argument
                first.
            stack: number of the stack pointer. Further arguments are in the memory to which the
                stack pointer points.
            preserved: numbers of the registers that a C call preserves.
        """
        self._slots = {f"regs[{name}]": slot for name, slot in slots.values()}
        self._arguments, self._stack, self._preserved = arguments, stack, preserved
        self.registers: dict[int, Known] = {
            register: SymbolicValue(f"regs[{name}]") for register, (name, _) in slots.items()
        }
        self._writes: list[MemoryWrite] = []
        self._ignores_stores = False

    def copy(self) -> Self:
        other = self.__class__.__new__(self.__class__)
        other.__dict__.update(self.__dict__)
        other.registers, other._writes = dict(self.registers), list(self._writes)
        return other

    def join(self, other: Self) -> bool:
        different = [register for register, value in self.registers.items()
                     if value is not None and other.registers[register] != value]  # fmt: skip
        self.forget(different, memory=True)
        return bool(different)

    def ignore_stores(self) -> None:
        self._ignores_stores = True

    def call(self) -> None:
        self.forget(self.registers.keys() - self._preserved, memory=True)

    def forget_all(self) -> None:
        self.forget(self.registers, memory=True)

    def take_numbers(self, other: Self) -> None:
        numbers = {n: value for n, value in other.registers.items() if value and not value.term}
        self.registers |= numbers

    def forget(self, registers: Iterable[int], *, memory: bool = False) -> None:
        """Make the values of these registers unknown; if `memory` is true, also those of all
        memory.
        """
        for register in registers:
            self.registers[register] = None
        if memory:
            self._writes = [MemoryWrite(None, 0, None)]

    def passed(self, index: int) -> Known:
        if index < len(self._arguments):
            return self.registers[self._arguments[index]]
        place = self.registers[self._stack]
        above = WORD * (index - len(self._arguments))
        return self.load(place.plus(above) if place is not None else None, WORD)

    def argument(self, index: int) -> Argument:
        value = self.passed(index)
        if value is None:
            return Argument(ARGUMENT_NONE)
        if not value.term and -_MOST_CONSTANT <= value.number < _MOST_CONSTANT:
            return Argument(ARGUMENT_CONSTANT, value.number)
        if value.text in self._slots:
            return Argument(ARGUMENT_SLOT, self._slots[value.text])
        return Argument(ARGUMENT_NONE, expression=value.text)

    def store(self, address: Known, size: int, value: Known) -> None:
        self._writes.append(MemoryWrite(address, size, value))

    def load(self, address: Known, size: int) -> Known:
        """Return the value of the `size` bytes of memory at an address, zero-extended: what the
        code has stored there or, if it has stored nothing there, an expression that reads memory.

        Return None if the value is not known: the address is None, or a store to other bytes or to
        an unknown address may have changed some of these bytes.
        """
        if address is None:
            return None
        for write in reversed(() if self._ignores_stores else self._writes):
            if write.address == address and write.size == size:
                return write.value
            apart = (
                write.address is not None
                and write.address.term == address.term
                and (
                    write.address.number + write.size <= address.number
                    or address.number + size <= write.address.number
                )
            )
            if not apart:
                return None
        return address.loaded(size)
