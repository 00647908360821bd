"""Disassembly for people who are still typing: capstone alone, without the rest of an instruction
set, which takes longer to load than they wait.

What each instruction set has to say about it is its decoder's PLAIN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from capstone import Cs


@dataclass(frozen=True, slots=True)
class PlainDisassembly:
    """arch, mode: capstone's.  parcel: bytes that are stepped over where nothing decodes, 0 to stop
    there.  padding: an instruction that is left out behind those that control does not pass."""

    arch: int
    mode: int
    parcel: int
    padding: str = ""
    endings: tuple[str, ...] = ()


def disassemble(rules: PlainDisassembly, code: bytes, address: int) -> Iterator[tuple[int, str]]:
    """(offset, text) of the instructions of code, as far as capstone knows them."""
    disassembler = Cs(rules.arch, rules.mode)
    at, before = 0, ""
    while at < len(code):
        for where, size, mnemonic, operands in disassembler.disasm_lite(code[at:], address + at):
            at = where - address + size
            if mnemonic != rules.padding or not before.startswith(rules.endings):
                before = mnemonic
                yield where - address, f"{mnemonic} {operands}" if operands else mnemonic
        if not rules.parcel:
            return
        # Of two parcels where the lowest bits are set (RISC-V).
        at += 4 if rules.parcel == 2 and code[at] & 3 == 3 else rules.parcel
