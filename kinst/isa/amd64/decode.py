"""Decoding of amd64 code: texts of instructions, padding, and why bytes do not decode.

Tested by tests/isa/test_isa_contract.py and tests/isa/test_plain_text.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from iced_x86 import InstructionInfoFactory, OpAccess, Register, RegisterExt

from kinst.core.instruction import Instruction
from kinst.isa import _x86
from kinst.isa._plain import PlainDisassembly
from kinst.isa._x86_length import LONGEST, length_at

PLAIN = PlainDisassembly(module=_x86.__name__)
UNKNOWN = "its bytes are not one known instruction"
_PADDING = _x86.numbers("int3 nop")
_WRITES = {OpAccess.WRITE, OpAccess.COND_WRITE, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE}


def decode(code: bytes, address: int) -> Iterator[Instruction]:
    """Yield the instructions of code in order, without breakpoints after a return or a jump.

    Compilers and the kernel put breakpoints there so that processors do not run on speculatively
    (straight-line speculation); they are never executed.
    """
    for at, size, text in _x86.texts(code, address):
        yield Instruction(address + at, code[at : at + size], text)


def undecoded(code: bytes) -> str:
    if length_at(code + bytes(LONGEST)):
        return "the function ends inside an instruction"
    return f"no opcode map tells how long an instruction is that begins {code[:4].hex(' ')}"


def padding(code: bytes) -> int:
    """Return how many bytes at the start of code are whole breakpoints and no-operations."""
    size = 0
    for instruction in _x86.listed(code, 0):
        if instruction.mnemonic not in _PADDING:
            break
        size += instruction.len
    return size


def unskippable(code: bytes, address: int) -> str:
    instruction = _x86.only(code, address)
    if instruction is None:
        return UNKNOWN
    changed = {
        RegisterExt.full_register(one.register)
        for one in InstructionInfoFactory().info(instruction).used_registers()
        if one.access in _WRITES
    }
    return "it changes the stack pointer" if Register.RSP in changed else ""


def is_nop(code: bytes) -> bool:
    return padding(code) == len(code) and code[:1] != b"\xcc"
