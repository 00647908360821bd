"""The whole path, on one machine that stays open for as many programs as there are.

    request -> compile -> [attach] -> expand -> enable -> place -> build -> plant and run

OpenMachine.build() is the path up to what is written into the machine, each step a stage of its
own; session/run.py takes it from there.  What another program needs again stays here: the booted
kernel, what is known of it, its decoded instructions, types and symbol tables.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path

from kinst.codegen.analysis import asks_caller
from kinst.codegen.layout.program_layout import lay_out_program
from kinst.core.code import FunctionCode
from kinst.core.dialect import Dialect
from kinst.core.errors import KinstError, TargetError
from kinst.core.held import EndedCode, left
from kinst.core.kernel import Found, Kernel
from kinst.core.layout import LEAF
from kinst.core.machine import Begun, Target, Terminal
from kinst.core.paths import cache_folder
from kinst.core.probe import Function, ProbeName, ProbePattern, gaps_told
from kinst.core.records import ProgramLayout
from kinst.core.source import CodeImage, SourceFunction
from kinst.core.system import System
from kinst.core.threads_inside import left_by_stacks
from kinst.image.debug_info import DebugFiles, DebugInfo
from kinst.image.loaded import LoadedImages, moved_by
from kinst.patch.leaders import Leaders
from kinst.patch.plan import ways_back
from kinst.providers import load_all
from kinst.session import batches
from kinst.session.build import build, fill, split, with_runs
from kinst.session.code import codes_of, named_functions, no_place, places_of
from kinst.session.counters import CounterBlocks
from kinst.session.descriptions import check_descriptions, naming
from kinst.session.enable import (
    check_arguments,
    check_cpu,
    check_system,
    enable,
    on_one_cpu,
    wants_kernel,
    with_conditions,
)
from kinst.session.expand import expanded, source_of, wants_expansion
from kinst.session.kernel import RunningKernel
from kinst.session.listing import gaps_in, list_all, list_enabled, list_planned
from kinst.session.modules import frames_finder, module_images
from kinst.session.place import (
    ScratchPool,
    data_reserved,
    most_probes,
    place_all,
    planting_ability,
    pool_size,
)
from kinst.session.program import compile_request, parse_request, with_programs
from kinst.session.report import Report
from kinst.session.request import Request, find_files
from kinst.session.sizes import code_borrowed, counters_room, data_needed, scratch_needed, sizes
from kinst.session.source_functions import code_image, find_functions, source_functions
from kinst.session.stability import (
    check_stability,
    description_stability,
    probe_stability,
    program_stability,
)
from kinst.session.target import (
    attach,
    isa_of,
    module_folders,
    open_target,
    programs_of,
    with_build,
)
from kinst.session.types import open_types, running_addresses, symbols_in
from kinst.session.values import (
    BuiltProgram,
    Compiled,
    EnabledProgram,
    EnabledSite,
    ListedProbe,
    Placement,
    ProbeStability,
    ProgramStability,
    ScratchMemory,
    TracedMachine,
)
from kinst.systems import of_host, of_image
from kinst.wire.native import give_back

MOST_LINES = 20_000  # instructions of one listing that are shown with their source lines
# Bytes of scratch of a machine that is opened for any programs: for their data, and their code.
ROOM_FOR_DATA, ROOM_FOR_CODE = 64 << 20, 32 << 20
ROOM_FOR_BATCHES = 96 << 20  # of code, and for counters: in reach of all ISAs' jumps
LEAST_FOR_BATCHES = 24 << 20  # two of them fit


@contextmanager
def _for_many() -> Iterator[None]:
    """Do without Python's collector of circles: what is made for each of many sites stays, and
    looking through all of it again and again takes a third of the time.  What was freed goes back
    to the system at the end."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
        give_back()


