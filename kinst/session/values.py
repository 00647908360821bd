"""Frozen values that the stages of the path pass on, in the path's order.

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
from kinst.core.layout import Scratch
from kinst.core.machine import Target
from kinst.core.probe import Argument, Gap, Probe, Site
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
from kinst.wire import native

NAMES_SLACK = 64  # bytes: of ERROR's name, and the empty string


@dataclass(frozen=True, slots=True)
class StartedMachine:
    """Machine whose kernel is up and identified.

    Attributes:
        target: the kernel as it can be read, written, stopped and resumed.
        system: knowledge of its operating system.
        kernel: its functions and decoded instructions.
        text: lowest and highest address of the kernel's text.
        images: debug information of the kernel and its modules.
        programs: files of programs in the guest, by their names there.
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
    def never_stands(self) -> bool:
        """Whether the machine is planted while it runs, as this host is."""
        return self.target.planter is not None


@dataclass(frozen=True, slots=True)
class EnabledSite:
    """Probe with clauses, at one of its sites, or at none (BEGIN, END, timers).

    Attributes:
        clauses: their indexes, in program order.  A clause comes once for each of its descriptions
            that the probe matches (libdtrace compiles a clause for each: dt_compile_clause()).
        epid: of the first clause; the others follow.
        arguments: as in core.kernel.Found.
        condition: as in core.kernel.Found.
    """

    probe: Probe
    clauses: tuple[int, ...]
    epid: int
    timer: Timer | None
    arguments: tuple[Argument, ...] = ()
    condition: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """Key that no other EnabledSite has: a probe with several sites has one for each."""
        return self.probe.id, self.probe.site.address if self.probe.site else 0

    @property
    def work(self) -> tuple[tuple[int, ...], tuple[Argument, ...]]:
        """Key of a site's code, which depends on its clauses and arguments."""
        return self.clauses, self.arguments


@dataclass(frozen=True, slots=True)
class ChosenSite:
    """Enabled probe at one of its sites, and how that is planted."""

    enabled: EnabledSite
    site: Site
    choice: Choice


@dataclass(frozen=True)
class EnabledProgram:
    """Program with its probes.

    Attributes:
        compiled: has a copy of each clause for each condition under which it runs.
        enabled: the probes, which refer to those copies.
        matched: the probes, with the clauses as written.
    """

    compiled: Compiled
    enabled: tuple[EnabledSite, ...]
    matched: tuple[EnabledSite, ...]

    @cached_property
    def strings_size(self) -> int:
        """Bytes of the strings area, at most: string constants, and the names of all probes."""
        probes = [e.probe.name for e in self.enabled]
        names = {n.provider for n in probes} | {n.module for n in probes}
        names |= {n.function for n in probes} | {n.name for n in probes}
        own = sum(len(n.encode()) + 1 for n in names)
        return len(self.compiled.strings) + own + NAMES_SLACK


@dataclass(frozen=True, slots=True)
class ScratchMemory:
    """Scratch as kinst maps it.  A machine has one piece of scratch for all its traces.

    Attributes:
        view: from the start of this trace's scratch on.
        address: in the target, 0 if the target has none (then only the host runs clauses).
        native: address of the mapping in this process.
        size: bytes.
        counters_room: bytes that are kept for counter blocks.
        offset: of this trace's scratch in the machine's.
        text_from: offset in the view before which no code may lie.
        counters_at: offset of the room for counter blocks in the machine's scratch.
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
    """Enabled probes, by what runs them.

    Attributes:
        enabled: the program, with all of its probes.
        memory: the trace's scratch.
        host: probes that kinst's own process fires.
        error: dtrace:::ERROR, also if no clause is attached to it.
        planted: probes that a jump or a trap in the kernel fires.
        stopped: probes at which the machine stops.
        refused: probes that are left out, each with the reason.
        runs: groups of planted instructions that one jump covers.
        unprobed: instructions in the runs that have no probe.
        dead_registers: registers that a jump may overwrite (Isa.dead_registers), by address.
        gates: instructions without a probe that get a jump each, since they lead to traps.
        gated: addresses of the traps whose known predecessors are all displaced.
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
        """Probes that the machine fires by itself; their descriptors have this order."""
        return (*(s.enabled for s in self.planted), *self.sampled)

    @property
    def running(self) -> tuple[EnabledSite, ...]:
        """Probes that can fire: the host's, those of timers, and sites as they are planned."""
        sites = (s.enabled for s in (*self.planted, *self.stopped))
        return (*self.host, *self.sampled, *sites)


