"""The registers of regs[] on amd64, and where a trampoline saves them.

Indices are those of FreeBSD and illumos (regs_x86.d). The i386 names have 0 to 18, which are REG_*
of i386's regset.h; dtrace_getreg() maps them to the 64-bit registers. The amd64 names have 19 +
REG_* of amd64's regset.h. R_FSBASE and R_GSBASE have a REG_* but no line in regs_x86.d; here they
are numbered by the same rule.

The frame is an array of u64, which a trampoline fills from the top. It pushes flags, r11, rsi and
rdi first; the registers that clauses use most come next below. Slots below the lowest one that a
trampoline needs are not reserved. The slot "exit" is not for a register (Isa.exit_slot).
"""

from __future__ import annotations

from types import MappingProxyType

from kinst.core.registers import NamedRegisters, Register
from kinst.isa.amd64 import encode as e

_ORDER = (
    "gs_base", "fs_base", "gs", "fs", "es", "ds", "ss", "cs", "r15", "r14", "r13", "r12", "rbx",
    "rbp", "r10", "exit", "rip", "rsp", "rax", "r9", "r8", "rcx", "rdx", "rdi", "rsi", "r11",
    "eflags",
)  # fmt: skip

SLOT = MappingProxyType({name: slot for slot, name in enumerate(_ORDER)})
FRAME_SLOTS = len(_ORDER)
PC_SLOT = SLOT["rip"]
SP_SLOT = SLOT["rsp"]
FLAGS_SLOT = SLOT["eflags"]
EXIT_SLOT = SLOT["exit"]

# Slots that the trampoline fills first, by push, from the top of the frame.
PUSHED = frozenset(SLOT[name] for name in ("eflags", "r11", "rsi", "rdi"))
LOWEST_PUSHED = min(PUSHED)

# Registers that a trampoline stores into the other slots: general ones by encoding ...
GENERAL = MappingProxyType(
    {
        SLOT[name]: number
        for name, number in {
            "rax": e.RAX, "rcx": e.RCX, "rdx": e.RDX, "rbx": e.RBX, "rbp": e.RBP,
            "r8": e.R8, "r9": e.R9, "r10": e.R10, "r12": e.R12, "r13": e.R13,
            "r14": e.R14, "r15": e.R15,
        }.items()
    }
)  # fmt: skip
# ... segment registers by encoding, and bases by model-specific register (IA32_FS_BASE ...).
SEGMENT = MappingProxyType(
    {SLOT[name]: n for n, name in enumerate(("es", "cs", "ss", "ds", "fs", "gs"))}
)
BASE_MSR = MappingProxyType({SLOT["fs_base"]: 0xC0000100, SLOT["gs_base"]: 0xC0000101})

_AMD64 = 19  # index of REG_R15
_I386_NAMES = (
    ("R_GS", 0, "gs"), ("R_FS", 1, "fs"), ("R_ES", 2, "es"), ("R_DS", 3, "ds"),
    ("R_EDI", 4, "rdi"), ("R_ESI", 5, "rsi"), ("R_EBP", 6, "rbp"), ("R_ESP", 7, "rsp"),
    ("R_EBX", 8, "rbx"), ("R_EDX", 9, "rdx"), ("R_ECX", 10, "rcx"), ("R_EAX", 11, "rax"),
    ("R_EIP", 14, "rip"), ("R_CS", 15, "cs"), ("R_EFL", 16, "eflags"), ("R_UESP", 17, "rsp"),
    ("R_SS", 18, "ss"), ("R_PC", 14, "rip"), ("R_SP", 17, "rsp"), ("R_PS", 16, "eflags"),
    ("R_R0", 11, "rax"), ("R_R1", 8, "rbx"),
)  # fmt: skip
_AMD64_NAMES = (
    ("R_R15", 0, "r15"), ("R_R14", 1, "r14"), ("R_R13", 2, "r13"), ("R_R12", 3, "r12"),
    ("R_R11", 4, "r11"), ("R_R10", 5, "r10"), ("R_R9", 6, "r9"), ("R_R8", 7, "r8"),
    ("R_RDI", 8, "rdi"), ("R_RSI", 9, "rsi"), ("R_RBP", 10, "rbp"), ("R_RBX", 11, "rbx"),
    ("R_RDX", 12, "rdx"), ("R_RCX", 13, "rcx"), ("R_RAX", 14, "rax"), ("R_RIP", 17, "rip"),
    ("R_RFL", 19, "eflags"), ("R_RSP", 20, "rsp"), ("R_FSBASE", 26, "fs_base"),
    ("R_GSBASE", 27, "gs_base"),
)  # fmt: skip

REGISTERS = tuple(
    [Register(d_name, _AMD64 + n, SLOT[name], name) for d_name, n, name in _AMD64_NAMES]
    + [Register(d_name, n, SLOT[name], name) for d_name, n, name in _I386_NAMES]
)

WRITABLE = frozenset((*GENERAL, *(PUSHED - {FLAGS_SLOT})))
_SEGMENTED = "kinst does not change segments and their bases"
FIXED = MappingProxyType(
    {
        SP_SLOT: "the trampoline finds its frame by the stack pointer",
        PC_SLOT: "goto(OFFSET) continues elsewhere in the function",
        FLAGS_SLOT: "flags stay as they are: change what the instruction before compares",
        **dict.fromkeys((*SEGMENT, *BASE_MSR), _SEGMENTED),
    }
)

# System V ABI, 3.2.3: integer arguments.
NAMED = NamedRegisters(
    "amd64", REGISTERS, tuple(SLOT[name] for name in ("rdi", "rsi", "rdx", "rcx", "r8", "r9")),
    SP_SLOT, SLOT["rax"], EXIT_SLOT, WRITABLE, FIXED,
)  # fmt: skip

# System V ABI, figure 3.36: DWARF's numbers; 16 is the return address.
DWARF = (
    "R_RAX", "R_RDX", "R_RCX", "R_RBX", "R_RSI", "R_RDI", "R_RBP", "R_RSP",
    *(f"R_R{n}" for n in range(8, 16)), "R_RIP",
)  # fmt: skip

# gdb's default layout of the g packet for i386:x86-64, for stubs without a description.
GDB_REGISTERS = (
    *((name, 8) for name in ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp")),
    *((f"r{i}", 8) for i in range(8, 16)),
    ("rip", 8),
    *((name, 4) for name in ("eflags", "cs", "ss", "ds", "es", "fs", "gs")),
)

# D names that DTrace has, with the reason why a probe of kinst cannot read them.
UNAVAILABLE = MappingProxyType(
    {
        "R_TRAPNO": "no trap number belongs to a kinst probe",
        "R_ERR": "no error code belongs to a kinst probe",
    }
)
