"""How memory of a Linux kernel shows that a process has become the command of a trace (-c), and
that this command has ended.

Source: fs/exec.c (execve); kernel/exit.c: a process that has ended stays a zombie until its parent
asks for its status (exit_notify()), and __exit_signal() counts down the threads that it still has.

Tested by tests/vm/language/test_command_alone.py.
"""

from __future__ import annotations

import numpy as np

from kinst.core.system import CommandSpan, NextCall, UserState
from kinst.image.btf import Btf
from kinst.systems.linux.isafacts import IsaFacts
from kinst.systems.linux.memory import LinuxMemory
from kinst.systems.linux.page_allocator import on_cpu, threads
from kinst.systems.linux.ptregs import PT_REGS
from kinst.systems.linux.system_calls import call_table

_ZOMBIE = 0x20  # EXIT_ZOMBIE (include/linux/sched.h)
_NAME_SIZE = 16  # TASK_COMM_LEN (include/linux/sched.h)
_TASK = "task_struct"


def command_span(
    kernel: LinuxMemory, btf: Btf, arch: IsaFacts, state: UserState | None
) -> CommandSpan | None:
    """Return how kinst can see a command start and end: the address of execve's function and
    offsets of structure members. Return None if this kernel lacks a symbol or a member for that.

    Args:
        state: where a thread's user-mode registers are saved; None if that is not known.
    """
    entries = [f"{layout.prefix}execve" for layout in arch.system_calls]
    entry = next((kernel.symbol(name) for name in entries if kernel.has(name)), 0)
    # Renamed in Linux 5.14 (commit subject "sched: Change task_struct::state").
    name = "__state" if btf.has(_TASK, "__state") else "state"
    wanted = [
        (_TASK, "exit_state"), (_TASK, "signal"), ("signal_struct", "nr_threads"), (_TASK, name),
        (_TASK, "children"), (_TASK, "sibling"),
    ]  # fmt: skip
    if not entry or not all(btf.has(*one) for one in wanted):
        return None
    exit_state, group, count, waiting, children, sibling = (btf.offset(*one) for one in wanted)
    return CommandSpan(
        entry, exit_state, _ZOMBIE, group, count, on_cpu(btf), waiting, children, sibling,
        _next_call(kernel, btf, arch, entry, state),
    )  # fmt: skip


def _next_call(
    kernel: LinuxMemory, btf: Btf, arch: IsaFacts, entry: int, state: UserState | None
) -> NextCall | None:
    """Return how kinst can see in memory that a thread enters execve(2).

    The kernel saves the registers of a system call at the top of the thread's stack, before it
    calls any other function, and the call's number with them (arch/x86/entry/entry_64.S,
    entry_SYSCALL_64; arch/arm64/kernel/syscall.c, el0_svc_common(); arch/riscv/kernel/entry.S,
    handle_exception).

    Args:
        entry: address of execve's function.
        state: where a thread's user-mode registers are saved; None if that is not known.
    """
    alive, dispatch = threads(kernel, btf), arch.dispatch
    numbers = np.flatnonzero(call_table(kernel, dispatch) == np.uint64(entry)).tolist()
    if state is None or alive is None or dispatch is None or not numbers:
        return None
    if not btf.has(PT_REGS, dispatch.number) or not btf.has(_TASK, "comm"):
        return None
    number = state.saved + btf.offset(PT_REGS, dispatch.number)
    return NextCall(alive, btf.offset(_TASK, "comm"), _NAME_SIZE, number, numbers[0])
