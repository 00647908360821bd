"""Clauses that kinst runs in its own process: those of BEGIN, END, timers and stop-planted probes.

kinst compiles them for this host, from the same typed program as the clauses that run in the
target. They read built-in variables from a context, which lies in memory after the frame of saved
registers.

Tested by tests/d, whose programs run in kinst's own process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from kinst.codegen.actions.perturbing import changes_of
from kinst.codegen.analysis import looks_at_user, most_frames, reads_stack
from kinst.codegen.values.dynamic_variables import THREAD_PARTS
from kinst.codegen.values.variable_code import is_thread_local
from kinst.core import layout
from kinst.core.bodies import DISPLACED
from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import Target
from kinst.core.probe import Argument, Selection
from kinst.core.system import Access, Clock, Facts, UserMemory
from kinst.core.words import MASK
from kinst.dlang import typed
from kinst.dlang.walk import expressions
from kinst.session.perturbing import target_of
from kinst.session.values import EnabledSite, HostSide, StartedMachine, StoppedCpu, TracePlan
from kinst.wire import native

EXECNAME_SIZE = 32
WORD = 8  # bytes of a pointer


@dataclass(frozen=True, slots=True)
class FiringContext:
    """Values of the built-in variables for one firing that kinst's own process runs; times in ns.

    Attributes:
        interrupt: a word of the kernel that says whether the CPU handles an interrupt
            (Facts.interrupt_masks).
        texts: addresses of execargs, cwd and root of kinst's own process; zeros if the built-in
            variables describe a process of the traced machine.
    """

    cpu: int = 0
    pid: int = 0
    tid: int = 0
    ppid: int = 0
    uid: int = 0
    gid: int = 0
    curthread: int = 0
    timestamp: int = 0
    vtimestamp: int = 0
    walltimestamp: int = 0
    caller: int = 0
    arguments: tuple[int, ...] = ()
    execname: bytes = b""
    interrupt: int = 0
    stack: tuple[int, ...] = ()
    texts: tuple[int, ...] = (0, 0, 0)


def pack(
    isa: Isa, registers: Mapping[int, int], context: FiringContext, frames: int = 0
) -> NDArray[np.uint64]:
    """Return the memory that a host-run clause reads.

    First come the saved registers, then the context of the firing. The context ends with the return
    addresses of the kernel's stack.

    Args:
        registers: values by frame slot.
        frames: how many return addresses the context has.
    """
    frame = np.zeros(isa.frame_slots + layout.CONTEXT_SLOTS + 1 + frames, np.uint64)
    for slot, value in registers.items():
        frame[slot] = value & MASK
    at = isa.frame_slots
    for slot, value in (
        (layout.CONTEXT_CPU, context.cpu),
        (layout.CONTEXT_PID, context.pid),
        (layout.CONTEXT_TID, context.tid),
        (layout.CONTEXT_PPID, context.ppid),
        (layout.CONTEXT_UID, context.uid),
        (layout.CONTEXT_GID, context.gid),
        (layout.CONTEXT_CURTHREAD, context.curthread),
        (layout.CONTEXT_TIMESTAMP, context.timestamp),
        (layout.CONTEXT_VTIMESTAMP, context.vtimestamp),
        (layout.CONTEXT_WALLTIMESTAMP, context.walltimestamp),
        (layout.CONTEXT_CALLER, context.caller),
        (layout.CONTEXT_INTERRUPT, context.interrupt),
        (layout.CONTEXT_EXECARGS, context.texts[0]),
        (layout.CONTEXT_CWD, context.texts[1]),
        (layout.CONTEXT_ROOT, context.texts[2]),
    ):
        frame[at + slot] = value & MASK
    for k, value in enumerate(context.arguments):
        frame[at + layout.CONTEXT_ARGS + k] = value & MASK
    stack = at + layout.CONTEXT_STACK
    frame[stack] = len(context.stack)
    for k, value in enumerate(context.stack[:frames], 1):
        frame[stack + k] = value & MASK
    name = context.execname[: EXECNAME_SIZE - 1].ljust(EXECNAME_SIZE, b"\0")
    start = at + layout.CONTEXT_EXECNAME
    frame[start : start + EXECNAME_SIZE // 8] = np.frombuffer(name, np.uint64)
    return frame


class HostClock:
    """Clock of host-run clauses, which follows the guest's monotonic clock.

    The guest's time does not pass while the guest is stopped, so each resume corrects the
    difference to the host's clock. The guest must be stopped when this object is made. Without a
    guest, this is the host's own monotonic clock.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._ahead = clock.now_ns - time.monotonic_ns() if clock else 0
        self._follows = clock is not None
        self._stopped_at = time.monotonic_ns() if clock else None

    def stopped(self) -> None:
        if self._follows and self._stopped_at is None:
            self._stopped_at = time.monotonic_ns()

    def resumed(self) -> None:
        if self._stopped_at is not None:
            self._ahead -= time.monotonic_ns() - self._stopped_at
            self._stopped_at = None

    def now(self) -> int:
        """Return the time in ns, on the scale of D's timestamp."""
        return (self._stopped_at or time.monotonic_ns()) + self._ahead


