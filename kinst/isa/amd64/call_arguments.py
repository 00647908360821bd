"""Arguments of a C call, expressed by the registers at an earlier instruction from which straight
code leads to the call.

This module executes the code symbolically.  Each value is a D expression over the registers at the
earlier instruction: the sum of one term and a number.  The D expression is evaluated before the
code runs, so it cannot see what the code stores: a value that the code loads after a store is known
only if it is known which bytes the store wrote.

Source: Intel SDM volume 2; System V ABI, 3.2.3 (arguments).

Tested by tests/isa/amd64/test_call_arguments.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from iced_x86 import (
    ConditionCode,
    FlowControl,
    Instruction,
    InstructionInfoFactory,
    MemorySizeExt,
    Mnemonic,
    OpAccess,
    OpKind,
    Register,
    RegisterExt,
)

from kinst.core.dataclass import dataclass
from kinst.core.layout import ARGUMENT_CONSTANT, ARGUMENT_NONE, ARGUMENT_SLOT
from kinst.core.probe import Argument
from kinst.core.words import MASK
from kinst.isa import _x86
from kinst.isa.amd64.registers import SLOT

_GENERAL = {
    getattr(Register, name.upper()): name for name in SLOT if hasattr(Register, name.upper())
}
_IN_REGISTERS = tuple(getattr(Register, name) for name in ("RDI", "RSI", "RDX", "RCX", "R8", "R9"))
_WORD, _HALF = 8, 4
_MOST_CONSTANT = 1 << 31  # a descriptor has 32 bits for one (core/layout.py)
_HIGH_BYTES = frozenset((Register.AH, Register.BH, Register.CH, Register.DH))
_UNCHANGING = _x86.numbers("nop endbr64")
_WRITES = frozenset((OpAccess.WRITE, OpAccess.COND_WRITE, OpAccess.READ_WRITE,
                     OpAccess.READ_COND_WRITE))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Sum:
    """A value that is known as a D expression: `term` plus `number`.

    Attributes:
        term: a D expression; "" if the value is the number alone.
        number: the number to add to the term.
        size: how many low bytes of the value may differ from 0.
    """

    term: str
    number: int = 0
    size: int = _WORD

    @property
    def text(self) -> str:
        """The value as a D expression, in parentheses if it is a sum."""
        if not self.term:
            return f"{self.number & MASK:#x}"
        if not self.number:
            return self.term
        return f"({self.term} {'-' if self.number < 0 else '+'} {abs(self.number):#x})"

    def plus(self, number: int) -> _Sum:
        return _Sum(self.term, _signed(self.number + number))


_Known = _Sum | None  # a value, or None for one that is not known


def _signed(number: int, size: int = _WORD) -> int:
    sign = 1 << 8 * size - 1
    return (number + sign & 2 * sign - 1) - sign


def _low(value: _Known, size: int) -> _Known:
    """Return the lowest `size` bytes of a value, zero-extended."""
    if value is None or value.size <= size:
        return value
    mask = (1 << 8 * size) - 1
    if not value.term:
        return _Sum("", value.number & mask)
    return _Sum(f"({value.text} & {mask:#x})", size=size)


def _extended(value: _Known, size: int) -> _Known:
    """Return the lowest `size` bytes of a value, sign-extended."""
    if value is None or size == _WORD:
        return value
    if not value.term:
        return _Sum("", _signed(value.number, size))
    return _Sum(f"(uint64_t)(int{8 * size}_t){value.text}")


def _sum(first: _Known, second: _Known) -> _Known:
    if first is None or second is None:
        return None
    if first.term and second.term:
        return _Sum(f"({first.text} + {second.text})")
    return _Sum(first.term or second.term, _signed(first.number + second.number))


def _joined(operator: str) -> Callable[[_Known, _Known], _Known]:
    def joined(first: _Known, second: _Known) -> _Known:
        if first is None or second is None:
            return None
        return _Sum(f"({first.text} {operator} {second.text})")

    return joined


def _difference(first: _Known, second: _Known) -> _Known:
    if first is not None and second is not None and not second.term:
        return first.plus(-second.number)
    return _joined("-")(first, second)


def _shift(operator: str, size: int, *, signed: bool) -> Callable[[_Known, _Known], _Known]:
    """Return a function (value, count) that shifts a value of `size` bytes. The function uses only
    the low 5 bits of the count (6 bits if `size` is 8), as the processor does."""
    mask = 63 if size == _WORD else 31

    def shifted(value: _Known, count: _Known) -> _Known:
        if value is None or count is None:
            return None
        few = f"({count.text} & {mask})" if count.term else f"{count.number & mask}"
        cast = f"(int{8 * size}_t)" if signed else ""
        return _Sum(f"(uint64_t)({cast}{value.text} {operator} {few})")

    return shifted


# Instructions with the result in their first operand.
_OPERATORS: Mapping[int, Callable[[_Known, _Known], _Known]] = {
    Mnemonic.ADD: _sum, Mnemonic.SUB: _difference, Mnemonic.AND: _joined("&"),
    Mnemonic.OR: _joined("|"), Mnemonic.XOR: _joined("^"), Mnemonic.IMUL: _joined("*"),
}  # fmt: skip
_SHIFTS = {Mnemonic.SHL: "<<", Mnemonic.SHR: ">>", Mnemonic.SAR: ">>"}
# Conditions after a comparison of two numbers: (operator of D, whether they are signed).
_CONDITIONS = {
    ConditionCode.E: ("==", False), ConditionCode.NE: ("!=", False),
    ConditionCode.B: ("<", False), ConditionCode.AE: (">=", False),
    ConditionCode.BE: ("<=", False), ConditionCode.A: (">", False),
    ConditionCode.L: ("<", True), ConditionCode.GE: (">=", True),
    ConditionCode.LE: ("<=", True), ConditionCode.G: (">", True),
    # The sign of a difference is that of a comparison with zero only.
    ConditionCode.S: ("<", True), ConditionCode.NS: (">=", True),
}  # fmt: skip
_SIGNS = frozenset((ConditionCode.S, ConditionCode.NS))


@dataclass(frozen=True, slots=True)
class _Store:
    """A write of the code to memory.

    Attributes:
        address: address of the first byte; None if it is not known.
        size: number of bytes.
        value: the value written; None if it is not known.
    """

    address: _Known
    size: int
    value: _Known


class _Run:
    """Symbolic execution of straight code: the known values of registers and memory so far."""

    def __init__(self) -> None:
        self._registers: dict[int, _Known] = {
            number: _Sum(f"regs[R_{name.upper()}]") for number, name in _GENERAL.items()
        }
        self._stores: list[_Store] = []
        # The two numbers whose comparison the flags tell, and their bytes; None if unknown.
        self._compared: tuple[_Sum, _Sum, int] | None = None
        self._info = InstructionInfoFactory()

    def argument(self, index: int) -> Argument:
        """Return the argument with this index of the C call that the next instruction makes."""
        if index < len(_IN_REGISTERS):
            return _argument(self._registers[_IN_REGISTERS[index]])
        place = self._registers[Register.RSP]
        above = _WORD * (index - len(_IN_REGISTERS))
        return _argument(self._load(place.plus(above) if place is not None else None, _WORD))

    def step(self, one: Instruction) -> None:
        """Run one instruction; a conditional jump is not taken."""
        kind = one.mnemonic
        if kind in _UNCHANGING or one.flow_control == FlowControl.CONDITIONAL_BRANCH:
            return
        if kind in (Mnemonic.TEST, Mnemonic.CMP):
            self._compare(one)
            return
        if one.rflags_modified:
            self._compared = None
        if kind == Mnemonic.PUSH:
            self._push(one)
        elif not self._moves(one):
            self._forget(one)

    def _compare(self, one: Instruction) -> None:
        size = self._size(one)
        first, second = self._operand(one, 0, size), self._operand(one, 1, size)
        self._compared = None
        if one.mnemonic == Mnemonic.TEST:
            if not self._same(one):
                first = _low(_joined("&")(first, second), size)
            second = _Sum("")
        if first is not None and second is not None:
            self._compared = first, second, size

    def _condition(self, code: Any) -> str:
        """Return a D expression that is 1 if a condition holds, otherwise 0; "" if it cannot be
        expressed.

        Args:
            code: iced-x86's ConditionCode.
        """
        if self._compared is None or code not in _CONDITIONS:
            return ""
        first, second, size = self._compared
        if code in _SIGNS and (second.term or second.number):
            return ""
        operator, signed = _CONDITIONS[code]
        cast = f"(int{8 * size}_t)" if signed else ""
        return f"({cast}{first.text} {operator} {cast}{second.text})"

    def _push(self, one: Instruction) -> None:
        value, place = self._operand(one, 0, _WORD), self._registers[Register.RSP]
        place = place.plus(-_WORD) if place is not None else None
        self._registers[Register.RSP] = place
        self._stores.append(_Store(place, _WORD, value))

    def _moves(self, one: Instruction) -> bool:
        """Run an instruction whose result goes to its first operand, and return True. Return False,
        and change nothing, if kinst does not know how to compute the instruction's result."""
        kind, size = one.mnemonic, self._size(one)
        if one.op_count < 1 or not size:
            return False
        if kind == Mnemonic.MOV:
            result = self._operand(one, 1, size)
        elif kind == Mnemonic.MOVZX:
            result = self._operand(one, 1, self._source_size(one))
        elif kind in (Mnemonic.MOVSX, Mnemonic.MOVSXD):
            narrow = self._source_size(one)
            result = _extended(self._operand(one, 1, narrow), narrow)
        elif kind == Mnemonic.LEA:
            result = self._address(one)
        elif kind in (Mnemonic.XOR, Mnemonic.SUB) and self._same(one):
            result = _Sum("")
        elif kind in _OPERATORS and one.op_count in (2, 3):
            first = self._operand(one, one.op_count - 2, size)
            result = _OPERATORS[kind](first, self._operand(one, one.op_count - 1, size))
        elif kind in _SHIFTS:
            shift = _shift(_SHIFTS[kind], size, signed=kind == Mnemonic.SAR)
            result = shift(self._operand(one, 0, size), self._operand(one, 1, 1))
        elif condition := self._condition(one.condition_code):
            result = self._conditional(one, condition, size)
        else:
            return False
        self._write(one, size, _low(result, size))
        return True

    def _conditional(self, one: Instruction, condition: str, size: int) -> _Known:
        """Return the result of a setcc or cmovcc.

        Args:
            condition: D expression that is 1 if the instruction's condition holds, otherwise 0.
            size: bytes of the result.
        """
        if one.op_count == 1:
            return _Sum(f"(uint64_t){condition}", size=1)
        this, other = self._operand(one, 1, size), self._operand(one, 0, size)
        if this is None or other is None:
            return None
        return _Sum(f"({condition} ? {this.text} : {other.text})")

    @staticmethod
    def _same(one: Instruction) -> bool:
        kinds = one.op0_kind, one.op1_kind
        return kinds == (OpKind.REGISTER, OpKind.REGISTER) and one.op0_register == one.op1_register

    @staticmethod
    def _size(one: Instruction) -> int:
        """Return the size of the first operand in bytes."""
        if one.op0_kind == OpKind.REGISTER:
            return RegisterExt.size(one.op0_register)
        return MemorySizeExt.size(one.memory_size)

    @staticmethod
    def _source_size(one: Instruction) -> int:
        if one.op1_kind == OpKind.REGISTER:
            return RegisterExt.size(one.op1_register)
        return MemorySizeExt.size(one.memory_size)

    def _operand(self, one: Instruction, index: int, size: int) -> _Known:
        """Return the value of an operand, given by its index, of `size` bytes, zero-extended."""
        kind = one.op_kind(index)
        if kind == OpKind.REGISTER:
            return self._register(one.op_register(index))
        if kind == OpKind.MEMORY:
            return self._load(self._address(one), size)
        return _low(_Sum("", _signed(one.immediate(index))), size)

    def _register(self, register: Any) -> _Known:
        full, size = RegisterExt.full_register(register), RegisterExt.size(register)
        if full not in self._registers or register in _HIGH_BYTES:
            return None
        return _low(self._registers[full], size)

    def _address(self, one: Instruction) -> _Known:
        base: _Known = _Sum("")
        if one.segment_prefix == Register.GS:
            base = _Sum("regs[R_GSBASE]")
        elif one.segment_prefix != Register.NONE:
            return None
        if one.is_ip_rel_memory_operand:
            return _sum(base, _Sum("", _signed(one.ip_rel_memory_address)))
        address = _sum(base, _Sum("", _signed(one.memory_displacement)))
        if one.memory_base != Register.NONE:
            address = _sum(self._register(one.memory_base), address)
        if one.memory_index != Register.NONE:
            index, scale = self._register(one.memory_index), one.memory_index_scale
            if index is not None and scale > 1:
                index = _Sum(f"({index.text} * {scale})")
            address = _sum(address, index)
        return address

    def _load(self, address: _Known, size: int) -> _Known:
        if address is None:
            return None
        for store in reversed(self._stores):
            if store.address == address and store.size == size:
                return store.value
            apart = (
                store.address is not None
                and store.address.term == address.term
                and (
                    store.address.number + store.size <= address.number
                    or address.number + size <= store.address.number
                )
            )
            if not apart:
                return None
        return _Sum(f"(uint64_t)*(uint{8 * size}_t *){address.text}", size=size)

    def _write(self, one: Instruction, size: int, value: _Known) -> None:
        if one.op0_kind == OpKind.MEMORY:
            self._stores.append(_Store(self._address(one), size, value))
            return
        full = RegisterExt.full_register(one.op0_register)
        if size < _HALF and value is not None:
            # The other bytes stay as they are.
            kept, mask = self._registers[full], (1 << 8 * size) - 1
            value = _joined("|")(value, _joined("&")(kept, _Sum("", MASK & ~mask)))
            value = None if one.op0_register in _HIGH_BYTES else value
        self._registers[full] = value

    def _forget(self, one: Instruction) -> None:
        """Run an instruction whose result cannot be computed: the registers and memory that it
        writes become unknown."""
        info = self._info.info(one)
        for used in info.used_registers():
            if used.access in _WRITES:
                self._registers[RegisterExt.full_register(used.register)] = None
        if any(used.access in _WRITES for used in info.used_memory()):
            self._stores.append(_Store(None, 0, None))


