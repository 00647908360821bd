"""Symbolic execution of AArch64 code.

Source: Arm Architecture Reference Manual (DDI 0487), C4.1 "A64 instruction set encoding"; AAPCS64,
6.1.1 (preserved registers) and 6.4.2 (arguments).

Tested by tests/isa/test_symbolic_runs.py.
"""

from __future__ import annotations

from kinst.core.instruction import Instruction
from kinst.core.symbolic_run import WORD, SymbolicValue, number
from kinst.core.words import MASK
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
from kinst.isa.arm64 import parse as p
from kinst.isa.arm64.encode import ZR

_HALF = 4
_SP, _LINK, _X17 = 31, 30, 17
_SLOTS = {n: ("R_SP" if n == _SP else f"R_X{n}", n) for n in range(32)}
_ARGUMENTS = tuple(range(8))
_PRESERVED = frozenset((*range(19, 30), _SP))
_LOGICAL = ("&", "|", "^", "&")  # by opc
_SHIFTS = ("<<", ">>", ">>")  # by the type of shift: LSL, LSR, ASR
_BRANCHES = frozenset((p.B, p.BL, p.B_COND, p.CB, p.TB, p.BR, p.BLR, p.RET, p.RET_NEAR))


def _field(word: int, bit: int, size: int) -> int:
    return word >> bit & (1 << size) - 1


def _signed(value: int, bits: int) -> int:
    return value - (value >> bits - 1 << bits)


