"""Calls of the kernel's C functions, made by one of its own threads.

A thread is stopped at the entry of a function that system calls lead to, and made to call: its
registers and a return address are set, its stack pointer lowered.  It may sleep in the call and
come back on another CPU; it is known by its stack pointer.  Afterwards it has its registers again
and enters the function as if nothing had been.

A thread that is away must come home whatever fails here: so a failure on the way is followed by a
new beginning with the stub, and the wait goes on.  Should nobody be left who waits (all of this was
killed), a thread whose return address is on its stack comes home by itself: the function that it
was to enter has failed, as its caller sees it.  With the return address in a register there is no
such way, and the thread lands where there is nothing to go on with.

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
_LOWERED = 256  # bytes of the thread's stack that are left alone, with a link register
_ALIGNED = 16
_WORD = 8
_TRIES = 3
_Result = TypeVar("_Result")


class _LostError(TargetError):
    """The thread will not come back."""


class NotMadeError(TargetError):
    """A call was not begun: nothing has come of it."""


class GuestCalls:
    """Calls in a machine; it is stopped before and after, and runs meanwhile."""

    def __init__(
        self, debugger: Debugger, isa: Isa, allocator: PageAllocator, memory: GuestMemory,
        write: Callable[[int, bytes], None], renewed: Callable[[], Debugger],
    ) -> None:  # fmt: skip
        """memory: of the kernel.  write: to virtual memory that is data.  renewed: begins anew with
        the stub, after a failure; the machine stands then, and has no breakpoints."""
        self._debugger = debugger
        self._renewed = renewed
        self._isa = isa
        self._board = isa.board
        self._allocator = allocator
        # Another function than what it was made to enter returns, then, to that one's caller.
        self._by_itself = not isa.board.LINK and bool(allocator.returning)
        self._landing = allocator.returning if self._by_itself else allocator.landing
        self._memory = memory
        self._write = write
        names = {one.slot: one.gdb_name for one in isa.registers}
        self._arguments = [names[slot] for slot in isa.argument_slots]
        self._result = names[isa.result_slot]
        self._cpu = 0
        self._stack = self._home = 0
        self._place = (0, 0)  # the thread's program counter and stack pointer, before a call

    @contextmanager
    def thread(self) -> Iterator[Callable[..., int]]:
        """A thread that makes calls: function(address, arguments...) returns what the C function
        does.  Raises TargetError when no thread comes by, or one does not return."""
        landing = self._landing
        self._cpu = self._caught()
        before = self._surely(lambda: self._debugger.registers(self._cpu))
        saved = {name: before[name] for name in self._board.CALL_CHANGES}
        self._home = lowered = saved[self._isa.sp]
        if not self._by_itself:
            lowered = (lowered - _LOWERED) & -_ALIGNED
        self._place = saved[self._isa.pc], saved[self._isa.sp]
        lost = False
        apart = _WORD if self._by_itself else _ALIGNED
        landings = itertools.cycle((lowered, lowered - apart))

        def call(address: int, *arguments: int) -> int:
            nonlocal lost
            deadline = time.monotonic() + CALL_SECONDS
            lost = True
            # Another one each time: so it shows whether it is back, or has not set off.
            self._stack = next(landings)
            try:
                result = self._landed(deadline, self._beginning(address, arguments))
            except _LostError:
                raise
            except Exception as error:
                self._debugger = self._renewed()
                if self._has_not_set_off():
                    lost = False
                    raise NotMadeError(f"a call in the guest was not begun: {error}") from error
                result = self._surely(lambda: self._landed(deadline, {}))
            lost = False
            self._place = landing, self._stack
            return result

        def send_home() -> None:
            self._debugger.stop()
            if not lost:
                self._debugger.write_registers(self._cpu, saved)
            self._debugger.remove_breakpoints([landing])

        try:
            yield call
        finally:
            self._surely(send_home)

    def _caught(self) -> int:
        """The CPU that stands at one of the entries, with no breakpoint left there."""
        entries = self._allocator.entries

        def let_be() -> None:
            self._debugger.stop()
            self._debugger.remove_breakpoints(entries)

        try:
            return self._surely(self._catch)
        finally:
            self._surely(let_be)

    def _catch(self) -> int:
        debugger, entries = self._debugger, self._allocator.entries
        debugger.want_breakpoints(entries)
        deadline = time.monotonic() + ENTRY_SECONDS
        while True:
            stopped = self._stopped(deadline)
            if stopped is None:
                raise _LostError(
                    f"no program of the guest has made a system call in {ENTRY_SECONDS:g} s,"
                    " which kinst needs to borrow memory: it hangs, or has panicked",
                    "let the guest do something",
                )
            if stopped.pc in entries:
                if not self._board.interrupts_off(debugger.registers(stopped.cpu)):
                    return stopped.cpu
                debugger.step_over(stopped.cpu, stopped.pc)

    def _surely(self, work: Callable[[], _Result]) -> _Result:
        """What `work` returns; where it fails, from a new beginning with the stub once more."""
        for _ in range(_TRIES - 1):
            try:
                return work()
            except _LostError:
                raise
            except Exception:
                self._debugger = self._renewed()
        return work()

    def _has_not_set_off(self) -> bool:
        """Whether the thread stands where it did before a call: the machine has not run, then."""
        there = self._surely(lambda: self._debugger.registers(self._cpu))
        return (there[self._isa.pc], there[self._isa.sp]) == self._place

    def _stopped(self, deadline: float, values: Mapping[str, int] | None = None) -> Stopped | None:
        """Let the machine run until it stops at a breakpoint; None at the deadline.  values:
        registers that the thread gets before."""
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
        """The registers with which the thread begins a call."""
        board, landing, pc, sp = self._board, self._landing, self._isa.pc, self._isa.sp
        values = dict(zip(self._arguments, arguments, strict=False))
        values[pc] = address
        values[sp] = self._stack
        if board.LINK:
            values[board.LINK] = landing
        else:
            values[sp] -= _WORD
            # Up to where the caller's address is, which a thread that nobody catches comes to.
            words = (self._home - values[sp]) // _WORD if self._by_itself else 1
            self._write(values[sp], landing.to_bytes(_WORD, "little") * words)
        return values

    def _landed(self, deadline: float, values: Mapping[str, int]) -> int:
        """Let the thread run until it is back from a call; what that returned.  values: registers
        that it gets before."""
        debugger, landing = self._debugger, self._landing
        debugger.want_breakpoints([landing])
        while True:
            stopped = self._stopped(deadline, values)
            values = {}
            if stopped is None:
                debugger.stop()
                raise _LostError(f"a call in the guest has not returned in {CALL_SECONDS:g} s")
            registers = debugger.registers(stopped.cpu)
            if stopped.pc == landing and registers[self._isa.sp] == self._stack:
                self._cpu = stopped.cpu
                return registers[self._result]
            if stopped.pc == landing:
                if not self._by_itself:
                    raise _LostError("the guest's kernel has panicked")
                debugger.step_over(stopped.cpu, landing)
