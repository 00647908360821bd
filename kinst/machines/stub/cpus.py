"""Stopping, registers, breakpoints and steps through a GDB stub.

Tested by tests/fuzz/test_stubs.py and tests/vm/other_systems.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import Stopped
from kinst.wire.packets import StopReply
from kinst.wire.registers import RegisterFile, RegisterInfo, Registers, describe
from kinst.wire.rsp import Rsp

_STOP_TIMEOUT = 30.0
_SIGTRAP = 5
_STEP_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class StubView:
    """A stub's description of its machine.

    Attributes:
        threads: the stub's names of threads.
        registers: the registers of a thread.
    """

    threads: tuple[str, ...]
    registers: tuple[RegisterInfo, ...]


class Debugger:
    """The CPUs of a machine with a stub: the stub's threads, in its order.

    The machine is stopped when this is made.
    """

    def __init__(self, rsp: Rsp, isa: Isa, seen: StubView | None = None) -> None:
        """
        Args:
            seen: the description, if another process has asked the stub for it already.
        """
        self._rsp = rsp
        self._pc = isa.pc
        self._size = len(isa.breakpoint)
        if seen is None:
            seen = StubView(tuple(rsp.threads()), describe(rsp, isa.gdb_registers))
        self.seen = seen
        self._threads = list(seen.threads)
        self._file = RegisterFile(rsp, seen.registers)
        self._wanted: set[int] = set()
        self._inserted: set[int] = set()
        self._registers: dict[int, Registers] = {}
        self.running = False

    @property
    def cpus(self) -> int:
        return len(self._threads)

    def stop(self) -> None:
        """Stop every CPU.  Does nothing if they are stopped.

        A breakpoint that a CPU reaches meanwhile is not lost: its instruction has not run, so the
        CPU reaches it again after resume().
        """
        if not self.running:
            return
        self._rsp.interrupt()
        if self._rsp.wait_stop(_STOP_TIMEOUT) is None:
            raise TargetError(f"the machine has not stopped in {_STOP_TIMEOUT:g} s")
        self.running = False

    def resume(self, cpu: int = 0, values: Mapping[str, int] | None = None) -> None:
        """Let all CPUs run.

        Args:
            values: registers to write to `cpu` before, in the same round trip.
        """
        if self.running:
            return
        missing = sorted(self._wanted - self._inserted)
        requests = [self._rsp.breakpoint_request(at, self._size, True) for at in missing]
        if values:
            requests += self._file.write_requests(self._threads[cpu], values)
        self._forget()
        self._rsp.resume(requests)
        self._inserted |= self._wanted
        self.running = True

    def registers(self, cpu: int) -> Mapping[str, int]:
        """Return registers by the stub's names; each stop reads them once."""
        return self._seen(cpu)

    def _seen(self, cpu: int) -> Registers:
        self._need_stopped("registers can be read")
        if cpu not in self._registers:
            if not 0 <= cpu < len(self._threads):
                raise TargetError(f"there is no CPU {cpu}: the GDB stub has {len(self._threads)}")
            self._registers[cpu] = self._file.read(self._threads[cpu])
        return self._registers[cpu]

    def write_registers(self, cpu: int, values: Mapping[str, int]) -> None:
        """Write some registers of a stopped CPU, by the stub's names."""
        self._need_stopped("registers can be written")
        self._file.write(self._threads[cpu], values)
        if (old := self._registers.pop(cpu, None)) is not None:
            old.expire()

    def rewrite(self, cpu: int, name: str, behind: int) -> None:
        """Write a register of a stopped CPU with the value that it has, for the side effect.

        Args:
            name: a register with a name.
            behind: the number of the written register minus that of the named one.
        """
        self._need_stopped("registers can be written")
        self._file.rewrite(self._threads[cpu], name, behind)

    def handed_back(self, running: bool) -> None:
        """Forget what was read of the CPUs: another process has used the stub meanwhile.

        Args:
            running: whether that process has left the machine running.
        """
        self._forget()
        self._rsp.forget_selection()
        self.running = running

    def select(self, cpu: int) -> None:
        """Make the stub read memory as this CPU."""
        self._rsp.ask_ok(self._rsp.select_request(self._threads[cpu]), "select a CPU")

    def detach(self) -> None:
        """Remove all breakpoints, disconnect from the machine and let it run.

        Raises TargetError if the stub fails."""
        self.stop()
        for address in sorted(self._inserted):
            self.remove_breakpoint(address)
        self._rsp.let_go(self._threads)
        self.running = True

    def insert_breakpoint(self, address: int) -> None:
        self._need_stopped("a breakpoint can be inserted")
        if address not in self._wanted:
            self._rsp.set_breakpoint(address, self._size, True)
            self._wanted.add(address)
            self._inserted.add(address)

    def want_breakpoints(self, addresses: Iterable[int]) -> None:
        """Have the next resume() insert breakpoints, in its own round trip."""
        self._wanted.update(addresses)

    def remove_breakpoints(self, addresses: Iterable[int]) -> None:
        """Remove many breakpoints in one round trip."""
        self._need_stopped("breakpoints can be removed")
        self._wanted.difference_update(addresses)
        there = sorted(self._inserted.intersection(addresses))
        self._inserted.difference_update(there)
        requests = [self._rsp.breakpoint_request(at, self._size, False) for at in there]
        self._rsp.ask_ok(requests, "remove a breakpoint")

    def remove_breakpoint(self, address: int) -> None:
        self._need_stopped("a breakpoint can be removed")
        self._wanted.discard(address)
        if address in self._inserted:
            self._inserted.discard(address)
            self._rsp.set_breakpoint(address, self._size, False)

    def step_over(self, cpu: int, address: int) -> None:
        """Execute one instruction on one CPU, without the breakpoint at its address.

        resume() inserts the breakpoint again, in its own round trip.  QEMU sometimes reports a step
        before it has begun, and steps single iterations of a repeated string instruction.  So the
        step is over when the program counter has changed; for a branch to itself, after a time-out.
        """
        self._need_stopped("a CPU can be stepped")
        before = []
        if address in self._inserted:
            self._inserted.discard(address)
            before.append(self._rsp.breakpoint_request(address, self._size, False))
        deadline = time.monotonic() + _STEP_TIMEOUT
        while True:
            self._forget()
            self._rsp.step(self._threads[cpu], before)
            if (reply := self._rsp.wait_stop(_STOP_TIMEOUT)) is None:
                self._rsp.interrupt()
                self._rsp.wait_stop(_STOP_TIMEOUT)
                raise TargetError(f"the instruction at {address:#x} did not end on CPU {cpu}")
            if reply.kind == "exited":
                raise TargetError("the machine ended during a step")
            if self._seen(cpu).must(self._pc) != address or time.monotonic() > deadline:
                return
            before = []

    def poll(self, timeout: float) -> Stopped | StopReply | None:
        """Wait for the running machine to stop at a breakpoint.

        If two CPUs reach breakpoints at once, QEMU may report the second one again after it was
        handled or removed; the machine is resumed then.

        Returns:
            Stopped; the stub's reply if the machine has ended; None after `timeout` seconds.
        """
        reply = self._rsp.wait_stop(timeout) if self.running else None
        if reply is None or reply.kind == "exited":
            return reply
        self.running = False
        cpu = self._threads.index(reply.thread) if reply.thread in self._threads else 0
        pc = self._seen(cpu).must(self._pc)
        if reply.signal == _SIGTRAP and pc not in self._wanted:
            self.resume()
            return None
        return Stopped(cpu, pc)

    def _forget(self) -> None:
        for one in self._registers.values():
            one.expire()
        self._registers.clear()

    def _need_stopped(self, what: str) -> None:
        if self.running:
            raise TargetError(f"the machine must be stopped before {what}")
