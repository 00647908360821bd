"""Length of an x86-64 instruction, computed from its prefixes, opcode map, ModRM and immediate,
whether or not a disassembler knows the opcode.

Sources: Intel SDM volume 2 (revision 87), chapter 2 and appendix A (opcode maps); the APX
architecture specification 7.0, chapter 3 (REX2, EVEX map 4); AMD's programmer's manual volume 3,
appendix A (3DNow!, XOP, SSE4a).  An opcode that the maps leave empty has no known length.

Tested by tests/isa/amd64/test_encoding_space.py.
"""

from __future__ import annotations

LEGACY = frozenset(b"\x66\x67\x2e\x3e\x26\x36\x64\x65\xf0\xf2\xf3")
OPERAND_SIZE, ADDRESS_SIZE = 0x66, 0x67
LONGEST = 15

# One-byte opcodes that are empty in 64-bit mode (SDM volume 2, table A-2).
_NO_ONE_BYTE = frozenset(
    (0x06, 0x07, 0x0E, 0x16, 0x17, 0x1E, 0x1F, 0x27, 0x2F, 0x37, 0x3F, 0x60, 0x61, 0x82, 0x9A,
     0xCE, 0xD4, 0xEA)
)  # fmt: skip
# Two-byte opcodes that are empty in both manuals (table A-3).
_NO_TWO_BYTE = frozenset(
    (0x04, 0x0A, 0x0C, 0x24, 0x25, 0x26, 0x27, 0x36, 0x39, 0x3B, 0x3C, 0x3D, 0x3E, 0x3F, 0x7A, 0x7B)
)  # fmt: skip
_JMPE = 0xB8  # popcnt only with F3


def _one_byte_modrm() -> frozenset[int]:
    opcodes = {op for op in range(0x40) if op & 7 < 4}
    opcodes |= {0x63, 0x69, 0x6B, 0xC0, 0xC1, 0xC6, 0xC7, 0xF6, 0xF7, 0xFE, 0xFF}
    opcodes |= set(range(0x80, 0x90)) | set(range(0xD0, 0xD4)) | set(range(0xD8, 0xE0))
    return frozenset(opcodes)


def _two_byte_modrm() -> frozenset[int]:
    without = {*range(0x04, 0x0D), 0x0E, *range(0x30, 0x38), 0x77, *range(0x80, 0x90)}
    without |= {0xA0, 0xA1, 0xA2, 0xA8, 0xA9, 0xAA, *range(0xC8, 0xD0)}
    return frozenset(set(range(0x100)) - without)


MODRM = (_one_byte_modrm(), _two_byte_modrm())
REGISTERS_ONLY = frozenset((0x20, 0x21, 0x22, 0x23))  # mov to and from control, debug registers

_Z = -1  # an immediate of the operand's size, of 4 bytes at most
_ONE_BYTE_IMMEDIATE = {
    **{op: 1 for op in range(0x40) if op & 7 == 4},
    **{op: _Z for op in range(0x40) if op & 7 == 5},
    0x68: _Z, 0x69: _Z, 0x6A: 1, 0x6B: 1, **dict.fromkeys(range(0x70, 0x80), 1),
    0x80: 1, 0x81: _Z, 0x83: 1, 0xA8: 1, 0xA9: _Z, **dict.fromkeys(range(0xB0, 0xB8), 1),
    0xC0: 1, 0xC1: 1, 0xC2: 2, 0xC6: 1, 0xC7: _Z, 0xC8: 3, 0xCA: 2, 0xCD: 1,
    **dict.fromkeys(range(0xE0, 0xE8), 1), 0xE8: 4, 0xE9: 4, 0xEB: 1,
}  # fmt: skip
_TWO_BYTE_IMMEDIATE = {
    0x0F: 1, **dict.fromkeys(range(0x70, 0x74), 1), **dict.fromkeys(range(0x80, 0x90), 4),
    0xA4: 1, 0xAC: 1, 0xBA: 1, 0xC2: 1, 0xC4: 1, 0xC5: 1, 0xC6: 1,
}  # fmt: skip
_VECTOR_IMMEDIATE = dict.fromkeys((*range(0x70, 0x74), 0xC2, 0xC4, 0xC5, 0xC6), 1)
# EVEX map 4: the one-byte map's arithmetic, and shld and shrd.
_PROMOTED_IMMEDIATE = {
    0x24: 1, 0x2C: 1, 0x69: _Z, 0x6B: 1, 0x80: 1, 0x81: _Z, 0x83: 1, 0xC0: 1, 0xC1: 1,
}  # fmt: skip
_REX2_EMPTY = (frozenset((0x4, 0x7, 0xA, 0xE)), frozenset((0x3, 0x8)))  # rows of the two maps
_NOT_AFTER_REX2 = LEGACY | {0x0F, 0x62, 0xC4, 0xC5, 0xD5}
_JMPABS = 0xA1
_XOP_IMMEDIATE = {8: 1, 9: 0, 10: 4}


def length_at(code: bytes, at: int = 0) -> int:
    """Return the size in bytes of the instruction at an offset of code; 0 if its length is not
    known, or the code ends inside the instruction."""
    try:
        end = _end(code, at)
    except IndexError:
        return 0
    return end - at if end and end - at <= LONGEST and end <= len(code) else 0


