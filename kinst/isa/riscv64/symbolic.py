"""Symbolic execution of riscv64 code.

Source: RISC-V unprivileged specification, "Base Instruction Formats", "RVC Instruction Set
Listings", "RV32/64G Instruction Set Listings"; RISC-V psABI, "Integer Register Convention".

Tested by tests/isa/test_symbolic_runs.py.
"""

from __future__ import annotations

from kinst.core.dataclass import dataclass
from kinst.core.instruction import Instruction
from kinst.core.symbolic_run import WORD, SymbolicValue, number
from kinst.isa._symbolic import (
    Known,
    SymbolicCode,
    added,
    difference,
    extended,
    joined,
    less,
    low,
    shift,
)
from kinst.isa.riscv64 import encodings
from kinst.isa.riscv64 import parse as p
from kinst.isa.riscv64.encode import RA, X0, signed
from kinst.isa.riscv64.registers import NAMES, NUMBER

_SP, _HALF = NUMBER["sp"], 4
_SLOTS = {n: (f"R_{name.upper()}", n) for n, name in enumerate(NAMES) if n}
_ARGUMENTS = tuple(NUMBER[f"a{n}"] for n in range(8))
_PRESERVED = frozenset((_SP, NUMBER["gp"], NUMBER["tp"], *(NUMBER[f"s{n}"] for n in range(12))))
_JOINS = {"add": added, "sub": difference, "xor": joined("^"), "or": joined("|"),
          "and": joined("&"), "slt": less(is_signed=True),
          "sltu": less(is_signed=False)}  # fmt: skip
_SHIFTS = {"sll": ("<<", False), "srl": (">>", False), "sra": (">>", True)}
_BY_FUNCT3 = ("add", "sll", "slt", "sltu", "xor", "srl", "or", "and")
_ADD_IMMEDIATE, _ADD_IMMEDIATE_W, _ADD, _ADD_W = 0x13, 0x1B, 0x33, 0x3B
_LOAD, _STORE, _LUI = 0x03, 0x23, 0x37


@dataclass(frozen=True, slots=True)
class RiscvOperation:
    """An instruction that writes a computed or loaded value to a register, or stores a register.

    Attributes:
        name: an operator ("add", "sll", ...), "load", "store" or "lui".
        rd: number of the register that is written; x0 for a store.
        first: number of the register that is the first operand, or the base of an address.
        second: number of the register that is the second operand or, for a store, is stored. None
            if no second register is read.
        imm: the number in the instruction; for a load or store, the distance from the base.
        size: bytes of the operands, or of the memory that is loaded or stored.
        is_signed: whether the value from memory is sign-extended.
    """

    name: str
    rd: int
    first: int
    second: int | None
    imm: int = 0
    size: int = WORD
    is_signed: bool = False


def _field(word: int, bit: int, size: int) -> int:
    return word >> bit & (1 << size) - 1


def _gathered(word: int, *places: tuple[int, int, int]) -> int:
    """Return a number made of fields of a word.

    Args:
        places: for each field, (lowest bit in the word, number of bits, lowest bit in the result).
    """
    return sum(_field(word, bit, size) << to for bit, size, to in places)


