"""Clauses that run in kinst's own process: of BEGIN, END, timers and stop-planted probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kinst.codegen.analysis import looks_at_user, most_frames, reads_stack
from kinst.codegen.values.dynamic_variables import THREAD_PARTS
from kinst.codegen.values.variable_code import is_thread_local
from kinst.core.layout import RA_IN_SLOT
from kinst.dlang import typed
from kinst.dlang.walk import expressions
from kinst.session.host import (
    MASK,
    Context,
    HostClock,
    kernel_cpu,
    own_context,
    pack,
    stopped_context,
)
from kinst.session.values import EnabledSite, PlantedImage, TracedMachine
from kinst.wire import native


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
        self._program = program
        self.clock = clock
        self._frames = most_frames(program)
        self._entries = {k: native.entry(a) for k, a in built.host.entries.items()}

    def _call(self, enabled: EnabledSite, registers: Mapping[int, int], context: Context) -> None:
        frame = pack(self._isa, registers, context, self._frames)
        site = self._base + self._built.descriptors.offsets[enabled.key]
        self._entries[enabled.clauses](site, frame.ctypes.data)

    def fire(self, enabled: EnabledSite, cpu: int = 0, arguments: tuple[int, ...] = ()) -> None:
        """A probe of kinst's own process."""
        self._call(enabled, {}, own_context(self.clock, cpu, arguments))

    def _caller(self, enabled: EnabledSite, registers: Mapping[int, int]) -> int:
        rule = self._built.rules.get(enabled.key)
        if rule is None or not uses(self._program, enabled, "caller"):
            return 0
        assert self._target is not None
        base = registers.get(rule.slot, 0)
        found = base
        if rule.return_offset != RA_IN_SLOT:
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
            lambda name: uses(self._program, enabled, name),
        )
        stack: tuple[int, ...] = ()
        if self._personality is not None and reads_stack(self._program, enabled.clauses):
            names = {
                r.d_name: registers[r.slot] for r in self._isa.registers if r.slot in registers
            }
            stack = self._personality.backtrace(registers[self._isa.pc_slot], names)
        self._built.stopped.number = cpu
        self._call(enabled, registers, replace(context, arguments=arguments, stack=stack))
        self._built.stopped.number = -1


def uses(program: typed.Program, enabled: EnabledSite, name: str) -> bool:
    """Whether a clause of this probe reads a built-in, or what is made of it or found by it."""
    by_thread = ("cwd", "d_path", "execargs", "progenyof", "root") if name == "curthread" else ()
    return any(
        (isinstance(e, typed.Builtin | typed.Subroutine) and e.name in (name, *by_thread))
        or (name in THREAD_PARTS and is_thread_local(e))
        or (name in ("pid", "curthread") and looks_at_user(e))
        for c in enabled.clauses
        for e in expressions(program.clauses[c])
    )