class OpenMachine:
    """A machine, and the path of programs on it.  It is started when first needed, by start().

    request: which machine; what it says of programs is for their own requests to say.  output:
    what the guest's command has written.
    """

    def __init__(
        self,
        request: Request,
        report: Report,
        begun: Begun | None = None,
        terminal: Terminal | None = None,
    ) -> None:
        """begun: of this machine.  terminal: that its commands have.  Raises KinstError for an ISA
        that kinst does not know."""
        self.request = request = with_build(request)
        self._terminal = terminal
        self._begun = begun
        self.report = report
        self.isa = isa_of(request)
        self.files = cache(partial(find_files, request, report.progress))
        progress = partial(report.progress, "indexing debug information")
        self._debug = DebugFiles(cache_folder(), progress)
        self.types = open_types(self.files, self._folders, self._debug)
        self.traced = TracedMachine(self.isa)
        self.output: deque[bytes] = deque()
        self._pool: ScratchPool | None = None
        self._counters = CounterBlocks(self.traced)
        self._set_aside = 0  # bytes of scratch
        self._for_any = False  # it was started for any programs
        self._text = b""
        self._among: Collection[int] | None = None
        self._personality: System | None = None  # with its own tracer's call sites
        self._call_sites = True
        self._known_leaders: Leaders | None = None
        self._ended: tuple[EndedCode, ...] = ()  # all code in scratch

    def _folders(self) -> Sequence[Path]:
        return module_folders(self.files(), self.isa, self.report.progress)

    # request -> compile

    def compile(self, request: Request) -> Compiled:
        """The request's programs, parsed and checked.  Raises DError, KinstError."""
        compiled = compile_request(
            request, self.isa, 0, self.types, self.report.say, self.dialect
        )  # fmt: skip
        check_stability(compiled, load_all())
        if not (request.zero or compiled.options.zdefs):
            check_descriptions(compiled.program, load_all())
        if compiled.batch:
            wants = partial(wants_kernel, providers=load_all(), fired=True)
            batches.check_batches(compiled.program, wants)
        self.report.stage("compile D")
        return compiled

    def dialect(self) -> Dialect:
        """D's part of the traced system: of the kernel's file or, where kinst fetches that itself
        or traces this very machine, of its own system."""
        named = self.request.debug or self.request.kernel
        return (of_image(self._image.elf) if named else of_host()).dialect()

    def needs_kernel(self, compiled: Compiled, *, fired: bool) -> bool:
        """Whether a program means probes or symbols of a kernel.  fired: it is to run."""
        wanted = bool(symbols_in(compiled.program))
        return wanted or wants_kernel(compiled.patterns, load_all(), fired=fired)

    # attach

    def start(self, compiled: Compiled | None = None) -> None:
        """Boot or connect, unless that has been done.  compiled: a program that there must be
        scratch for, and for no other.  Raises KinstError and TargetError."""
        if self.traced.target is not None:
            return
        report, files, cpus = self.report, self.files(), self.request.cpus
        system = of_image(self._image.elf)
        if compiled is not None:
            self._check_system(compiled)
        size = ROOM_FOR_DATA + ROOM_FOR_CODE
        if compiled is not None:
            own = compiled.options, compiled.program, cpus
            size = scratch_needed(*own, compiled.trampolines)
        size += counters_room(cpus)
        target = open_target(
            self.request,
            self.isa,
            files,
            system,
            size,
            self.output.append,
            self._begun,
            self._terminal,
        )
        try:
            report.stage("start")
            personality = attach(target, self._image, system, report.say)
            report.stage("boot")
            kernel = RunningKernel(target, personality, self.isa, inlines=self._image.has_dwarf)
            programs = programs_of(self.request, files)
            self.traced = TracedMachine(
                self.isa, target, personality, kernel, personality.text,
                self._images(target, personality), programs,
            )  # fmt: skip
            self._personality = personality
            self._set_aside, self._for_any = size, compiled is None
            self._counters = CounterBlocks(self.traced)
        except BaseException:
            target.close()
            raise

    def stand(self, among: Collection[int] | None = None, *, call_sites: bool = True) -> None:
        """Stop the machine for what is to be read and written next.  among: addresses of the
        functions that are there for it, or None for all.  call_sites: as of PlantRules.

        Where its text is not what it was when its instructions were decoded (the kernel has
        changed it, as it does with jump labels), they are forgotten."""
        target, personality = self.traced.target, self._personality
        if target is None or personality is None:
            return
        if not target.abilities.reads_running:
            target.stop()
        low, high = self.traced.text
        # Through a bare stub it would take seconds: there little is decoded, and again each time.
        text = target.read(low, high - low) if self._pool and self._pool.in_target else b""
        changed = not text or text != self._text or call_sites is not self._call_sites
        if changed or among is not self._among:
            personality = personality if call_sites else personality.leaving_call_sites()
            kernel = RunningKernel(
                target, personality, self.isa, among, inlines=self._image.has_dwarf
            )
            self.traced = replace(self.traced, personality=personality, kernel=kernel)
            if changed:
                self._known_leaders = None
        self._text, self._among, self._call_sites = text, among, call_sites

    @cached_property
    def _image(self) -> DebugInfo:
        """The kernel's image."""
        return self._debug.open(self.files().debug)

    def _images(self, target: Target, personality: System) -> LoadedImages:
        @cache
        def folders() -> Sequence[Path]:
            try:
                return self._folders()
            except KinstError as error:
                self.report.say(f"kinst: debug files of modules: {error}")
                return self.files().folders

        find = module_images(
            target, personality.modules, folders, self._debug, self._image, self.report.say
        )
        return LoadedImages(
            moved_by(self._image, personality.facts.slide),
            find,
            lambda: [module.name for module in personality.modules()],
        )

    def index_lines(self) -> None:
        """Make the index of the kernel's DWARF, where there is none yet; nothing without DWARF.
        Raises KinstError for a damaged file."""
        if self._image.has_dwarf:
            _ = self._image.index

    def _check_system(self, compiled: Compiled) -> None:
        """Raises DError for what the kernel's system does not have."""
        system = of_image(self._image.elf)
        check_system(compiled.program, load_all(), lambda name: system.lacks(name, self._image.elf))

    def close(self) -> None:
        """End what was started.  Safe to call twice."""
        target, self.traced = self.traced.target, TracedMachine(self.isa)
        self._pool = None
        if self._begun is not None:
            self._begun.close()
        if target is not None:
            target.close()

    # expand

    def expand(self, request: Request, compiled: Compiled, target_pid: int = 0) -> Compiled:
        """$target becomes a process id, and inline functions, source lines and local variables
        plain clauses.  What this changes is checked once more, at the end.  Raises DError."""
        traced, report = self.traced, self.report
        personality, kernel, images = traced.personality, traced.kernel, traced.images
        if personality is None or kernel is None or images is None:
            return compiled
        programs = compiled.programs
        if target_pid:
            programs = parse_request(
                request, target_pid, compiled.types, before=programs, dialect=compiled.dialect
            )  # fmt: skip
        self._check_system(compiled)
        if wants_expansion(compiled) or asks_caller(compiled.program):
            personality.find_frames_with(frames_finder(images, report.say))
        if wants_expansion(compiled):
            zero = request.zero or compiled.options.zdefs
            where = images, personality.frame_address, report
            programs = expanded(programs, compiled.types, kernel, *where, zero=zero)
        return with_programs(request, compiled, programs, self.isa)

    def batches(self, compiled: Compiled) -> list[frozenset[int]]:
        """The functions that an expanded program means, in batches, for stand().  Raises
        KinstError where there are none, or they cannot be planted."""
        traced = self.traced
        if traced.kernel is None or traced.personality is None:
            raise KinstError("there is nothing to plant in batches", "-x batch= needs a kernel")
        wants = partial(wants_kernel, providers=load_all(), fired=False)
        return batches.cut(compiled, traced.kernel, traced.personality, wants)

    # enable

    @_for_many()
    def enable(
        self, request: Request, compiled: Compiled, *, listed: bool = False, given: int = 0
    ) -> EnabledProgram:
        """The probes that the program means.  listed: they are to be listed, not to be fired.
        given: ids up to this one have been given out.  Raises DError for a description that means
        none."""
        traced, providers = self.traced, load_all()
        # What a program means may be in other batches.
        absent = request.zero or compiled.options.zdefs or self._among is not None
        zero = absent or listed
        room = traced.target.most_scratch if traced.target is not None and not listed else 0
        matched, _ = enable(
            compiled.program, providers, traced.kernel, zero=zero, absent=absent,
            most=most_probes(compiled, traced.cpus, room) if room else 0,
            on_full=partial(self._tell_full, room), given=given,
        )  # fmt: skip
        if traced.kernel is not None and self._among is None:
            self._tell_gaps(matched, traced.kernel)
        check_arguments(compiled.program, matched)
        check_cpu(compiled.options.cpu, traced.cpus)
        enabled = on_one_cpu(matched, compiled.options.cpu)
        program, enabled = with_conditions(compiled.program, enabled, traced.isa)
        if listed and not enabled:
            first = compiled.patterns[0]
            raise KinstError(
                f"failed to match {first}: No probe matches description",
                naming(first, providers, traced.kernel),
            )
        return EnabledProgram(replace(compiled, program=program), enabled, matched)

    # place

    def split(self, program: EnabledProgram) -> tuple[Placement, ScratchMemory]:
        """The way of every site, and the scratch for the program."""
        compiled, traced = program.compiled, self.traced
        if traced.target is None:
            memory = ScratchPool(traced, 0, 0, 0).take(compiled, program.enabled)
        else:
            if self._pool is None:
                self._pool = self._new_pool(program)
            self._release_code(self._pool, program)
            memory = self._pool.take(compiled, program.enabled)
        ability = planting_ability(traced, memory, compiled.plant.forced)
        parts = split(program.enabled, ability, traced)
        if compiled.plant.runs and self._leaders is not None:
            assert traced.target is not None  # or there were no leaders
            gates = compiled.plant.gates
            parts = with_runs(parts, self._leaders, traced.target, self._ended, gates=gates)
        return parts, memory

    def _release_code(self, pool: ScratchPool, program: EnabledProgram) -> None:
        """Where the code of ended traces, or their counters, leave little room for this program,
        take back what nobody can be in any more."""
        target = self.traced.target
        assert target is not None
        # What the program counts at each site, and the counter of its block.
        counters = (16 if program.compiled.plant.blocks else 8) * len(program.enabled)
        short = partial(pool.is_short, program.compiled, program.enabled)
        if not short() and self._counters.has_room(counters):
            return
        if target.planter is not None:
            if self._ended:
                target.planter.empty()
                pool.start_again()
                self._counters.start_again()
                self._ended = ()
            return
        if self.isa.signature_bits and pool.in_clause:
            return  # a function that it calls may have signed the address to which it returns
        self._take_back(pool, left(target, self._ended))
        if short():
            # Words are left over from interrupts in all of it, as on many CPUs.
            lender = self.traced.personality.lender if self.traced.personality else None
            if lender is not None:
                self._take_back(pool, left_by_stacks(target, self.isa, lender.threads, self._ended))
        if short() and not self._ended:
            pool.start_again()

    def _take_back(self, pool: ScratchPool, free: Sequence[EndedCode]) -> None:
        """Code of ended traces that nobody is in is others' room, and so are its counters."""
        target, trap = self.traced.target, self.isa.breakpoint
        assert target is not None
        # Through QEMU, which forgets its translations of it.
        pieces = [(one.range[0], one.range[1] - one.range[0]) for one in free]
        target.write_text([(low, trap * (size // len(trap))) for low, size in pieces])
        for one in free:
            pool.release(one.range)
            self._counters.release(one.counters, pool.view)
        self._ended = tuple(one for one in self._ended if one not in free)

    @property
    def _leaders(self) -> Leaders | None:
        """None where no runs can be planted: without need, or where the machine stands to be
        planted in, and its memory cannot be looked through."""
        traced = self.traced
        if not self.isa.RUN_SIZE or not traced.target or not traced.personality:
            return None
        if traced.kernel is None:
            return None
        if not traced.never_stands and traced.target.pointers(()) is None:
            return None
        known = self._known_leaders
        if known is None:
            known = Leaders(self.isa, traced.personality, traced.kernel)
        self._known_leaders = known = known.seen_by(traced.kernel)
        return known

    def _new_pool(self, program: EnabledProgram) -> ScratchPool:
        """Scratch for this program or, where the machine was started for any, for more."""
        compiled, traced = program.compiled, self.traced
        data = data_needed(compiled.options, compiled.program, traced.cpus)
        if compiled.batch and traced.target is not None:
            data = data_reserved(compiled, program.enabled, traced.cpus)
            return self._pool_of_batches(data, traced.target.most_scratch)
        if traced.target is not None and traced.target.abilities.reads_running:
            code = code_borrowed(compiled.trampolines, len(program.enabled))
            compiled = replace(compiled, trampolines=code)
        size = pool_size(compiled, program.enabled, traced.cpus)
        if not self._for_any:
            return ScratchPool(traced, size, 0, data)
        data = max(data, ROOM_FOR_DATA)
        return ScratchPool(traced, max(size, self._set_aside), data, data)

    def _pool_of_batches(self, data: int, most: int) -> ScratchPool:
        """Scratch for batches, as much as is free near the kernel: with less, code of ended batches
        is taken back more often.  most: bytes of the machine's scratch, 0 for any number."""
        room = ROOM_FOR_BATCHES
        while True:
            size = data + room + LEAF - 1 & -LEAF
            try:
                return ScratchPool(self.traced, min(size, most or size), data, data)
            except TargetError:
                if room <= LEAST_FOR_BATCHES:
                    raise
                room //= 2

    # build

    @_for_many()
    def build(self, program: EnabledProgram) -> BuiltProgram:
        """Everything that a trace writes into the machine, which nothing is written to yet."""
        compiled, traced = program.compiled, self.traced
        parts, memory = self.split(program)
        if self._among is None:
            self._tell_ways(compiled, parts, memory)
        layout = _layout(compiled, parts)
        more = 8 * len(parts.planted) if compiled.plant.blocks else 0
        counters = self._counters.place(memory, layout.counters_size, more)
        placed = place_all(traced, memory, compiled, layout, parts.running, counters)
        symbols = running_addresses(compiled.program, compiled.types, traced)
        rules = compiled.plant
        image = build(
            compiled.program, parts, placed, traced, symbols, compiled.dialect(),
            chained=rules.chains, blocks=rules.blocks,
        )  # fmt: skip
        for site, reason in image.sites.refused:
            self.report.say(f"kinst: {site.function.name}+{site.offset} is left out: {reason}")
        self.report.stage("code and plan")
        image = replace(image, ended=self._ended)
        return BuiltProgram(compiled, parts, placed, image, program.matched)

    def fill(self, built: BuiltProgram) -> None:
        """Write all but the patches: from now on the scratch is this program's."""
        if self._pool is not None:
            self._pool.keep(built.placed, built.code_end)
            start = built.placed.scratch.address + built.placed.scratch.text
            counters = self._counters.keep(built.placed.counters)
            if start < built.code_end:
                back = ways_back(built.image.sites)
                self._ended += (EndedCode((start, built.code_end), back, counters),)
        fill(built.placed.memory.view, built.placed.scratch, built.image)

    # What is told of probes.

    def list_all(self) -> list[ListedProbe]:
        """The probes that are there without being asked for."""
        return list_all(load_all())

    def list_names(self, program: EnabledProgram) -> list[ListedProbe]:
        """The probes of a program by name alone."""
        return list_enabled(program.enabled, self.traced.kernel)

    def list_planned(self, program: EnabledProgram) -> list[ListedProbe]:
        """The probes of a program, each with its instruction and the way it would be planted."""
        traced = self.traced
        parts, _ = self.split(program)
        source: Callable[[Function, int], str] = _no_source
        kernel, images = traced.kernel, traced.images
        if kernel is not None and images is not None and len(program.enabled) <= MOST_LINES:
            source = source_of(kernel, images, self.report.say)
        about = partial(probe_stability, providers=load_all(), types=program.compiled.types)
        plant = program.compiled.plant
        no_run = "no run of neighbours is safe there"
        if self._leaders is None or not self.isa.RUN_SIZE:
            no_run = "there are no runs on this machine"
        return list_planned(
            program.enabled, parts, traced.kernel, source, about, chained=plant.chains,
            no_run=no_run if plant.runs else "runs are forbidden",
        )  # fmt: skip

    def codes(self, names: Sequence[str]) -> list[FunctionCode]:
        """The functions that names, globs and MODULE:NAME mean, each once."""
        kernel = self.traced.kernel
        assert kernel is not None
        found = codes_of(kernel, named_functions(kernel, names), places_of(self.traced.images))
        self.report.stage("code")
        return found

    def functions(self, patterns: Sequence[str]) -> list[SourceFunction]:
        """The functions that patterns mean, with what debug information says of them."""
        kernel, images = self.traced.kernel, self.traced.images
        assert kernel is not None and images is not None
        return source_functions(find_functions(patterns, kernel, images), images)

    def graphs(self, functions: Sequence[Function]) -> list[FunctionCode]:
        """The flow graphs of functions and of the parts moved away from them, without lines."""
        kernel = self.traced.kernel
        assert kernel is not None
        # Memory of init code may be anything by now, no instructions as well.
        decoded = [f for f in functions if any(map(kernel.instructions, kernel.parts(f)))]
        found = codes_of(kernel, decoded, no_place)
        self.report.stage("flow graphs")
        return found

    def code_image(self, module: str) -> CodeImage | None:
        """Where the code of a module, or of the kernel proper, lies; None where it has no file."""
        image = self.traced.images.of(module) if self.traced.images is not None else None
        return code_image(image) if image is not None else None

    def program_stability(self, compiled: Compiled) -> tuple[ProgramStability, ...]:
        """How stable the descriptions and statements of each of its texts are."""
        return program_stability(compiled, load_all())

    def description_stability(
        self, compiled: Compiled
    ) -> tuple[tuple[ProbePattern, ProbeStability], ...]:
        """How stable each of its probe descriptions is."""
        return description_stability(compiled, load_all())

    def _tell_full(self, room: int, first: Found) -> None:
        """Say that there are more instructions than the machine has memory for."""
        site, own = first.site, room // 2**20
        place = f"{site.function.name}+{site.offset}" if site else str(first.name)
        self.report.say(
            f"kinst: more instructions match than {own} MB of scratch hold: those from {place} on"
            f" are left out (-x batch=10s goes over all of them; scratch={2 * own}m holds twice as"
            " many)"
        )

    def _tell_gaps(self, enabled: Sequence[EnabledSite], kernel: Kernel) -> None:
        """Say what of the functions that are traced does not decode."""
        gaps = gaps_in((e.probe for e in enabled), kernel)
        if gaps:
            self.report.say(f"kinst: {gaps_told(gaps)}")

    def _tell_ways(self, compiled: Compiled, parts: Placement, memory: ScratchMemory) -> None:
        """Refuse when no site is left; otherwise say how many are left out, or stop the machine."""
        count = len(parts.refused)
        if count:
            first, reason = parts.refused[0]
            if not parts.running:
                raise KinstError(
                    f"{_place(first)} cannot be planted: {reason}", "kinst -l -v shows what can"
                )
            some = "1 instruction" if count == 1 else f"{count} instructions"
            self.report.say(f"kinst: {some} cannot be planted and {'is' if count == 1 else 'are'}"
                            " left out (kinst -l -v says why)")  # fmt: skip
        if parts.stopped and not compiled.plant.forced:
            number = len(parts.stopped)
            self.report.say(
                f"kinst: {number} probe{' is' if number == 1 else 's are'} stop-planted:"
                " the machine stops at each hit,"
                " for milliseconds" + (" (no scratch memory there)" if not memory.address else "")
            )


def _no_source(function: Function, address: int) -> str:
    return ""


def _layout(compiled: Compiled, parts: Placement) -> ProgramLayout:
    probed: list[tuple[ProbeName, int, tuple[int, ...]]] = [
        (e.probe.name, e.probe.id, e.clauses) for e in parts.running
    ]
    room = sizes(compiled.options, compiled.program).aggs
    options = compiled.options
    return lay_out_program(compiled.program, probed, options.strsize, room, options.dynvarsize)


def _place(enabled: EnabledSite) -> str:
    site = enabled.probe.site
    return f"{site.function.name}+{site.offset}" if site else str(enabled.probe.name)
