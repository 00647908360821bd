"""Encoders of the amd64 instructions that trampolines consist of. Source: Intel SDM volume 2.

Tested by tests/isa/test_encodings.py.
"""

from __future__ import annotations

import struct

from kinst.core.displaced import OutOfReach
from kinst.core.words import MASK

# General registers by their encoding.
RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI = range(8)
R8, R9, R10, R11, R12, R13, R14, R15 = range(8, 16)

JUMP_SIZE = 5
INT3 = b"\xcc"
NOP5 = b"\x0f\x1f\x44\x00\x00"  # nop dword [rax + rax], one instruction of a jump's size
PUSHFQ, POPFQ, CLI, CLD, RET = b"\x9c", b"\x9d", b"\xfa", b"\xfc", b"\xc3"


def signed64(value: int) -> int:
    """Return the lowest 64 bits of a number as a signed number."""
    value &= MASK
    return value - (1 << 64) if value >> 63 else value


def fits32(value: int) -> bool:
    return -(1 << 31) <= value < 1 << 31


def fits8(value: int) -> bool:
    return -128 <= value < 128


def disp32(value: int) -> bytes:
    return struct.pack("<i", value)


def relative(end: int, target: int, what: str) -> bytes:
    """Return the 4-byte displacement from `end` (address of the next instruction) to `target`.

    Raises OutOfReach, which says that `what` is out of reach.
    """
    distance = signed64(target - end)
    if not fits32(distance):
        raise OutOfReach(f"{what} is more than 2 GB away from the trampoline")
    return disp32(distance)


def jump(at: int, target: int, what: str = "the way back") -> bytes:
    """Encode jmp rel32 from the address `at` to the address `target`. Raises OutOfReach, naming
    `what`."""
    return b"\xe9" + relative(at + 5, target, what)


def call(at: int, target: int, what: str = "the probe's code") -> bytes:
    """Encode call rel32 from the address `at` to the address `target`. Raises OutOfReach, naming
    `what`."""
    return b"\xe8" + relative(at + 5, target, what)


def branch(condition: int, at: int, target: int, what: str = "the branch's target") -> bytes:
    """Encode jcc rel32, with the condition code `condition`, from the address `at` to the address
    `target`. Raises OutOfReach, naming `what`."""
    return bytes((0x0F, 0x80 | condition)) + relative(at + 6, target, what)


def push(register: int) -> bytes:
    return (b"\x41" if register > 7 else b"") + bytes((0x50 | register & 7,))


def pop(register: int) -> bytes:
    return (b"\x41" if register > 7 else b"") + bytes((0x58 | register & 7,))


def push_value(value: int) -> bytes:
    """Return code that pushes a 64-bit value. It changes no flag, and no register but rsp."""
    signed = signed64(value)
    if fits32(signed):
        return b"\x68" + disp32(signed)
    # push sign-extends its 32 bits: write the upper half afterwards.
    low, high = signed & 0xFFFFFFFF, signed >> 32 & 0xFFFFFFFF
    return b"\x68" + struct.pack("<I", low) + b"\xc7\x44\x24\x04" + struct.pack("<I", high)


def _on_stack(register: int, offset: int) -> bytes:
    """Encode ModRM, SIB and displacement of the operands (register, [rsp + offset])."""
    field = (register & 7) << 3
    if offset == 0:
        return bytes((0x04 | field, 0x24))
    if fits8(offset):
        return bytes((0x44 | field, 0x24)) + struct.pack("<b", offset)
    return bytes((0x84 | field, 0x24)) + disp32(offset)


def _rex_w(register: int) -> int:
    return 0x4C if register > 7 else 0x48


def store(offset: int, register: int) -> bytes:
    """Encode mov [rsp + offset], register."""
    return bytes((_rex_w(register), 0x89)) + _on_stack(register, offset)


def store32(offset: int, register: int) -> bytes:
    """Encode mov dword [rsp + offset], register; only for the first eight registers."""
    return b"\x89" + _on_stack(register, offset)


def store_value(offset: int, value: int, through: int) -> bytes:
    """Return code that stores a 64-bit value at [rsp + offset]; it changes the register `through`
    if the value needs more than 32 bits."""
    signed = signed64(value)
    if fits32(signed):
        return b"\x48\xc7" + _on_stack(0, offset) + disp32(signed)
    return load_value(through, value) + store(offset, through)


def load_value(register: int, value: int) -> bytes:
    """Encode mov register, value, in the shortest form that changes no flags."""
    signed = signed64(value)
    if 0 <= signed < 1 << 32:
        rex = b"\x41" if register > 7 else b""
        return rex + bytes((0xB8 | register & 7,)) + struct.pack("<I", signed)
    rex = bytes((0x49 if register > 7 else 0x48,))
    if fits32(signed):
        return rex + bytes((0xC7, 0xC0 | register & 7)) + disp32(signed)
    return rex + bytes((0xB8 | register & 7,)) + struct.pack("<q", signed)


def lea(register: int, offset: int) -> bytes:
    """Encode lea register, [rsp + offset]."""
    return bytes((_rex_w(register), 0x8D)) + _on_stack(register, offset)


# Code around pushes that leaves the red zone alone: user programs keep data in the 128 bytes below
# rsp (System V ABI, 3.2.2).  lea changes no flag.
LEAVE_RED_ZONE, ENTER_RED_ZONE = lea(RSP, -128), lea(RSP, 128)


def move(to: int, from_: int) -> bytes:
    """Encode mov to, from_, for 64 bits."""
    rex = 0x48 | (from_ > 7) << 2 | (to > 7)
    return bytes((rex, 0x89, 0xC0 | (from_ & 7) << 3 | to & 7))


def load(register: int, offset: int) -> bytes:
    """Encode mov register, [rsp + offset]."""
    return bytes((_rex_w(register), 0x8B)) + _on_stack(register, offset)


def hop(distance: int) -> bytes:
    """Encode a jmp over the next `distance` bytes, in its shortest form."""
    return b"\xeb" + struct.pack("<b", distance) if fits8(distance) else b"\xe9" + disp32(distance)


def hop_if_rcx_zero(distance: int) -> bytes:
    """Encode a jrcxz over the next `distance` bytes, at most 127; it reads and changes no flag."""
    return b"\xe3" + struct.pack("<b", distance)


def compare(register: int, value: int) -> bytes:
    """Encode cmp register, value, for 64 bits; only for the first eight registers and for values
    that fit in 32 bits as signed numbers."""
    return b"\x48\x81" + bytes((0xF8 | register,)) + disp32(value)


def skip_if_not_equal(distance: int) -> bytes:
    """Encode a jne over the next `distance` bytes, always in the form with 4 bytes of distance."""
    return b"\x0f\x85" + disp32(distance)


def read_segment(to: int, segment: int) -> bytes:
    """Encode a mov from a segment register (0 es, 1 cs, 2 ss, 3 ds, 4 fs, 5 gs), zero-extended, to
    one of the first eight registers."""
    return bytes((0x8C, 0xC0 | segment << 3 | to))


def increment_gs(offset: int) -> bytes:
    """Encode inc qword ptr gs:[offset]."""
    return b"\x65\x48\xff\x04\x25" + disp32(offset)


def increment_gs_at(register: int) -> bytes:
    """Encode inc qword ptr gs:[register]; only for the first eight registers except rsp and rbp."""
    return b"\x65\x48\xff" + bytes((register,))
