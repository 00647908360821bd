"""A machine that stays open: its probes, programs for it, and their traces, one at a time.

    compile -> [start] -> expand -> enable -> place -> plan -> apply and run

Each step is a stage of kinst/session, from one value to the next. Machine keeps what several
programs need: the started machine, and the state that each trace leaves to later traces (used
scratch memory, code of ended traces).

Tested by tests/test_api_docs.py and tests/vm/test_main_job.py.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from importlib import import_module
from typing import Self

from kinst.api.command import GuestCommand
from kinst.api.compiling import Compiler
from kinst.api.program import Program, Setting, Source, with_program
from kinst.api.running_batches import ReadyBatch, RunningBatches
from kinst.api.trace import Trace, stopped_after
from kinst.core.code import FunctionCode
from kinst.core.dataclass import dataclass
from kinst.core.dialect import Dialect
from kinst.core.dtypes import FunctionType
from kinst.core.errors import GoneError, KinstError, TargetError
from kinst.core.machine import (
    CommandEnded,
    CommandReady,
    EarlyStart,
    ExecutedBlock,
    Gone,
    Terminal,
)
from kinst.core.probe import Function, ProbePattern, ProgramText
from kinst.core.source import CodeImage, SourceFunction
from kinst.core.words import COLD, stem_of
from kinst.events import Fault, Lost, Message, Output, Record
from kinst.isa import load, load_later
from kinst.patch.listing import list_plan
from kinst.patch.plan import Plan
from kinst.providers import load_all
from kinst.results import CommandResult, Records, Result
from kinst.session import batches
from kinst.session.after_boot import plan_after_boot
from kinst.session.compile import needs_kernel
from kinst.session.compiled import Compiled, ProbeStability, ProgramStability
from kinst.session.descriptions import wants_kernel
from kinst.session.enable import enable_program
from kinst.session.expand import expand, source_of
from kinst.session.functions import (
    code_image,
    codes_of,
    find_functions,
    named_functions,
    no_place,
    places_of,
    source_functions,
)
from kinst.session.listing import list_all, list_names, list_on_host, list_planned, refused_told
from kinst.session.machine import booted, start
from kinst.session.options import DUMP_STAGES
from kinst.session.place import choose_ways, place, place_on_host
from kinst.session.plan import plan, plan_on_host
from kinst.session.report import MANY_PROBES, Report
from kinst.session.request import Request
from kinst.session.run import RunningTrace
from kinst.session.sizes import counters_room
from kinst.session.stability import description_stability, probe_stability, program_stability
from kinst.session.tracee import HostAlone, PlantedMachine
from kinst.session.values import (
    EnabledProgram,
    ListedProbe,
    StartedMachine,
    TracePlan,
)
from kinst.session.workspace import ROOM_FOR_CODE, ROOM_FOR_DATA, Workspace
from kinst.wire.memory import trim_heap

COMMAND_SECONDS = 600.0
PLACED_PART = 0.5  # part of the planning time that passes before code is made
MOST_LINES = 20_000  # a listing of more instructions has no source lines

Say = Callable[[str], None]
ShowProgress = Callable[[str, float | None], None]


def ignore(*_: object) -> None:
    """Do nothing: the default for callbacks that take messages or progress."""


def report_to(say: Say, progress: ShowProgress) -> Report:
    return Report(say=say, progress=progress, started=time.monotonic(), verbose=False)


def _pretty(value: object) -> str:
    """Return a value's text for --dump, in several lines."""
    text: str = import_module("pprint").pformat(value, width=100)
    return text


@dataclass(frozen=True, slots=True)
class Started:
    """A machine that has started.

    Attributes:
        workspace: the machine, with the state that its traces leave to later traces.
        command: the shell command of its guest.
    """

    workspace: Workspace
    command: GuestCommand

    @property
    def machine(self) -> StartedMachine:
        return self.workspace.machine


