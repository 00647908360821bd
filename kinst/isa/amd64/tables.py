"""Search for possible addresses of jump tables (of switch statements) in amd64 code.

Position-independent code makes the address of a table by lea, relative to rip. The entries of such
a table are 32-bit distances from the table. Other code has the table's address as the displacement
of a memory operand, with an index scaled by 8; the entries are whole addresses (GCC's and LLVM's
i386 back ends: ASM_OUTPUT_ADDR_DIFF_ELT and ASM_OUTPUT_ADDR_VEC_ELT; SDM volume 2, section 2.1.5
for the operand). Kernels with retpolines are built without jump tables for switch, and have only
arrays of labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kinst.core.columns import NO_COLUMNS, U64, WIDTH, Bools, Columns
from kinst.core.instruction import Instruction, JumpTable
from kinst.core.words import MASK
from kinst.isa.amd64.parse import RSP, Amd64Instruction, parse

_LEA = 0x8D
_LEA_SIZE = 6  # bytes from the opcode on: opcode, ModRM, distance
_NO_BASE = 5  # of a SIB byte, with mod 0: a 32-bit displacement in its place


def jump_tables(instructions: Sequence[Instruction]) -> list[JumpTable]:
    return list(dict.fromkeys(_tables(instructions)))


def _tables(instructions: Sequence[Instruction]) -> Iterator[JumpTable]:
    for instruction in instructions:
        parsed = parse(instruction.code)
        if parsed is None or parsed.modrm_at < 0:
            continue
        at = parsed.modrm_at + 1
        if parsed.rip_relative and parsed.opcode == _LEA:
            table = (
                instruction.end
                + int.from_bytes(instruction.code[at : at + 4], "little", signed=True)
                & MASK
            )
            yield JumpTable(table, 4, table)
            yield JumpTable(table, 8)
        elif _scaled_by_eight(parsed):
            table = int.from_bytes(instruction.code[at + 1 : at + 5], "little", signed=True) & MASK
            yield JumpTable(table, 8)


def _scaled_by_eight(parsed: Amd64Instruction) -> bool:
    """Return whether an instruction's memory operand is a displacement plus an index times 8,
    without a base."""
    if parsed.mod != 0 or parsed.rm != RSP:
        return False
    sib = parsed.code[parsed.modrm_at + 1]
    return sib >> 6 == 3 and sib & 7 == _NO_BASE


def table_starts(code: bytes, address: int) -> U64:
    """Return the addresses that lea makes relative to rip (Isa.table_starts)."""
    text = np.frombuffer(code, np.uint8)
    if len(text) < _LEA_SIZE:
        return NO_COLUMNS.address
    at = np.flatnonzero((text[: 1 - _LEA_SIZE] == _LEA) & (text[1 : 2 - _LEA_SIZE] & 0xC7 == 0x05))
    distance = np.zeros(len(at), np.int64)
    for k in range(4):
        distance |= text[at + 2 + k].astype(np.int64) << 8 * k
    sign = 1 << 31
    starts: U64 = np.unique((at + address + _LEA_SIZE + (distance ^ sign) - sign).view(np.uint64))
    return starts


def may_make_tables(columns: Columns) -> Bools:
    """Return a mask of the instructions that jump_tables() must look at. Two neighbouring bytes in
    them look like a lea relative to rip, or like an operand with an index times 8 and no base."""
    code = columns.code
    lea = (code[:, :-1] == _LEA) & (code[:, 1:] & 0xC7 == 0x05)
    scaled = (code[:, :-1] & 0xC7 == RSP) & (code[:, 1:] & 0xC7 == 0xC0 | _NO_BASE)
    inside = np.arange(1, WIDTH) < columns.size[:, None]
    candidates: Bools = ((lea | scaled) & inside).any(axis=1)
    return candidates
