"""Encoders of the AArch64 instructions that trampolines and stubs consist of.

Source: Arm Architecture Reference Manual (DDI 0487), C6 "A64 Base Instruction Descriptions". All
functions return the bytes of one instruction or of a few; addresses are virtual.

Tested by tests/isa/test_encodings.py.
"""

from __future__ import annotations

from kinst.core.displaced import OutOfReach
from kinst.core.words import MASK

SIZE = 4  # bytes of every instruction
SP = ZR = 31  # the instruction decides which of the two this number means
LR = 30
BRANCH_REACH = 128 << 20  # of b and bl

# System registers as op0:op1:CRn:CRm:op2, which is what mrs and msr hold.
NZCV, DAIF = 0xDA10, 0xDA11
CURRENT_EL, SP_SEL = 0xC212, 0xC210

DAIF_IRQ = 3  # I and F, as Linux masks interrupts


def word(value: int) -> bytes:
    return value.to_bytes(SIZE, "little")


NOP = word(0xD503201F)
RET = word(0xD65F03C0)
# No kernel gives this number a meaning: Linux's are in arch/arm64/include/asm/brk-imm.h.
BREAKPOINT = word(0xD4200000 | 0x6B69 << 5)


def branch(at: int, to: int, what: str = "the way back") -> bytes:
    """Encode b from the address `at` to the address `to`. Raises OutOfReach beyond 128 MB, naming
    `what`."""
    distance = to - at
    if distance % SIZE or not -BRANCH_REACH <= distance < BRANCH_REACH:
        raise OutOfReach(f"{what} is more than 128 MB from the trampoline")
    return word(0x14000000 | distance >> 2 & 0x3FFFFFF)


def call(at: int, to: int, what: str = "the clause") -> bytes:
    """Encode bl from the address `at` to the address `to`; it changes x30. Raises OutOfReach beyond
    128 MB, naming `what`."""
    return word(0x80000000 | int.from_bytes(branch(at, to, what), "little"))


def load_value(register: int, value: int) -> bytes:
    """Return code (movz or movn, and movk) that sets an x register to any 64-bit value."""
    value &= MASK
    halves = [value >> shift & 0xFFFF for shift in (0, 16, 32, 48)]
    negative = halves.count(0xFFFF) > halves.count(0)
    filler = 0xFFFF if negative else 0
    wanted = [n for n in range(4) if halves[n] != filler] or [0]
    first, *others = wanted
    start, half = (0x92800000, halves[first] ^ 0xFFFF) if negative else (0xD2800000, halves[first])
    code = word(start | first << 21 | half << 5 | register)
    return code + b"".join(word(0xF2800000 | n << 21 | halves[n] << 5 | register) for n in others)


def page_of(register: int, at: int, address: int) -> bytes:
    """Encode adrp at the address `at`, which sets an x register to the 4 KB page of `address`.
    Raises OutOfReach beyond 4 GB."""
    pages = (address >> 12) - (at >> 12)
    if not -(1 << 20) <= pages < 1 << 20:
        raise OutOfReach("what it refers to is more than 4 GB from the trampoline")
    return word(0x90000000 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5 | register)


def address_of(register: int, at: int, address: int) -> bytes:
    """Return code (adrp and add) at the address `at` that sets an x register to `address`. Raises
    OutOfReach beyond 4 GB."""
    return page_of(register, at, address) + add(register, register, address & 0xFFF)


def add(to: int, from_: int, value: int) -> bytes:
    """Encode add to, from_, #value, for x registers (register 31 is the stack pointer) and values
    from 0 to 4095; no flag changes."""
    return word(0x91000000 | value << 10 | from_ << 5 | to)


def sub(to: int, from_: int, value: int) -> bytes:
    """Encode sub to, from_, #value, for x registers (register 31 is the stack pointer) and values
    from 0 to 4095; no flag changes."""
    return word(0xD1000000 | value << 10 | from_ << 5 | to)


def subtract(to: int, left: int, right: int) -> bytes:
    """Encode sub to, left, right, for x registers; no flag changes."""
    return word(0xCB000000 | right << 16 | left << 5 | to)


def or_registers(to: int, left: int, right: int) -> bytes:
    return word(0xAA000000 | right << 16 | left << 5 | to)


def store(register: int, base: int, offset: int) -> bytes:
    """Encode str of an x register to [base + offset]; the offset is a multiple of 8 up to 32760."""
    return word(0xF9000000 | offset // 8 << 10 | base << 5 | register)


def load(register: int, base: int, offset: int) -> bytes:
    return word(0xF9400000 | offset // 8 << 10 | base << 5 | register)


def store_pair(first: int, second: int, base: int, offset: int) -> bytes:
    """Encode stp of two x registers to [base + offset]; the offset is a multiple of 8 from -512 to
    504."""
    return word(0xA9000000 | (offset // 8 & 0x7F) << 15 | second << 10 | base << 5 | first)


def load_pair(first: int, second: int, base: int, offset: int) -> bytes:
    return word(0xA9400000 | (offset // 8 & 0x7F) << 15 | second << 10 | base << 5 | first)


def push_pair(first: int, second: int, size: int) -> bytes:
    """Encode stp x, x, [sp, #-size]!"""
    return word(0xA9800000 | (-size // 8 & 0x7F) << 15 | second << 10 | SP << 5 | first)


def pop_pair(first: int, second: int, size: int) -> bytes:
    """Encode ldp x, x, [sp], #size."""
    return word(0xA8C00000 | (size // 8 & 0x7F) << 15 | second << 10 | SP << 5 | first)


def load_exclusive(register: int, base: int) -> bytes:
    """Encode ldxr of an x register from [base]."""
    return word(0xC85F7C00 | base << 5 | register)


def store_exclusive(status: int, register: int, base: int) -> bytes:
    """Encode stxr of an x register to [base]; it sets the register `status` to 0 if it stored."""
    return word(0xC8007C00 | status << 16 | base << 5 | register)


def branch_not_zero(register: int, distance: int) -> bytes:
    """Encode cbnz of a w register; the distance is in bytes from this instruction."""
    return word(0x35000000 | (distance >> 2 & 0x7FFFF) << 5 | register)


def branch_not_zero_x(register: int, distance: int) -> bytes:
    """Encode cbnz of an x register; the distance is in bytes from this instruction."""
    return word(0xB5000000 | (distance >> 2 & 0x7FFFF) << 5 | register)


def branch_zero(register: int, distance: int) -> bytes:
    """Encode cbz of an x register; the distance is in bytes from this instruction."""
    return word(0xB4000000 | (distance >> 2 & 0x7FFFF) << 5 | register)


def read_system(register: int, number: int) -> bytes:
    """Encode mrs: read a system register, given by its number, to an x register."""
    return word(0xD5200000 | number << 5 | register)


def write_system(number: int, register: int) -> bytes:
    """Encode msr: write an x register to a system register, given by its number."""
    return word(0xD5000000 | number << 5 | register)


def mask_interrupts() -> bytes:
    """Encode msr daifset, #3, which masks interrupts as Linux does."""
    return word(0xD50340DF | DAIF_IRQ << 8)