@dataclass(frozen=True, slots=True)
class Counters:
    """Counter blocks of each CPU, or one that all CPUs share.

    Attributes:
        displacement: from a CPU's per-CPU base to its block, or the address of a shared block.
        offsets: of each CPU's block in scratch, in CPU order, or of the shared one.
        size: bytes of a block.  After the bytes of the program's layout come the counters of basic
            blocks.
    """

    displacement: int
    offsets: tuple[int, ...]
    size: int = 0


@dataclass(frozen=True, slots=True)
class PlacedProgram:
    """Placement with the places of everything that its clauses write.

    Attributes:
        scratch: the areas of the trace's scratch.
        layout: places of variables, records and aggregations in those areas.
        counters: None if the program has no counters, or they have no room.
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
    """Descriptors of probes: their places in scratch, and their bytes.

    Attributes:
        planted: offset of those of planted probes, in their order, followed by sampled ones.
        size: bytes of each.
        offsets: of each other probe's, by EnabledSite.key.
        error_target: offset of dtrace:::ERROR's, for clauses that run in the target.
        error_host: offset of dtrace:::ERROR's, for clauses that run on the host.
        data: (offset, bytes) of pieces of the sites area.
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
    """CPU that is stopped at a probe, -1 outside of stop-planted probes.

    The code that runs a clause sets it; the clause's reads of user memory use it.
    """

    number: int = -1


@dataclass(frozen=True, slots=True)
class HostSide:
    """Memory that host-run clauses reach.  The native functions live as long as this object.

    Attributes:
        read: reads the target's memory.
        read_user: reads the memory of the process that the stopped CPU runs.
        stopped: that CPU.
        user: describes read_user for host code; None without a machine.
    """

    read: native.NativeRead
    read_user: native.NativeRead
    stopped: StoppedCpu
    user: UserMemory | None = None


@dataclass(frozen=True, slots=True)
class TracePlan:
    """Everything that a trace writes into the machine.

    Attributes:
        placed: the probes, and the places of everything.
        descriptors: of all probes.
        host: code that kinst's own process runs.
        host_side: memory that this code reaches.
        code: for planted probes, code that the target runs; None without planted probes.
        hooks: patches of the kernel's own functions, and their trampolines.
        sites: patches of the probes' sites, and their trampolines.
        traps: the trap table.
        rules: how the caller is found, by EnabledSite.key.
        samplers: of sampled probes, (period in ns, address of its code).
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
        """Probes, as in EnabledProgram."""
        return self.placement.enabled.matched

    @property
    def traced_sites(self) -> list[TracedSite]:
        """Return the planted and refused instructions of its probes, each once, by address."""
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
        """Return the reasons of instructions that are not planted, by address."""
        return {site.address: site.reason for site in self.traced_sites if site.reason}

    @property
    def code_end(self) -> int:
        """First address after its code in the machine, 0 without code."""
        code = self.code
        return 0 if code is None else max(code.end, self.hooks.end, self.sites.end)


@dataclass(frozen=True, slots=True)
class ListedProbe:
    """Row of a list: a probe at one of its sites.

    Attributes:
        address: of its instruction, 0 if it has none.
        code: bytes of its instruction.
        text: of its instruction, disassembled.
        kind: where control goes from there, as in core.instruction.Flow (next, branch, jump, call,
            return, indirect, trap).
        way: how the instruction would be planted (jump, run, gate, trap, stop), or "refused"; "" if
            that was not asked, or there is no instruction.
        reason: why it is refused, or planted in no better way.
        source: file:line, "" if it is not known.
        chained: the nearest instruction (+OFFSET) from whose trampoline control comes straight to
            this one's, or "".
        gaps: gaps of its function between this instruction and the next one that is listed.
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
