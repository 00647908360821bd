"""What one AArch64 instruction refers to and where it may go, by its encoding.

Source: Arm Architecture Reference Manual (DDI 0487), C4.1 "A64 instruction set encoding".
"""

from __future__ import annotations

from dataclasses import dataclass

from kinst.isa.arm64.encode import MASK

# Kinds of instructions whose effect depends on their address, or that go elsewhere.
B, BL, B_COND, CB, TB, ADR, ADRP, LITERAL, BR, BLR, RET = (
    "b", "bl", "b.cond", "cb", "tb", "adr", "adrp", "literal", "br", "blr", "ret",
)  # fmt: skip
PLAIN = ""


@dataclass(frozen=True, slots=True)
class Parsed:
    """kind: as above.  target: of a branch, or the address that it makes or loads from.
    register: the one that is tested, written or branched to.  signed: of a pointer that is
    authenticated first (braa and the like)."""

    word: int
    kind: str = PLAIN
    target: int = 0
    register: int = 0
    authenticated: bool = False


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (value >> (bits - 1) << bits)


def parse(code: bytes, address: int) -> Parsed:
    """The one instruction `code` at `address`."""
    w = int.from_bytes(code, "little")
    low = w & 0x1F

    def near(value: int, bits: int) -> int:
        return address + (_signed(value, bits) << 2) & MASK

    if w & 0x7C000000 == 0x14000000:
        return Parsed(w, BL if w >> 31 else B, near(w, 26))
    if w & 0xFF000000 == 0x54000000:
        return Parsed(w, B_COND, near(w >> 5, 19), w & 0xF)
    if w & 0x7E000000 == 0x34000000:
        return Parsed(w, CB, near(w >> 5, 19), low)
    if w & 0x7E000000 == 0x36000000:
        return Parsed(w, TB, near(w >> 5, 14), low)
    if w & 0x1F000000 == 0x10000000:
        offset = _signed((w >> 5 & 0x7FFFF) << 2 | w >> 29 & 3, 21)
        if w >> 31:
            return Parsed(w, ADRP, (address & ~0xFFF) + (offset << 12) & MASK, low)
        return Parsed(w, ADR, address + offset & MASK, low)
    if w & 0x3B000000 == 0x18000000:
        return Parsed(w, LITERAL, near(w >> 5, 19), low)
    if w & 0xFE000000 == 0xD6000000:
        return _register_branch(w)
    return Parsed(w)


def _register_branch(w: int) -> Parsed:
    """br, blr, ret and their authenticating forms; what else is there (eret) is PLAIN."""
    operation = w >> 21 & 7  # opc, without the bit that says "authenticate by a register"
    pointer_auth = w >> 11 & 1
    if operation > 2 or w >> 16 & 0x1F != 0x1F or w >> 12 & 0xF:
        return Parsed(w)
    kind = (BR, BLR, RET)[operation]
    return Parsed(w, kind, 0, w >> 5 & 0x1F, bool(pointer_auth))
