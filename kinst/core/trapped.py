"""CPUs between a breakpoint of kinst's and the hook in the kernel's handler: the hook must stay
until they have passed, or the kernel dies of a breakpoint that it does not know.

Tested by tests/session/test_trapped_cpu.py and tests/machines/attach/test_guardian.py.
"""

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

# Times, and seconds each, that a CPU at a breakpoint gets to reach the hook.
_PASSES, _PASS = 500, 0.005
_SAVED = 512  # bytes of a stack above which a trap's registers are not saved

Read = Callable[[int, int], bytes]


class Stoppable(Protocol):
    """CPUs that can be stopped and read: of a Target, and of a stub."""

    @property
    def cpus(self) -> int: ...

    def stop(self) -> None: ...

    def resume(self) -> None: ...

    def registers(self, cpu: int) -> Mapping[str, int]: ...


def let_pass(machine: Stoppable, read: Read, isa: Isa, sites: U64, pc_delta: int) -> None:
    """Let the CPUs that have met a breakpoint at one of these sites reach the hook.

    The machine is stopped before and after; the sites have no breakpoints any more.

    Args:
        read: reads the kernel's memory.
        pc_delta: Facts.trap_pc_delta.
    """
    places = sites + np.uint64(pc_delta)
    for _ in range(_PASSES):
        cpus = (machine.registers(cpu) for cpu in range(machine.cpus))
        if not any(_has_trapped(read, isa, registers, places, pc_delta) for registers in cpus):
            return
        machine.resume()
        time.sleep(_PASS)
        machine.stop()


def _has_trapped(
    read: Read, isa: Isa, registers: Mapping[str, int], places: U64, pc_delta: int
) -> bool:
    """Whether a CPU may be between a breakpoint and the hook: the program counter that a trap saves
    is in a register or, if it is no address of an instruction, on the stack."""
    if isa.paging.in_user_mode(registers):
        return False
    words = np.array([v for v in registers.values() if 0 <= v < 1 << 64], np.uint64)
    stack = registers[isa.sp] & -8
    for size in (_SAVED, min(_SAVED, -stack % PAGE)) if pc_delta else ():
        with suppress(TargetError):
            words = np.concatenate([words, np.frombuffer(read(stack, size), "<u8")])
            break
    return bool(np.isin(places, words).any())
