"""Decoding of riscv64 code: the length of an instruction is in its lowest bits, and capstone has
its text.

An instruction that capstone does not know (Zbb, Zicbom, Svinval: alternatives of the kernel use
them) is shown as its bits, as GNU as takes them (.insn).

Tested by tests/isa/test_isa_contract.py and tests/isa/test_plain_text.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from capstone import CS_ARCH_RISCV, CS_MODE_RISCV64, CS_MODE_RISCVC, Cs

from kinst.core.instruction import Instruction
from kinst.isa._plain import PlainDisassembly
from kinst.isa.riscv64 import encodings
from kinst.isa.riscv64.encode import SP
from kinst.isa.riscv64.parse import size_at

_DISASSEMBLER = Cs(CS_ARCH_RISCV, CS_MODE_RISCV64 | CS_MODE_RISCVC)
_CHUNK = 1 << 16  # capstone keeps all that it decoded in one call in memory
_LONGEST = 4

PLAIN = PlainDisassembly(CS_ARCH_RISCV, CS_MODE_RISCV64 | CS_MODE_RISCVC, 2)


def decode(code: bytes, address: int) -> Iterator[Instruction]:
    """Yield the instructions of code in order; stop before an instruction that is longer than 32
    bits or cut off."""
    at = 0
    while at < len(code):
        start, whole = at, at + _CHUNK >= len(code)
        for where, size, mnemonic, operands in _DISASSEMBLER.disasm_lite(
            code[at : at + _CHUNK], address + at
        ):
            offset = where - address
            if size != size_at(code, offset):
                return
            text = f"{mnemonic} {operands}" if operands else mnemonic
            yield Instruction(where, code[offset : offset + size], text)
            at = offset + size
        size = size_at(code, at)
        if not size:
            return
        # An instruction that the chunk may have cut short begins the next chunk.
        if whole or at + _LONGEST <= start + _CHUNK:
            yield _unnamed(code[at : at + size], address + at)
            at += size


def unskippable(code: bytes, address: int) -> str:
    encoding = encodings.find(word := int.from_bytes(code, "little"), len(code))
    if encoding is None:
        return "its bytes are not one known instruction"
    return "it changes the stack pointer" if encoding.effect(word)[1] >> SP & 1 else ""


def sizes(code: bytes) -> npt.NDArray[np.int64]:
    """Return the size in bytes of each instruction that decode() would yield, in order, from the
    instructions' lowest bits (parse.size_at())."""
    halves = np.frombuffer(code, "<u2", len(code) // 2)
    long = np.where(halves & 0x1F != 0x1F, 2, 0)
    steps = np.where(halves & 3 != 3, 1, long)  # of two bytes
    step_at, lengths, at, end = steps.tolist(), list[int](), 0, len(halves)
    while at < end and (step := step_at[at]) and at + step <= end:
        lengths.append(2 * step)
        at += step
    return np.array(lengths, np.int64)


def _unnamed(code: bytes, address: int) -> Instruction:
    word = int.from_bytes(code, "little")
    return Instruction(address, code, f".insn {len(code)}, {word:#x}")
