"""Linux's own unwinder, as in-target clauses call it for stack().

stack_trace_save_regs() (kernel/stacktrace.c, in kernels whose architecture has
CONFIG_ARCH_STACKWALK) walks from a struct pt_regs, with the architecture's unwinder: ORC on x86,
frame pointers on arm64 (arch/arm64/kernel/stacktrace.c) and riscv64.  The kernel itself calls it
from NMI and breakpoint handlers; it takes no lock, and reads memory only inside the stacks of
the current CPU and thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.target import Unwinder
from kinst.image.btf import Btf
from kinst.systems.linux.memory import Kernel
from kinst.systems.linux.ptregs import PT_REGS, SAVED

SAVE = "stack_trace_save_regs"


# On x86 every register that an ORC rule may name (arch/x86/include/asm/orc_types.h).
NEEDED = {
    "amd64": ("R_RSP", "R_RBP", "R_RDX", "R_RDI", "R_R10", "R_R13"),
    "arm64": ("R_FP", "R_SP", "R_LR"),
    "riscv64": ("R_S0", "R_SP", "R_RA"),
}


@dataclass(frozen=True, slots=True)
class FrameChain:
    """How a kernel that unwinds by frame pointers does it, for a stopped CPU.

    pc, stack, frame: D names; next_at, return_at: of the caller's, from the frame pointer.
    lone_link: the D name of the return address's register, where a function that calls nothing
    saves the frame pointer alone, right below the caller's frame; else "".
    high: bits that are set in every kernel address (a return address may be signed)."""

    pc: str
    stack: str
    frame: str
    next_at: int
    return_at: int
    lone_link: str
    high: int


CHAINS = {
    "arm64": FrameChain("R_PC", "R_SP", "R_FP", 0, 8, "", 0xFFFF << 48),
    "riscv64": FrameChain("R_PC", "R_SP", "R_S0", -16, -8, "R_RA", 0),
}


def unwinder(kernel: Kernel, btf: Btf, isa: str) -> Unwinder | None:
    """The unwinder of this kernel, or None when it has none of this kind."""
    saved = SAVED.get(isa)
    if saved is None or not kernel.has(SAVE):
        return None
    registers = [(saved.offset(btf, saved.pc), "")]
    registers += [(saved.offset(btf, name), name) for name in NEEDED[isa]]
    return Unwinder(
        kernel.symbol(SAVE),
        btf.size(PT_REGS),
        tuple(registers),
        tuple((btf.offset(PT_REGS, member), value) for member, value in saved.kernel),
    )
