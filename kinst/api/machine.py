"""A machine that stays open: its probes, programs for it, and their traces, one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pprint import pformat
from typing import Self

from kinst.api.program import Program, Setting, Source, with_program
from kinst.api.running_batches import ReadyBatch, RunningBatches
from kinst.api.trace import Trace, stopped_after
from kinst.core.code import FunctionCode
from kinst.core.errors import KinstError, TargetError
from kinst.core.machine import Begun, CommandEnded, Gone, Terminal
from kinst.core.probe import ProbePattern, ProgramText
from kinst.core.source import CodeImage, SourceFunction
from kinst.events import Fault, Lost, Message, Output, Record
from kinst.patch.listing import list_plan
from kinst.patch.plan import Plan
from kinst.results import CommandResult, Records, Result
from kinst.session.path import OpenMachine
from kinst.session.report import Report
from kinst.session.request import DUMP_STAGES, Request
from kinst.session.run import RunningTrace
from kinst.session.values import BuiltProgram, ListedProbe, ProbeStability, ProgramStability

COMMAND_SECONDS = 600.0

Say = Callable[[str], None]
ShowProgress = Callable[[str, float | None], None]


def ignore(*_: object) -> None:
    """For what nobody asked to be told."""


def report_to(say: Say, progress: ShowProgress) -> Report:
    return Report(say=say, progress=progress, started=time.monotonic(), verbose=False)


class Machine:
    """A machine whose kernel can be traced; boot(), attach() and host() make it."""

    def __init__(
        self,
        request: Request,
        *,
        on_message: Say = ignore,
        on_progress: ShowProgress = ignore,
        has_kernel: bool = True,
        report: Report | None = None,
        begun: Begun | None = None,
        terminal: Terminal | None = None,
    ) -> None:
        """request: which machine, and what all of its programs have in common.  It is started
        when it is first needed.  report: for the command, which tells how long stages take.
        begun: what begin() made of the request.  terminal: that its commands have."""
        self._has_kernel = has_kernel
        self._opened = OpenMachine(
            request, report or report_to(on_message, on_progress), begun, terminal
        )
        self._trace: Trace | None = None
        self._held = ""  # the command that has been prepared, and not started
        self._traces = 0  # that were made
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what kinst started, or let go of what it is attached to.  Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._trace is not None:
                self._trace.close()
        finally:
            self._opened.close()

    @property
    def isa(self) -> str:
        """The name of its instruction set."""
        return self._opened.isa.name

    @property
    def argument_registers(self) -> tuple[str, ...]:
        """Where C functions get their first arguments, as regs[] has them: R_RDI, R_RSI, ..."""
        isa = self._opened.isa
        names = {one.slot: one.d_name for one in reversed(isa.registers)}
        return tuple(names[slot] for slot in isa.argument_slots)

    @property
    def release(self) -> str:
        """Its kernel's release, "" before it is started."""
        facts = self._opened.traced.facts
        return facts.release if facts else ""

    def start(self, program: Program | None = None) -> None:
        """Boot or connect now, where that has not been done.

        program: one that there must be scratch memory for, and for no other; without it there is
        enough for some hundred traces with options of a usual size."""
        self._check_open()
        if not self._has_kernel:
            raise KinstError(
                "this machine has no kernel: it runs BEGIN, END and tick alone",
                "kinst.boot() or kinst.attach()",
            )
        self._opened.start(program.compiled if program else None)

    def _check_open(self) -> None:
        if self._closed:
            raise KinstError("this machine is closed")

    # Programs.

    def compile(
        self,
        program: Source,
        options: Mapping[str, Setting] | None = None,
        arguments: Iterable[str] = (),
    ) -> Program:
        """Parse and check a program.

        program: D text, the path of a script, or what the command's options say (ProgramText).
        options: as -x has them; True or None for one without a value.  arguments: $1, $2, ...
        Raises DError with the place of what is wrong, KinstError for options.
        """
        request = with_program(self._opened.request, program, options, arguments)
        return self.compile_request(request)

    def compile_request(self, request: Request) -> Program:
        """The same for a command line that was understood."""
        self._check_open()
        return Program(request, self._opened.compile(request))

    def _compiled(
        self,
        program: Source | Program,
        options: Mapping[str, Setting] | None,
        arguments: Iterable[str],
    ) -> Program:
        if not isinstance(program, Program):
            return self.compile(program, options, arguments)
        if options or arguments:
            raise KinstError("options and arguments are given when a program is compiled")
        return program

    def needs_kernel(self, program: Program, *, listed: bool = False) -> bool:
        """Whether the program names probes or symbols of a kernel.  listed: its probes are to be
        listed rather than to fire."""
        return self._opened.needs_kernel(program.compiled, fired=not listed)

    def expand(self, program: Source | Program, command: str = "") -> Program:
        """The program with inline functions, source lines and local variables replaced by plain
        clauses, in the running kernel.

        command: prepared in the guest, so that $target is its process id; without one, $target is
        the process of live()."""
        found = self._compiled(program, None, ())
        if found.expanded and found.command == command:
            return found
        if command or found.request.process or self.needs_kernel(found):
            self.start(found if not self._roomy else None)
        return self._expanded(found, command)

    @property
    def _roomy(self) -> bool:
        return self._opened.traced.target is not None

    def _expanded(self, program: Program, command: str) -> Program:
        opened = self._opened
        try:
            opened.stand(call_sites=program.compiled.plant.call_sites)
            pid = self._prepare(command) if command else program.request.process
            compiled = opened.expand(program.request, program.compiled, pid)
        except BaseException:
            self._drop_command()
            raise
        return Program(program.request, compiled, True, command)

    def build(self, program: Source | Program) -> BuiltProgram:
        """Everything that a trace of the program would write into the machine: nothing is written.
        Raises DError for descriptions that mean nothing, KinstError where nothing can be planted.
        """
        expanded = self.expand(program)
        self._opened.stand(call_sites=expanded.compiled.plant.call_sites)
        return self._opened.build(self._opened.enable(expanded.request, expanded.compiled))

    def dump(self, program: Source | Program, stage: str) -> str:
        """The value after a stage of the path (DUMP_STAGES), as text."""
        if stage in ("tree", "typed"):
            compiled = self._compiled(program, None, ()).compiled
            value: object = compiled.tree if stage == "tree" else compiled.program
            return pformat(value, width=100)
        built = self.build(program)
        image, placed = built.image, built.placed
        values = {
            "probes": built.parts,
            "layout": (placed.scratch, placed.layout, placed.counters),
            "ir": image.code.ir if image.code else image.host.ir,
            "code": image.code,
            "plan": "\n".join(self._plan_rows(image.hooks, image.sites)),
        }
        if stage not in values:
            raise KinstError(f"no such stage: {stage}", ", ".join(DUMP_STAGES))
        value = values[stage]
        return value if isinstance(value, str) else pformat(value, width=100)

    def _plan_rows(self, *plans: Plan) -> Iterator[str]:
        """Patches and trampolines as annotated assembly."""
        traced = self._opened.traced

        def name_of(address: int) -> str:
            function = traced.kernel.at(address) if traced.kernel is not None else None
            return f"{function.name}+{address - function.address}" if function else ""

        for plan in plans:
            yield from list_plan(plan, traced.isa, name_of)

    def stability(self, program: Program) -> tuple[ProgramStability, ...]:
        """How stable the program's descriptions and statements are, for each of its texts."""
        return self._opened.program_stability(program.compiled)

    def description_stability(
        self, program: Program
    ) -> tuple[tuple[ProbePattern, ProbeStability], ...]:
        """How stable each probe description is, and the arguments there."""
        return self._opened.description_stability(program.compiled)

    # Probes.

    def probes(self, *descriptions: str, details: bool = True) -> list[ListedProbe]:
        """The probes that these descriptions mean; without any, those that are always there.

        details: with each probe's instruction, the way it would be planted or the reason why it
        cannot be, its source line and its stability.  Raises DError, KinstError."""
        if not descriptions:
            return self._opened.list_all()
        texts = [ProgramText("n", text, "<description>") for text in descriptions]
        return self.list_probes(self.compile(texts), details=details)

    def list_probes(self, program: Program, *, details: bool = True) -> list[ListedProbe]:
        """The probes of a program's descriptions, see probes()."""
        if not program.descriptions:
            return self._opened.list_all()
        if self.needs_kernel(program, listed=True):
            self.start(program if not self._roomy else None)
            program = self._expanded(program, "")
        self._opened.stand(call_sites=program.compiled.plant.call_sites)
        found = self._opened.enable(program.request, program.compiled, listed=True)
        return self._opened.list_planned(found) if details else self._opened.list_names(found)

    def code(self, *functions: str) -> list[FunctionCode]:
        """The live instructions of functions, with their flow graphs and their source lines.

        functions: names, globs, or MODULE:NAME.  Raises KinstError for one that is not there."""
        self.start()
        self._opened.stand()
        return self._opened.codes(functions)

    def functions(self, *patterns: str) -> list[SourceFunction]:
        """The functions that these patterns mean, with their source lines and inlined copies.

        A pattern: FUNCTION or a glob; MODULE: or MODULE:FUNCTION; a source file, a glob of files
        or a folder ("fs/read_write.c", "fs/*.c", "fs/ext4").  Raises KinstError for one that means
        none."""
        self.start()
        self._opened.stand()
        return self._opened.functions(patterns)

    def graphs(self, functions: Sequence[SourceFunction]) -> list[FunctionCode]:
        """The flow graphs of functions, each with the parts moved away from it; no source lines."""
        return self._opened.graphs([one.function for one in functions])

    def index_lines(self) -> None:
        """Make the index of the kernel's debug information, where there is none yet (seconds).
        Without it, frames of stacks have neither source lines nor inlined functions: a trace that
        runs does not wait for it."""
        self._opened.index_lines()

    def code_image(self, module: str) -> CodeImage | None:
        """Where the code of a module lies, or with "vmlinux" the kernel's; None for one that is not
        loaded, or has no debug file."""
        self.start()
        return self._opened.code_image(module)

    # Traces.

    def trace(
        self,
        program: Source | Program,
        command: str = "",
        options: Mapping[str, Setting] | None = None,
        arguments: Iterable[str] = (),
    ) -> Trace:
        """Make a trace of a program ready: it begins when its first event is asked for.

        command: for the guest's shell; it starts when all is planted, and the trace ends with it.
        options, arguments: as of compile().  Raises DError, KinstError, TargetError.
        """
        self._check_open()
        if self._trace is not None:
            raise KinstError("this machine is being traced", "close that trace first")
        opened = self._opened
        if self._traces:
            opened.report.begin()
        self._traces += 1
        found = self._compiled(program, options, arguments)
        if not found.descriptions:
            raise KinstError("no probes specified")
        expanded = self.expand(found, command)
        try:
            made = self._batches(expanded) if expanded.compiled.batch else self._ready(expanded)
            running = made if isinstance(made, RunningBatches) else made.running
            timeout = expanded.request.timeout
            self._trace = Trace(running, made.built, command, self._trace_over, timeout)
        except BaseException:
            self._drop_command()
            raise
        self._held = ""
        return self._trace

    def _ready(
        self,
        expanded: Program,
        among: Collection[int] | None = None,
        before: ReadyBatch | None = None,
        *,
        more: bool = False,
    ) -> ReadyBatch:
        """An expanded program with all that it writes, but for patches, written.  among: as of
        OpenMachine.stand().  before, more: the batch before, and whether there is one behind."""
        opened = self._opened
        opened.stand(among, call_sites=expanded.compiled.plant.call_sites)
        given = before.given if before is not None else 0
        enabled = opened.enable(expanded.request, expanded.compiled, given=given)
        built = opened.build(enabled)
        opened.fill(built)
        running = RunningTrace(
            built.compiled, built.parts, built.placed, built.image, opened.traced,
            opened.report, opened.output,
            before=before.running if before is not None else None, more=more,
        )  # fmt: skip
        return ReadyBatch(running, built)

    def _batches(self, expanded: Program) -> RunningBatches:
        """The program's instructions, in batches."""
        opened, command = self._opened, expanded.command
        opened.stand(call_sites=expanded.compiled.plant.call_sites)
        parts = opened.batches(expanded.compiled)

        def ready(number: int, before: ReadyBatch | None) -> ReadyBatch:
            try:
                program = self._expanded(expanded, command) if number and command else expanded
                more = number + 1 < len(parts)
                made = self._ready(program, parts[number], before, more=more)
            except BaseException:
                self._drop_command()
                raise
            self._held = ""
            return made

        def over(command_over: bool) -> None:
            if command and not command_over:
                self._held = command
                self._drop_command()

        return RunningBatches(len(parts), expanded.compiled.batch, ready, over, opened.report)

    def run(
        self,
        program: Source | Program,
        command: str = "",
        options: Mapping[str, Setting] | None = None,
        arguments: Iterable[str] = (),
        seconds: float | None = None,
    ) -> Result:
        """Trace to the end, and what that has found.

        It ends with exit(), with the command, or after so many seconds; a program that has none
        of these runs until KeyboardInterrupt.  Raises as trace() does, and TargetError when the
        guest ended by itself.
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
        """Run a shell command in the guest, with nothing planted.

        Raises TargetError where the guest ends, or the command does not in so many seconds."""
        self._check_open()
        if self._trace is not None:
            raise KinstError("this machine is being traced", "close that trace first")
        self.start()
        opened = self._opened
        target = opened.traced.target
        assert target is not None
        opened.output.clear()
        self._prepare(command)
        try:
            target.start_command()
            target.resume()
            deadline = time.monotonic() + seconds
            while (left := deadline - time.monotonic()) > 0:
                event = target.wait(left)
                if isinstance(event, Gone):
                    raise TargetError(f"the guest is gone: {event.reason}", event.console)
                if isinstance(event, CommandEnded):
                    self._held = ""
                    return CommandResult(b"".join(opened.output), event.status)
            raise TargetError(f"`{command}` has not ended in {seconds:g} s")
        finally:
            self._drop_command()
            opened.output.clear()

    # The guest's command.

    def _prepare(self, command: str) -> int:
        """Its process id; it does not run yet."""
        target = self._opened.traced.target
        assert target is not None
        if self._held:
            self._drop_command()
        target.stop()
        pid = target.prepare_command(command)
        self._held = command
        return pid

    def _drop_command(self) -> None:
        """End the command that was prepared and is not wanted any more."""
        target = self._opened.traced.target
        if self._held and target is not None:
            self._held = ""
            with suppress(TargetError):  # the guest ended: whoever needs it is told then
                target.end_command()

    def _trace_over(self, command_over: bool) -> None:
        """The trace has been undone."""
        self._trace = None
        if not command_over and not self._closed:
            self._held = "the command"
            self._drop_command()
        self._opened.output.clear()