class MachineClock(HostClock):
    """Clock of host-run clauses for a kernel without a clock: how long its machine has run."""

    def __init__(self, target: Target) -> None:
        super().__init__(None)
        self._target = target

    def now(self) -> int:
        return self._target.run_time()


def own_texts() -> tuple[NDArray[np.uint8], ...]:
    """Return execargs, cwd and root of kinst's own process, each with a NUL at its end."""
    try:
        folder = os.getcwdb()
    except OSError:  # the folder was removed
        folder = b""
    texts = os.fsencode(" ".join(sys.argv)), folder, b"/"
    return tuple(np.frombuffer(one + bytes(8), np.uint8) for one in texts)


def own_context(
    clock: HostClock, cpu: int, texts: Sequence[NDArray[np.uint8]] = ()
) -> FiringContext:
    """Return the built-in variables for BEGIN, END and tick-N, which describe kinst's own process.

    In dtrace(1) they describe the process of dtrace(1).

    Args:
        cpu: the value of D's cpu.
        texts: execargs, cwd and root.
    """
    return FiringContext(
        cpu=cpu,
        pid=os.getpid(),
        tid=os.getpid(),
        ppid=os.getppid(),
        uid=os.getuid(),
        gid=os.getgid(),
        timestamp=clock.now(),
        vtimestamp=time.process_time_ns(),
        walltimestamp=time.time_ns(),
        execname=b"kinst",
        texts=tuple(one.ctypes.data for one in texts) or (0, 0, 0),
    )


def stopped_context(
    target: Target,
    facts: Facts,
    cpu: int,
    clock: HostClock,
    caller: int,
    wanted: Callable[[str], bool],
) -> FiringContext:
    """Return the built-in variables of the thread that a stopped CPU runs.

    Args:
        cpu: the machine's number of the CPU.
        caller: the value of D's caller.
        wanted: returns whether a variable is used; other variables are 0, and not read.
    """

    def value(name: str) -> int:
        access = facts.builtins.get(name)
        if access is None or not wanted(name):
            return 0
        found = read_access(target, facts, cpu, access)
        return found if isinstance(found, int) else 0

    execname = b""
    if wanted("execname") and "execname" in facts.builtins:
        found = read_access(target, facts, cpu, facts.builtins["execname"])
        execname = found if isinstance(found, bytes) else b""
    now = clock.now()
    return FiringContext(
        cpu=kernel_cpu(target, facts, cpu),
        pid=value("pid"),
        tid=value("tid"),
        ppid=value("ppid"),
        uid=value("uid"),
        gid=value("gid"),
        curthread=value("curthread"),
        timestamp=now,
        vtimestamp=thread_ns(target, facts, cpu, now) if wanted("vtimestamp") else 0,
        walltimestamp=time.time_ns(),
        caller=caller,
        execname=execname,
        interrupt=value("interrupt"),
    )


