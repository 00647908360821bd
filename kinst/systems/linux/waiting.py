"""Finding the kernel function in which a sleeping thread waits.

Sources: arch/x86/include/asm/switch_to.h (struct inactive_task_frame), arch/arm64 and arch/riscv
include/asm/processor.h (struct thread_struct); in_sched_functions() of kernel/sched/core.c.

Tested by tests/vm/language/test_silence.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kinst.core.errors import KinstError
from kinst.core.probe import Function
from kinst.image.btf import Btf
from kinst.systems.linux.backtrace import FRAME_POINTER, STACK_POINTER
from kinst.systems.linux.isafacts import FrameChain
from kinst.systems.linux.memory import LinuxMemory

_TASK, _FRAME = "task_struct", "inactive_task_frame"
# Members of thread_struct: program counter, stack pointer, frame pointer.
_SAVED = (
    ("thread.cpu_context.pc", "thread.cpu_context.sp", "thread.cpu_context.fp"),
    ("thread.ra", "thread.sp", "thread.s"),
)

Unwind = Callable[[int, Mapping[str, int]], tuple[int, ...]]


def waits_in(
    kernel: LinuxMemory,
    btf: Btf,
    chain: FrameChain | None,
    thread: int,
    unwind: Unwind,
    function_at: Callable[[int], Function | None],
) -> str:
    """Return the name of the kernel function in which a thread waits: the innermost function on its
    stack outside of the scheduler. Return "" if that is not known.

    Args:
        chain: layout of frame records; None if the kernel is unwound by ORC tables.
        thread: address of the thread, which no CPU runs now.
        unwind: returns a backtrace. Takes a program counter, and registers by D name.
        function_at: returns the function that contains an address.
    """
    try:
        low, high = (kernel.symbol(f"__sched_text_{end}") for end in ("start", "end"))
        for address in unwind(*_registers(kernel, btf, chain, thread)):
            function = function_at(address - 1)
            if function is None or low <= function.address < high:
                continue
            # The function that switches stacks is outside of the scheduler's section.
            if not function.name.startswith("__switch_to"):
                return function.name
    except KinstError:
        pass
    return ""


def _registers(
    kernel: LinuxMemory, btf: Btf, chain: FrameChain | None, thread: int
) -> tuple[int, Mapping[str, int]]:
    """Return the registers that the kernel saved when it switched away from a thread: the program
    counter, and the stack and frame pointers by D name.

    Args:
        chain: layout of frame records; None if the kernel is unwound by ORC tables.
        thread: address of the thread.
    """
    if chain is None:
        frame = kernel.number(thread + btf.offset(_TASK, "thread.sp"))
        back = btf.offset(_FRAME, "ret_addr")
        base = kernel.number(frame + btf.offset(_FRAME, "bp"))
        registers = {STACK_POINTER: frame + back + 8, FRAME_POINTER: base}
        return kernel.number(frame + back), registers
    members = next((m for m in _SAVED if btf.has(_TASK, m[0])), _SAVED[0])
    pc, stack, frame = (kernel.number(thread + btf.offset(_TASK, name)) for name in members)
    return pc, {chain.stack: stack, chain.frame: frame, chain.lone_link: 0}
