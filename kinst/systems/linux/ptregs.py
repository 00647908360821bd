"""struct pt_regs: where Linux saves registers, by instruction set (arch/*/include/asm/ptrace.h).

Names of D to (member, bytes behind it).  Where a member lies says the kernel's BTF.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinst.image.btf import Btf

PT_REGS = "pt_regs"
Places = Mapping[str, tuple[str, int]]

_AMD64 = (
    ("R_R15", "r15"), ("R_R14", "r14"), ("R_R13", "r13"), ("R_R12", "r12"), ("R_RBP", "bp"),
    ("R_RBX", "bx"), ("R_R11", "r11"), ("R_R10", "r10"), ("R_R9", "r9"), ("R_R8", "r8"),
    ("R_RAX", "ax"), ("R_RCX", "cx"), ("R_RDX", "dx"), ("R_RSI", "si"), ("R_RDI", "di"),
    ("R_RIP", "ip"), ("R_RFL", "flags"), ("R_RSP", "sp"), ("R_CS", "cs"),
    ("R_SS", "ss"),
)  # fmt: skip
_RISCV64 = (
    "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1", *(f"a{i}" for i in range(8)),
    *(f"s{i}" for i in range(2, 12)), *(f"t{i}" for i in range(3, 7)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SavedRegisters:
    """places: every register of regs[] that is saved.  pc, stack, frame: D names of the program
    counter, the stack pointer and the frame pointer.  link: of the return address's register,
    "" where calls push it.  next_at, return_at: where, from the frame pointer, the caller's
    frame pointer and the return address are (each ABI's frame record).  padding: symbol of a
    kernel that leaves so many bytes above the registers on a thread's stack.  kernel: constants
    by member that say that the registers are the kernel's.  user_bits: of a user address.
    """

    places: Places
    pc: str
    stack: str
    frame: str
    link: str
    next_at: int
    return_at: int
    kernel: tuple[tuple[str, int], ...] = ()
    padding: tuple[str, int] = ("", 0)
    user_bits: int = 64

    def offset(self, btf: Btf, name: str) -> int:
        """Of a register, by its D name, in the structure.  Raises KinstError for a kernel
        without that member."""
        member, behind = self.places[name]
        return btf.offset(PT_REGS, member) + behind


SAVED = {
    "amd64": SavedRegisters(
        {name: (member, 0) for name, member in _AMD64},
        "R_RIP", "R_RSP", "R_RBP", "", 0, 8,
        # __KERNEL_CS and __KERNEL_DS: the unwinder stops at once at registers of user mode.
        (("cs", 0x10), ("ss", 0x18)),
        # Kernels with FRED leave room on top of the stack (TOP_OF_KERNEL_STACK_PADDING).
        ("asm_fred_entrypoint_user", 16),
    ),
    "arm64": SavedRegisters(
        {
            **{f"R_X{n}": ("regs", 8 * n) for n in range(31)},
            "R_FP": ("regs", 8 * 29), "R_LR": ("regs", 8 * 30),
            "R_SP": ("sp", 0), "R_PC": ("pc", 0), "R_PSTATE": ("pstate", 0),
        },
        # A return address may be signed, above the bits of the address.
        "R_PC", "R_SP", "R_FP", "R_LR", 0, 8, user_bits=48,
    ),
    "riscv64": SavedRegisters(
        {
            **{f"R_{name.upper()}": (name, 0) for name in _RISCV64},
            "R_FP": ("s0", 0), "R_PC": ("epc", 0), "R_SSTATUS": ("status", 0),
            "R_PS": ("status", 0),
        },
        "R_PC", "R_SP", "R_S0", "R_RA", -16, -8,
    ),
}  # fmt: skip
