"""Waiting until no CPU is on its way from a breakpoint of kinst to kinst's hook in the kernel's
breakpoint handler. If kinst removed the hook before, such a CPU would find no hook, and the kernel
would die of an unknown breakpoint.

Tested by tests/session/test_trapped_cpu.py and tests/machines/attach/test_guardian.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

import numpy as np

from kinst.core.columns import U64
from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.words import PAGE

# How often the machine runs on, and for how many seconds each time, so that CPUs reach the hook.
_PASSES, _PASS = 500, 0.005
_SAVED = 512  # bytes from the stack pointer in which a trap's saved registers are

Read = Callable[[int, int], bytes]


class Stoppable(Protocol):
    """CPUs that can be stopped, and their registers read: a Target, or a GDB stub."""

    @property
    def cpus(self) -> int: ...

    def stop(self) -> None: ...

    def resume(self) -> None: ...

    def registers(self, cpu: int) -> Mapping[str, int]: ...


def let_pass(machine: Stoppable, read: Read, isa: Isa, sites: U64, pc_delta: int) -> None:
    """Let the machine run until no CPU is on its way from a breakpoint at one of these sites to the
    hook, at most for 2.5 seconds.

    The breakpoints must have been removed. The machine must be stopped, and is stopped again
    afterwards.

    Args:
        read: reads the kernel's memory.
        sites: addresses of the removed breakpoints.
        pc_delta: the program counter that a breakpoint saves, minus the breakpoint's address.
    """
    saved_pcs = sites + np.uint64(pc_delta)
    for _ in range(_PASSES):
        cpus = (machine.registers(cpu) for cpu in range(machine.cpus))
        if not any(_has_trapped(read, isa, registers, saved_pcs, pc_delta) for registers in cpus):
            return
        machine.resume()
        time.sleep(_PASS)
        machine.stop()


def _has_trapped(
    read: Read, isa: Isa, registers: Mapping[str, int], saved_pcs: U64, pc_delta: int
) -> bool:
    """Whether a CPU may be on its way from a breakpoint to the hook.

    If it is, the program counter that the breakpoint has saved is in a register or, if pc_delta is
    not 0, near the top of the CPU's stack.

    Args:
        registers: the CPU's registers.
        saved_pcs: for each breakpoint, the program counter that it saves.
        pc_delta: that program counter minus the breakpoint's address.
    """
    if isa.paging.in_user_mode(registers):
        return False
    words = np.array([v for v in registers.values() if 0 <= v < 1 << 64], np.uint64)
    stack = registers[isa.sp] & -8
    for size in (_SAVED, min(_SAVED, -stack % PAGE)) if pc_delta else ():
        with suppress(TargetError):
            words = np.concatenate([words, np.frombuffer(read(stack, size), "<u8")])
            break
    return bool(np.isin(saved_pcs, words).any())
