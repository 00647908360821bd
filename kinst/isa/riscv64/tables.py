"""Search for possible addresses of jump tables (of switch statements) in riscv64 code: every
address that a pair of instructions makes.

Compilers make the address of a table by auipc (lui, in programs at low addresses) and addi, not
always side by side. GCC's tables for switch have 32-bit distances from the table itself (riscv.md,
casesi: CASE_VECTOR_PC_RELATIVE); arrays of labels have whole addresses.

Tested by tests/isa/riscv64/test_words.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from kinst.core.instruction import Instruction, JumpTable
from kinst.core.words import MASK
from kinst.isa.riscv64.encode import signed

_LOW = 1 << 31  # programs below this address may have tables of 32-bit addresses
_NEAR = 8  # instructions from the upper part of an address to its lower part
_AUIPC, _LUI, _ADDI = 0x17, 0x37, 0x13


def jump_tables(instructions: Sequence[Instruction]) -> list[JumpTable]:
    addresses = dict.fromkeys(_addresses(instructions))
    tables = [table for a in addresses for table in (JumpTable(a, 4, a), JumpTable(a, 8))]
    return tables + [JumpTable(a, 4) for a in addresses if a < _LOW]


def _addresses(instructions: Sequence[Instruction]) -> Iterator[int]:
    for at, upper in enumerate(instructions):
        high = _high(upper)
        if high is None:
            continue
        register = int.from_bytes(upper.code, "little") >> 7 & 31
        for lower in islice(instructions, at + 1, at + 1 + _NEAR):
            added = _added(lower.code, register)
            if added is not None:
                yield high + added & MASK
                break


def _high(instruction: Instruction) -> int | None:
    """Return the upper part of the address that an auipc, lui or c.lui makes; None for other
    instructions."""
    word = int.from_bytes(instruction.code, "little")
    if word & 0x7F in (_AUIPC, _LUI):
        start = instruction.address if word & 0x7F == _AUIPC else 0
        return start + signed(word & 0xFFFF_F000, 32)
    if word & 0xE003 == 0x6001:  # two bytes, by its lowest bits
        return signed((word >> 7 & 0x20 | word >> 2 & 0x1F) << 12, 18)
    return None


def _added(code: bytes, register: int) -> int | None:
    """Return the number that an addi or c.addi adds to this register; None if the instruction is
    not an addi or adds to another register."""
    word = int.from_bytes(code, "little")
    if word & 0x707F == _ADDI and word >> 15 & 31 == register:
        return signed(word >> 20, 12)
    if word & 0xE003 == 1 and word >> 7 & 31 == register:
        return signed(word >> 7 & 0x20 | word >> 2 & 0x1F, 6)
    return None
