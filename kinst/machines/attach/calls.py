"""Calls of the kernel's C functions, made by one of its own threads.

A thread is stopped at the entry of a function that system calls lead to, and made to call: its
registers and a return address are set, its stack pointer lowered.  It may sleep in the call and
come back on another CPU; it is known by its stack pointer.  Afterwards it has its registers again
and enters the function as if nothing had been.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import Stopped
from kinst.core.system import Lender
from kinst.machines.stub.cpus import Debugger
from kinst.machines.stub.memory import GuestMemory

ENTRY_SECONDS = 15.0  # until a thread enters one of the functions
CALL_SECONDS = 60.0  # for one call, on a busy host
_LOWERED = 256  # bytes of the thread's stack that are left alone
_ALIGNED = 16


class GuestCalls:
    """Calls in a machine; it is stopped before and after, and runs meanwhile."""

    def __init__(
        self, debugger: Debugger, isa: Isa, lender: Lender, memory: GuestMemory,
        write: Callable[[int, bytes], None],
    ) -> None:  # fmt: skip
        """memory: of the kernel.  write: to virtual memory that is data."""
        self._debugger = debugger
        self._isa = isa
        self._board = isa.board
        self._lender = lender
        self._memory = memory
        self._write = write
        names = {one.slot: one.gdb_name for one in isa.registers}
        self._arguments = [names[slot] for slot in isa.argument_slots]
        self._result = names[isa.result_slot]
        self._cpu = 0
        self._stack = 0

    @contextmanager
    def thread(self) -> Iterator[Callable[..., int]]:
        """A thread that makes calls: function(address, arguments...) returns what the C function
        does.  Raises TargetError when no thread comes by, or one does not return."""
        debugger, landing = self._debugger, self._lender.landing
        self._cpu = self._caught()
        before = debugger.registers(self._cpu)
        saved = {name: before[name] for name in self._board.CALL_CHANGES}
        self._stack = (saved[self._board.SP] - _LOWERED) & -_ALIGNED
        debugger.want_breakpoints([landing])
        lost = False

        def call(address: int, *arguments: int) -> int:
            nonlocal lost
            lost = True
            result = self._call(address, arguments)
            lost = False
            return result

        try:
            yield call
        finally:
            debugger.stop()
            if not lost:
                debugger.write_registers(self._cpu, saved)
            debugger.remove_breakpoints([landing])

    def _caught(self) -> int:
        """The CPU that stands at one of the entries, with no breakpoint left there."""
        debugger, entries = self._debugger, self._lender.entries
        debugger.want_breakpoints(entries)
        try:
            deadline = time.monotonic() + ENTRY_SECONDS
            while True:
                stopped = self._stopped(deadline)
                if stopped is None:
                    raise TargetError(
                        f"no program of the guest has made a system call in {ENTRY_SECONDS:g} s,"
                        " which kinst needs to borrow memory: it hangs, or has panicked",
                        "let the guest do something",
                    )
                if stopped.pc in entries:
                    if not self._board.interrupts_off(debugger.registers(stopped.cpu)):
                        return stopped.cpu
                    debugger.step_over(stopped.cpu, stopped.pc)
        finally:
            debugger.stop()
            debugger.remove_breakpoints(entries)

    def _stopped(self, deadline: float, values: Mapping[str, int] | None = None) -> Stopped | None:
        """Let the machine run until it stops at a breakpoint; None at the deadline.  values:
        registers that the thread gets before."""
        debugger = self._debugger
        debugger.resume(self._cpu, values)
        while (left := deadline - time.monotonic()) > 0:
            reply = debugger.poll(left)
            if reply is not None and not isinstance(reply, Stopped):
                raise TargetError("the guest has ended")
            if reply is not None:
                return reply
        return None

    def _call(self, address: int, arguments: tuple[int, ...]) -> int:
        board, debugger, landing = self._board, self._debugger, self._lender.landing
        values = dict(zip(self._arguments, arguments, strict=False))
        values[board.PC] = address
        values[board.SP] = self._stack
        if board.LINK:
            values[board.LINK] = landing
        else:
            values[board.SP] -= 8
            self._write(values[board.SP], landing.to_bytes(8, "little"))
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            stopped = self._stopped(deadline, values)
            values = {}
            if stopped is None:
                debugger.stop()
                raise TargetError(f"a call in the guest has not returned in {CALL_SECONDS:g} s")
            registers = debugger.registers(stopped.cpu)
            if stopped.pc == landing and registers[board.SP] == self._stack:
                self._cpu = stopped.cpu
                return registers[self._result]
            if stopped.pc == landing:
                raise TargetError("the guest's kernel has panicked")
