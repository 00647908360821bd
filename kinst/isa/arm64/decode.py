"""Decoding of arm64 code by capstone, without its slow operand details.

Tested by tests/isa/test_isa_contract.py and tests/isa/test_plain_text.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from capstone import CS_ARCH_ARM64, CS_MODE_ARM, Cs

from kinst.core.instruction import Instruction
from kinst.isa._plain import PlainDisassembly
from kinst.isa.arm64.encode import SIZE

_DISASSEMBLER = Cs(CS_ARCH_ARM64, CS_MODE_ARM)
_CHUNK = 1 << 16  # capstone keeps all that it decoded in one call in memory
UNKNOWN = ".inst"  # start of the text of a word that does not decode

# First operand sp (add sp, sp, #16), or [sp, #16]! or [sp], #16; and msr spsel, which chooses sp.
_MOVES_STACK = re.compile(r"^(?!cmp|cmn)\S+ w?sp\b|\[sp\b[^\]]*\]!|\[sp\],|^msr spsel")

PLAIN = PlainDisassembly(CS_ARCH_ARM64, CS_MODE_ARM, SIZE)


def decode(code: bytes, address: int) -> Iterator[Instruction]:
    """Yield an instruction for each whole word of code, in order. A word that capstone does not
    know gets the text `.inst WORD`: all instructions have one size, so decoding goes on with the
    next word."""
    at, whole = 0, len(code) & -SIZE
    while at < whole:
        end = min(at + _CHUNK, whole)
        for where, size, mnemonic, operands in _DISASSEMBLER.disasm_lite(
            code[at:end], address + at
        ):
            at = where - address + size
            text = f"{mnemonic} {operands}" if operands else mnemonic
            yield Instruction(where, code[at - size : at], text)
        if at < end:
            unknown = code[at : at + SIZE]
            text = f"{UNKNOWN} {int.from_bytes(unknown, 'little'):#010x}"
            yield Instruction(address + at, unknown, text)
            at += SIZE


def unskippable(code: bytes, address: int) -> str:
    """Return, in words for the user, why D's skip() may not leave out an instruction: the
    instruction changes the stack pointer, or is not known. Return "" if skip() may leave it out.

    The stack pointer changes if the instruction's text has sp as the first operand, or as the base
    of an address that is written back. It also changes in msr spsel.
    """
    text = text_of(code, address)
    if not text:
        return "its bytes are not one known instruction"
    return "it changes the stack pointer" if _MOVES_STACK.search(text) else ""


def sizes(code: bytes) -> npt.NDArray[np.int64]:
    """Return the size in bytes of each instruction that decode() would yield, in order."""
    return np.full(len(code) // SIZE, SIZE, np.int64)


def text_of(code: bytes, address: int) -> str:
    """Return the text of the one instruction `code` at `address`; "" if it does not decode."""
    for _, _, mnemonic, operands in _DISASSEMBLER.disasm_lite(code, address, 1):
        return f"{mnemonic} {operands}" if operands else mnemonic
    return ""
