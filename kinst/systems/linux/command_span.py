"""How memory of a Linux kernel shows that a process has become the command of a trace (-c), and
that this command has ended.

Source: fs/exec.c (execve); kernel/exit.c: a process that has ended stays a zombie until its parent
asks for its status (exit_notify()), and __exit_signal() counts down the threads that it still has.

Tested by tests/vm/language/test_command_alone.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.core.system import CommandSpan
from kinst.image.btf import Btf
from kinst.systems.linux.isafacts import CallNames
from kinst.systems.linux.memory import LinuxMemory

_ZOMBIE = 0x20  # EXIT_ZOMBIE (include/linux/sched.h)
_TASK = "task_struct"


def command_span(kernel: LinuxMemory, btf: Btf, layouts: Sequence[CallNames]) -> CommandSpan | None:
    """Return how kinst can see a command start and end: the address of execve's function and
    offsets of structure members. Return None if this kernel lacks a symbol or a member for that.

    Args:
        layouts: possible names of the functions of system calls.
    """
    entries = [f"{layout.prefix}execve" for layout in layouts]
    entry = next((kernel.symbol(name) for name in entries if kernel.has(name)), 0)
    # Renamed in Linux 5.14 (commit subject "sched: Change task_struct::state").
    state = "__state" if btf.has(_TASK, "__state") else "state"
    wanted = [
        (_TASK, "exit_state"), (_TASK, "signal"), ("signal_struct", "nr_threads"), (_TASK, state),
        (_TASK, "children"), (_TASK, "sibling"),
    ]  # fmt: skip
    if not entry or not all(btf.has(*one) for one in wanted):
        return None
    exit_state, group, count, waiting, children, sibling = (btf.offset(*one) for one in wanted)
    running = btf.offset(_TASK, "on_cpu") if btf.has(_TASK, "on_cpu") else -1
    return CommandSpan(
        entry, exit_state, _ZOMBIE, group, count, running, waiting, children, sibling
    )