def _argument(value: _Known) -> Argument:
    if value is None:
        return Argument(ARGUMENT_NONE)
    if not value.term and -_MOST_CONSTANT <= value.number < _MOST_CONSTANT:
        return Argument(ARGUMENT_CONSTANT, value.number)
    for name, slot in SLOT.items():
        if value == _Sum(f"regs[R_{name.upper()}]"):
            return Argument(ARGUMENT_SLOT, slot)
    return Argument(ARGUMENT_NONE, expression=value.text)


def call_arguments(code: Sequence[Instruction], count: int) -> Sequence[Argument] | None:
    """Return the first `count` arguments of the C call after `code`; None if the code contains an
    unconditional jump, a call or a return. The result holds if no conditional jump in the code is
    taken."""
    run = _Run()
    for one in code:
        if one.flow_control not in (FlowControl.NEXT, FlowControl.CONDITIONAL_BRANCH):
            return None
        run.step(one)
    return [run.argument(index) for index in range(count)]


def guarded_call(
    pieces: Sequence[tuple[int, bytes]], call: int, guard: int, count: int
) -> tuple[int, bytes, Sequence[Argument]] | None:
    every = [list(_x86.listed(code, address)) for address, code in pieces]
    for (start, code), part in zip(pieces, every, strict=True):
        last = next((k for k, one in enumerate(part) if one.ip == call), None)
        if last is None:
            continue
        first = next((k for k in range(last - 1, -1, -1) if _loads(part[k], guard)), None)
        if first is None:
            return None
        entries = {one.near_branch_target for some in every for one in some if _branches(one)}
        between = part[first:last]
        jumps = [one for one in between if one.flow_control == FlowControl.CONDITIONAL_BRANCH]
        entered = any(one.ip in entries for one in (*between[1:], part[last]))
        arguments = call_arguments(between, count)
        if entered or arguments is None or len(jumps) != 1 or not _tests_null(between):
            return None
        at, size = between[0].ip, between[0].len
        return at, code[at - start : at - start + size], arguments
    return None


def _loads(one: Instruction, guard: int) -> bool:
    """Return whether an instruction is mov REGISTER, [rip + displacement] that loads from the
    address `guard`."""
    into = one.op0_kind == OpKind.REGISTER and one.is_ip_rel_memory_operand
    return one.mnemonic == Mnemonic.MOV and into and one.ip_rel_memory_address == guard


def _branches(one: Instruction) -> bool:
    flows = FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH
    return one.flow_control in flows


def _tests_null(code: Sequence[Instruction]) -> bool:
    """Return whether the code tests the register that its first instruction loads (test REGISTER,
    REGISTER), and then has a jump that is taken if the register is 0."""
    loaded = code[0].op0_register
    tests = [one.mnemonic == Mnemonic.TEST and one.op0_register == one.op1_register == loaded
             for one in code]  # fmt: skip
    jumps = [one.condition_code == ConditionCode.E and bool(one.near_branch_target) for one in code]
    return True in tests and True in jumps and tests.index(True) < jumps.index(True)
