"""The frozen values that the stages of the path hand on, in the path's order.

Request -> Files, TracedMachine -> Compiled -> EnabledSite -> ScratchMemory, Placement
        -> Placed -> PlantedImage
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kinst.codegen.compile import HostCode, TargetCode
from kinst.core.dialect import UNKNOWN, Dialect
from kinst.core.held import EndedCode
from kinst.core.isa import Isa
from kinst.core.kernel import Argument, LiveKernel, Timer
from kinst.core.layout import Scratch
from kinst.core.machine import Target
from kinst.core.probe import Gap, Probe, ProbePattern, ProgramText, Site
from kinst.core.records import ProgramLayout
from kinst.core.source import TracedSite
from kinst.core.stability import Attributes
from kinst.core.system import Facts, System
from kinst.core.types import TypeSource
from kinst.dlang import typed
from kinst.dlang.api import combine
from kinst.dlang.syntax import tree
from kinst.dlang.vocabulary.d_options import Options
from kinst.image.loaded import LoadedImages
from kinst.patch.descriptors import FrameRule
from kinst.patch.plan import Plan
from kinst.patch.runs import NO_RUNS, Runs
from kinst.patch.ways import Choice, PlantRules
from kinst.providers.dtrace import BEGIN, END
from kinst.wire import native


@dataclass(frozen=True, slots=True)
class TracedMachine:
    """The traced machine; all but isa are there when a target is.

    text: lowest and highest address of the kernel's text.  images: the debug information of the
    kernel and its modules.  programs: files of programs in the guest, by the names that they have
    there.
    """

    isa: Isa
    target: Target | None = None
    personality: System | None = None
    kernel: LiveKernel | None = None
    text: tuple[int, int] = (0, 0)
    images: LoadedImages | None = None
    programs: Mapping[str, Path] = field(default_factory=dict)

    @property
    def facts(self) -> Facts | None:
        return self.personality.facts if self.personality else None

    @property
    def cpus(self) -> int:
        return self.personality.facts.cpus if self.personality else 1

    @property
    def never_stands(self) -> bool:
        """Whether it is planted in while it runs, as the machine that kinst itself runs on is."""
        return self.target is not None and self.target.planter is not None


@dataclass(frozen=True, slots=True)
class Compiled:
    """texts: as given, with the clauses of each: (text, indexes of its clauses).  programs:
    their trees.

    types: of the kernel, as the program was compiled with them.
    plant: what -x plant= allows.  trampolines: bytes for code.  batch: seconds for which each batch
    of instructions is traced, where they are planted one batch after another; else 0.
    """

    texts: tuple[tuple[ProgramText, tuple[int, ...]], ...]
    programs: tuple[tree.Program, ...]
    program: typed.Program
    options: Options
    plant: PlantRules
    trampolines: int
    types: TypeSource | None = None
    batch: float = 0
    # The traced system's part of D.
    dialect: Callable[[], Dialect] = lambda: UNKNOWN

    @property
    def tree(self) -> tree.Program:
        """All of them as one."""
        return combine(self.programs)

    @property
    def patterns(self) -> list[ProbePattern]:
        return [p for clause in self.program.clauses for p in clause.patterns]


@dataclass(frozen=True, slots=True)
class EnabledSite:
    """A probe that clauses are attached to, at one of its sites, or at none (BEGIN, END, timers).

    clauses: their indexes, in program order; one comes once for each of its descriptions that the
    probe matches (libdtrace compiles a clause for each: dt_compile_clause()).  epid: of the first
    of them; the others follow.
    arguments, condition: as in core.kernel.Found.
    """

    probe: Probe
    clauses: tuple[int, ...]
    epid: int
    timer: Timer | None
    arguments: tuple[Argument, ...] = ()
    condition: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """What no other EnabledSite has: a probe with several sites has one for each."""
        return self.probe.id, self.probe.site.address if self.probe.site else 0


@dataclass(frozen=True, slots=True)
class EnabledProgram:
    """A program with its probes.

    compiled: with a copy of each clause for each condition under which it runs, which `enabled`
    refers to.  matched: the probes by the clauses as they were written.
    """

    compiled: Compiled
    enabled: tuple[EnabledSite, ...]
    matched: tuple[EnabledSite, ...]


@dataclass(frozen=True, slots=True)
class ScratchMemory:
    """Scratch as kinst maps it.

    address: in the target, 0 when the target has none (then only the host runs clauses).
    native: of the mapping in this process.  size: bytes.  text_from: code must not be before this
    offset in the view.  A machine has one run of scratch for all its traces: offset: of this in it;
    counters_at, counters_room: of what is kept there for counter blocks.
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
    """The enabled probes, by what runs them.

    Attributes:
        host: those that kinst's own process fires.
        planted: those that a jump or a trap in the kernel fires.
        stopped: those at which the machine stops.
        refused: those that are left out, each with the reason.
        error: dtrace:::ERROR, also if no clause is attached to it.
        runs: groups of planted instructions that one jump covers.
        unprobed: instructions in the runs that have no probe.
        dead_registers: registers that a jump may spoil (Isa.spare), by address.
        gates: instructions without a probe that get a jump each, since they lead to traps.
        gated: addresses of the traps whose known predecessors are all displaced.
        sampled: those that a timer of the machine fires (profile-N in a machine that never stands).
    """

    host: tuple[EnabledSite, ...]
    planted: tuple[tuple[EnabledSite, Choice], ...]
    stopped: tuple[tuple[EnabledSite, Choice], ...]
    refused: tuple[tuple[EnabledSite, str], ...]
    error: EnabledSite
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
        """Every probe that the machine fires by itself; their descriptors have this order."""
        return (*(e for e, _ in self.planted), *self.sampled)

    @property
    def running(self) -> tuple[EnabledSite, ...]:
        """Every probe that can fire: the host's, those of timers, and sites as they are planned."""
        sites = (e for e, _ in (*self.planted, *self.stopped))
        return (*self.host, *self.sampled, *sites)


