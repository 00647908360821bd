"""Backtraces of stopped CPUs and waiting threads, unwound on the host.

They are the values of stack() in stop-planted probes. The host unwinds as the kernel's own unwinder
does: by ORC tables (x86) or by frame pointers (arm64, riscv64).

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kinst.core.errors import KinstError
from kinst.core.machine import KernelMemory
from kinst.core.probe import Function
from kinst.core.words import MASK
from kinst.systems.linux.isafacts import FrameChain

MOST = 512  # frames of a backtrace
THREAD_STACK = 16 << 10  # bytes, THREAD_SIZE of the kernels that are unwound by frame pointers
STACK_POINTER, FRAME_POINTER = "R_RSP", "R_RBP"  # D names on x86, the only ISA with ORC tables


class Rules(Protocol):
    """Frame rules and functions of a Linux kernel, by address: all that the host needs to unwind
    it."""

    def frame_rule(self, address: int) -> tuple[str, int, int] | None: ...
    def saved_frame_pointer(self, address: int) -> int | None: ...
    def function_at(self, address: int) -> Function | None: ...


def by_rules(
    rules: Rules, memory: KernelMemory, pc: int, registers: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the program counter and the return addresses of a stopped CPU, innermost first,
    unwound by tables.

    The backtrace ends at an address without a rule, such as the entry of an interrupt or a system
    call.

    Args:
        registers: the CPU's registers by D name.
    """
    names = dict(registers)
    frames = [pc]
    look = pc
    while len(frames) < MOST:
        rule = rules.frame_rule(look)
        if rule is None or rule[0] not in names:
            break
        register, offset, back = rule
        cfa = names[register] + offset & MASK
        saved = rules.saved_frame_pointer(look)
        try:
            pc = _word(memory, cfa + back)
            if saved is not None:
                names[FRAME_POINTER] = _word(memory, cfa + saved)
        except KinstError:
            break
        if rules.function_at(pc - 1 & MASK) is None:
            break
        # Of the caller's registers, only these are known.
        names = {STACK_POINTER: cfa, FRAME_POINTER: names.get(FRAME_POINTER, 0)}
        frames.append(pc)
        look = pc - 1  # in the call: the instruction after a call may be another function's
    return tuple(frames)


def by_frames(
    chain: FrameChain, rules: Rules, memory: KernelMemory, pc: int, registers: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the program counter and the return addresses of a stopped CPU, innermost first,
    unwound by frame pointers.

    Source: walk_stackframe() of arch/riscv/kernel/stacktrace.c and unwind_next() of arch/arm64.

    Args:
        chain: layout of a frame record.
        registers: the CPU's registers by D name.
    """
    frames = [pc]
    stack, frame = registers[chain.stack], registers[chain.frame]

    def valid(address: int) -> bool:
        """Return whether `address` can be the frame pointer of the next frame to unwind.

        A frame pointer must be aligned, and its frame record must not begin below `stack`: the
        stack pointer for the first frame, then the frame pointer of the frame before. On an ISA
        whose frame records lie below the frame pointer, the frame pointer must also be within the
        thread's stack.
        """
        size = -chain.next_at if chain.next_at < 0 else 0
        top = stack + THREAD_STACK - 1 & -THREAD_STACK if size else MASK
        return not address & 7 and stack + size <= address <= top

    while len(frames) < MOST and valid(frame):
        try:
            caller, back = (_word(memory, frame + at) for at in (chain.next_at, chain.return_at))
        except KinstError:
            break
        stack = frame
        if chain.lone_link and len(frames) == 1 and valid(back):
            caller, back = back, registers[chain.lone_link]
        back |= chain.high if back >> 55 & 1 else 0
        if rules.function_at(back - 1 & MASK) is None:
            break
        frames.append(back)
        frame = caller
    return tuple(frames)


def _word(memory: KernelMemory, address: int) -> int:
    return int.from_bytes(memory.read(address & MASK, 8), "little")
