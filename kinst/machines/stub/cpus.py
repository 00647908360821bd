"""Stopping, registers, breakpoints and steps through a GDB stub: shared by the targets.

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
    """What a stub says of itself, once: its names of threads, its registers."""

    threads: tuple[str, ...]
    registers: tuple[RegisterInfo, ...]


class Debugger:
    """A machine behind a stub.  CPUs are the stub's threads, in its order.

    The machine is stopped when this is made.
    """

    def __init__(self, rsp: Rsp, isa: Isa, seen: StubView | None = None) -> None:
        """seen: what another process has seen of the stub, which is not asked then."""
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
        """Stop every CPU; no-op when stopped.

        A breakpoint reached meanwhile is not lost: its instruction has not run, so it is
        reached again after resume.
        """
        if not self.running:
            return
        self._rsp.interrupt()
        if self._rsp.wait_stop(_STOP_TIMEOUT) is None:
            raise TargetError(f"the machine has not stopped in {_STOP_TIMEOUT:g} s")
        self.running = False

    def resume(self, cpu: int = 0, values: Mapping[str, int] | None = None) -> None:
        """values: registers that a CPU gets before, in the same round trip."""
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
        """By the stub's names; read once for each stop."""
        return self._seen(cpu)

    def _seen(self, cpu: int) -> Registers:
        self._need_stopped("registers can be read")
        if cpu not in self._registers:
            if not 0 <= cpu < len(self._threads):
                raise TargetError(f"there is no CPU {cpu}: the stub has {len(self._threads)}")
            self._registers[cpu] = self._file.read(self._threads[cpu])
        return self._registers[cpu]

    def write_registers(self, cpu: int, values: Mapping[str, int]) -> None:
        """Some registers of a stopped CPU, by the stub's names."""
        self._need_stopped("registers can be written")
        self._file.write(self._threads[cpu], values)
        if (old := self._registers.pop(cpu, None)) is not None:
            old.expire()

    def rewrite(self, cpu: int, name: str, behind: int) -> None:
        """Write what it has to a register of a stopped CPU, so many numbers behind one with a name:
        for what happens when it is written."""
        self._need_stopped("registers can be written")
        self._file.rewrite(self._threads[cpu], name, behind)

    def handed_back(self, running: bool) -> None:
        """Another process has used the stub: what was read of the CPUs may have changed."""
        self._forget()
        self._rsp.forget_selection()
        self.running = running

    def select(self, cpu: int) -> None:
        """Make the stub read memory as this CPU does."""
        self._rsp.ask_ok(self._rsp.select_request(self._threads[cpu]), "select a CPU")

    def detach(self) -> None:
        """Take every breakpoint out and let the machine run without this client.

        Raises TargetError if the stub does not do that."""
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
        """Breakpoints from the next resume on, which inserts them in its round trip."""
        self._wanted.update(addresses)

    def remove_breakpoints(self, addresses: Iterable[int]) -> None:
        """Many, in one round trip."""
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
        """One instruction on one CPU, with the breakpoint at address lifted.

        It is put back by resume, in the same round trip.  QEMU now and then reports a step
        that has not begun, and steps one iteration of a repeated string instruction at a time:
        the step is over when the program counter has moved (or, for a branch to itself, when
        it still has not after a while).
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
        """A stop of the running machine at a breakpoint: Stopped, or the raw reply when the
        machine ended.

        Where two CPUs meet breakpoints at once QEMU can report the second a second time, after
        it was dealt with or removed; the machine is resumed then.
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
