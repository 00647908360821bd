"""Where Linux saves the user-mode registers of a thread, and where it keeps the name of the
thread's program.

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

from kinst.core.system import UserState
from kinst.image.btf import Btf
from kinst.systems.linux.isafacts import IsaFacts
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.ptregs import PT_REGS

# Members that lead from mm_struct to the name of the executed file.
_NAME = (("mm_struct", "exe_file"), ("file", "f_path.dentry"), ("dentry", "d_name.name"))


def stack_size(kernel: LinuxMemory) -> int:
    """Return the size of a thread's kernel stack in bytes (THREAD_SIZE), or 0 if it is not known.

    It is the size of the first thread's stack, which the linker lays out
    (include/asm-generic/vmlinux.lds.h).
    """
    for end in ("__end_init_task", "__end_init_stack"):
        if kernel.has(end) and kernel.has("init_stack"):
            return kernel.symbol(end) - kernel.symbol("init_stack")
    return 0


def user_state(kernel: LinuxMemory, btf: Btf, arch: IsaFacts) -> UserState | None:
    """Return where the current thread's user-mode registers and the name of its program are in
    memory; None if the kernel's symbols or types do not tell.

    When a thread enters the kernel from user mode, its kernel stack is empty. The kernel saves the
    thread's registers first, at the top of the stack (task_pt_regs() of each architecture).
    """
    saved = arch.saved
    wanted = (("task_struct", "stack"), ("mm_struct", "start_code"), *_NAME)
    size = stack_size(kernel)
    if not size or not all(btf.has(*path) for path in wanted):
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
        program=tuple(btf.offset(*path) for path in _NAME),
    )
