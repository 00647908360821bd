"""Parts of one amd64 instruction: prefixes, opcode, ModRM, displacement.

Only the parts that relocation needs are found; kinst/isa/_x86.py tells whether the bytes are a
known instruction and how long it is. Source: Intel SDM volume 2, chapter 2 ("Instruction format")
and appendix A (opcode maps).

Tested by tests/isa/test_parts.py.
"""

from __future__ import annotations

from kinst.core.dataclass import dataclass
from kinst.isa._x86_length import LEGACY, MODRM, REGISTERS_ONLY

# Opcode maps.  THREE_BYTE: the maps after 0F 38 and 0F 3A.  VECTOR: the maps of VEX, EVEX and XOP.
ONE_BYTE, TWO_BYTE, THREE_BYTE, VECTOR = range(4)

RSP = 4  # register number in ModRM and SIB; also "a SIB byte follows" in ModRM.rm
RIP_RELATIVE = 5  # ModRM.rm with mod 0


@dataclass(frozen=True, slots=True)
class Amd64Instruction:
    """One amd64 instruction taken apart.

    Attributes:
        code: bytes of the whole instruction.
        prefixes: the legacy prefixes.
        rex: the REX prefix; 0 if there is none. For VECTOR, only the bit B, which a vector prefix
            has as well.
        map: opcode map: ONE_BYTE, TWO_BYTE, THREE_BYTE or VECTOR.
        opcode: opcode byte, without the bytes that select the map.
        opcode_at: offset of the opcode byte in `code`.
        modrm_at: offset of the ModRM byte in `code`; -1 if there is none.
    """

    code: bytes
    prefixes: bytes
    rex: int
    map: int
    opcode: int
    opcode_at: int
    modrm_at: int

    @property
    def modrm(self) -> int:
        return self.code[self.modrm_at]

    @property
    def mod(self) -> int:
        return self.modrm >> 6

    @property
    def reg(self) -> int:
        """The register field of ModRM, without the REX bit."""
        return self.modrm >> 3 & 7

    @property
    def rm(self) -> int:
        """The register or memory field of ModRM, without the REX bit."""
        return self.modrm & 7

    @property
    def rip_relative(self) -> bool:
        """Whether a memory operand is relative to the next instruction; its 32-bit displacement is
        at modrm_at + 1."""
        if self.modrm_at < 0 or self.modrm & 0xC7 != RIP_RELATIVE:
            return False
        return self.map != TWO_BYTE or self.opcode not in REGISTERS_ONLY

    @property
    def based_on_rsp(self) -> bool:
        """Whether the base register of the memory operand is rsp; the instruction must have a ModRM
        byte."""
        return (
            self.mod != 3
            and self.rm == RSP
            and self.code[self.modrm_at + 1] & 7 == RSP
            and not self.rex & 1
        )


def _is_rex(byte: int) -> bool:
    return byte & 0xF0 == 0x40


def _is_prefix(byte: int) -> bool:
    return byte in LEGACY or _is_rex(byte)


def parse(code: bytes) -> Amd64Instruction | None:
    """Take apart one instruction; return None if the bytes end before its ModRM byte."""
    at = 0
    try:
        # A REX that is not directly before the opcode is ignored.
        while code[at] in LEGACY or (_is_rex(code[at]) and _is_prefix(code[at + 1])):
            at += 1
        prefixes = bytes(byte for byte in code[:at] if byte in LEGACY)
        rex = code[at] if _is_rex(code[at]) else 0
        at += bool(rex)
        opcode = code[at]
        if _is_vector(code, at):
            return _parse_vector(code, prefixes, at)
        opmap = ONE_BYTE
        if opcode == 0x0F:
            at += 1
            opcode = code[at]
            opmap = TWO_BYTE
            if opcode in (0x38, 0x3A):
                opmap = THREE_BYTE
                at += 1
                opcode = code[at]
        modrm_at = at + 1 if opmap == THREE_BYTE or opcode in MODRM[opmap] else -1
        if modrm_at >= len(code):
            return None
        return Amd64Instruction(code, prefixes, rex, opmap, opcode, at, modrm_at)
    except IndexError:
        return None


def _is_vector(code: bytes, at: int) -> bool:
    """Return whether a VEX (C4, C5), EVEX (62) or XOP prefix is at an offset of code. 8F is an XOP
    prefix if its map field is 8 or more, and otherwise pop."""
    first = code[at]
    return first in (0xC4, 0xC5, 0x62) or (first == 0x8F and code[at + 1] & 0x1F >= 8)


def _parse_vector(code: bytes, prefixes: bytes, at: int) -> Amd64Instruction | None:
    first = code[at]
    payload = {0xC5: 1, 0xC4: 2, 0x8F: 2, 0x62: 3}[first]
    # Inverted REX.B, for the test of the base register.
    rex = 0x40 if first == 0xC5 else 0x40 | (~code[at + 1] >> 5 & 1)
    opcode_at = at + 1 + payload
    opcode = code[opcode_at]
    # Only vzeroupper and vzeroall have no ModRM; no other VEX instruction has opcode 77.
    modrm_at = -1 if opcode == 0x77 and first in (0xC4, 0xC5) else opcode_at + 1
    if modrm_at >= len(code):
        return None
    return Amd64Instruction(code, prefixes, rex, VECTOR, opcode, opcode_at, modrm_at)
