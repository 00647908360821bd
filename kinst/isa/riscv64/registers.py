"""The registers of regs[] on riscv64, and where a trampoline saves them.

D names are the ABI's (RISC-V psABI, "Integer Register Convention") with R_ in front of them;
indices are the register numbers, then pc and sstatus. R_FP is another name of R_S0.

The frame is an array of u64 at the stack pointer: slot n is register xn; slot 0 is the program
counter, since x0 need not be saved; slot 32 is sstatus, and the last slot the exit slot. The bits
SPP and SPIE of sstatus belong to the last trap: at a trap-planted site they are those of the
breakpoint.
"""

from __future__ import annotations

from types import MappingProxyType

from kinst.core.registers import NamedRegisters, Register

NAMES = (
    "zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1",
    *(f"a{i}" for i in range(8)), *(f"s{i}" for i in range(2, 12)), *(f"t{i}" for i in range(3, 7)),
)  # fmt: skip
NUMBER = MappingProxyType({name: number for number, name in enumerate(NAMES)})

PC_SLOT = 0
SP_SLOT = 2
STATUS_SLOT = 32
EXIT_SLOT = 33  # no register's (Isa.exit_slot)
FRAME_SLOTS = 34
FRAME_SIZE = 272  # bytes, 16-byte aligned

_PC, _STATUS = 32, 33  # indices

# Registers that a C function may change, in slot order: ra, t0 to t6, a0 to a7.
CALLER_SAVED = (1, 5, 6, 7, *range(10, 18), 28, 29, 30, 31)

# gdb's name of x8 is fp.
REGISTERS = (
    *(
        Register(f"R_{name.upper()}", number, number, "fp" if name == "s0" else name)
        for number, name in enumerate(NAMES)
        if number
    ),
    Register("R_PC", _PC, PC_SLOT, "pc"),
    Register("R_SSTATUS", _STATUS, STATUS_SLOT, "sstatus"),
    Register("R_FP", 8, 8, "fp"),
    Register("R_PS", _STATUS, STATUS_SLOT, "sstatus"),
)

# RISC-V psABI: integer arguments are in a0 to a7.
WRITABLE = frozenset(range(1, 32)) - {SP_SLOT, NUMBER["gp"], NUMBER["tp"]}
FIXED = MappingProxyType(
    {
        SP_SLOT: "the trampoline finds its frame by the stack pointer",
        PC_SLOT: "goto(OFFSET) continues elsewhere in the function",
        STATUS_SLOT: "the status bits stay as they are",
        NUMBER["gp"]: "the kernel's data, or its second stack of return addresses, is found by it",
        NUMBER["tp"]: "the current thread is found by it, also by clauses",
    }
)
NAMED = NamedRegisters(
    "riscv64", REGISTERS, tuple(NUMBER[f"a{n}"] for n in range(8)), SP_SLOT, NUMBER["a0"],
    EXIT_SLOT, WRITABLE, FIXED,
)  # fmt: skip

# RISC-V psABI, "DWARF Register Numbers": those of the integer registers are their own.
DWARF = ("", *(f"R_{name.upper()}" for name in NAMES[1:]))
# gdb's names and order of the general registers, for stubs without a description.
GDB_REGISTERS = tuple(
    (name, 8)
    for name in (
        "zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "fp", "s1",
        *(f"a{i}" for i in range(8)), *(f"s{i}" for i in range(2, 12)),
        *(f"t{i}" for i in range(3, 7)), "pc",
    )
)  # fmt: skip
VECTORS = ("stvec", "mtvec")
UNAVAILABLE = MappingProxyType({"R_ZERO": "it is always 0"})