@dataclass(frozen=True, slots=True)
class Counters:
    """The second mapping of the counter blocks.

    displacement: from a CPU's per-CPU base to its block, or the address of a block that all
    CPUs share.  offsets: of each CPU's block in scratch, in CPU order, or of the shared one.
    size: bytes of a block; those behind what the program's layout has are for the counters of
    blocks of instructions.
    """

    displacement: int
    offsets: tuple[int, ...]
    size: int = 0


@dataclass(frozen=True, slots=True)
class Placed:
    """Where everything that clauses write lies."""

    memory: ScratchMemory
    scratch: Scratch
    layout: ProgramLayout
    counters: Counters | None


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Where what is told of probes lies in scratch, and the bytes of it, once they are there.

    planted: where the descriptors of planted probes begin, in their order, each `size` bytes, with
    those of sampled ones behind them.
    offsets: of each other probe's, by EnabledSite.key.  error_target, error_host: of
    dtrace:::ERROR's.  data: (offset, bytes) of pieces of the sites area.  strings: of the strings
    area."""

    planted: int
    size: int
    offsets: Mapping[tuple[int, int], int]
    error_target: int
    error_host: int
    data: tuple[tuple[int, bytes], ...] = ()
    strings: bytes = b""


@dataclass(slots=True)
class StoppedCpu:
    """The CPU that stands at a probe, -1 outside of stop-planted probes: whoever runs a clause
    sets it, and what the clause reads user memory with looks at it."""

    number: int = -1


@dataclass(frozen=True, slots=True)
class PlantedImage:
    """All that is to be written: descriptors, host code, and for planted probes target code,
    the trap table and the patch plans (hooks first).

    rules: how the caller is found, by EnabledSite.key.  read: what host code reads memory with,
    kept alive here.  read_user: the same for the memory of the program that `stopped` runs.
    ended: what has to be looked at when runs are planted.  samplers: of sampled probes, (period in
    ns, address of its code).
    """

    descriptors: Descriptors
    host: HostCode
    code: TargetCode | None
    hooks: Plan
    sites: Plan
    traps: bytes | bytearray
    rules: Mapping[tuple[int, int], FrameRule]
    read: native.NativeRead
    read_user: native.NativeRead
    stopped: StoppedCpu
    ended: Sequence[EndedCode] = ()
    samplers: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    """A program with everything that a trace of it writes into the machine."""

    compiled: Compiled
    parts: Placement
    placed: Placed
    image: PlantedImage
    matched: tuple[EnabledSite, ...]

    @property
    def traced_sites(self) -> list[TracedSite]:
        """The instructions that its probes are at, by address: each once, planted or refused."""
        parts = self.parts
        planted = ((e.probe.site, "") for e, _ in (*parts.planted, *parts.stopped))
        refused = ((e.probe.site, reason) for e, reason in parts.refused)
        found = {
            site.address: TracedSite(site.function, site.address, len(site.code), reason)
            for site, reason in (*planted, *refused, *self.image.sites.refused)
            if site is not None
        }
        return [found[at] for at in sorted(found)]

    @property
    def left_out(self) -> dict[int, str]:
        """The instructions that are not planted: address to the reason."""
        return {site.address: site.reason for site in self.traced_sites if site.reason}

    @property
    def code_end(self) -> int:
        """The address behind its code in the machine, 0 where there is none."""
        code = self.image.code
        ends = (self.image.hooks.end, self.image.sites.end)
        return 0 if code is None else max(code.address + len(code.code), *ends)


@dataclass(frozen=True, slots=True)
class ProbeStability:
    """description: attributes of the probe's name; arguments: of its args[], whose types are
    `types`, as C spells them."""

    description: Attributes
    arguments: Attributes
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProgramStability:
    """The least stable of the probe descriptions and of the statements of one program."""

    text: ProgramText
    descriptions: Attributes
    statements: Attributes


@dataclass(frozen=True, slots=True)
class ListedProbe:
    """A probe as a list shows it; one with several sites comes once for each.

    address, code, text: of its instruction, 0 and empty where it has none.  kind: where control
    goes from there, as in core.instruction.Flow (next, branch, jump, call, return, indirect, trap).
    way: how the instruction would be planted (jump, run, gate, trap, stop), "refused", or "" where
    it was not asked or there is none.  reason: why it is refused, or planted in no better way.
    source: file:line, "" where it is not known.  chained: of the instructions from whose
    trampolines control comes straight to this one's, the nearest (+OFFSET), or "".  gaps: what of
    its function is not decoded, between this instruction and the next one that is listed.
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
