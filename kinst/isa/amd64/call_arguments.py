"""Arguments of a C call, as expressions of the registers at an earlier instruction. The code from
that instruction to the call is straight-line code.

This module executes the code symbolically (kinst/isa/_symbolic.py).

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

from kinst.core.probe import Argument
from kinst.core.symbolic_run import WORD, SymbolicValue, signed
from kinst.core.words import MASK
from kinst.isa import _x86
from kinst.isa._symbolic import (
    Known,
    SymbolicCode,
    added,
    difference,
    extended,
    joined,
    low,
    shift,
)
from kinst.isa.amd64.registers import SLOT

_GENERAL = {
    getattr(Register, name.upper()): name for name in SLOT if hasattr(Register, name.upper())
}
_SLOTS = {number: (f"R_{name.upper()}", SLOT[name]) for number, name in _GENERAL.items()}
_IN_REGISTERS = tuple(getattr(Register, name) for name in ("RDI", "RSI", "RDX", "RCX", "R8", "R9"))
_HALF = 4
_HIGH_BYTES = frozenset((Register.AH, Register.BH, Register.CH, Register.DH))
_UNCHANGING = _x86.numbers("nop endbr64")
_WRITES = frozenset((OpAccess.WRITE, OpAccess.COND_WRITE, OpAccess.READ_WRITE,
                     OpAccess.READ_COND_WRITE))  # fmt: skip


# Instructions with the result in their first operand.
_OPERATORS: Mapping[int, Callable[[Known, Known], Known]] = {
    Mnemonic.ADD: added, Mnemonic.SUB: difference, Mnemonic.AND: joined("&"),
    Mnemonic.OR: joined("|"), Mnemonic.XOR: joined("^"), Mnemonic.IMUL: joined("*"),
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


class _Run(SymbolicCode):
    """Symbolic execution of amd64 code."""

    def __init__(self) -> None:
        super().__init__(_SLOTS, _IN_REGISTERS, Register.RSP, ())
        # The two numbers whose comparison the flags tell, and their bytes; None if unknown.
        self._compared: tuple[SymbolicValue, SymbolicValue, int] | None = None
        self._info = InstructionInfoFactory()

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
                first = low(joined("&")(first, second), size)
            second = SymbolicValue("")
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
        operator, is_signed = _CONDITIONS[code]
        cast = f"(int{8 * size}_t)" if is_signed else ""
        return f"({cast}{first.text} {operator} {cast}{second.text})"

    def _push(self, one: Instruction) -> None:
        value, place = self._operand(one, 0, WORD), self.registers[Register.RSP]
        place = place.plus(-WORD) if place is not None else None
        self.registers[Register.RSP] = place
        self.store(place, WORD, value)

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
            result = extended(self._operand(one, 1, narrow), narrow)
        elif kind == Mnemonic.LEA:
            result = self._address(one)
        elif kind in (Mnemonic.XOR, Mnemonic.SUB) and self._same(one):
            result = SymbolicValue("")
        elif kind in _OPERATORS and one.op_count in (2, 3):
            first = self._operand(one, one.op_count - 2, size)
            result = _OPERATORS[kind](first, self._operand(one, one.op_count - 1, size))
        elif kind in _SHIFTS:
            shifted = shift(_SHIFTS[kind], size, is_signed=kind == Mnemonic.SAR)
            result = shifted(self._operand(one, 0, size), self._operand(one, 1, 1))
        elif condition := self._condition(one.condition_code):
            result = self._conditional(one, condition, size)
        else:
            return False
        self._write(one, size, low(result, size))
        return True

    def _conditional(self, one: Instruction, condition: str, size: int) -> Known:
        """Return the result of a setcc or cmovcc.

        Args:
            condition: D expression that is 1 if the instruction's condition holds, otherwise 0.
            size: bytes of the result.
        """
        if one.op_count == 1:
            return SymbolicValue(f"(uint64_t){condition}", size=1)
        this, other = self._operand(one, 1, size), self._operand(one, 0, size)
        if this is None or other is None:
            return None
        return SymbolicValue(f"({condition} ? {this.text} : {other.text})")

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

    def _operand(self, one: Instruction, index: int, size: int) -> Known:
        """Return the value of an operand, given by its index, of `size` bytes, zero-extended."""
        kind = one.op_kind(index)
        if kind == OpKind.REGISTER:
            return self._register(one.op_register(index))
        if kind == OpKind.MEMORY:
            return self.load(self._address(one), size)
        return low(SymbolicValue("", signed(one.immediate(index))), size)

    def _register(self, register: Any) -> Known:
        full, size = RegisterExt.full_register(register), RegisterExt.size(register)
        if full not in self.registers or register in _HIGH_BYTES:
            return None
        return low(self.registers[full], size)

    def _address(self, one: Instruction) -> Known:
        base: Known = SymbolicValue("")
        if one.segment_prefix == Register.GS:
            base = SymbolicValue("regs[R_GSBASE]")
        elif one.segment_prefix != Register.NONE:
            return None
        if one.is_ip_rel_memory_operand:
            return added(base, SymbolicValue("", signed(one.ip_rel_memory_address)))
        address = added(base, SymbolicValue("", signed(one.memory_displacement)))
        if one.memory_base != Register.NONE:
            address = added(self._register(one.memory_base), address)
        if one.memory_index != Register.NONE:
            index, scale = self._register(one.memory_index), one.memory_index_scale
            if index is not None and scale > 1:
                index = SymbolicValue(f"({index.text} * {scale})")
            address = added(address, index)
        return address

    def _write(self, one: Instruction, size: int, value: Known) -> None:
        if one.op0_kind == OpKind.MEMORY:
            self.store(self._address(one), size, value)
            return
        full = RegisterExt.full_register(one.op0_register)
        if size < _HALF and value is not None:
            # The other bytes stay as they are.
            kept, mask = self.registers[full], (1 << 8 * size) - 1
            value = joined("|")(value, joined("&")(kept, SymbolicValue("", MASK & ~mask)))
            value = None if one.op0_register in _HIGH_BYTES else value
        self.registers[full] = value

    def _forget(self, one: Instruction) -> None:
        """Run an instruction whose result cannot be computed: the registers and memory that it
        writes become unknown."""
        info = self._info.info(one)
        for used in info.used_registers():
            if used.access in _WRITES:
                self.registers[RegisterExt.full_register(used.register)] = None
        if any(used.access in _WRITES for used in info.used_memory()):
            self.store(None, 0, None)


def call_arguments(code: Sequence[Instruction], count: int) -> Sequence[Argument] | None:
    """Return the first `count` arguments of the C call that follows `code`. They are right if
    control reaches the call without taking a conditional jump in the code.

    Return None if the code contains an unconditional jump, a call or a return.
    """
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
    """Return whether an instruction loads a pointer into a register by mov REGISTER, [rip +
    displacement].

    Args:
        guard: address of the memory that holds the pointer.
    """
    into = one.op0_kind == OpKind.REGISTER and one.is_ip_rel_memory_operand
    return one.mnemonic == Mnemonic.MOV and into and one.ip_rel_memory_address == guard


def _branches(one: Instruction) -> bool:
    flows = FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH
    return one.flow_control in flows


def _tests_null(code: Sequence[Instruction]) -> bool:
    """Return whether the code jumps if the register that its first instruction loads is 0: a test
    REGISTER, REGISTER, and after it a conditional jump that is taken on equality."""
    loaded = code[0].op0_register
    tests = [one.mnemonic == Mnemonic.TEST and one.op0_register == one.op1_register == loaded
             for one in code]  # fmt: skip
    jumps = [one.condition_code == ConditionCode.E and bool(one.near_branch_target) for one in code]
    return True in tests and True in jumps and tests.index(True) < jumps.index(True)
