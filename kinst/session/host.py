"""Clauses that run in kinst's own process, those of BEGIN, END, timers and stop-planted probes, and
what they are told: registers and the context after the frame."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from kinst.codegen.analysis import looks_at_user, most_frames, reads_stack
from kinst.codegen.values.dynamic_variables import THREAD_PARTS
from kinst.codegen.values.variable_code import is_thread_local
from kinst.core import layout
from kinst.core.isa import Isa
from kinst.core.machine import Target
from kinst.core.system import Clock, Facts
from kinst.dlang import typed
from kinst.dlang.walk import expressions
from kinst.session.stopped import MASK, kernel_cpu, read_access, thread_ns
from kinst.session.values import EnabledSite, PlantedImage, TracedMachine
from kinst.wire import native

EXECNAME_SIZE = 32


@dataclass(frozen=True, slots=True)
class FiringContext:
    """Built-in variables of one host-run firing; times in ns.

    interrupt: Facts.builtins["interrupt"]."""

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


def pack(
    isa: Isa, registers: Mapping[int, int], context: FiringContext, frames: int = 0
) -> NDArray[np.uint64]:
    """The frame (registers by slot) and the context after it, as a clause reads them.

    frames: the program's longest stack()."""
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
    """Time for host-run clauses: the guest's monotonic clock as the host can follow it.

    Without a target it is the host's own monotonic clock.  It is made while the guest stands.
    A stopped guest's time stands still, so the difference is taken anew at each resume.
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
        """ns, on the scale of D's timestamp."""
        return (self._stopped_at or time.monotonic_ns()) + self._ahead


def own_context(clock: HostClock, cpu: int = 0, arguments: tuple[int, ...] = ()) -> FiringContext:
    """BEGIN, END and tick run in kinst itself, as they do in dtrace(1)."""
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
        arguments=arguments,
        execname=b"kinst",
    )


def stopped_context(
    target: Target,
    facts: Facts,
    cpu: int,
    clock: HostClock,
    caller: int,
    wanted: Callable[[str], bool],
) -> FiringContext:
    """What the thread that a stopped CPU runs would see; only the wanted built-ins are read."""

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


class HostRunner:
    """Runs clauses in this process: BEGIN, END, timers, and stop-planted probes."""

    def __init__(
        self,
        traced: TracedMachine,
        built: PlantedImage,
        scratch: int,
        clock: HostClock,
        program: typed.Program,
    ) -> None:
        """scratch: its native address."""
        self._isa = traced.isa
        self._target = traced.target
        self._facts = traced.facts
        self._personality = traced.personality
        self._built = built
        self._base = scratch
        self.clock = clock
        self._frames = most_frames(program)
        self._uses = cache(partial(uses, program))
        self._reads_stack = cache(partial(reads_stack, program))
        self._entries = {k: native.entry(a) for k, a in built.host.entries.items()}

    def _call(
        self, enabled: EnabledSite, registers: Mapping[int, int], context: FiringContext
    ) -> None:
        frame = pack(self._isa, registers, context, self._frames)
        site = self._base + self._built.descriptors.offsets[enabled.key]
        self._entries[enabled.clauses](site, frame.ctypes.data)

    def fire(self, enabled: EnabledSite, cpu: int = 0, arguments: tuple[int, ...] = ()) -> None:
        """A probe of kinst's own process."""
        self._call(enabled, {}, own_context(self.clock, cpu, arguments))

    def _caller(self, enabled: EnabledSite, registers: Mapping[int, int]) -> int:
        rule = self._built.rules.get(enabled.key)
        if rule is None or not self._uses(enabled.clauses, "caller"):
            return 0
        assert self._target is not None
        base = registers.get(rule.slot, 0)
        found = base
        if rule.return_offset != layout.RA_IN_SLOT:
            at = base + rule.offset + rule.return_offset
            found = int.from_bytes(self._target.read(at & MASK, 8), "little")
        return found | self._isa.signature_bits if found >> 55 & 1 else found

    def sample(self, enabled: EnabledSite, cpu: int) -> None:
        """profile-N on one CPU of the stopped machine, if the kernel uses it: arg0 is its program
        counter in the kernel, else arg1 is the one in user mode."""
        assert self._target is not None and self._facts is not None
        number = kernel_cpu(self._target, self._facts, cpu)
        if self._personality is None or number not in self._personality.online_cpus():
            return
        place = next(r.gdb_name for r in self._isa.registers if r.slot == self._isa.pc_slot)
        pc = self._target.registers(cpu)[place]
        self.hit(enabled, cpu, (pc, 0) if pc >> 63 else (0, pc))

    def hit(self, enabled: EnabledSite, cpu: int, arguments: tuple[int, ...] = ()) -> None:
        """A stop-planted probe; the machine stands at it."""
        assert self._target is not None and self._facts is not None
        values = self._target.registers(cpu)
        registers = {
            r.slot: values[r.gdb_name] for r in self._isa.registers if r.gdb_name in values
        }
        context = stopped_context(
            self._target,
            self._facts,
            cpu,
            self.clock,
            self._caller(enabled, registers),
            partial(self._uses, enabled.clauses),
        )
        stack: tuple[int, ...] = ()
        if self._personality is not None and self._reads_stack(enabled.clauses):
            names = {
                r.d_name: registers[r.slot] for r in self._isa.registers if r.slot in registers
            }
            stack = self._personality.backtrace(registers[self._isa.pc_slot], names)
        self._built.stopped.number = cpu
        self._call(enabled, registers, replace(context, arguments=arguments, stack=stack))
        self._built.stopped.number = -1


def uses(program: typed.Program, clauses: tuple[int, ...], name: str) -> bool:
    """Whether one of these clauses reads a built-in, or what is made of it or found by it."""
    by_thread = ("cwd", "d_path", "execargs", "progenyof", "root") if name == "curthread" else ()
    return any(
        (isinstance(e, typed.Builtin | typed.Subroutine) and e.name in (name, *by_thread))
        or (name in THREAD_PARTS and is_thread_local(e))
        or (name in ("pid", "curthread") and looks_at_user(e))
        for c in clauses
        for e in expressions(program.clauses[c])
    )
