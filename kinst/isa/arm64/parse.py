"""Operands that relocation and control flow need of one AArch64 instruction: its kind, branch
target or address, and register.

Source: Arm Architecture Reference Manual (DDI 0487), C4.1 "A64 instruction set encoding".

Tested by tests/isa/test_parts.py.
"""

from __future__ import annotations

from kinst.core.dataclass import dataclass
from kinst.core.words import MASK

# Kinds of instructions whose effect depends on their address, or that go elsewhere.
B, BL, B_COND, CB, TB, ADR, ADRP, LITERAL, BR, BLR, RET = (
    "b", "bl", "b.cond", "cb", "tb", "adr", "adrp", "literal", "br", "blr", "ret",
)  # fmt: skip
RET_NEAR = "ret near"  # retaasppc, retabsppc: authenticate by an address near their own
UNKNOWN = "unknown"  # in the group of branches, and no encoding that kinst knows
PLAIN = ""
# (mask, masked word) of instructions in the group "Branches, exception generating and system
# instructions" that are no branches: exceptions (svc to dcps), and hints, barriers, PSTATE, sys,
# mrs, msr and their 128-bit forms.
_STRAIGHT = (
    (0xFF000000, 0xD4000000),
    (0xFF800000, 0xD5000000),
)
_IN_GROUP = 0x1C000000, 0x14000000


@dataclass(frozen=True, slots=True)
class Arm64Instruction:
    """One AArch64 instruction taken apart.

    Attributes:
        word: the encoding.
        kind: B, BL, ..., UNKNOWN, or PLAIN for all other instructions.
        target: target of a direct branch, or the address that the instruction makes or loads from.
        register: register that the instruction tests, writes or branches to; the condition of
            b.cond.
        authenticated: whether a branch authenticates its pointer first (braa and the like).
    """

    word: int
    kind: str = PLAIN
    target: int = 0
    register: int = 0
    authenticated: bool = False


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (value >> (bits - 1) << bits)


def parse(code: bytes, address: int) -> Arm64Instruction:
    """Return the kind and operands of the one instruction `code` at `address`."""
    w = int.from_bytes(code, "little")
    low = w & 0x1F

    def near(value: int, bits: int) -> int:
        return address + (_signed(value, bits) << 2) & MASK

    if w & 0x7C000000 == 0x14000000:
        return Arm64Instruction(w, BL if w >> 31 else B, near(w, 26))
    if w & 0xFF000000 == 0x54000000:
        return Arm64Instruction(w, B_COND, near(w >> 5, 19), w & 0xF)
    if w & 0x7E000000 == 0x34000000:
        return Arm64Instruction(w, CB, near(w >> 5, 19), low)
    if w & 0x7E000000 == 0x36000000:
        return Arm64Instruction(w, TB, near(w >> 5, 14), low)
    if w & 0x1F000000 == 0x10000000:
        offset = _signed((w >> 5 & 0x7FFFF) << 2 | w >> 29 & 3, 21)
        if w >> 31:
            return Arm64Instruction(w, ADRP, (address & ~0xFFF) + (offset << 12) & MASK, low)
        return Arm64Instruction(w, ADR, address + offset & MASK, low)
    if w & 0x3B000000 == 0x18000000:
        return Arm64Instruction(w, LITERAL, near(w >> 5, 19), low)
    if w & 0xFE000000 == 0xD6000000:
        return _register_branch(w)
    if w & 0xFFC0001F == 0x5500001F:
        return Arm64Instruction(w, RET_NEAR)
    mask, group = _IN_GROUP
    if w & mask == group and all(w & mask != value for mask, value in _STRAIGHT):
        return Arm64Instruction(w, UNKNOWN)
    return Arm64Instruction(w)


# (mask, masked word, kind) of branches to registers; the register is in the 5 bits from bit 5 on.
_REGISTER_BRANCHES = (
    (0xFFFFFC1F, 0xD61F0000, BR),
    (0xFFFFFC1F, 0xD63F0000, BLR),
    (0xFFFFFC1F, 0xD65F0000, RET),
    (0xFFFFF81F, 0xD61F081F, BR),  # braaz, brabz
    (0xFFFFF81F, 0xD63F081F, BLR),
    (0xFFFFFBFF, 0xD65F0BFF, RET),  # retaa, retab
    (0xFFFFFBE0, 0xD65F0BE0, RET),  # retaasppcr, retabsppcr
    (0xFFFFF800, 0xD71F0800, BR),  # braa, brab
    (0xFFFFF800, 0xD73F0800, BLR),
    (0xFFFFFBFF, 0xD69F0BFF, PLAIN),  # eretaa, eretab
    (0xFFFFFFFF, 0xD69F03E0, PLAIN),  # eret
    (0xFFFFFFFF, 0xD6BF03E0, PLAIN),  # drps
)


def _register_branch(w: int) -> Arm64Instruction:
    """Return the kind and operands of br, blr, ret and their authenticating forms, given the
    encoding; eret and drps are PLAIN."""
    for mask, value, kind in _REGISTER_BRANCHES:
        if w & mask == value:
            return (
                Arm64Instruction(w, kind, 0, w >> 5 & 0x1F, bool(w >> 11 & 1))
                if kind
                else Arm64Instruction(w)
            )
    return Arm64Instruction(w, UNKNOWN)
