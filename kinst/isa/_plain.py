"""Disassembly for completion: a disassembler alone, without the rest of an instruction set, which
takes too long to load while a user types.

Each instruction set's decoder has its rules, as PLAIN.

Tested by tests/isa/test_plain_text.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class PlainDisassembly:
    """How to disassemble.

    Attributes:
        arch: capstone's architecture.
        mode: capstone's mode.
        parcel: bytes to skip if nothing decodes.
        module: name of a module whose disassemble(code, address) is used instead of capstone.
    """

    arch: int = 0
    mode: int = 0
    parcel: int = 0
    module: str = ""


def disassemble(rules: PlainDisassembly, code: bytes, address: int) -> Iterator[tuple[int, str]]:
    """Yield (offset, text) of the instructions of code, as far as they are known."""
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
        # Of two parcels where the lowest bits are set (RISC-V).
        at += 4 if rules.parcel == 2 and code[at] & 3 == 3 else rules.parcel
