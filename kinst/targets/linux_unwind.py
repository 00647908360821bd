"""Linux's own unwinder, as in-target clauses call it for stack().

stack_trace_save_regs() (kernel/stacktrace.c, in kernels whose architecture has
CONFIG_ARCH_STACKWALK) walks from a struct pt_regs, with the architecture's unwinder (ORC on
x86).  The kernel itself calls it from NMI and breakpoint handlers; it takes no lock, and reads
memory only inside the stacks of the current CPU and thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinst.core.target import Unwinder
from kinst.image.btf import Btf
from kinst.targets.linux_memory import Kernel

SAVE = "stack_trace_save_regs"


@dataclass(frozen=True, slots=True)
class SavedRegisters:
    """struct pt_regs on one ISA: (member, D name of its register, "" for the pc), and constants
    that say that the registers are the kernel's."""

    members: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int], ...]


# Every register that an ORC rule may name (arch/x86/include/asm/orc_types.h).  cs and ss are
# __KERNEL_CS and __KERNEL_DS: the unwinder stops at once at registers of user mode.
SAVED = {
    "amd64": SavedRegisters(
        (
            ("ip", ""), ("sp", "R_RSP"), ("bp", "R_RBP"), ("dx", "R_RDX"), ("di", "R_RDI"),
            ("r10", "R_R10"), ("r13", "R_R13"),
        ),
        (("cs", 0x10), ("ss", 0x18)),
    ),
}  # fmt: skip


def unwinder(kernel: Kernel, btf: Btf, isa: str) -> Unwinder | None:
    """The unwinder of this kernel, or None when it has none of this kind."""
    saved = SAVED.get(isa)
    if saved is None or not kernel.has(SAVE):
        return None
    return Unwinder(
        kernel.symbol(SAVE),
        btf.size("pt_regs"),
        tuple((btf.offset("pt_regs", member), name) for member, name in saved.members),
        tuple((btf.offset("pt_regs", member), value) for member, value in saved.constants),
    )
