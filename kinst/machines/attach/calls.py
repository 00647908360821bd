"""Calls of the guest kernel's C functions by one of the guest's own threads.

kinst stops a thread at the entry of a function that system calls lead to. It sets the thread's
registers and return address, and lowers the stack pointer. The thread may sleep in the call and
return on another CPU; its stack pointer identifies it. Afterwards kinst restores its registers, and
the thread enters the function as if nothing had happened.

A thread must return from its call whatever fails in kinst. After an error, kinst connects to the
stub again and continues to wait.

If kinst and its guardian are killed, the ISA decides what happens to the thread. If calls put the
return address on the stack, the thread continues by itself: the function that it was to enter
returns an error to its caller. If calls put the return address in a register, the thread cannot
continue: it returns to the address at which kinst waited for it, and the kernel panics.

Tested by tests/machines/attach/test_parts.py.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import Stopped
from kinst.core.system import PageAllocator
from kinst.machines.stub.cpus import Debugger
from kinst.machines.stub.memory import GuestMemory

ENTRY_SECONDS = 15.0  # until a thread enters one of the functions
CALL_SECONDS = 60.0  # for one call, on a busy host
_LOWERED = 256  # bytes of the thread's stack that are not used, on ISAs with a link register
_ALIGNED = 16
_WORD = 8
_TRIES = 3
_Result = TypeVar("_Result")


class _LostError(TargetError):
    """Error for a thread of the guest that will not return from its call."""


class NotMadeError(TargetError):
    """Error for a call in the guest that did not begin, and had no effect."""


class GuestCalls:
    """Maker of calls in a guest. The guest is stopped before and after each call, and runs during
    the call."""

    def __init__(
        self, debugger: Debugger, isa: Isa, allocator: PageAllocator, memory: GuestMemory,
        write: Callable[[int, bytes], None], renewed: Callable[[], Debugger],
    ) -> None:  # fmt: skip
        """Prepare to make calls.

        Args:
            allocator: addresses of the functions at whose entry kinst may stop a thread, and the
                return address for the thread's calls.
            memory: virtual memory of the kernel.
            write: writes data to virtual memory.
            renewed: connects to the stub again after an error, and returns a new Debugger for that
                connection. This leaves the machine stopped and without breakpoints.
        """
        self._debugger = debugger
        self._renewed = renewed
        self._isa = isa
        self._board = isa.board
        self._allocator = allocator
        # Without a link register a thread lands in a function that only returns an error, to the
        # caller of the function that the thread was to enter.
        self._returns_alone = not isa.board.LINK and bool(allocator.returning)
        self._return_address = (
            allocator.returning if self._returns_alone else allocator.return_address
        )
        self._entries = allocator.entries
        if (most := debugger.hardware_breakpoints) and most < len(self._entries):
            self._entries = (*self._entries[: most - 1], self._entries[-1])
        self._memory = memory
        self._write = write
        names = {one.slot: one.gdb_name for one in isa.registers}
        self._arguments = [names[slot] for slot in isa.argument_slots]
        self._result = names[isa.result_slot]
        self._cpu = 0
        self._stack = self._caller_stack = 0
        self._place = (0, 0)  # the thread's program counter and stack pointer, before a call

    @contextmanager
    def thread(self) -> Iterator[Callable[..., int]]:
        """Stop a thread of the guest, and yield a function by which that thread makes calls for
        kinst.

        The function takes the address of a kernel function and its arguments, and returns the
        result of the call. When the context ends, the thread gets its registers back.

        Raises TargetError if no thread can be stopped, or if a call does not return.
        """
        return_address = self._return_address
        self._cpu = self._caught()
        before = self._retried(lambda: self._debugger.registers(self._cpu))
        saved = {name: before[name] for name in self._board.CALL_CHANGES}
        self._caller_stack = lowered = saved[self._isa.sp]
        if not self._returns_alone:
            lowered = (lowered - _LOWERED) & -_ALIGNED
        self._place = saved[self._isa.pc], saved[self._isa.sp]
        lost = False
        apart = _WORD if self._returns_alone else _ALIGNED
        stacks = itertools.cycle((lowered, lowered - apart))

        def call(address: int, *arguments: int) -> int:
            nonlocal lost
            deadline = time.monotonic() + CALL_SECONDS
            lost = True
            # The stack pointer differs from that of the last call, so that a thread that has
            # returned can be told from a thread that has not started.
            self._stack = next(stacks)
            try:
                result = self._until_returned(deadline, self._beginning(address, arguments))
            except _LostError:
                raise
            except Exception as error:
                self._debugger = self._renewed()
                if self._has_not_started():
                    lost = False
                    raise NotMadeError(f"a call in the guest was not begun: {error}") from error
                result = self._retried(lambda: self._until_returned(deadline, {}))
            lost = False
            self._place = return_address, self._stack
            return result

        def restore_registers() -> None:
            self._debugger.stop()
            if not lost:
                self._debugger.write_registers(self._cpu, saved)
            self._debugger.remove_breakpoints([return_address])

        try:
            yield call
        finally:
            self._retried(restore_registers)

    def _caught(self) -> int:
        """Wait until a thread enters a function that system calls lead to, and return its CPU.

        The thread is stopped, and all breakpoints are removed.
        """
        entries = self._entries

        def remove_breakpoints() -> None:
            self._debugger.stop()
            self._debugger.remove_breakpoints(entries)

        try:
            return self._retried(self._catch)
        finally:
            self._retried(remove_breakpoints)

    def _catch(self) -> int:
        debugger, entries = self._debugger, self._entries
        debugger.want_breakpoints(entries)
        deadline = time.monotonic() + ENTRY_SECONDS
        while True:
            stopped = self._stopped(deadline)
            if stopped is None:
                raise _LostError(
                    f"the guest has made no system call for {ENTRY_SECONDS:g} s, and kinst needs"
                    " one to allocate memory: the guest is idle, hangs or has panicked",
                    "let a program of the guest run",
                )
            if stopped.pc in entries:
                if not self._board.interrupts_off(debugger.registers(stopped.cpu)):
                    return stopped.cpu
                debugger.step_over(stopped.cpu, stopped.pc)

    def _retried(self, work: Callable[[], _Result]) -> _Result:
        """Call `work` and return its result; after an error, connect to the stub again and
        retry.
        """
        for _ in range(_TRIES - 1):
            try:
                return work()
            except _LostError:
                raise
            except Exception:
                self._debugger = self._renewed()
        return work()

    def _has_not_started(self) -> bool:
        """Return whether the thread has not begun its call: its program counter and stack pointer
        are unchanged.
        """
        there = self._retried(lambda: self._debugger.registers(self._cpu))
        return (there[self._isa.pc], there[self._isa.sp]) == self._place

    def _stopped(self, deadline: float, values: Mapping[str, int] | None = None) -> Stopped | None:
        """Let the machine run until it stops at a breakpoint, and return the stop; None at the
        deadline.

        Args:
            deadline: by time.monotonic().
            values: registers to write to the thread before the machine runs.
        """
        debugger = self._debugger
        debugger.resume(self._cpu, values)
        while (left := deadline - time.monotonic()) > 0:
            reply = debugger.poll(left)
            if reply is not None and not isinstance(reply, Stopped):
                raise _LostError("the guest has ended")
            if reply is not None:
                return reply
        return None

    def _beginning(self, address: int, arguments: tuple[int, ...]) -> dict[str, int]:
        """Return the register values with which the thread begins a call, and write its stack.

        Args:
            address: the kernel function.
        """
        board, return_address = self._board, self._return_address
        pc, sp = self._isa.pc, self._isa.sp
        values = dict(zip(self._arguments, arguments, strict=False))
        values[pc] = address
        values[sp] = self._stack
        if board.LINK:
            values[board.LINK] = return_address
        else:
            values[sp] -= _WORD
            # Fill the stack up to the caller's return address, so that a thread that is not caught
            # returns there.
            words = (self._caller_stack - values[sp]) // _WORD if self._returns_alone else 1
            self._write(values[sp], return_address.to_bytes(_WORD, "little") * words)
        return values

    def _until_returned(self, deadline: float, values: Mapping[str, int]) -> int:
        """Let the machine run until the thread has returned from its call, and return the call's
        result.

        Args:
            deadline: by time.monotonic().
            values: registers to write to the thread before the machine runs.
        """
        debugger, return_address = self._debugger, self._return_address
        debugger.want_breakpoints([return_address])
        while True:
            stopped = self._stopped(deadline, values)
            values = {}
            if stopped is None:
                debugger.stop()
                raise _LostError(f"a call in the guest has not returned in {CALL_SECONDS:g} s")
            registers = debugger.registers(stopped.cpu)
            if stopped.pc == return_address and registers[self._isa.sp] == self._stack:
                self._cpu = stopped.cpu
                return registers[self._result]
            if stopped.pc == return_address:
                if not self._returns_alone:
                    raise _LostError("the guest's kernel has panicked")
                debugger.step_over(stopped.cpu, return_address)
