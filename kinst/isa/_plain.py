"""Disassembly for the shell's completion of offsets, which happens while a user types.

To answer quickly, only a disassembler is loaded, not the rest of an instruction set. Each
instruction set's decode.py has a PlainDisassembly, PLAIN, that says how to disassemble its code.

Tested by tests/isa/test_plain_text.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from kinst.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class PlainDisassembly:
    """How to disassemble the code of one instruction set for completion.

    Attributes:
        arch: capstone's architecture.
        mode: capstone's mode.
        parcel: bytes to skip if capstone does not know the instruction.
        module: name of a module whose disassemble(code, address) is used instead of capstone; "" to
            use capstone.
    """

    arch: int = 0
    mode: int = 0
    parcel: int = 0
    module: str = ""


def disassemble(rules: PlainDisassembly, code: bytes, address: int) -> Iterator[tuple[int, str]]:
    """Yield (offset in code, text) of each instruction in code, in order. Instructions that the
    disassembler does not know are skipped."""
    if rules.module:
        rows: Iterator[tuple[int, str]] = import_module(rules.module).disassemble(code, address)
        return rows
    return _by_capstone(rules, code, address)


def _by_capstone(rules: PlainDisassembly, code: bytes, address: int) -> Iterator[tuple[int, str]]:
    disassembler: Any = import_module("capstone").Cs(rules.arch, rules.mode)
    at = 0
    while at < len(code):
        for where, size, mnemonic, operands in disassembler.disasm_lite(code[at:], address + at):
            at = where - address + size
            yield where - address, f"{mnemonic} {operands}" if operands else mnemonic
        if at >= len(code):
            return
        # A RISC-V instruction with its two lowest bits set has two parcels.
        at += 4 if rules.parcel == 2 and code[at] & 3 == 3 else rules.parcel
