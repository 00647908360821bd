"""Frozen values that the stages of a trace pass on, in the order of the stages.

Request -> Compiled -> EnabledProgram -> Placement -> PlacedProgram -> TracePlan

Tested by tests/fake, through the whole path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path

from kinst.codegen.compile import HostCode, TargetCode
from kinst.core.dataclass import dataclass
from kinst.core.isa import Isa
from kinst.core.kernel import PlantableKernel, Timer
from kinst.core.layout import LEAF, Scratch
from kinst.core.machine import Target
from kinst.core.probe import Argument, Gap, Probe, Selection, Site
from kinst.core.records import ProgramLayout
from kinst.core.return_addresses import EndedCode
from kinst.core.source import TracedSite
from kinst.core.system import Facts, System, UserMemory
from kinst.image.loaded_images import LoadedImages
from kinst.patch.descriptors import FrameRule
from kinst.patch.plan import Plan
from kinst.patch.runs import NO_RUNS, Runs
from kinst.patch.ways import Choice
from kinst.providers import BEGIN, END
from kinst.session.compiled import Compiled, ProbeStability
from kinst.session.sizes import counters_room
from kinst.wire import native

NAMES_SLACK = 64  # bytes: of ERROR's name, and the empty string


@dataclass(frozen=True, slots=True)
class StartedMachine:
    """Machine whose kernel is up and identified.

    Attributes:
        target: the kernel as it can be read, written, stopped and resumed.
        system: knowledge of the kernel's operating system.
        kernel: the kernel's functions and decoded instructions.
        text: lowest and highest address of the kernel's text.
        images: debug information of the kernel and its modules.
        programs: paths on the host of programs in the guest, by their names in the guest.
    """

    isa: Isa
    target: Target
    system: System
    kernel: PlantableKernel
    text: tuple[int, int]
    images: LoadedImages
    programs: Mapping[str, Path] = field(default_factory=dict)

    @property
    def facts(self) -> Facts:
        return self.system.facts

    @property
    def cpus(self) -> int:
        return self.system.facts.cpus

    @property
    def counters_room(self) -> int:
        """Bytes to keep free at the end of scratch for the counter blocks of all CPUs or, in a user
        program, of all threads."""
        bases = self.facts.per_cpu_bases
        if not self.facts.only_counts:
            return counters_room(self.cpus)
        return (max(bases) - min(bases) + (bases[1] - bases[0]) + 3 * LEAF) & -LEAF

    @property
    def never_stops(self) -> bool:
        """Whether the machine is never stopped, but planted while it runs, as this host is."""
        return self.target.planter is not None


@dataclass(frozen=True, slots=True)
class EnabledSite:
    """Probe that a program enables, at one of its sites or without a site (BEGIN, END, timers).

    Attributes:
        clauses: indexes of the probe's clauses, in program order. If several descriptions of a
            clause match the probe, the clause is listed, and runs, once for each of them (as in
            libdtrace, dt_compile_clause()).
        epid: epid of the first clause; the other clauses have the next numbers.
        arguments: how to find arg0, arg1, ...; empty if the probe has no arguments.
        condition: a D expression that is true if the probe fires at a hit; "" if it always fires.
        switch: address of the kernel's switch (static key) that must be on so that control reaches
            the site (Tracepoints.switched()); 0 if control reaches the site without a switch.
        selection: which of the site's hits belong to the probe; None if all do.
        never: why the probe never fires, in words for the user; "" if it can fire.
        refusal: why the site must not be planted, as far as known before placement; "" if there is
            no reason yet.
    """

    probe: Probe
    clauses: tuple[int, ...]
    epid: int
    timer: Timer | None
    arguments: tuple[Argument, ...] = ()
    condition: str = ""
    switch: int = 0
    selection: Selection | None = None
    never: str = ""
    refusal: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """Key that is unique among EnabledSites: (probe id, site address), with address 0 for no
        site.
        """
        return self.probe.id, self.probe.site.address if self.probe.site else 0

    @property
    def work(self) -> tuple[tuple[int, ...], tuple[Argument, ...]]:
        """Key of the code that a hit of the site runs: sites with equal clauses and arguments share
        it.
        """
        return self.clauses, self.arguments


@dataclass(frozen=True, slots=True)
class ChosenSite:
    """Enabled probe at one of its sites, with the way in which the site is planted."""

    enabled: EnabledSite
    site: Site
    choice: Choice


@dataclass(frozen=True)
class EnabledProgram:
    """Compiled program with the probes that it enables.

    Attributes:
        compiled: the program, with a copy of each clause for each condition under which it runs.
        enabled: the probes, whose clause indexes refer to those copies.
        matched: the same probes, whose clause indexes refer to the clauses as the user wrote them.
    """

    compiled: Compiled
    enabled: tuple[EnabledSite, ...]
    matched: tuple[EnabledSite, ...]

    @cached_property
    def strings_size(self) -> int:
        """Upper bound for the bytes of the strings area: string constants, and the names of all
        probes.
        """
        probes = [e.probe.name for e in self.enabled]
        names = {n.provider for n in probes} | {n.module for n in probes}
        names |= {n.function for n in probes} | {n.name for n in probes}
        own = sum(len(n.encode()) + 1 for n in names)
        return len(self.compiled.strings) + own + NAMES_SLACK


@dataclass(frozen=True, slots=True)
class ScratchMemory:
    """Scratch of one trace, as kinst maps it: a part of the machine's scratch, which all traces
    share.

    Attributes:
        view: the machine's scratch from the start of this trace's scratch on.
        address: address of this trace's scratch in the target; 0 if the target has no scratch, so
            that only the host runs clauses.
        native: address of this trace's scratch in kinst's own process.
        size: bytes of this trace's scratch.
        counters_room: bytes of the machine's scratch that are kept for counter blocks.
        offset: offset of this trace's scratch in the machine's scratch.
        text_from: offset in the view before which no code may lie.
        counters_at: offset in the machine's scratch of the area for counter blocks.
    """

    view: memoryview
    address: int
    native: int
    size: int
    counters_room: int = 0
    offset: int = 0
    text_from: int = 0
    counters_at: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Enabled probes, sorted by how they are planted or what fires them.

    Attributes:
        enabled: the program, with all of its probes.
        memory: the trace's scratch.
        host: probes that kinst's own process fires.
        error: the probe dtrace:::ERROR; without clauses if the program does not enable it.
        planted: probes that fire by a jump or a trap in the kernel.
        stopped: probes at which the machine stops.
        refused: probes that are left out, each with the reason.
        runs: groups of planted instructions that one jump covers.
        unprobed: instructions in the runs that have no probe.
        dead_registers: registers that a jump may overwrite (Isa.dead_registers), by address of the
            jump.
        gates: instructions without a probe that are planted with a jump, since they lead to traps.
        gated: addresses of trap-planted instructions whose traps are normally not reached: all
            predecessors are known and displaced, so that control comes from their trampolines.
        sampled: probes that a timer of the machine fires (profile-N in a machine that never stops).
    """

    enabled: EnabledProgram
    memory: ScratchMemory
    host: tuple[EnabledSite, ...]
    error: EnabledSite
    planted: tuple[ChosenSite, ...] = ()
    stopped: tuple[ChosenSite, ...] = ()
    refused: tuple[ChosenSite, ...] = ()
    runs: Runs = NO_RUNS
    unprobed: tuple[Site, ...] = ()
    dead_registers: Mapping[int, int] = field(default_factory=dict)
    gates: tuple[Site, ...] = ()
    gated: frozenset[int] = frozenset()
    sampled: tuple[EnabledSite, ...] = ()

    def named(self, name: object) -> EnabledSite | None:
        return next((e for e in self.host if e.probe.name == name), None)

    @property
    def begin(self) -> EnabledSite | None:
        return self.named(BEGIN)

    @property
    def end(self) -> EnabledSite | None:
        return self.named(END)

    @property
    def inside(self) -> tuple[EnabledSite, ...]:
        """Probes that fire in the target, in the order of their site descriptors."""
        return (*(s.enabled for s in self.planted), *self.sampled)

    @property
    def running(self) -> tuple[EnabledSite, ...]:
        """All probes that can fire: those of the host, of the machine's timers, and of planted
        sites.
        """
        sites = (s.enabled for s in (*self.planted, *self.stopped))
        return (*self.host, *self.sampled, *sites)


