"""Operands that relocation and control flow need of one riscv64 instruction: its kind, registers
and immediate.

Source: RISC-V unprivileged specification, "Base Instruction Formats", "RVC Instruction Set
Listings", "RV32/64G Instruction Set Listings" (the map of major opcodes).

Tested by tests/isa/test_parts.py.
"""

from __future__ import annotations

from functools import lru_cache

from kinst.core.dataclass import dataclass
from kinst.isa.riscv64 import encodings
from kinst.isa.riscv64.encode import RA, X0, signed

# Kinds of instructions.
COPY = "copy"  # its effect does not depend on its address
AUIPC, JAL, JALR, BRANCH = "auipc", "jal", "jalr", "branch"
AMO, FENCE, SYSTEM, EBREAK = "amo", "fence", "system", "ebreak"
UNIMP = "unimp"  # c.unimp: two zero bytes, which are defined to be illegal
UNKNOWN = "unknown"  # not in encodings.py: reserved, a vendor's own, or newer than kinst

_BY_OPCODE = {
    0x03: COPY, 0x07: COPY, 0x0F: FENCE, 0x13: COPY, 0x17: AUIPC, 0x1B: COPY, 0x23: COPY,
    0x27: COPY, 0x2F: AMO, 0x33: COPY, 0x37: COPY, 0x3B: COPY, 0x43: COPY, 0x47: COPY,
    0x4B: COPY, 0x4F: COPY, 0x53: COPY, 0x57: COPY, 0x63: BRANCH, 0x67: JALR, 0x6F: JAL,
    0x73: SYSTEM, 0x77: COPY,
}  # fmt: skip

LR, SC = 2, 3  # funct5 of AMO
_EBREAK = 0x0010_0073


@dataclass(frozen=True, slots=True)
class Riscv64Instruction:
    """One riscv64 instruction taken apart.

    Attributes:
        kind: COPY, AUIPC, ..., UNKNOWN.
        word: the encoding, of 16 bits for a compressed instruction.
        size: bytes.
        imm: the number in the instruction, in bytes. JAL and BRANCH jump to their own address +
            imm, JALR to rs1 + imm. AUIPC sets rd to its own address + imm.
    """

    kind: str
    word: int
    size: int
    rd: int = 0
    rs1: int = 0
    rs2: int = 0
    imm: int = 0

    @property
    def funct3(self) -> int:
        """The comparison of a branch, or the operation of SYSTEM; for a compressed branch 0
        (c.beqz) or 1 (c.bnez)."""
        if self.size == 2:
            return self.word >> 13 & 1
        return self.word >> 12 & 7


def size_at(code: bytes, at: int) -> int:
    """Return the size in bytes of the instruction at an offset of code, by its lowest bits. Return
    0 if the instruction is cut short or longer than 32 bits: the specification may still change how
    longer instructions are marked."""
    low = int.from_bytes(code[at : at + 2], "little")
    size = 2 if low & 3 != 3 else 4 if low & 0x1F != 0x1F else 0
    return size if at + size <= len(code) else 0


@lru_cache(maxsize=1 << 15)
def parse(code: bytes) -> Riscv64Instruction | None:
    """Return the kind and operands of the one instruction that `code` consists of; None if `code`
    is not exactly one instruction."""
    if not code or size_at(code, 0) != len(code):
        return None
    word = int.from_bytes(code, "little")
    if encodings.find(word, len(code)) is None:
        return Riscv64Instruction(UNKNOWN, word, len(code))
    return _compressed(word) if len(code) == 2 else _full(word)


def _full(word: int) -> Riscv64Instruction:
    kind = _BY_OPCODE[word & 0x7F]
    rd, rs1, rs2 = word >> 7 & 31, word >> 15 & 31, word >> 20 & 31
    imm = 0
    if kind == AUIPC:
        imm = signed(word & 0xFFFF_F000, 32)
    elif kind == JAL:
        imm = signed(
            (word >> 31 & 1) << 20
            | (word >> 12 & 0xFF) << 12
            | (word >> 20 & 1) << 11
            | (word >> 21 & 0x3FF) << 1,
            21,
        )
    elif kind == JALR:
        imm = signed(word >> 20, 12)
    elif kind == BRANCH:
        imm = signed(
            (word >> 31 & 1) << 12
            | (word >> 7 & 1) << 11
            | (word >> 25 & 0x3F) << 5
            | (word >> 8 & 0xF) << 1,
            13,
        )
    elif word == _EBREAK:
        kind = EBREAK
    return Riscv64Instruction(kind, word, 4, rd, rs1, rs2, imm)


def _gather(word: int, bit_moves: tuple[tuple[int, int], ...]) -> int:
    """Return a number made of bits of a word: for each (from_, to), the word's bit from_ becomes
    bit `to`."""
    return sum((word >> from_ & 1) << to for from_, to in bit_moves)


# Bits of displacements, (bit of the word, bit of the displacement): of c.j, and of c.beqz and
# c.bnez.
_CJ = ((12, 11), (11, 4), (10, 9), (9, 8), (8, 10), (7, 6), (6, 7), (5, 3), (4, 2), (3, 1), (2, 5))
_CB = ((12, 8), (11, 4), (10, 3), (6, 7), (5, 6), (4, 2), (3, 1), (2, 5))


def _compressed(word: int) -> Riscv64Instruction:
    quadrant, funct3 = word & 3, word >> 13
    rs1, rs2 = word >> 7 & 31, word >> 2 & 31
    if quadrant == 1:
        if funct3 == 5:
            return Riscv64Instruction(JAL, word, 2, X0, imm=signed(_gather(word, _CJ), 12))
        if funct3 in (6, 7):
            imm = signed(_gather(word, _CB), 9)
            return Riscv64Instruction(BRANCH, word, 2, rs1=8 + (word >> 7 & 7), imm=imm)
    elif quadrant == 2 and funct3 == 4 and not rs2:
        link = word >> 12 & 1
        if rs1:
            return Riscv64Instruction(JALR, word, 2, RA if link else X0, rs1)
        return Riscv64Instruction(EBREAK, word, 2)
    return Riscv64Instruction(COPY if word else UNIMP, word, 2)
