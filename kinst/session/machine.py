"""The traced machine and its scratch memory, as frozen values that the stages hand on."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kinst.core.errors import KinstError, TargetError
from kinst.core.isa import Isa
from kinst.core.layout import HEADER_ACTIVE, HEADER_NSPEC, HEADER_SPECSIZE, PAGE, Scratch
from kinst.core.records import ProgramLayout
from kinst.core.target import Facts, Target, UserMemory
from kinst.patch.ways import Means
from kinst.session.counters import Counters, counters_room, map_counters, share_counters
from kinst.session.host import read_access
from kinst.session.kernel import RunningKernel
from kinst.session.layout import data_needed, place, scratch_needed
from kinst.session.probes import Enabled
from kinst.session.program import Compiled
from kinst.systems.linux.system import Linux
from kinst.wire import native


@dataclass(frozen=True, slots=True)
class Traced:
    """The traced machine; all but isa are there when a target is.

    text: lowest and highest address of the kernel's text.  debug: its debug file.  programs: files
    of programs in the guest, by the names that they have there.
    """

    isa: Isa
    target: Target | None = None
    personality: Linux | None = None
    kernel: RunningKernel | None = None
    text: tuple[int, int] = (0, 0)
    debug: Path | None = None
    programs: Mapping[str, Path] = field(default_factory=dict)

    @property
    def facts(self) -> Facts | None:
        return self.personality.facts if self.personality else None

    @property
    def cpus(self) -> int:
        return self.personality.facts.cpus if self.personality else 1


@dataclass(frozen=True, slots=True)
class Memory:
    """Scratch as kinst maps it.

    address: in the target, 0 when the target has none (then only the host runs clauses).
    native: of the mapping in this process.  size: bytes, without the counter blocks behind.
    """

    view: memoryview
    address: int
    native: int
    size: int


@dataclass(frozen=True, slots=True)
class Placed:
    """Where everything that clauses write lies."""

    memory: Memory
    scratch: Scratch
    layout: ProgramLayout
    counters: Counters | None


def make_memory(traced: Traced, compiled: Compiled) -> Memory:
    """Map scratch into the target, or take memory of this process where it has none.

    Raises TargetError when the target should have scratch and no place for it is found.
    """
    size = scratch_needed(compiled.options, compiled.program, traced.cpus, compiled.trampolines)
    if traced.target is not None:
        room = counters_room(traced.cpus)
        data = data_needed(compiled.options, compiled.program, traced.cpus)
        address = _map(traced, traced.target, size + room, data)
        if address is not None:
            view = traced.target.scratch_view()
            return Memory(view, address, native.address_of(view), size)
    own = memoryview(mmap.mmap(-1, size))
    return Memory(own, 0, native.address_of(own), size)


def _map(traced: Traced, target: Target, size: int, data: int) -> int | None:
    """Where scratch is mapped: in reach of the loaded modules too, where that can be.
    data: bytes at its start that need not be in reach of code."""
    low, high = traced.text
    modules = traced.personality.modules.all if traced.personality else ()
    low = min((low, *(m.text[0] for m in modules)))
    high = max((high, *(m.text[1] for m in modules)))
    if (low, high) != traced.text:
        with suppress(TargetError):
            return target.map_scratch(size, traced.text, (low, high), data)
    return target.map_scratch(size, traced.text, data=data)


def means_of(traced: Traced, memory: Memory, forced: str) -> Means:
    """What planting in this machine can rely on."""
    facts = traced.facts
    inside = facts is not None and bool(facts.nofault_read) and "cpu" in facts.builtins
    code = memory.address + memory.size - PAGE  # behind the data: near the end of scratch
    return Means(
        code if inside and memory.address else 0,
        facts is not None and bool(facts.trap_hook),
        facts is not None and bool(facts.fault_hook),
        forced,
    )


def place_all(
    traced: Traced,
    memory: Memory,
    compiled: Compiled,
    layout: ProgramLayout,
    enabled: tuple[Enabled, ...],
) -> Placed:
    """Lay out scratch for these probes.  Raises KinstError when it is too small."""
    try:
        scratch = place(
            memory.address, memory.size, traced.cpus, compiled.options, compiled.program, layout,
            enabled,
        )  # fmt: skip
    except ValueError as error:
        raise KinstError(str(error), "use a smaller bufsize or aggsize") from error
    counters = None
    whole, block = memory.size + counters_room(traced.cpus), layout.counters_size
    if traced.target is not None and traced.facts is not None and memory.address:
        if traced.isa.shared_counters:
            room = counters_room(traced.cpus)
            counters = share_counters(memory.address, memory.size, block, room)
        else:
            bases = traced.facts.per_cpu_bases
            counters = map_counters(traced.target, bases, whole, block)
    return Placed(memory, scratch, layout, counters)


def read_for_host(target: Target | None) -> native.NativeRead:
    """How host-run clauses read an address: the target's memory, or nothing without one."""

    def read(address: int, size: int) -> bytes | None:
        if target is None:
            return None
        try:
            return target.read(address, size)
        except TargetError:
            return None

    return native.native_read(read)


def set_speculations(view: memoryview, count: int, size: int) -> None:
    """How many speculations there are, and the bytes of each on one CPU."""
    view[HEADER_NSPEC : HEADER_NSPEC + 8] = count.to_bytes(8, "little")
    view[HEADER_SPECSIZE : HEADER_SPECSIZE + 8] = size.to_bytes(8, "little")


@dataclass(slots=True)
class StoppedUser:
    """The memory of the process that a stopped CPU runs, for host-run clauses.

    cpu: the one that stands at a probe, -1 outside of stop-planted probes."""

    target: Target | None
    facts: Facts | None
    cpu: int = -1

    def read(self, address: int, size: int) -> bytes | None:
        """None where nothing can be read: no such address, or a kernel thread."""
        if self.target is None or self.cpu < 0:
            return None
        known = self.facts.user if self.facts else None
        try:
            mm = known.mm if known else None
            if self.facts and mm and not read_access(self.target, self.facts, self.cpu, mm):
                return None
            return self.target.read_user(self.cpu, address, size)
        except TargetError:
            return None

    def functions(self, read: native.NativeRead) -> UserMemory | None:
        """What host code is told; read: self.read for native code."""
        if self.target is None:
            return None
        known = self.facts.user if self.facts else None
        if known is None:
            return UserMemory(read.address, 0)
        return UserMemory(read.address, 0, known.mm, known.arg_start, known.arg_end)


def set_active(view: memoryview, active: bool) -> None:
    """Let in-target clauses run, or not."""
    view[HEADER_ACTIVE : HEADER_ACTIVE + 8] = int(active).to_bytes(8, "little")


def is_active(view: memoryview) -> bool:
    """False before the start and after an exit()."""
    return view[HEADER_ACTIVE] == 1