def host_side(machine: StartedMachine) -> HostSide:
    """Return native functions by which host-run clauses read and write a machine's memory."""
    target, facts, stopped = machine.target, machine.facts, StoppedCpu()

    def read(address: int, size: int) -> bytes | None:
        """Return bytes of kernel memory; None if any of them cannot be read."""
        try:
            return target.read(address, size)
        except TargetError:
            return None

    def read_user(address: int, size: int) -> bytes | None:
        """Return bytes of the process that the stopped CPU runs.

        None if an address cannot be read, or the CPU runs a kernel thread.
        """
        if stopped.number < 0:
            return None
        try:
            mm = facts.user.mm if facts.user else None
            if mm and not read_access(target, facts, stopped.number, mm):
                return None
            return target.read_user(stopped.number, address, size)
        except TargetError:
            return None

    def write(address: int, data: bytes) -> bool:
        """Write kernel memory, and return True. If it cannot be written, raise TargetError, which
        native_write() reports to the clause.
        """
        target.write(address, data)
        return True

    reader, user = native.native_read(read_user), facts.user
    told = UserMemory(reader.address, 0)
    if user is not None:
        told = UserMemory(reader.address, 0, user.mm, user.arg_start, user.arg_end)
    return HostSide(
        native.native_read(read), reader, stopped, native.native_write(write), told
    )  # fmt: skip


def no_host_side() -> HostSide:
    """Return native functions for host-run clauses without a machine: each read fails."""

    def read(_address: int, _size: int) -> bytes | None:
        return None

    reader = native.native_read(read)
    return HostSide(reader, reader, StoppedCpu(), native.native_write(lambda _at, _data: False))


class HostRunner:
    """Runner of the clauses of probes that fire in kinst's own process: BEGIN, END and timers."""

    def __init__(self, isa: Isa, plan: TracePlan, clock: HostClock) -> None:
        self.clock = clock
        self._isa = isa
        self._base = plan.placed.memory.native
        self._frames = most_frames(plan.compiled.program)
        self._descriptors = plan.descriptors.offsets
        self._entries = {k: native.entry(a) for k, a in plan.host.entries.items()}
        self._texts = own_texts()

    def _call(
        self, enabled: EnabledSite, registers: Mapping[int, int], context: FiringContext
    ) -> NDArray[np.uint64]:
        """Run the clauses of a probe; return the frame of saved registers as they have left it."""
        frame = pack(self._isa, registers, context, self._frames)
        site = self._base + self._descriptors[enabled.key]
        self._entries[enabled.clauses](site, frame.ctypes.data)
        return frame

    def fire(self, enabled: EnabledSite, cpu: int = 0) -> None:
        """Run the clauses of BEGIN, END or a timer.

        Args:
            cpu: the value of D's cpu.
        """
        self._call(enabled, {}, own_context(self.clock, cpu, self._texts))


