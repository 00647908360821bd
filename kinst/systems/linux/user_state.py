"""Where Linux keeps the user mode of a thread, and what its process runs.

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

from kinst.core.system import UserState
from kinst.image.btf import Btf
from kinst.systems.linux.isafacts import IsaFacts
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.ptregs import PT_REGS

# From mm_struct to the text of the name of the file that was executed.
_NAME = (("mm_struct", "exe_file"), ("file", "f_path.dentry"), ("dentry", "d_name.name"))


def stack_size(kernel: LinuxMemory) -> int:
    """THREAD_SIZE in bytes: how large the first thread's stack is, which the linker lays out
    (include/asm-generic/vmlinux.lds.h); 0 where it is not known."""
    for end in ("__end_init_task", "__end_init_stack"):
        if kernel.has(end) and kernel.has("init_stack"):
            return kernel.symbol(end) - kernel.symbol("init_stack")
    return 0


def user_state(kernel: LinuxMemory, btf: Btf, arch: IsaFacts) -> UserState | None:
    """None for a kernel whose types do not tell all of it.

    A thread comes from user mode with an empty kernel stack, on which its registers are the first
    (task_pt_regs() of each architecture).
    """
    saved = arch.saved
    wanted = (("task_struct", "stack"), ("mm_struct", "start_code"), *_NAME)
    size = stack_size(kernel)
    if not size or not all(btf.has(*one) for one in wanted):
        return None
    symbol, padding = saved.padding
    above = padding if symbol and kernel.has(symbol) else 0
    return UserState(
        stack=btf.offset("task_struct", "stack"),
        saved=size - above - btf.size(PT_REGS),
        registers={name: saved.offset(btf, name) for name in saved.places},
        pc=saved.offset(btf, saved.pc),
        frame=saved.offset(btf, saved.frame),
        next_at=saved.next_at,
        return_at=saved.return_at,
        address_mask=(1 << saved.user_bits) - 1,
        code_start=btf.offset("mm_struct", "start_code"),
        program=tuple(btf.offset(*one) for one in _NAME),
    )