def _full(one: p.Riscv64Instruction) -> RiscvOperation | None:
    word, funct3, funct7 = one.word, one.funct3, one.word >> 25
    opcode, imm = word & 0x7F, signed(word >> 20, 12)
    narrow = opcode in (_ADD_IMMEDIATE_W, _ADD_W)
    size, name = _HALF if narrow else WORD, _BY_FUNCT3[funct3]
    if opcode == _LUI:
        return RiscvOperation("lui", one.rd, X0, None, signed(word & 0xFFFF_F000, 32))
    if opcode == _LOAD and funct3 != 7:
        return RiscvOperation("load", one.rd, one.rs1, None, imm, 1 << (funct3 & 3), funct3 < 4)
    if opcode == _STORE and funct3 < 4:
        imm = signed(funct7 << 5 | _field(word, 7, 5), 12)
        return RiscvOperation("store", X0, one.rs1, one.rs2, imm, 1 << funct3)
    if narrow and name not in ("add", "sll", "srl"):
        return None
    if opcode in (_ADD_IMMEDIATE, _ADD_IMMEDIATE_W) and name:
        if name in ("sll", "srl"):
            high, few = funct7 if narrow else funct7 & ~1, _field(word, 20, 5 if narrow else 6)
            if high not in (0, 0x20) or (high and name == "sll"):
                return None
            return RiscvOperation("sra" if high else name, one.rd, one.rs1, None, few, size)
        return RiscvOperation(name, one.rd, one.rs1, None, imm, size)
    if opcode in (_ADD, _ADD_W) and name:
        name = {"add": "sub", "srl": "sra"}.get(name, "") if funct7 == 0x20 else name
        if funct7 in (0, 0x20) and name:
            return RiscvOperation(name, one.rd, one.rs1, one.rs2, 0, size)
    return None


def _compressed(w: int) -> RiscvOperation | None:
    quadrant, funct3 = w & 3, w >> 13
    rd, rs2 = _field(w, 7, 5), _field(w, 2, 5)
    high, low_ = 8 + _field(w, 7, 3), 8 + _field(w, 2, 3)
    imm = signed(_gathered(w, (2, 5, 0), (12, 1, 5)), 6)
    words = _gathered(w, (10, 3, 3), (6, 1, 2), (5, 1, 6))
    doubles = _gathered(w, (10, 3, 3), (5, 2, 6))
    if quadrant == 0:
        if funct3 == 0:
            return RiscvOperation("add", low_, _SP, None, _gathered(
                w, (11, 2, 4), (7, 4, 6), (6, 1, 2), (5, 1, 3)))  # fmt: skip
        return {
            2: RiscvOperation("load", low_, high, None, words, _HALF, True),
            3: RiscvOperation("load", low_, high, None, doubles),
            6: RiscvOperation("store", X0, high, low_, words, _HALF),
            7: RiscvOperation("store", X0, high, low_, doubles),
        }.get(funct3)
    if quadrant == 1:
        if funct3 == 3 and rd == _SP:
            return RiscvOperation("add", _SP, _SP, None, signed(_gathered(
                w, (12, 1, 9), (6, 1, 4), (5, 1, 6), (3, 2, 7), (2, 1, 5)), 10))  # fmt: skip
        return {
            0: RiscvOperation("add", rd, rd, None, imm),
            1: RiscvOperation("add", rd, rd, None, imm, _HALF),
            2: RiscvOperation("add", rd, X0, None, imm),
            3: RiscvOperation("lui", rd, X0, None, imm << 12) if imm else None,
            4: _compressed_operator(w, high, low_, imm),
        }.get(funct3)
    if funct3 == 4:
        if not rs2:
            return None
        return RiscvOperation("add", rd, rd if w & 1 << 12 else X0, rs2)
    return {
        0: RiscvOperation("sll", rd, rd, None, imm & 63),
        2: RiscvOperation(
            "load", rd, _SP, None, _gathered(w, (4, 3, 2), (12, 1, 5), (2, 2, 6)), _HALF, True
        ),
        3: RiscvOperation("load", rd, _SP, None, _gathered(w, (5, 2, 3), (12, 1, 5), (2, 3, 6))),
        6: RiscvOperation("store", X0, _SP, rs2, _gathered(w, (9, 4, 2), (7, 2, 6)), _HALF),
        7: RiscvOperation("store", X0, _SP, rs2, _gathered(w, (10, 3, 3), (7, 3, 6))),
    }.get(funct3)


def _compressed_operator(w: int, high: int, low_: int, imm: int) -> RiscvOperation | None:
    kind, other = _field(w, 10, 2), _field(w, 5, 2)
    if kind < 3:
        name = ("srl", "sra", "and")[kind]
        return RiscvOperation(name, high, high, None, imm if kind == 2 else imm & 63)
    if not w & 1 << 12:
        return RiscvOperation(("sub", "xor", "or", "and")[other], high, high, low_)
    if other < 2:
        return RiscvOperation(("sub", "add")[other], high, high, low_, 0, _HALF)
    return None