class StoppedRunner(HostRunner):
    """Runner that also runs clauses for the CPUs of a stopped machine: stop-planted probes,
    profile-N.
    """

    def __init__(self, machine: StartedMachine, plan: TracePlan) -> None:
        system, program = machine.system, plan.compiled.program
        clock = HostClock(None if machine.never_stops else system.clock())
        if machine.target.abilities.traces_boot:
            clock = MachineClock(machine.target)
        super().__init__(machine.isa, plan, clock)
        self._target, self._facts, self._system = machine.target, machine.facts, system
        self._rules, self._stopped = plan.rules, plan.host_side.stopped
        self._uses = cache(partial(uses, program))
        self._changes = cache(
            lambda own: changes_of((program.clauses[c] for c in own), machine.isa)
        )
        self._reads_stack = cache(partial(reads_stack, program))

    def _caller(self, enabled: EnabledSite, registers: Mapping[int, int]) -> int:
        rule = self._rules.get(enabled.key)
        if rule is None or not self._uses(enabled.clauses, "caller"):
            return 0
        base = registers.get(rule.slot, 0)
        found = base
        if rule.return_offset != layout.RA_IN_SLOT:
            at = base + rule.offset + rule.return_offset
            found = int.from_bytes(self._target.read(at & MASK, 8), "little")
        return found | self._isa.signature_bits if found >> 55 & 1 else found

    def sample(self, enabled: EnabledSite, cpu: int) -> None:
        """Run the clauses of profile-N for one CPU, if it is online in the traced kernel.

        If the CPU is in the kernel, arg0 is its program counter and arg1 is 0. If it is in user
        mode, arg0 is 0 and arg1 is its program counter.
        """
        number = kernel_cpu(self._target, self._facts, cpu)
        if number not in self._system.online_cpus():
            return
        pc = self._target.registers(cpu)[self._isa.pc]
        self.hit(enabled, cpu, (pc, 0) if pc >> 63 else (0, pc))

    def _selects(self, selection: Selection, registers: Mapping[int, int]) -> bool:
        """Return whether a hit belongs to the probe that has this selection.

        Args:
            registers: values of the stopped CPU's registers, by frame slot.
        """

        def pointed(argument: Argument) -> int:
            base = registers[argument.value & layout.POINTED_SLOT]
            address = base + (argument.value >> layout.POINTED_SHIFT) & MASK
            return int.from_bytes(self._target.read(address, 8), "little")

        state = pointed(selection.state) & selection.mask if selection.state else selection.wanted
        number = pointed(selection.number) & 0xFFFF_FFFF
        return state == selection.wanted and number in selection.values

    def hit(self, enabled: EnabledSite, cpu: int, arguments: tuple[int, ...] = ()) -> int:
        """Run the clauses of a probe for a CPU that is stopped at its site, if the hit belongs to
        the probe. Write the registers that the clauses have changed.

        Returns where the CPU is to continue, as the clauses have chosen by return(), skip() or
        goto(): the number of an exit (core/bodies.py, Exit.number). DISPLACED, the site's
        instruction, if they have not chosen.

        Args:
            arguments: the values of arg0, arg1, ...
        """
        values = self._target.registers(cpu)
        registers = {
            r.slot: values[r.gdb_name] for r in self._isa.registers if r.gdb_name in values
        }
        if enabled.selection is not None and not self._selects(enabled.selection, registers):
            return DISPLACED
        context = stopped_context(
            self._target,
            self._facts,
            cpu,
            self.clock,
            self._caller(enabled, registers),
            partial(self._uses, enabled.clauses),
        )
        stack: tuple[int, ...] = ()
        if self._reads_stack(enabled.clauses):
            names = {
                r.d_name: registers[r.slot] for r in self._isa.registers if r.slot in registers
            }
            stack = self._system.backtrace(registers[self._isa.pc_slot], names)
        self._stopped.number = cpu
        frame = self._call(enabled, registers, replace(context, arguments=arguments, stack=stack))
        self._stopped.number = -1
        if not (changes := self._changes(enabled.clauses)):
            return DISPLACED
        now = {slot: int(frame[slot]) for slot in changes.slots}
        self._write(cpu, {slot: v for slot, v in now.items() if v != registers[slot]})
        return int(frame[self._isa.exit_slot]) if changes.exits else DISPLACED

    def leave(self, enabled: EnabledSite, cpu: int, number: int) -> None:
        """Let a CPU that is stopped at a probe's site continue where the clauses have chosen by
        return(), skip() or goto(), instead of at the site's instruction.

        Args:
            number: what hit() has returned; not DISPLACED.
        """
        site, isa = enabled.probe.site, self._isa
        assert site is not None
        target = target_of(number, site)
        if target:
            self._write(cpu, {isa.pc_slot: target})
            return
        values = self._target.registers(cpu)
        if isa.link_slot >= 0:
            link = next(r.gdb_name for r in isa.registers if r.slot == isa.link_slot)
            self._write(cpu, {isa.pc_slot: values[link]})
            return
        sp = values[isa.sp]
        back = int.from_bytes(self._target.read(sp, WORD), "little")
        self._write(cpu, {isa.pc_slot: back, isa.sp_slot: sp + WORD})

    def _write(self, cpu: int, values: Mapping[int, int]) -> None:
        """Write registers of a stopped CPU, given by their frame slots."""
        if values:
            names = {r.slot: r.gdb_name for r in self._isa.registers}
            named = {names[slot]: value & MASK for slot, value in values.items()}
            self._target.write_registers(cpu, named)