def _end(code: bytes, at: int) -> int:
    """Return the offset after the instruction at an offset of code; 0 if the instruction's length
    is not known. Raises IndexError if the code ends too early to tell."""
    narrow = short = wide = False
    last = at + LONGEST
    prefixes = set[int]()
    while at < last:
        byte = code[at]
        if byte in LEGACY:
            prefixes.add(byte)
            wide = False  # a REX that is not directly before the opcode is ignored
        elif byte & 0xF0 == 0x40:
            wide = bool(byte & 8)
        else:
            break
        at += 1
    narrow, short = OPERAND_SIZE in prefixes, ADDRESS_SIZE in prefixes
    opcode = code[at]
    if opcode in (0xC4, 0xC5, 0x62) or (opcode == 0x8F and code[at + 1] & 0x1F >= 8):
        return _vector_end(code, at)
    if opcode == 0xD5:
        return _rex2_end(code, at, narrow=narrow)
    if opcode != 0x0F:
        return _one_byte_end(code, at, narrow=narrow and not wide, short=short, wide=wide)
    opcode = code[at + 1]
    if opcode in (0x38, 0x3A):
        return after_operands(code, at + 3) + (opcode == 0x3A)
    return _two_byte_end(code, at + 1, prefixes)


def _one_byte_end(code: bytes, at: int, *, narrow: bool, short: bool, wide: bool) -> int:
    opcode = code[at]
    if opcode in _NO_ONE_BYTE:
        return 0
    at += 1
    if 0xA0 <= opcode <= 0xA3:
        return at + (4 if short else 8)
    if 0xB8 <= opcode <= 0xBF:
        return at + (8 if wide else 2 if narrow else 4)
    size = _ONE_BYTE_IMMEDIATE.get(opcode, 0)
    if opcode in (0xF6, 0xF7) and code[at] >> 3 & 7 < 2:
        size = 1 if opcode == 0xF6 else _Z
    if opcode in MODRM[0]:
        at = after_operands(code, at)
    return at + (size if size != _Z else 2 if narrow else 4)


def _two_byte_end(code: bytes, at: int, prefixes: set[int]) -> int:
    opcode = code[at]
    if opcode in _NO_TWO_BYTE or (opcode == _JMPE and 0xF3 not in prefixes):
        return 0
    at += 1
    size = _TWO_BYTE_IMMEDIATE.get(opcode, 0)
    if opcode == 0x78 and prefixes & {0x66, 0xF2}:
        if code[at] < 0xC0:
            return 0
        size = 2  # extrq, insertq
    if opcode in REGISTERS_ONLY:
        return at + 1
    return (after_operands(code, at) if opcode in MODRM[1] else at) + size


def _rex2_end(code: bytes, at: int, *, narrow: bool) -> int:
    payload, opcode = code[at + 1], code[at + 2]
    second, wide = payload >> 7, bool(payload & 8)
    if not second and opcode == _JMPABS:
        return at + 11
    if opcode >> 4 in _REX2_EMPTY[second] or (not second and opcode in _NOT_AFTER_REX2):
        return 0
    if second:
        return _two_byte_end(code, at + 2, set())
    return _one_byte_end(code, at + 2, narrow=narrow and not wide, short=False, wide=wide)


def _vector_end(code: bytes, at: int) -> int:
    """Return the offset after an instruction with a VEX, EVEX or XOP prefix at `at`; 0 if its
    length is not known."""
    first = code[at]
    if first == 0xC5:
        opmap, at = 1, at + 2
    elif first == 0x62:
        opmap, narrow, at = code[at + 1] & 7, code[at + 2] & 0x83 == 1, at + 4
    else:
        opmap, at = code[at + 1] & 0x1F, at + 3
    opcode = code[at]
    if first in (0xC4, 0xC5) and opmap == 1 and opcode == 0x77:
        return at + 1  # vzeroupper, vzeroall
    if first == 0x8F:
        size = _XOP_IMMEDIATE.get(opmap)
    elif opmap == 4 and first == 0x62:
        size = _PROMOTED_IMMEDIATE.get(opcode, 0)
        if opcode in (0xF6, 0xF7) and code[at + 1] >> 3 & 7 < 2:
            size = 1 if opcode == 0xF6 else _Z
        size = size if size != _Z else 2 if narrow else 4
    else:
        size = {1: _VECTOR_IMMEDIATE.get(opcode, 0), 2: 0, 3: 1, 5: 0, 6: 0, 7: 4}.get(opmap)
    return 0 if size is None else after_operands(code, at + 1) + size


def after_operands(code: bytes, at: int) -> int:
    """Return the offset after an instruction's ModRM, SIB and displacement (SDM volume 2, tables
    2-2 and 2-3).

    Args:
        at: offset of the ModRM byte.
    """
    modrm = code[at]
    mod, base = modrm >> 6, modrm & 7
    at += 1
    if mod == 3:
        return at
    if base == 4:
        base = code[at] & 7
        at += 1
    return at + (4 if mod == 2 or (mod == 0 and base == 5) else mod)
