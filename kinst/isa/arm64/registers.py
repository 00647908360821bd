"""The registers of regs[] on arm64, and where a trampoline saves them.

Names and indices are FreeBSD's (regs_aarch64.d, regset.h): R_X0 to R_X29, R_FP, R_LR, R_SP and
R_PC. R_X30 (the link register again) and R_PSTATE are kinst's; FreeBSD does not have them.

R_PSTATE is laid out as the manual's SPSR_EL1 (DDI 0487, C5.2.18). Bits 31 to 28 are N, Z, C, V;
bits 9 to 6 are D, A, I, F; bits 3 and 2 are the exception level; bit 0 chooses the stack pointer.
At stop-planted probes R_PSTATE is the stub's register cpsr, which has further bits.

The frame is an array of u64, indexed as regs[] is; after the registers comes the exit slot.
"""

from __future__ import annotations

from types import MappingProxyType

from kinst.core.registers import NamedRegisters, Register

SP_SLOT, PC_SLOT, PSTATE_SLOT = 31, 32, 33
EXIT_SLOT = 34  # no register's (Isa.exit_slot)
FRAME_SLOTS = 35
FRAME_SIZE = (FRAME_SLOTS + 1) * 8  # a multiple of 16, as the stack pointer must be

_NAMES = (
    *((f"R_X{n}", n, f"x{n}") for n in range(31)),
    ("R_FP", 29, "x29"),
    ("R_LR", 30, "x30"),
    ("R_SP", SP_SLOT, "sp"),
    ("R_PC", PC_SLOT, "pc"),
    ("R_PSTATE", PSTATE_SLOT, "cpsr"),
)

REGISTERS = tuple(Register(d_name, n, n, stub) for d_name, n, stub in _NAMES)
WRITABLE = frozenset(range(31))
FIXED = MappingProxyType(
    {
        SP_SLOT: "the trampoline finds its frame by the stack pointer",
        PC_SLOT: "goto(OFFSET) continues elsewhere in the function",
        PSTATE_SLOT: "flags stay as they are: change what the instruction before compares",
    }
)
NAMED = NamedRegisters(
    "arm64", REGISTERS, tuple(range(8)), SP_SLOT, 0, EXIT_SLOT, WRITABLE, FIXED
)  # AAPCS64, 6.4.2
# DWARF for the Arm 64-bit Architecture, 4.1: 31 is sp.
DWARF = (*(f"R_X{n}" for n in range(31)), "R_SP")
# Where paciasp signs a return address (DDI 0487, D8.9 "Pointer authentication"): above the
# kernel's 48 bits of address, all of which are ones in its code; bit 55 is never the signature's.
SIGNATURE = 0xFFFF << 48
# gdb's default layout of the g packet for aarch64, for stubs without a description.
GDB_REGISTERS = (*((f"x{n}", 8) for n in range(31)), ("sp", 8), ("pc", 8), ("cpsr", 4))
VECTORS = ("VBAR", "VBAR_EL1")