def uses(program: typed.TypedProgram, clauses: tuple[int, ...], name: str) -> bool:
    """Return whether any of these clauses needs a built-in variable: it reads the variable, or
    something that is computed from it.

    Args:
        clauses: indexes of clauses.
        name: the built-in variable.
    """
    by_thread: tuple[str, ...] = ()
    if name == "curthread":
        by_thread = "cwd", "d_path", "execargs", "path_in_mount", "progenyof", "root"
    return any(
        (isinstance(e, typed.Builtin | typed.Subroutine) and e.name in (name, *by_thread))
        or (name in THREAD_PARTS and is_thread_local(e))
        or (name in ("pid", "curthread") and looks_at_user(e))
        for c in clauses
        for e in expressions(program.clauses[c])
    )


def _thread(target: Target, facts: Facts, cpu: int) -> int:
    """Return the address of the thread that a stopped CPU runs; 0 if no register holds it."""
    registers = target.registers(cpu)
    found = (registers.get(name, 0) for name in facts.thread_registers)
    return next((value for value in found if value), 0)


def read_access(target: Target, facts: Facts, cpu: int, access: Access) -> int | bytes:
    """Return the value of a built-in variable of the traced kernel for one CPU of a stopped
    machine.

    Args:
        access: where in the kernel's memory the value is.

    Raises TargetError if that memory is not mapped.
    """
    if access.thread:
        pointer = _thread(target, facts, cpu)
        if not access.offsets:
            return pointer
    elif access.per_cpu is None:
        pointer = access.address
    else:
        where = facts.per_cpu_bases[cpu] + access.per_cpu
        size = WORD if access.offsets else access.size
        pointer = int.from_bytes(target.read(where & MASK, size), "little")
        if not pointer and size == WORD:
            pointer = facts.first_thread
        if not access.offsets:
            return pointer
    for offset in access.offsets[:-1]:
        pointer = int.from_bytes(target.read(pointer + offset, 8), "little")
    raw = target.read(pointer + access.offsets[-1], access.size)
    return raw.split(b"\0")[0] if access.string else int.from_bytes(raw, "little")


def kernel_cpu(target: Target, facts: Facts, cpu: int) -> int:
    """Return the number that the kernel gives to a stopped CPU of the machine.

    The number is read from the thread that the CPU runs, if the kernel stores it there. It may
    differ from the machine's own number, since a kernel may start its count at any CPU. Otherwise,
    the result is the machine's number.

    Args:
        cpu: the machine's number of the CPU.
    """
    access = facts.builtins.get("cpu")
    if access is None or not access.thread:
        return cpu
    try:
        found = read_access(target, facts, cpu, access)
    except TargetError:  # the CPU is off, and its registers are older
        return cpu
    return found if isinstance(found, int) else cpu


def thread_ns(target: Target, facts: Facts, cpu: int, now: int) -> int:
    """Return D's vtimestamp, in ns, for the thread on a stopped CPU; 0 if the kernel does not offer
    it.

    Args:
        now: the time in ns, on the scale of D's timestamp.
    """
    terms = facts.thread_time
    if terms is None:
        return 0
    total: int = now + terms.offset_ns
    for sign, accesses in ((1, terms.plus), (-1, terms.minus)):
        for access in accesses:
            value = read_access(target, facts, cpu, access)
            total += sign * value if isinstance(value, int) else 0
    return total
