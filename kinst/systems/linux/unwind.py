"""Linux's own unwinder, which in-target clauses call for stack().

stack_trace_save_regs() (kernel/stacktrace.c, in kernels whose architecture has
CONFIG_ARCH_STACKWALK) walks from a struct pt_regs, with the architecture's unwinder: ORC on x86,
frame pointers on arm64 (arch/arm64/kernel/stacktrace.c) and riscv64. The kernel itself calls the
function from NMI and breakpoint handlers: it takes no lock, and reads memory only in the stacks of
the current CPU and thread.

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

from kinst.core.system import Unwinder
from kinst.image.btf import Btf
from kinst.systems.linux.isafacts import IsaFacts
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.ptregs import PT_REGS

SAVE = "stack_trace_save_regs"


def unwinder(kernel: LinuxMemory, btf: Btf, arch: IsaFacts) -> Unwinder | None:
    """Return the address of this kernel's unwinder and the layout of the registers that it starts
    from; None if the kernel has no such function."""
    saved = arch.saved
    if not kernel.has(SAVE):
        return None
    registers = [(saved.offset(btf, saved.pc), "")]
    registers += [(saved.offset(btf, name), name) for name in arch.unwound]
    return Unwinder(
        kernel.symbol(SAVE),
        btf.size(PT_REGS),
        tuple(registers),
        tuple((btf.offset(PT_REGS, member), value) for member, value in saved.kernel),
    )