class Arm64Run(SymbolicCode):
    """Symbolic execution of AArch64 code. Registers have the numbers of regs[]. In the methods'
    arguments, `w` is the encoding of the instruction to run."""

    def __init__(self) -> None:
        super().__init__(_SLOTS, _ARGUMENTS, _SP, _PRESERVED)

    def step(self, one: Instruction) -> None:
        w = int.from_bytes(one.code, "little")
        group = _field(w, 25, 4)  # C4.1, table "Main encoding table"
        if group >> 1 == 0b100:
            self._with_number(w, one)
        elif group & 0b0111 == 0b0101:
            self._with_registers(w)
        elif group & 0b0101 == 0b0100:
            self._memory(w)
        elif group >> 1 == 0b101:
            self._system(w, one)
        else:
            self.forget(self.registers, memory=True)

    def pointer_load(self, one: Instruction) -> Known:
        w = int.from_bytes(one.code, "little")
        is_load = w & 0xFFC0_0000 in (0xF940_0000, 0xF840_0000)  # ldr and ldur of 64 bits
        return self._place(w, WORD) if is_load else None

    def zero_test(self, one: Instruction) -> tuple[SymbolicValue, bool] | None:
        parsed = p.parse(one.code, one.address)
        if parsed.kind != p.CB or not parsed.word >> 31:
            return None
        value = self._read(parsed.register)
        return None if value is None else (value, not parsed.word & 1 << 24)

    def destination(self, one: Instruction) -> Known:
        parsed = p.parse(one.code, one.address)
        is_plain = parsed.kind == p.BLR and not parsed.authenticated
        return self._read(parsed.register) if is_plain else None

    def _read(self, register: int, size: int = WORD) -> Known:
        """Return the low bytes of a register; number 31 is the zero register."""
        return low(number(0) if register == ZR else self.registers[register], size)

    def _write(self, register: int, value: Known, size: int = WORD) -> None:
        """Write a register, zero-extended; number 31 is the zero register."""
        if register != ZR:
            self.registers[register] = low(value, size)

    def _with_number(self, w: int, one: Instruction) -> None:
        """Run a data-processing instruction with an immediate operand. It writes Rd alone."""
        size = WORD if w >> 31 else _HALF
        kind, rd, rn = _field(w, 23, 6), w & 31, _field(w, 5, 5)
        if kind >> 1 == 0b10000:  # adr, adrp
            self._write(rd, number(p.parse(one.code, one.address).target))
        elif kind == 0b100010:  # add, sub
            amount = _field(w, 10, 12) << (12 if w & 1 << 22 else 0)
            value = self.registers[rn]
            value = None if value is None else value.plus(-amount if w & 1 << 30 else amount)
            if w & 1 << 29:  # sets flags; register 31 is the zero register
                self._write(rd, value, size)
            else:
                self.registers[rd] = low(value, size)
        elif kind == 0b100101 and _field(w, 29, 2) != 1:
            self._move_wide(w, rd, size)
        elif kind == 0b100110 and _field(w, 29, 2) in (0, 2):
            self._write(rd, self._bits(w, rn, size), size)
        else:
            self._forget_written(rd)

    def _forget_written(self, rd: int) -> None:
        """Make the register with the number `rd` unknown. Number 31 is taken as the stack pointer
        here, since some of these instructions write the stack pointer."""
        self.registers[rd] = None

    def _move_wide(self, w: int, rd: int, size: int) -> None:
        """Run movn, movz or movk."""
        at, bits = 16 * _field(w, 21, 2), _field(w, 5, 16)
        kind = _field(w, 29, 2)
        if kind == 3:
            value = self._read(rd, size)
            if value is None or value.term:
                self._write(rd, None)
                return
            bits = value.number & MASK & ~(0xFFFF << at) | bits << at
        else:
            bits = bits << at if kind else ~(bits << at)
        self._write(rd, number(bits & MASK), size)

    def _bits(self, w: int, rn: int, size: int) -> Known:
        """Return the result of an sbfm or ubfm that is a shift, an extension or ubfx; None for all
        other forms.
        """
        right, last, top = _field(w, 16, 6), _field(w, 10, 6), 8 * size - 1
        value, is_signed = self._read(rn, size), not _field(w, 29, 2)
        if last == top:  # asr, lsr
            return shift(">>", size, is_signed=is_signed)(value, number(right))
        if not right and last + 1 in (8, 16, 32):  # sxtb, ..., uxth
            narrow = (last + 1) // 8
            return extended(low(value, narrow), narrow) if is_signed else low(value, narrow)
        if not is_signed and right == last + 1:  # lsl
            return shift("<<", size, is_signed=False)(value, number(top - last))
        if not is_signed and right <= last:  # ubfx
            part = shift(">>", size, is_signed=False)(value, number(right))
            return joined("&")(part, number((1 << last - right + 1) - 1))
        return None

    def _with_registers(self, w: int) -> None:
        """Run a data-processing instruction whose operands are registers. It writes Rd alone."""
        size = WORD if w >> 31 else _HALF
        kind, rd, rn, rm = _field(w, 24, 5), w & 31, _field(w, 5, 5), _field(w, 16, 5)
        few, by = _field(w, 10, 6), _field(w, 22, 2)
        if kind == 0b01010 and by < len(_SHIFTS):  # and, orr, eor, ands
            second = self._shifted(rm, by, few, size)
            if w & 1 << 21:
                second = joined("^")(second, number(MASK))
            opc, first = _field(w, 29, 2), self._read(rn, size)
            if opc == 1 and rn == ZR:
                self._write(rd, second, size)  # mov, mvn
            else:
                self._write(rd, joined(_LOGICAL[opc])(first, second), size)
        elif kind == 0b01011 and by < len(_SHIFTS) and not w & 1 << 21:
            join = difference if w & 1 << 30 else added
            second = self._shifted(rm, by, few, size)
            self._write(rd, join(self._read(rn, size), second), size)
        elif kind == 0b01011 and not by and w & 1 << 21:
            second = self._extended(rm, _field(w, 13, 3), _field(w, 10, 3))
            join = difference if w & 1 << 30 else added
            value = join(self.registers[rn], second)
            if w & 1 << 29:
                self._write(rd, value, size)
            else:
                self.registers[rd] = low(value, size)
        else:
            self._forget_written(rd)

    def _shifted(self, register: int, by: int, few: int, size: int) -> Known:
        value = self._read(register, size)
        if not few:
            return value
        return low(shift(_SHIFTS[by], size, is_signed=by == 2)(value, number(few)), size)

    def _extended(self, register: int, option: int, left: int) -> Known:
        """Return a register as an extended operand (uxtb to sxtx), shifted to the left."""
        narrow = 1 << (option & 3)
        value = self._read(register, narrow)
        value = extended(value, narrow) if option & 4 else value
        return shift("<<", WORD, is_signed=False)(value, number(left)) if left else value

    def _memory(self, w: int) -> None:
        kind, is_vector = _field(w, 27, 3), bool(w & 1 << 26)
        if kind == 0b101 and not is_vector and _field(w, 30, 2) != 3:
            self._pair(w)
        elif kind == 0b111 and not is_vector and self._is_single(w):
            self._single(w)
        elif kind == 0b011 and not _field(w, 24, 2) and not is_vector:
            self.registers[w & 31] = None  # ldr (literal)
        elif kind == 0b111 or (kind == 0b101 and is_vector):
            # Atomics write Rt; ldraa, and vector accesses with an index, the base register.
            self.forget((w & 31, _field(w, 5, 5)), memory=True)
        elif kind == 0b001 and not is_vector and not w & 1 << 24:
            # Exclusive and ordered accesses, cas and casp: Rs, Rt and Rt2, or pairs.
            status = _field(w, 16, 5)
            pairs = (w & 31, (w & 31) + 1, _field(w, 10, 5), status, status + 1)
            self.forget((n & 31 for n in pairs), memory=True)
        else:
            self.forget(self.registers, memory=True)

    @staticmethod
    def _is_single(w: int) -> bool:
        """Return whether the address of a load or store of one register can be computed: base and
        number, or base and index register. Atomic and unprivileged accesses are left out."""
        if w & 1 << 24:
            return True
        form = _field(w, 10, 2)
        return form == 2 if w & 1 << 21 else form != 2  # not the unprivileged ones, nor atomics

    def _place(self, w: int, size: int) -> Known:
        """Return the address that a load or store of one register uses."""
        base = self.registers[_field(w, 5, 5)]
        if base is None:
            return None
        if w & 1 << 24:
            return base.plus(_field(w, 10, 12) * size)
        if w & 1 << 21:
            left = size.bit_length() - 1 if w & 1 << 12 else 0
            return added(base, self._extended(_field(w, 16, 5), _field(w, 13, 3), left))
        return base if _field(w, 10, 2) == 1 else base.plus(_signed(_field(w, 12, 9), 9))

    def _single(self, w: int) -> None:
        """Run a load or store of one register."""
        rt, rn, opc = w & 31, _field(w, 5, 5), _field(w, 22, 2)
        size = 1 << _field(w, 30, 2)
        place = self._place(w, size)
        if opc == 2 and size == WORD:
            return  # prfm
        loaded = self.load(place, size) if opc else None
        if not opc:
            self.store(place, size, self._read(rt, size))
        if not w & (1 << 24 | 1 << 21) and w & 1 << 10:  # the base register gets the address
            base = self.registers[rn]
            step = _signed(_field(w, 12, 9), 9)
            self.registers[rn] = None if base is None else base.plus(step)
        if opc > 1:
            self._write(rt, extended(loaded, size), WORD if opc == 2 else _HALF)
        elif opc:
            self._write(rt, loaded)

    def _pair(self, w: int) -> None:
        """Run a load or store of two registers."""
        rn, opc, form = _field(w, 5, 5), _field(w, 30, 2), _field(w, 23, 3)
        size, is_load = WORD if opc == 2 else _HALF, bool(w & 1 << 22)
        if opc == 1 and not is_load:  # stgp
            self.forget(self.registers, memory=True)
            return
        base, step = self.registers[rn], _signed(_field(w, 15, 7), 7) * size
        after = None if base is None else base.plus(step)
        first = base if form == 1 else after
        second = None if first is None else first.plus(size)
        for register, place in ((w & 31, first), (_field(w, 10, 5), second)):
            if is_load:
                value = self.load(place, size)
                self._write(register, extended(value, size) if opc == 1 else value)
            else:
                self.store(place, size, self._read(register, size))
        if form & 1:
            self.registers[rn] = after

    def _system(self, w: int, one: Instruction) -> None:
        """Run a branch, which changes nothing here, or a system instruction."""
        if p.parse(one.code, one.address).kind in _BRANCHES:
            return
        if w & 0xFFFF_F01F == 0xD503_201F:  # hints; some sign an address in x30 or x17
            self.forget((_LINK, _X17))
        elif w & 0xFFE0_0000 == 0xD520_0000:
            self.registers[w & 31] = None  # mrs, sysl
        elif w & 0xFFE0_0000 != 0xD500_0000:  # barriers, sys and msr write no register
            self.forget(self.registers, memory=True)
