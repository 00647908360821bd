"""CPUs of a machine through its GDB stub: stopping, registers, breakpoints and steps.

Tested by tests/fuzz/test_stubs.py and tests/vm/other_systems.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable, Mapping, Sequence

from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import Stopped
from kinst.wire.packets import StopReply
from kinst.wire.registers import RegisterFile, RegisterInfo, Registers, describe
from kinst.wire.rsp import Rsp

_STOP_TIMEOUT = 30.0
_SIGTRAP = 5
_STEP_TIMEOUT, _STEP_TRIES = 5.0, 20
# How often a machine runs on, and for how many seconds each time, until a CPU is in the kernel.
_RUNS, _RUN = 500, 0.002


_BLOCKS_INTERRUPTS = (5, 16)  # version of Linux


def double_hits_told(release: str) -> str:
    """Return a message for the user if this host's KVM may count a hit of a stop-planted probe
    twice; otherwise "".

    To continue after such a probe, kinst steps over its instruction without the breakpoint. On old
    hosts an interrupt may come during the step. Then the CPU executes the interrupt's handler
    instead, and reaches the instruction and its breakpoint again. Since Linux 5.16 KVM can hold
    interrupts back during a step (KVM_GUESTDBG_BLOCKIRQ), and QEMU 7.0 asks for it.

    Args:
        release: the release of the host's kernel.
    """
    version = re.match(r"(\d+)\.(\d+)", release)
    if version is None or (int(version[1]), int(version[2])) >= _BLOCKS_INTERRUPTS:
        return ""
    return (
        f"kinst: under KVM of this host's Linux {version[0]}, a hit of a probe that stops the"
        " machine may be counted twice; since Linux 5.16 it is not"
    )


def hardware_breakpoints_of(rsp: Rsp, isa: Isa) -> int:
    """Return how many hardware breakpoints kinst uses in the stopped machine of a GDB stub: 0
    except for a machine that QEMU runs under KVM, as QEMU's monitor says."""
    under_kvm = "enabled" in rsp.ask_monitor("info kvm")
    return isa.board.HARDWARE_BREAKPOINTS if under_kvm else 0


@dataclass(frozen=True, slots=True)
class StubView:
    """GDB stub's description of its machine.

    Attributes:
        threads: the stub's names of its threads, one for each CPU.
        registers: names, sizes and numbers of the registers, which are the same for each thread.
    """

    threads: tuple[str, ...]
    registers: tuple[RegisterInfo, ...]


