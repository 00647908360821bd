"""Disassembly for people who are still typing: capstone alone, without the rest of an instruction
set, which takes longer to load than they wait.

What each instruction set has to say about it is its decoder's PLAIN.

Tested by tests/isa/test_plain_text.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from capstone import Cs

Decoded = tuple[int, int, str, str]  # address, size, mnemonic, operands


@dataclass(frozen=True, slots=True)
class PlainDisassembly:
    """arch, mode: capstone's.  parcel: bytes that are stepped over where nothing decodes, 0 to stop
    there.  padding: an instruction that is left out behind those that control does not pass.
    modrm: as in decoded()."""

    arch: int
    mode: int
    parcel: int
    padding: str = ""
    endings: tuple[str, ...] = ()
    modrm: tuple[str, ...] = ()


def decoded(
    disassembler: Any, code: bytes, address: int, modrm: Collection[str], count: int = 0
) -> Iterator[Decoded]:
    """Cs.disasm_lite(), which stops before an instruction that code cuts short.

    modrm: mnemonics of x86 that have a ModRM byte which capstone takes for the next instruction.
    count: of instructions at most, 0 for all."""
    at, done = 0, 0
    while at >= 0:
        left = count - done if count else 0
        rest, at = disassembler.disasm_lite(code[at:] if at else code, address + at, left), -1
        for one in rest:
            done += 1
            if one[2] in modrm:
                where, size, mnemonic, operands = one
                end = where - address + size
                size += operand_size(code, end)
                end = where - address + size
                if end <= len(code):
                    yield where, size, mnemonic, operands
                    at = end if done != count else -1
                break
            yield one


def operand_size(code: bytes, at: int) -> int:
    """Bytes of the operands of an x86 instruction whose ModRM is at `at` (SDM volume 2, table 2-2
    and 2-3)."""
    modrm, sib = code[at : at + 2].ljust(2, b"\0")
    mod, rm = modrm >> 6, modrm & 7
    if mod == 3:
        return 1
    has_sib = rm == 4
    base = sib & 7 if has_sib else rm
    displacement: int = (4 if base == 5 else 0, 1, 4)[mod]
    return 1 + has_sib + displacement


def disassemble(rules: PlainDisassembly, code: bytes, address: int) -> Iterator[tuple[int, str]]:
    """(offset, text) of the instructions of code, as far as capstone knows them."""
    disassembler = Cs(rules.arch, rules.mode)
    at, before = 0, ""
    while at < len(code):
        rest = decoded(disassembler, code[at:], address + at, rules.modrm)
        for where, size, mnemonic, operands in rest:
            at = where - address + size
            if mnemonic != rules.padding or not before.startswith(rules.endings):
                before = mnemonic
                yield where - address, f"{mnemonic} {operands}" if operands else mnemonic
        if not rules.parcel or at >= len(code):
            return
        # Of two parcels where the lowest bits are set (RISC-V).
        at += 4 if rules.parcel == 2 and code[at] & 3 == 3 else rules.parcel