def operation(one: p.Riscv64Instruction) -> RiscvOperation | None:
    """Return what an instruction does; None if this module does not compute the instruction's
    result.
    """
    if one.kind != p.COPY:
        return None
    return _compressed(one.word) if one.size == 2 else _full(one)


class Riscv64Run(SymbolicCode):
    """Symbolic execution of riscv64 code. The number of the register xN is N."""

    def __init__(self) -> None:
        super().__init__(_SLOTS, _ARGUMENTS, _SP, _PRESERVED)

    def step(self, one: Instruction) -> None:
        parsed = p.parse(one.code)
        if parsed is None:
            self.forget(self.registers, memory=True)
        elif parsed.kind == p.AUIPC:
            self._write(parsed.rd, number(one.address + parsed.imm))
        elif (done := operation(parsed)) is not None:
            self._run(done)
        elif parsed.kind not in (p.JAL, p.JALR, p.BRANCH, p.FENCE):
            self._forget(parsed)

    def pointer_load(self, one: Instruction) -> Known:
        parsed = p.parse(one.code)
        done = operation(parsed) if parsed is not None else None
        if done is None or done.name != "load" or done.size != WORD or done.rd == X0:
            return None
        return self._place(done)

    def zero_test(self, one: Instruction) -> tuple[SymbolicValue, bool] | None:
        parsed = p.parse(one.code)
        if parsed is None or parsed.kind != p.BRANCH or parsed.funct3 > 1:  # beq, bne
            return None
        others = {parsed.rs1, parsed.rs2} - {X0}
        if len(others) != 1 or parsed.rs1 == parsed.rs2:
            return None
        value = self._read(others.pop())
        return None if value is None else (value, not parsed.funct3)

    def destination(self, one: Instruction) -> Known:
        parsed = p.parse(one.code)
        if parsed is None or parsed.kind != p.JALR or parsed.rd != RA or parsed.imm:
            return None
        return self._read(parsed.rs1)

    def _read(self, register: int) -> Known:
        return self.registers[register] if register else number(0)

    def _write(self, register: int, value: Known) -> None:
        if register:
            self.registers[register] = value

    def _place(self, done: RiscvOperation) -> Known:
        base = self._read(done.first)
        return None if base is None else base.plus(done.imm)

    def _run(self, done: RiscvOperation) -> None:
        first, size = self._read(done.first), done.size
        second = number(done.imm) if done.second is None else self._read(done.second)
        if done.name == "store":
            self.store(self._place(done), size, low(second, size))
            return
        if done.name == "load":
            value = self.load(self._place(done), size)
            self._write(done.rd, extended(value, size) if done.is_signed else value)
            return
        if done.name == "lui":
            self._write(done.rd, number(done.imm))
            return
        if done.name in _SHIFTS:
            operator, is_signed = _SHIFTS[done.name]
            shifted = shift(operator, size, is_signed=is_signed)
            value = low(shifted(low(first, size), second), size)
        elif done.name == "or" and done.first == X0:
            value = second
        else:
            value = _JOINS[done.name](first, second)
        self._write(done.rd, value if size == WORD else extended(low(value, size), size))

    def _forget(self, parsed: p.Riscv64Instruction) -> None:
        """Run an instruction whose result is not computed: the registers that it writes become
        unknown, and all memory if it may write memory."""
        known = encodings.find(parsed.word, parsed.size)
        if known is None:
            self.forget(self.registers, memory=True)
            return
        _, writes = known.effect(parsed.word)
        writes_memory = parsed.kind != p.COPY or parsed.word & 0x7F in (0x27, 0x57) or (
            parsed.size == 2 and parsed.word & 3 != 1
        )  # fmt: skip
        self.forget((n for n in _SLOTS if writes >> n & 1), memory=writes_memory)