class Debugger:
    """CPUs of a machine, controlled through its GDB stub; CPU n is the stub's n-th thread.

    The machine must be stopped when this object is made.

    Under KVM, a few breakpoints are in registers of the processor (hardware breakpoints), and kinst
    uses these first. For each further breakpoint, QEMU writes a byte into the code. QEMU finds the
    code by the page tables of the CPU that is selected. Page tables of user mode may not map the
    kernel, so kinst first selects a CPU that is in the kernel. TCG needs none of this.

    Sources: QEMU 7.2 and 10.0, accel/kvm/kvm-all.c: kvm_insert_breakpoint; target/i386/kvm/kvm.c:
    kvm_arch_insert_sw_breakpoint.
    """

    def __init__(
        self, rsp: Rsp, isa: Isa, seen: StubView | None = None, hardware_breakpoints: int = 0
    ) -> None:
        """Ask the stub for its threads and registers.

        Args:
            seen: the stub's description of the machine, if it is known already; None to ask the
                stub.
            hardware_breakpoints: number of hardware breakpoints of a guest under KVM; 0 for other
                machines.
        """
        self._rsp = rsp
        self._in_user_mode = isa.paging.in_user_mode
        self.hardware_breakpoints = hardware_breakpoints
        self._in_hardware: set[int] = set()
        self._pc = isa.pc
        self._size = len(isa.breakpoint)
        if seen is None:
            seen = StubView(tuple(rsp.threads()), describe(rsp, isa.gdb_registers))
        self.seen = seen
        self._threads = list(seen.threads)
        self._file = RegisterFile(rsp, seen.registers)
        self._wanted: set[int] = set()
        self._watched: list[bytes] = []
        self._inserted: set[int] = set()
        self._registers: dict[int, Registers] = {}
        self.running = False

    @property
    def cpus(self) -> int:
        return len(self._threads)

    def stop(self) -> None:
        """Stop every CPU.  Does nothing if the machine is stopped.

        A breakpoint that a CPU reaches meanwhile is not lost: its instruction has not run, so the
        CPU reaches the breakpoint again after resume().
        """
        if not self.running:
            return
        self._rsp.interrupt()
        if self._rsp.wait_stop(_STOP_TIMEOUT) is None:
            raise TargetError(f"the machine has not stopped in {_STOP_TIMEOUT:g} s")
        self.running = False

    def resume(self, cpu: int = 0, values: Mapping[str, int] | None = None) -> None:
        """Insert the breakpoints that are still missing, and let all CPUs run.

        Does nothing if the machine runs.

        Args:
            cpu: the CPU to whose registers `values` are written.
            values: new values of some registers, by the stub's names; written first, in the same
                round trip.
        """
        if self.running:
            return
        requests = self._insertions(sorted(self._wanted - self._inserted))
        if values:
            requests += self._file.write_requests(self._threads[cpu], values)
        self._forget()
        self._rsp.resume(requests)
        self._inserted |= self._wanted
        self.running = True

    def registers(self, cpu: int) -> Mapping[str, int]:
        """Return the registers of a stopped CPU by the stub's names, read once after each stop."""
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

    def rewrite(self, cpu: int, name: str, distance: int) -> None:
        """Read a register, and write the same value back. The write has a side effect, such as
        arming a timer (Board.TIMERS).

        The register has no name in the stub's description, only a number.

        Args:
            cpu: a stopped CPU.
            name: name of another register, of the same size, from which to count.
            distance: number of the register to rewrite, minus the number of the register `name`.
        """
        self._need_stopped("registers can be written")
        self._file.rewrite(self._threads[cpu], name, distance)

    def handed_back(self, running: bool) -> None:
        """Forget cached registers, after another process has used the stub's connection.

        Args:
            running: whether the machine runs now.
        """
        self._forget()
        self._rsp.forget_selection()
        self.running = running

    def select(self, cpu: int) -> None:
        """Select the CPU through whose page tables the stub reads memory from now on."""
        self._rsp.ask_ok(self._rsp.select_request(self._threads[cpu]), "select a CPU")

    def detach(self) -> None:
        """Remove all breakpoints, detach the stub from the machine and let the machine run.

        Raises TargetError if the stub fails.
        """
        self.stop()
        for address in sorted(self._inserted):
            self.remove_breakpoint(address)
        self._rsp.let_go(self._threads)
        self.running = True

    def insert_breakpoint(self, address: int) -> None:
        self._need_stopped("a breakpoint can be inserted")
        if address not in self._wanted:
            hardware = self._takes_register(address)
            if not hardware:
                self._rsp.ask_ok(self._selection(), "select a CPU")
            self._rsp.set_breakpoint(address, self._size, True, hardware=hardware)
            self._wanted.add(address)
            self._inserted.add(address)

    def want_breakpoints(self, addresses: Iterable[int]) -> None:
        """Let the next resume() insert breakpoints at these addresses, in the round trip in which
        it resumes the machine.
        """
        self._wanted.update(addresses)

    def remove_breakpoints(self, addresses: Iterable[int]) -> None:
        """Remove the breakpoints at these addresses, in one round trip."""
        self._need_stopped("breakpoints can be removed")
        self._wanted.difference_update(addresses)
        there = sorted(self._inserted.intersection(addresses))
        self._inserted.difference_update(there)
        self._rsp.ask_ok(self._removals(there), "remove a breakpoint")

    def watch(self, ranges: Sequence[tuple[int, int]], *, reads: bool = True) -> None:
        """Let the machine stop after any access to one of these ranges (virtual address, bytes).

        Args:
            reads: False to stop only after writes.
        """
        self._need_stopped("memory can be watched")
        kind = 4 if reads else 2  # the GDB protocol's numbers: access, write
        self._watched = [f"{kind},{at:x},{size:x}".encode() for at, size in ranges]
        self._rsp.ask_ok([b"Z" + one for one in self._watched], "watch memory")

    def unwatch(self) -> None:
        """Remove the watchpoints that watch() has set."""
        self._need_stopped("memory can be watched no more")
        requests = [b"z" + one for one in self._watched]
        self._watched = []
        self._rsp.ask_ok(requests, "watch memory no more")

    def remove_breakpoint(self, address: int) -> None:
        self._need_stopped("a breakpoint can be removed")
        self._wanted.discard(address)
        if address in self._inserted:
            self._inserted.discard(address)
            self._rsp.ask_ok(self._removals([address]), f"remove a breakpoint at {address:#x}")

    def _takes_register(self, address: int) -> bool:
        """Return whether the breakpoint at an address is a hardware breakpoint.

        As long as registers of the processor are free, each new breakpoint gets one.
        """
        if len(self._in_hardware) < self.hardware_breakpoints:
            self._in_hardware.add(address)
        return address in self._in_hardware

    def _insertions(self, addresses: Sequence[int]) -> list[bytes]:
        """Return the requests that insert breakpoints at these addresses."""
        hardware = {at: self._takes_register(at) for at in addresses}
        requests = [] if all(hardware.values()) else self._selection()
        return requests + [
            self._rsp.breakpoint_request(at, self._size, True, hardware=hardware[at])
            for at in addresses
        ]

    def _removals(self, addresses: Sequence[int]) -> list[bytes]:
        """Return the requests that remove the breakpoints at these addresses."""
        hardware = {at: at in self._in_hardware for at in addresses}
        self._in_hardware.difference_update(addresses)
        requests = [] if all(hardware.values()) else self._selection()
        return requests + [
            self._rsp.breakpoint_request(at, self._size, False, hardware=hardware[at])
            for at in addresses
        ]

    def _selection(self) -> list[bytes]:
        """Return the requests to send before QEMU writes breakpoints into the kernel's code.

        Under KVM this is one request: it selects a CPU that is in the kernel. If all CPUs are in
        user mode, the machine first runs for short moments until one is in the kernel. Raises
        TargetError if that does not happen within _RUNS moments. Without KVM no request is needed.
        """
        if not self.hardware_breakpoints:
            return []
        for _ in range(_RUNS):
            for cpu, thread in enumerate(self._threads):
                if not self._in_user_mode(self.registers(cpu)):
                    return [f"Hc{thread}".encode()]
            self._forget()
            self._rsp.resume()
            self.running = True
            time.sleep(_RUN)
            self.stop()
        raise TargetError(
            "no CPU of the guest was in the kernel when a breakpoint was to be written there",
            f"use at most {self.hardware_breakpoints} probes that stop the machine",
        )

    def step_over(self, cpu: int, address: int) -> None:
        """Execute the instruction at an address on one CPU, without the breakpoint there.

        The next resume() inserts the breakpoint again. QEMU sometimes reports a step too early:
        before it has begun, or after one iteration of a repeated string instruction. So the step is
        repeated until the program counter has changed. For a branch to itself, which does not
        change the program counter, it ends after a time-out, but not before some tries: a busy host
        may not run kinst for longer than that.
        """
        self._need_stopped("a CPU can be stepped")
        before: list[bytes] = []
        if address in self._inserted:
            self._inserted.discard(address)
            before += self._removals([address])
        deadline = time.monotonic() + _STEP_TIMEOUT
        for tries in itertools.count(1):
            self._forget()
            self._rsp.step(self._threads[cpu], before)
            if (reply := self._rsp.wait_stop(_STOP_TIMEOUT)) is None:
                self._rsp.interrupt()
                self._rsp.wait_stop(_STOP_TIMEOUT)
                raise TargetError(f"the instruction at {address:#x} did not end on CPU {cpu}")
            if reply.kind == "exited":
                raise TargetError("the machine ended during a step")
            if self._seen(cpu).must(self._pc) != address:
                return
            if tries >= _STEP_TRIES and time.monotonic() > deadline:
                return
            before = []

    def poll(self, timeout: float) -> Stopped | StopReply | None:
        """Wait until the running machine stops at a breakpoint or ends.

        Returns Stopped if it has stopped, the stub's reply if it has ended, and None after
        `timeout` seconds.

        If two CPUs reach breakpoints at the same time, QEMU may report the second stop once more,
        after kinst has handled it or has removed its breakpoint. After such a report, this resumes
        the machine and returns None.
        """
        reply = self._rsp.wait_stop(timeout) if self.running else None
        if reply is None or reply.kind == "exited":
            return reply
        self.running = False
        cpu = self._threads.index(reply.thread) if reply.thread in self._threads else 0
        pc = self._seen(cpu).must(self._pc)
        if reply.signal == _SIGTRAP and pc not in self._wanted and not self._watched:
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
