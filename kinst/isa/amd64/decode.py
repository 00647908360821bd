"""Decoding with capstone, without its slow operand details."""

from __future__ import annotations

from collections.abc import Iterator

from capstone import CS_ARCH_X86, CS_MODE_64, Cs

from kinst.core.isa import Instruction

_DISASSEMBLER = Cs(CS_ARCH_X86, CS_MODE_64)
_LONGEST = 15
_CHUNK = 1 << 16  # capstone keeps what it decoded in one call in memory
_PREFIX_WORDS = {
    "lock", "rep", "repe", "repz", "repne", "repnz", "notrack", "bnd", "data16", "xacquire",
    "xrelease", "addr32",
}  # fmt: skip


def decode(code: bytes, address: int) -> Iterator[Instruction]:
    """Instructions of code in order; stops at the first byte that does not decode."""
    at = 0
    while at < len(code):
        last = at + _CHUNK >= len(code)
        start = at
        for where, size, mnemonic, operands in _DISASSEMBLER.disasm_lite(
            code[at : at + _CHUNK], address + at
        ):
            offset = where - address
            if not last and offset + _LONGEST > start + _CHUNK:
                break  # the chunk may cut this one short: it opens the next chunk
            text = f"{mnemonic} {operands}" if operands else mnemonic
            yield Instruction(where, code[offset : offset + size], text)
            at = offset + size
        if at == start or last:
            return


def split(code: bytes, address: int, count: int) -> list[tuple[int, str, str]]:
    """Up to `count` instructions as (size, mnemonic without prefixes, operands)."""
    return [
        (size, mnemonic if " " not in mnemonic else bare(mnemonic), operands)
        for _, size, mnemonic, operands in _DISASSEMBLER.disasm_lite(code, address, count)
    ]


def bare(mnemonic: str) -> str:
    """The mnemonic without the words of its prefixes ("lock xadd" is "xadd")."""
    return next((w for w in mnemonic.split() if w not in _PREFIX_WORDS), mnemonic)
