"""Encoders of the riscv64 instructions that trampolines and stubs consist of.

Source: RISC-V unprivileged specification (RV64I base, "M", "A", "C", Zicsr), chapters "RV32/64G
Instruction Set Listings" and "RVC Instruction Set Listings".

Tested by tests/isa/test_encodings.py.
"""

from __future__ import annotations

from kinst.core.displaced import OutOfReach

X0, RA, SP, GP, TP, T0, T1, T2 = range(8)
A0, A1 = 10, 11
TEMPORARIES = (5, 6, 7, 28, 29, 30, 31)  # t0 to t6

SSTATUS, SEPC = 0x100, 0x141
SIE, SPIE, SPP = 1 << 1, 1 << 5, 1 << 8  # of sstatus

C_EBREAK = b"\x02\x90"
C_NOP = b"\x01\0"
NOP = (0x13).to_bytes(4, "little")  # addi x0, x0, 0
SIZE = 4  # bytes of an instruction that is not compressed
JAL_SIZE = SIZE
EBREAK = (0x0010_0073).to_bytes(4, "little")
SRET = (0x10200073).to_bytes(4, "little")
RET = b"\x82\x80"  # c.jr ra


def signed(value: int, bits: int = 64) -> int:
    """Return the lowest `bits` bits of a number as a signed number (two's complement)."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def fits(value: int, bits: int) -> bool:
    """Return whether a value fits in a signed number of this many bits."""
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def _word(value: int) -> bytes:
    return (value & 0xFFFF_FFFF).to_bytes(4, "little")


def _half(value: int) -> bytes:
    return value.to_bytes(2, "little")


def _i(opcode: int, funct3: int, rd: int, rs1: int, imm: int) -> bytes:
    assert fits(imm, 12), imm
    return _word((imm & 0xFFF) << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode)


def addi(rd: int, rs1: int, imm: int) -> bytes:
    return _i(0x13, 0, rd, rs1, imm)


def andi(rd: int, rs1: int, imm: int) -> bytes:
    return _i(0x13, 7, rd, rs1, imm)


def ori(rd: int, rs1: int, imm: int) -> bytes:
    return _i(0x13, 6, rd, rs1, imm)


def slli(rd: int, rs1: int, by: int) -> bytes:
    return _i(0x13, 1, rd, rs1, by)


def or_(rd: int, rs1: int, rs2: int) -> bytes:
    return _word(rs2 << 20 | rs1 << 15 | 6 << 12 | rd << 7 | 0x33)


def move(rd: int, rs1: int) -> bytes:
    """Encode c.mv rd, rs1; neither register may be x0."""
    return _half(0x8002 | rd << 7 | rs1 << 2)


def jalr(rd: int, rs1: int, imm: int) -> bytes:
    return _i(0x67, 0, rd, rs1, imm)


def jal(rd: int, distance: int) -> bytes:
    """Encode jal rd, distance. Raises OutOfReach beyond 1 MB."""
    if not fits(distance, 21):
        raise OutOfReach("it is more than 1 MB away")
    bits = distance & 0x1F_FFFF
    imm = bits >> 20 << 19 | (bits >> 1 & 0x3FF) << 9 | (bits >> 11 & 1) << 8 | bits >> 12 & 0xFF
    return _word(imm << 12 | rd << 7 | 0x6F)


def c_j(distance: int) -> bytes:
    """Encode c.j distance. Raises OutOfReach beyond 2 KB."""
    if not fits(distance, 12):
        raise OutOfReach("it is more than 2 KB away")
    moves = ((11, 12), (4, 11), (9, 10), (8, 9), (10, 8), (6, 7), (7, 6), (3, 5), (2, 4), (1, 3))
    bits = sum((distance >> bit & 1) << at for bit, at in moves) | (distance >> 5 & 1) << 2
    return _half(0xA001 | bits)


def branch(funct3: int, rs1: int, rs2: int, distance: int) -> bytes:
    """Encode a conditional branch; the distance must be within 4 KB.

    Args:
        funct3: number of the comparison.
        rs1: number of the first register to compare.
        rs2: number of the second register to compare.
        distance: bytes from the branch to its target.
    """
    assert fits(distance, 13), distance
    high = (distance >> 12 & 1) << 6 | distance >> 5 & 0x3F
    low = (distance >> 1 & 0xF) << 1 | distance >> 11 & 1
    return _word(high << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | low << 7 | 0x63)


def c_sdsp(register: int, offset: int) -> bytes:
    """Encode c.sdsp: store a register at [sp + offset]; the offset is a multiple of 8 below 512."""
    assert 0 <= offset < 512 and offset % 8 == 0, offset
    return _half(0xE002 | (offset >> 3 & 7) << 10 | (offset >> 6) << 7 | register << 2)


def c_ldsp(register: int, offset: int) -> bytes:
    """Encode c.ldsp: load a register other than x0 from [sp + offset]; the offset is a multiple of
    8 below 512."""
    assert 0 <= offset < 512 and offset % 8 == 0 and register, offset
    bits = (offset >> 5 & 1) << 12 | (offset >> 3 & 3) << 5 | (offset >> 6) << 2
    return _half(0x6002 | bits | register << 7)


def _parts(distance: int, what: str) -> tuple[int, int]:
    """Return (upper 20 bits, lower 12 bits as a signed number) of a distance, for auipc and the
    instruction after it. Raises OutOfReach beyond 2 GB, naming `what`."""
    if not fits(distance + 0x800, 32):
        raise OutOfReach(f"{what} is more than 2 GB away")
    return (distance + 0x800) >> 12, signed(distance, 12)


def auipc(rd: int, upper: int) -> bytes:
    return _word((upper & 0xF_FFFF) << 12 | rd << 7 | 0x17)


def load_address(rd: int, at: int, target: int, what: str = "an address") -> bytes:
    """Return code at the address `at` that sets rd = target (auipc and addi). Raises OutOfReach
    beyond 2 GB, naming `what`."""
    upper, lower = _parts(signed(target - at), what)
    return auipc(rd, upper) + addi(rd, rd, lower)


def call(at: int, target: int, what: str = "the code called") -> bytes:
    """Return code at the address `at` that calls target through ra (auipc and jalr). Raises
    OutOfReach beyond 2 GB, naming `what`."""
    upper, lower = _parts(signed(target - at), what)
    return auipc(RA, upper) + jalr(RA, RA, lower)


def jump(at: int, target: int, through: int, what: str = "the way back") -> bytes:
    """Return code at the address `at` that jumps to target and changes the register `through`
    (auipc and jalr). Raises OutOfReach beyond 2 GB, naming `what`."""
    upper, lower = _parts(signed(target - at), what)
    return auipc(through, upper) + jalr(X0, through, lower)


def load_value(rd: int, value: int) -> bytes:
    """Return code that sets rd to any 64-bit constant, in at most eight instructions and without
    another register."""
    value = signed(value)
    if fits(value, 12):
        return addi(rd, X0, value)
    low = signed(value, 12)
    if fits(value, 32):
        lui = _word(((value + 0x800) >> 12 & 0xF_FFFF) << 12 | rd << 7 | 0x37)
        # addiw, not addi: the upper part of a number near 2**31 is too large, and addiw wraps.
        return lui + (_i(0x1B, 0, rd, rd, low) if low else b"")
    rest, shift = signed(value - low) >> 12, 12
    while rest % 2 == 0:
        rest, shift = rest >> 1, shift + 1
    code = load_value(rd, rest) + slli(rd, rd, shift)
    return code + addi(rd, rd, low) if low else code


# Control and status registers.


def csr_read_clear_bits(rd: int, csr: int, bits: int) -> bytes:
    """Encode csrrci: read a control and status register to rd and clear `bits` (below 32) in it."""
    return _word(csr << 20 | bits << 15 | 7 << 12 | rd << 7 | 0x73)


def csr_set(csr: int, register: int) -> bytes:
    return _word(csr << 20 | register << 15 | 2 << 12 | 0x73)


def csr_write(csr: int, register: int) -> bytes:
    return _word(csr << 20 | register << 15 | 1 << 12 | 0x73)


def add_atomic(register: int, address: int) -> bytes:
    """Encode amoadd.d, which adds a register to the 8 bytes of memory whose address is in the
    register `address`."""
    return _word(register << 20 | address << 15 | 3 << 12 | 0x2F)