class Machine:
    """A machine whose kernel can be traced. boot(), attach(), live() and host() make it."""

    def __init__(
        self,
        request: Request,
        *,
        on_message: Say = ignore,
        on_progress: ShowProgress = ignore,
        has_kernel: bool = True,
        report: Report | None = None,
        early_start: EarlyStart | None = None,
        terminal: Terminal | None = None,
        compiler: Compiler | None = None,
    ) -> None:
        """Make a machine, which starts when it is first needed.

        Args:
            request: options of the machine, and options that all of its programs have in common.
            on_message: gets messages for people.
            on_progress: gets the name of a piece of work, and the fraction of it that is done (0 to
                1, None if not known).
            has_kernel: whether there is a kernel to trace; False for host().
            report: gets messages and progress instead of on_message and on_progress.
            early_start: the machine that start_early() has started for the request; None if it has
                started none.
            terminal: the terminal for commands of the guest (--shell).
            compiler: a compiler that has compiled programs of the request already.

        Raises:
            KinstError: kinst does not know the ISA.
        """
        self._report = report or report_to(on_message, on_progress)
        self._compiler = compiler or Compiler(request, self._report)
        self._request, self._files = self._compiler.request, self._compiler.files
        self._isa = load_later(self._compiler.registers.name)  # a program may need no kernel
        self._has_kernel = has_kernel
        self._early_start = early_start
        self._terminal = terminal
        self._output: deque[bytes] = deque()  # what the guest's command has written
        self._started: Started | None = None
        self._trace: Trace | None = None
        self._traces = 0  # number of traces made so far
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self.close()
        except TargetError:
            # In a kernel that has ended, nothing can be undone; the user is told why it ended.
            if not isinstance(error, GoneError):
                raise

    def close(self) -> None:
        """End the guest that kinst booted, or detach from a machine that kinst attached to. A
        second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._trace is not None:
                self._trace.close()
        finally:
            if self._early_start is not None:
                self._early_start.close()
            started, self._started = self._started, None
            if started is not None:
                started.machine.target.close()

    @property
    def isa(self) -> str:
        """Name of the machine's instruction set."""
        return self._isa.name

    @property
    def argument_registers(self) -> tuple[str, ...]:
        """Names of the registers of a C function's first arguments, in order, as regs[] takes them:
        R_RDI, ..."""
        names = {one.slot: one.d_name for one in reversed(self._isa.registers)}
        return tuple(names[slot] for slot in self._isa.argument_slots)

    @property
    def result_register(self) -> str:
        """Name of the register in which a C function returns its value, as regs[] takes it:
        R_RAX."""
        return next(r.d_name for r in self._isa.registers if r.slot == self._isa.result_slot)

    @property
    def link_register(self) -> str:
        """Name of the register that has the return address at a C function's entry, as regs[] takes
        it: R_X30. "" if the return address is on the stack."""
        slot = self._isa.link_slot
        return next((r.d_name for r in self._isa.registers if slot == r.slot >= 0), "")

    @property
    def stack_register(self) -> str:
        """Name of the stack pointer, as regs[] takes it: R_RSP."""
        return next(r.d_name for r in self._isa.registers if r.slot == self._isa.sp_slot)

    @property
    def dialect(self) -> Dialect:
        """The part of D that the machine's system defines, such as the numbers of errors."""
        return self._files.dialect()

    def prototype(self, module: str, function: str) -> FunctionType | None:
        """Return the types of a function's parameters and result; None if the kernel's files do not
        have them.

        Args:
            module: name of the function's module.
            function: name of the function, as in probe descriptions. NAME@2 and NAME.isra.0 have
                the types of NAME.
        """
        try:
            return self._files.types.function(stem_of(function), module)
        except KinstError:
            return None

    @property
    def release(self) -> str:
        """Release of the machine's kernel; "" before the machine has started."""
        return self._started.machine.facts.release if self._started is not None else ""

    @property
    def only_counts(self) -> bool:
        """Whether a program's clauses can only count, with constants as keys. True for a user
        program (process()). False before the machine has started, even for a user program."""
        return self._started is not None and self._started.machine.facts.only_counts

    def start(self, program: Program | None = None) -> None:
        """Boot the machine or connect to it, unless that has been done.

        Args:
            program: the only program that will be traced, so that kinst allocates only as much
                scratch memory as this program needs. Without a program, the scratch memory is
                enough for several hundred traces with options of usual sizes.

        Raises:
            KinstError: the machine has no kernel, or is closed.
            TargetError: the machine does not come up or cannot be traced.
        """
        self._check_open()
        if not self._has_kernel:
            raise KinstError(
                "this machine has no kernel: it runs only BEGIN, END and tick probes",
                "kinst.boot() and kinst.attach() make machines with a kernel",
            )
        self._start(program)

    def _check_open(self) -> None:
        if self._closed:
            raise KinstError("this machine is closed")

    def _start(self, program: Program | None = None) -> Started:
        """Start the machine unless it has started, and return the started machine."""
        if self._started is not None:
            return self._started
        files, cpus = self._files, self._request.cpus
        size = ROOM_FOR_DATA + ROOM_FOR_CODE
        if program is not None:
            compiled = program.compiled
            self._files.check_system(compiled.program)
            size = compiled.sizes.scratch(cpus, compiled.trampolines)
        size += counters_room(cpus)
        self._isa = load(self._isa.name)
        machine = start(
            self._request, self._isa, files, size, self._output.append, self._early_start,
            self._terminal, self._report,
        )  # fmt: skip
        workspace = Workspace(
            machine, size, for_any=program is None, progress=self._report.progress
        )
        self._started = Started(workspace, GuestCommand(machine.target))
        return self._started

    def _prepare_reading(self, compiled: Compiled) -> None:
        """Prepare a started machine for reading its memory; do nothing if it has not started.

        A machine that cannot be read while it runs is stopped. If the kernel has changed its text,
        kinst forgets the instructions that it has decoded.

        Args:
            compiled: the program that the memory is read for.
        """
        if self._started is not None:
            self._started.workspace.prepare(call_sites=compiled.plant.call_sites)

    def _readable(self) -> StartedMachine:
        """Start the machine if necessary, prepare it for reading its memory, and return it."""
        self._check_open()
        workspace = self._start().workspace
        workspace.prepare()
        return workspace.machine

    # Programs.

    def compile(
        self,
        program: Source,
        options: Mapping[str, Setting] | None = None,
        arguments: Iterable[str] = (),
    ) -> Program:
        """Return a parsed and checked program for this machine.

        Args:
            program: D text, the path of a script, or texts as the command line's options give them
                (ProgramText).
            options: values of -x options by name; True or None for an option without a value.
            arguments: values of $1, $2, ...

        Raises:
            DError: the program is wrong; the error has the position in the text.
            KinstError: an option is wrong.
        """
        request = with_program(self._request, program, options, arguments)
        return self.compile_request(request)

    def compile_request(self, request: Request) -> Program:
        """Return the parsed and checked program of a request, as compile() does."""
        self._check_open()
        return self._compiler.compile(request)

    def _compiled(
        self,
        program: Source | Program,
        options: Mapping[str, Setting] | None,
        arguments: Iterable[str],
    ) -> Program:
        if not isinstance(program, Program):
            return self.compile(program, options, arguments)
        if options or arguments:
            raise KinstError(
                "the program is compiled already: its options and arguments cannot be changed",
                "give them to compile()",
            )
        return program

    def needs_kernel(self, program: Program, *, listed: bool = False) -> bool:
        """Return whether a program names probes or symbols of a kernel.

        Args:
            program: the program.
            listed: whether its probes are to be listed rather than traced.
        """
        return needs_kernel(program.compiled, fired=not listed)

    def expand(self, program: Source | Program, command: str = "") -> Program:
        """Return a program, expanded for the running kernel. Probes at instructions replace probes
        of inline functions and of source lines. Expressions over registers and memory replace local
        variables.

        Args:
            program: the program.
            command: shell command to prepare in the guest; $target is its process id. Without a
                command, $target is the process that live() was given or that process() counts in.
        """
        found = self._compiled(program, None, ())
        if found.expanded and found.command == command:
            return found
        if command or found.request.machine.process or self.needs_kernel(found):
            self.start(found)
        return self._expanded(found, command)

    def _expanded(self, program: Program, command: str) -> Program:
        started, request, compiled = self._started, program.request, program.compiled
        if started is None:
            return Program(request, compiled, True, command)
        try:
            self._prepare_reading(compiled)
            traced = request.machine.process or started.machine.facts.process
            pid = started.command.prepare(command) if command else traced
            self._files.check_system(compiled.program)
            compiled = expand(request, compiled, started.machine, self._report, pid)
        except BaseException:
            started.command.drop()
            raise
        return Program(request, compiled, True, command)

    def build(self, program: Source | Program) -> TracePlan:
        """Return the plan of what a trace of the program would write into the machine. Nothing is
        written.

        Raises:
            DError: a probe description matches nothing.
            KinstError: nothing can be planted.
        """
        return self._planned(self.expand(program))

    def _planned(
        self, expanded: Program, among: Collection[int] | None = None, last_id: int = 0
    ) -> TracePlan:
        """Return the plan of a trace of an expanded program.

        Args:
            expanded: the program.
            among: addresses of the functions of a batch; None for all functions.
            last_id: highest probe id of earlier batches; 0 if there are none.
        """
        started, compiled = self._started, expanded.compiled
        if started is None:
            enabled = self._enabled(expanded)
            made = plan_on_host(place_on_host(enabled), self._isa)
        else:
            workspace = started.workspace
            workspace.prepare(among, call_sites=compiled.plant.call_sites)
            enabled = self._enabled(expanded, last_id=last_id)
            count = len(enabled.enabled)
            placing: Callable[[float], None] = ignore
            coding: Callable[[float], None] = ignore
            if among is None and count >= MANY_PROBES:
                work, part = f"planning {count:,} probes", self._report.part
                placing = part(f"{work}: where each is planted", 0.0, PLACED_PART)
                coding = part(f"{work}: their code", PLACED_PART, 1.0)
            placed = place(enabled, workspace, self._report.leave_out, placing)
            made = plan(placed, workspace.machine, workspace.ended, coding)
        for site, reason in made.sites.refused:
            where = f"{site.function.name}+{site.offset}"
            self._report.leave_out(f"kinst: {where} is left out: {reason}")
        trim_heap()
        self._report.stage("code and plan")
        return made

    def _enabled(
        self, program: Program, *, listed: bool = False, last_id: int = 0
    ) -> EnabledProgram:
        """Return an expanded program with the probes that it matches.

        Args:
            program: the program.
            listed: whether the probes are to be listed rather than to fire.
            last_id: highest probe id of earlier batches; 0 if there are none.
        """
        started = self._started
        return enable_program(
            program.compiled, started.machine if started is not None else None, self._isa,
            self._report.leave_out, zero=program.request.zero, listed=listed, last_id=last_id,
            in_batches=started is not None and started.workspace.in_batches,
        )  # fmt: skip

    def dump(self, program: Source | Program, stage: str) -> str:
        """Return the result of a stage of compiling or planning a program, as text.

        Args:
            program: the program.
            stage: one of DUMP_STAGES.

        Raises:
            KinstError: there is no such stage.
        """
        if stage in ("tree", "typed"):
            compiled = self._compiled(program, None, ()).compiled
            value: object = compiled.tree if stage == "tree" else compiled.program
            return _pretty(value)
        made = self.build(program)
        placed = made.placed
        values = {
            "probes": made.placement,
            "layout": (placed.scratch, placed.layout, placed.counters),
            "ir": made.code.ir if made.code else made.host.ir,
            "code": made.code,
            "plan": "\n".join(self._plan_rows(made.hooks, made.sites)),
        }
        if stage not in values:
            raise KinstError(f"no such stage: {stage}", ", ".join(DUMP_STAGES))
        value = values[stage]
        return value if isinstance(value, str) else _pretty(value)

    def _plan_rows(self, *plans: Plan) -> Iterator[str]:
        """Yield the patches and trampolines of plans as lines of annotated assembly."""
        started = self._started

        def name_of(address: int) -> str:
            function = started.machine.kernel.at(address) if started is not None else None
            return f"{function.name}+{address - function.address}" if function else ""

        for one in plans:
            yield from list_plan(one, self._isa, name_of)

    def stability(self, program: Program) -> tuple[ProgramStability, ...]:
        """Return the stability attributes of the probe descriptions and of the statements, for each
        text of the program."""
        return program_stability(program.compiled, load_all())

    def description_stability(
        self, program: Program
    ) -> tuple[tuple[ProbePattern, ProbeStability], ...]:
        """Return each probe description of the program with the stability attributes of its probes
        and of their arguments."""
        return description_stability(program.compiled, load_all())

    # Probes.

    def probes(self, *descriptions: str, details: bool = True) -> list[ListedProbe]:
        """Return the probes that match descriptions. Without descriptions, return only the probes
        that exist on every machine, such as BEGIN and END.

        Args:
            descriptions: probe descriptions in D.
            details: whether to add each probe's instruction, the way to plant it or the reason why
                it cannot be planted, its source line and its stability.

        Raises:
            DError: a description is wrong or matches nothing.
            KinstError: the machine cannot be used.
        """
        if not descriptions:
            return list_all(load_all())
        texts = [ProgramText("n", text, "<description>") for text in descriptions]
        return self.list_probes(self.compile(texts), details=details)

    def list_probes(self, program: Program, *, details: bool = True) -> list[ListedProbe]:
        """Return the probes that match the descriptions of a program. Without descriptions, return
        only the probes that exist on every machine, such as BEGIN and END.

        Args:
            program: the program.
            details: whether to add each probe's instruction, the way to plant it or the reason why
                it cannot be planted, its source line and its stability.
        """
        if not program.descriptions:
            return list_all(load_all())
        if self.needs_kernel(program, listed=True):
            self.start(program)
            program = self._expanded(program, "")
        self._prepare_reading(program.compiled)
        enabled = self._enabled(program, listed=True)
        if not details:
            if self._started is None:
                return list_names(enabled.enabled, None)
            machine = self._started.machine
            if refused := refused_told(enabled.enabled, machine.system):
                self._report.say(f"kinst: {refused}")
            return list_names(enabled.enabled, machine.kernel)
        about = partial(probe_stability, providers=load_all(), compiled=program.compiled)
        if self._started is None:
            return list_on_host(enabled.enabled, about)
        workspace = self._started.workspace
        placement, machine = choose_ways(enabled, workspace), workspace.machine
        source: Callable[[Function, int], str] = _no_source
        if len(enabled.enabled) <= MOST_LINES:
            source = source_of(machine.kernel, machine.images, self._report.say)
        can_run = workspace.leaders is not None
        return list_planned(placement, machine, source, about, can_run=can_run)

    def code(self, *functions: str) -> list[FunctionCode]:
        """Return the live instructions of functions, with their flow graphs and source lines.

        Args:
            functions: names, globs, or MODULE:NAME.

        Raises:
            KinstError: a function does not exist.
        """
        machine = self._readable()
        named = named_functions(machine.kernel, machine.images, functions)
        found = codes_of(machine.kernel, named, places_of(machine.images))
        self._report.stage("code")
        return found

    def functions(self, *patterns: str) -> list[SourceFunction]:
        """Return the functions that match patterns, with their source lines and inlined copies.

        Args:
            patterns: each is FUNCTION or a glob; MODULE: or MODULE:FUNCTION; a source file, a glob
                of files or a folder ("fs/read_write.c", "fs/*.c", "fs/ext4").

        Raises:
            KinstError: a pattern matches nothing.
        """
        machine = self._readable()
        found = find_functions(patterns, machine.kernel, machine.images)
        return source_functions(found, machine.images)

    def interrupt_entry(self) -> list[Function]:
        """Return the functions that begin and end interrupts in this kernel, with the variants and
        parts that the compiler made of them (NAME.isra.0, NAME.cold)."""
        system = self._readable().system
        names = self._files.dialect().interrupt_entry
        return [one for name in names for glob in (name, f"{name}.*") for one in system.glob(glob)]

    def boot_functions(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of functions whose calls show the steps of a boot of this machine's
        kernel.

        The result has two tuples. Functions in the first one call a step: their first argument is
        the address of the step's function. Functions in the second one are steps themselves."""
        dialect = self._files.dialect()
        return dialect.boot_calls, dialect.boot_functions

    def executed(self, function: Function) -> Generator[Sequence[ExecutedBlock], None, None]:
        """Let a kernel whose boot is traced run, and yield the blocks of instructions that its CPUs
        execute from the first call of a function to the end of the boot (see
        core.machine.Stopping). Nothing stops the machine meanwhile; closing the generator does.

        Raises:
            TargetError: this machine does not tell which code it executes.
            GoneError: the machine has ended.
        """
        with closing(self._readable().target.executed(function.address)) as parts:
            for part in parts:
                if isinstance(part, Gone):
                    raise GoneError(f"the guest is gone: {part.reason}", part.kind)
                if isinstance(part, Sequence):
                    yield part

    def entries(self) -> set[int]:
        """Return the addresses at which functions of the kernel and its modules begin. Parts that
        the compiler moved away from a function (NAME.cold) are left out."""
        found = self._readable().system.functions()
        return {one.address for one in found if COLD not in one.name}

    def function_at(self, address: int) -> Function | None:
        """Return the function that contains an address, with the name that it has in probe
        descriptions; None if no function does. The machine may run meanwhile."""
        return self._start().machine.kernel.at(address)

    def refusal(self, function: Function) -> str:
        """Return why no instruction of a function may be planted; "" if instructions may be
        planted. The machine may run meanwhile."""
        return self._start().machine.kernel.function_refusal(function)

    @property
    def stack_size(self) -> int:
        """Bytes of a thread's stack in the kernel, which begins at a multiple of this; 0 if it is
        not known."""
        return self._readable().facts.stack_size

    def allocation_flag(self, name: str) -> int:
        """Return the bits of a flag of memory allocations, by its name; 0 if the kernel does not
        tell them."""
        return self._readable().system.allocation_flag(name)

    def graphs(self, functions: Sequence[SourceFunction]) -> list[FunctionCode]:
        """Return the flow graphs of functions, without source lines. The graph of a function
        includes the parts that the compiler moved away from it."""
        kernel = self._start().machine.kernel
        # The kernel frees the memory of init code, which then need not contain instructions.
        decoded = [
            one.function
            for one in functions
            if any(map(kernel.instructions, kernel.parts(one.function)))
        ]
        found = codes_of(kernel, decoded, no_place)
        self._report.stage("flow graphs")
        return found

    def index_lines(self) -> None:
        """Make the index of the kernel's debug information, unless the index exists. Making it
        takes seconds.

        Without the index, frames of stacks have no source lines and no inlined functions: a running
        trace does not wait for the index.
        """
        if self._files.image.has_dwarf:
            _ = self._files.image.index

    def code_image(self, module: str) -> CodeImage | None:
        """Return the address range and the file of a module's code; None if the module is not
        loaded or has no debug file.

        Args:
            module: name of the module; "vmlinux" for the kernel itself.
        """
        self.start()
        image = self._start().machine.images.of(module)
        return code_image(image) if image is not None else None

    # Traces.

    def trace(
        self,
        program: Source | Program,
        command: str = "",
        options: Mapping[str, Setting] | None = None,
        arguments: Iterable[str] = (),
    ) -> Trace:
        """Return a trace of a program, ready to run. The trace begins when its first event is asked
        for.

        Args:
            program: the program.
            command: command for the guest's shell; it starts when all probes are planted, and the
                trace ends with it. "" for no command.
            options: values of -x options by name; True or None for an option without a value.
            arguments: values of $1, $2, ...

        Raises:
            DError: the program is wrong.
            KinstError: the program cannot be traced.
            TargetError: the machine does not come up or cannot be traced.
        """
        self._check_open()
        if self._trace is not None:
            raise KinstError("this machine is being traced", "close that trace first")
        if self._traces:
            self._report.begin()
        self._traces += 1
        found = self._compiled(program, options, arguments)
        if not found.descriptions:
            raise KinstError("no probes specified")
        expanded = self.expand(found, command)
        try:
            made = self._batches(expanded) if expanded.compiled.batch else self._ready(expanded)
            running = made if isinstance(made, RunningBatches) else made.running
            timeout = expanded.request.timeout
            self._trace = Trace(running, made.plan, command, self._trace_over, timeout)
        except BaseException:
            self._drop_command()
            raise
        self._give_command()
        return self._trace

    def _ready(
        self,
        expanded: Program,
        among: Collection[int] | None = None,
        before: ReadyBatch | None = None,
        *,
        more: bool = False,
    ) -> ReadyBatch:
        """Write code and data of a trace of an expanded program into the machine, without the
        patches. Return the trace and its plan.

        Args:
            expanded: the program.
            among: addresses of the functions of a batch; None for all functions.
            before: the batch before this one; None for the first batch.
            more: whether another batch follows.
        """
        made = self._planned(expanded, among, before.last_id if before is not None else 0)
        if self._started is None:
            running = RunningTrace(made, HostAlone(made, self._isa), self._report, self._output)
            return ReadyBatch(running, made)
        workspace = self._started.workspace
        workspace.reserve(made)
        boots = workspace.machine.target.abilities.traces_boot
        stays = made.compiled.plant.forced == "stop" or not made.placement.stopped
        again = partial(self._plan_after_boot, made) if boots and not stays else None
        running = RunningTrace(
            made, PlantedMachine(made, workspace.machine, again), self._report, self._output,
            before=before.running if before is not None else None, more=more,
        )  # fmt: skip
        return ReadyBatch(running, made)

    def _plan_after_boot(self, made: TracePlan) -> tuple[StartedMachine, TracePlan]:
        """Identify the machine's kernel anew, once its traced boot is over. Return the machine, and
        a plan for the rest of the same trace.

        Args:
            made: the plan by which the boot was traced.
        """
        workspace = self._start().workspace
        booting = workspace.machine
        workspace.boot_over(booted(booting, self._request, self._files, self._report))
        planned = plan_after_boot(made, booting.system, workspace, self._report.detail)
        workspace.reserve(planned)
        self._report.stage("plan after boot")
        return workspace.machine, planned

    def _batches(self, expanded: Program) -> RunningBatches:
        """Return a trace of an expanded program in batches (-x batch=TIME), with the first batch
        ready to run."""
        if self._started is None:
            raise KinstError("there is nothing to plant in batches", "-x batch= needs a kernel")
        if self._started.machine.target.abilities.traces_boot:
            raise KinstError("a boot runs once, not once for each batch", "leave out -x batch=")
        self._prepare_reading(expanded.compiled)
        machine, command = self._started.machine, expanded.command
        wants = partial(wants_kernel, providers=load_all(), fired=False)
        parts = batches.cut(expanded.compiled, machine.kernel, machine.system, wants)

        def ready(number: int, before: ReadyBatch | None) -> ReadyBatch:
            try:
                program = self._expanded(expanded, command) if number and command else expanded
                more = number + 1 < len(parts)
                made = self._ready(program, parts[number], before, more=more)
            except BaseException:
                self._drop_command()
                raise
            self._give_command()
            return made

        def over(command_over: bool) -> None:
            if command and not command_over:
                self._take_back_command()

        return RunningBatches(len(parts), expanded.compiled.batch, ready, over, self._report)

    def run(
        self,
        program: Source | Program,
        command: str = "",
        options: Mapping[str, Setting] | None = None,
        arguments: Iterable[str] = (),
        seconds: float | None = None,
    ) -> Result:
        """Trace a program to its end, and return the results.

        The trace ends by exit(), with the command, or after `seconds`. Without any of these it runs
        until KeyboardInterrupt.

        Args:
            program: the program.
            command: command for the guest's shell; "" for no command.
            options: values of -x options by name; True or None for an option without a value.
            arguments: values of $1, $2, ...
            seconds: time after which the trace ends; None for no limit.

        Raises:
            DError: the program is wrong.
            KinstError: the program cannot be traced.
            TargetError: the machine cannot be traced, or the guest ended by itself.
        """
        records, output = Records(), bytearray()
        lost, faults, messages = list[Lost](), list[Fault](), list[str]()
        with (
            self.trace(program, command, options, arguments) as trace,
            stopped_after(trace, seconds),
        ):
            for event in trace:
                match event:
                    case Record():
                        records.append(event)
                    case Output(data):
                        output += data
                    case Lost():
                        lost.append(event)
                    case Fault():
                        faults.append(event)
                    case Message(text):
                        messages.append(text)
            end = trace.end
            assert end is not None
            return Result(
                trace.aggregations(), records, bytes(output), end.status, end.reason,
                tuple(lost), tuple(faults), tuple(messages),
            )  # fmt: skip

    def execute(self, command: str, seconds: float = COMMAND_SECONDS) -> CommandResult:
        """Run a shell command in the guest without a trace. Return the command's output and exit
        status.

        Args:
            command: the shell command.
            seconds: time that the command may take.

        Raises:
            TargetError: the guest ended, or the command took longer.
        """
        self._check_open()
        if self._trace is not None:
            raise KinstError("this machine is being traced", "close that trace first")
        self.start()
        started = self._start()
        target, guest = started.machine.target, started.command
        self._output.clear()
        guest.prepare(command)
        try:
            guest.start()
            deadline = time.monotonic() + seconds
            while (left := deadline - time.monotonic()) > 0:
                event = target.wait(left)
                if isinstance(event, Gone):
                    raise TargetError(f"the guest is gone: {event.reason}", event.console)
                if isinstance(event, CommandReady):
                    guest.start()
                if isinstance(event, CommandEnded):
                    guest.hand_over()
                    return CommandResult(b"".join(self._output), event.status)
            raise TargetError(f"`{command}` has not ended in {seconds:g} s")
        finally:
            guest.drop()
            self._output.clear()

    # The guest's command.

    def _drop_command(self) -> None:
        if self._started is not None:
            self._started.command.drop()

    def _give_command(self) -> None:
        if self._started is not None:
            self._started.command.hand_over()

    def _take_back_command(self) -> None:
        if self._started is not None:
            self._started.command.take_back()

    def _trace_over(self, command_over: bool) -> None:
        """Make the machine ready for another trace, after the patches of a trace have been removed.

        Args:
            command_over: whether the trace's command has ended. If not, it is ended here.
        """
        self._trace = None
        if not command_over and not self._closed:
            self._take_back_command()
        self._output.clear()


def _no_source(function: Function, address: int) -> str:
    """Return "" as the source line of any instruction."""
    return ""