@dataclass(frozen=True, slots=True)
class Counters:
    """Memory for counters: a block for each CPU, or one block that all CPUs share.

    Attributes:
        displacement: bytes from a CPU's per-CPU base to its block. For a shared block, the block's
            address.
        offsets: offset in scratch of each CPU's block, in CPU order, or only that of the shared
            block.
        size: bytes of a block. The program's own counters come first, then those of basic blocks.
    """

    displacement: int
    offsets: tuple[int, ...]
    size: int = 0


@dataclass(frozen=True, slots=True)
class PlacedProgram:
    """Placement of a program, with the layout of the scratch that its clauses write.

    Attributes:
        placement: the probes, and how each is planted.
        scratch: the areas of the trace's scratch.
        layout: offsets of variables, records and aggregations in those areas.
        counters: memory of the program's counters; None if the program has no counters, or there is
            no room for them.
    """

    placement: Placement
    scratch: Scratch
    layout: ProgramLayout
    counters: Counters | None

    @property
    def memory(self) -> ScratchMemory:
        return self.placement.memory

    @property
    def compiled(self) -> Compiled:
        return self.placement.enabled.compiled


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Site descriptors, which clauses read: their offsets in scratch, and their bytes.

    All offsets are in the trace's scratch.

    Attributes:
        planted: offset of the first descriptor of the probes that fire in the target
            (Placement.inside).
        size: bytes of each descriptor.
        offsets: offset of the descriptor of each probe that the host fires, by EnabledSite.key.
        error_target: offset of the descriptor of dtrace:::ERROR for clauses that run in the target.
        error_host: offset of the descriptor of dtrace:::ERROR for clauses that run on the host.
        data: (offset, bytes) of pieces of the area of descriptors.
        strings: bytes of the strings area.
    """

    planted: int
    size: int
    offsets: Mapping[tuple[int, int], int]
    error_target: int
    error_host: int
    data: tuple[tuple[int, bytes], ...] = ()
    strings: bytes = b""


@dataclass(slots=True)
class StoppedCpu:
    """Holder of the number of the CPU that is stopped at a probe; -1 while no CPU is.

    kinst sets the number before it runs a clause on the host. When the clause reads user memory,
    kinst reads the memory of this CPU's process.
    """

    number: int = -1


@dataclass(frozen=True, slots=True)
class HostSide:
    """Native functions by which host-run clauses read and write the target's memory.

    The functions are valid as long as this object exists.

    Attributes:
        read: reads the target's memory.
        read_user: reads the memory of the process that the stopped CPU runs.
        stopped: the stopped CPU.
        write: writes the target's memory.
        user: how the compiler makes a host-run clause read user memory: by a call of read_user.
            None without a machine.
    """

    read: native.NativeRead
    read_user: native.NativeRead
    stopped: StoppedCpu
    write: native.NativeRead
    user: UserMemory | None = None


@dataclass(frozen=True, slots=True)
class TracePlan:
    """Everything that a trace writes into the machine.

    Attributes:
        placed: the probes, and the layout of scratch.
        descriptors: the site descriptors of all probes.
        host: code of clauses that kinst's own process runs.
        host_side: functions by which that code reads and writes the target's memory.
        code: code of clauses that the target runs; None without planted probes.
        hooks: detours of the kernel's own functions, with their code.
        sites: patches of the probes' sites, with their trampolines.
        traps: bytes of the trap table.
        rules: how to find the caller's return address at a site, by EnabledSite.key.
        samplers: (period in ns, address of the code) of each sampled probe.
        ended: code of earlier traces that threads may still be in.
    """

    placed: PlacedProgram
    descriptors: Descriptors
    host: HostCode
    host_side: HostSide
    code: TargetCode | None = None
    hooks: Plan = field(default_factory=Plan)
    sites: Plan = field(default_factory=Plan)
    traps: bytes | bytearray = b""
    rules: Mapping[tuple[int, int], FrameRule] = field(default_factory=dict)
    samplers: Sequence[tuple[int, int]] = ()
    ended: Sequence[EndedCode] = ()

    @property
    def placement(self) -> Placement:
        return self.placed.placement

    @property
    def compiled(self) -> Compiled:
        return self.placed.compiled

    @property
    def matched(self) -> tuple[EnabledSite, ...]:
        """The matched probes; their clause indexes refer to the clauses as the user wrote them."""
        return self.placement.enabled.matched

    @property
    def traced_sites(self) -> list[TracedSite]:
        """Planted and refused instructions of the program's probes, each once, in address order."""
        parts = self.placement
        planted = ((s.site, "") for s in (*parts.planted, *parts.stopped))
        refused = ((s.site, s.choice.reason) for s in parts.refused)
        found = {
            site.address: TracedSite(site.function, site.address, len(site.code), reason)
            for site, reason in (*planted, *refused, *self.sites.refused)
        }
        return [found[at] for at in sorted(found)]

    @property
    def left_out(self) -> dict[int, str]:
        """Reason why each refused instruction is not planted, by address."""
        return {site.address: site.reason for site in self.traced_sites if site.reason}

    @property
    def code_end(self) -> int:
        """First address after the trace's code in the target, 0 if the trace has no code there."""
        end = 0 if self.code is None else self.code.end
        return max(end, self.hooks.end, self.sites.end)


@dataclass(frozen=True, slots=True)
class ListedProbe:
    """Line of a list of probes (-l): a probe at one of its sites.

    Attributes:
        address: address of the site's instruction, 0 without a site.
        code: bytes of the instruction.
        text: disassembly of the instruction.
        kind: where control goes from the instruction, as in core.instruction.Flow (next, branch,
            jump, call, return, indirect, trap).
        way: how the instruction would be planted (jump, run, gate, trap, stop), or "refused"; "" if
            the list does not tell, or there is no instruction.
        reason: why the instruction is refused, or cannot be planted in a better way.
        source: FILE:LINE, "" if it is not known.
        chained: a predecessor (+OFFSET) whose trampoline leads straight into this site's
            trampoline, "" if there is none.
        gaps: gaps of the function between this instruction and the next one in the list.
    """

    id: int
    provider: str
    module: str
    function: str
    name: str
    address: int = 0
    code: bytes = b""
    text: str = ""
    kind: str = ""
    way: str = ""
    reason: str = ""
    source: str = ""
    stability: ProbeStability | None = None
    chained: str = ""
    gaps: tuple[Gap, ...] = ()

    def __str__(self) -> str:
        return f"{self.provider}:{self.module}:{self.function}:{self.name}"
