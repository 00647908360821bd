"""The library: open a machine, list its probes, compile a program for it, trace, get events.

    with kinst.boot() as machine, machine.trace(program, command="ls") as trace:
        for event in trace:
            ...

A Machine stays open for as many traces as there are, one at a time; several machines may be open
at once.  A trace plants its probes when its first event is asked for, and unplants them when it is
over, closed, or left by an exception.  Nothing here prints, sets a signal handler or ends the
process: what people should be told goes to on_message.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from pprint import pformat
from types import TracebackType
from typing import Self

from kinst.consumer.schema import Schema
from kinst.core.errors import KinstError, TargetError
from kinst.core.machine import CommandEnded, Gone
from kinst.core.probe import ProbePattern
from kinst.dlang.syntax.unparse import unparse
from kinst.dlang.vocabulary.d_options import Options
from kinst.events import (
    End,
    Event,
    Fault,
    Lost,
    Message,
    Output,
    PlainEvent,
    Record,
    flattened,
)
from kinst.patch.listing import list_plan
from kinst.patch.plan import Plan
from kinst.results import CommandResult, Records, Result, Table, tables_of
from kinst.session.expand import wants_expansion
from kinst.session.file import expand_request_in_file
from kinst.session.path import OpenMachine
from kinst.session.report import Report
from kinst.session.run import RunningTrace
from kinst.session.sizes import parse_cpus, parse_memory
from kinst.session.target import find_files
from kinst.session.values import (
    DUMP_STAGES,
    BuiltProgram,
    Compiled,
    Files,
    ListedProbe,
    ProbeStability,
    ProgramStability,
    ProgramText,
    Request,
)

__all__ = [
    "DUMP_STAGES",
    "Files",
    "ListedProbe",
    "Machine",
    "ProbeStability",
    "Program",
    "ProgramStability",
    "ProgramText",
    "Report",
    "Request",
    "Trace",
    "attach",
    "boot",
    "expand_in_file",
    "expand_request",
    "host",
    "kernel_files",
    "parse_cpus",
    "parse_memory",
]  # fmt: skip

COMMAND_SECONDS = 600.0

PathLike = str | os.PathLike[str]
# D text (a script), a script's file, or the options of the command line that name probes.
Source = str | os.PathLike[str] | ProgramText | Sequence[ProgramText]
Setting = str | int | bool | None
Say = Callable[[str], None]
ShowProgress = Callable[[str, float | None], None]


def _ignore(*_: object) -> None:
    pass


def boot(
    isa: str = "amd64",
    kernel: PathLike | None = None,
    debug: PathLike | None = None,
    initrd: PathLike | None = None,
    append: str = "",
    copies: Iterable[PathLike] = (),
    modules: Iterable[str] = (),
    qemu_args: Iterable[str] = (),
    debug_folders: Iterable[PathLike] = (),
    *,
    cpus: int | None = None,
    memory: int | str | None = None,
    start: bool = True,
    on_message: Say = _ignore,
    on_progress: ShowProgress = _ignore,
) -> Machine:
    """A kernel that kinst boots in QEMU: Debian's, fetched on first use, or one's own.

    isa: amd64, arm64 or riscv64.  kernel, debug: one's own kernel, and its vmlinux with symbols.
    initrd: instead of kinst's own, which has busybox and runs commands.  append: more of the
    kernel's command line.  copies: files for the guest's /bin.  modules: of the fetched kernel,
    to be loaded at boot.  debug_folders: with debug files of modules.  cpus: 2 without it.
    memory: bytes or, as in "512m", with a unit; 1 GB without it.  start: boot now, rather than when
    first needed, and with as much scratch memory as that needs.

    Raises KinstError where the arguments do not agree or a file is missing, TargetError when the
    guest does not come up.
    """
    request = Request(
        vm=isa, kernel=_path(kernel), debug=_path(debug), initrd=_path(initrd), append=append,
        copies=_paths(copies), modules=tuple(modules), qemu_args=tuple(qemu_args),
        debug_folders=_paths(debug_folders),
        cpu_count=0 if cpus is None else parse_cpus(str(cpus)),
        memory=0 if memory is None else parse_memory(str(memory)),
    )  # fmt: skip
    if request.kernel and not request.debug:
        raise KinstError(f"{request.kernel} needs its vmlinux with symbols", "debug=VMLINUX")
    if request.kernel and request.modules:
        raise KinstError("modules are of the kernel that kinst fetches", "leave out kernel=")
    if request.initrd and (request.copies or request.modules):
        raise KinstError("copies and modules go into kinst's own initrd", "leave out initrd=")
    return _opened(request, start, on_message, on_progress)


def attach(
    address: str,
    kernel: PathLike,
    debug_folders: Iterable[PathLike] = (),
    *,
    start: bool = True,
    on_message: Say = _ignore,
    on_progress: ShowProgress = _ignore,
) -> Machine:
    """The machine behind a GDB stub that somebody else started: it stops at each hit.

    address: host:port, :port or the path of a unix socket.  kernel: its vmlinux with symbols.
    Raises KinstError, and TargetError where no stub answers."""
    request = Request(gdb=address, kernel=_path(kernel), debug_folders=_paths(debug_folders))
    return _opened(request, start, on_message, on_progress)


def host(*, on_message: Say = _ignore) -> Machine:
    """No kernel at all: for programs of BEGIN, END and tick alone, which run in this process."""
    return Machine(Request(), on_message=on_message, has_kernel=False)


def kernel_files(isa: str = "amd64", *, on_progress: ShowProgress = _ignore) -> Files:
    """Debian's kernel that boot() boots, its debug file and a busybox; fetched on first use.

    Raises KinstError where they cannot be fetched."""
    return find_files(Request(vm=isa), on_progress)


def expand_in_file(
    program: Source,
    kernel: PathLike,
    debug: PathLike | None = None,
    options: Mapping[str, Setting] | None = None,
    *,
    on_message: Say = _ignore,
    on_progress: ShowProgress = _ignore,
) -> str:
    """The D program after inline functions, source lines and local variables are looked up in an
    ELF file as it is, which need not be a kernel.  Raises DError and KinstError."""
    request = Request(kernel=_path(kernel), debug=_path(debug))
    return expand_request(_with_program(request, program, options, ()), on_message, on_progress)


def expand_request(request: Request, on_message: Say, on_progress: ShowProgress) -> str:
    """The same for a command line that was understood."""
    return expand_request_in_file(request, _report(on_message, on_progress))


def _opened(request: Request, start: bool, say: Say, progress: ShowProgress) -> Machine:
    machine = Machine(request, on_message=say, on_progress=progress)
    if start:
        machine.start()
    return machine


def _path(path: PathLike | None) -> str:
    return "" if path is None else os.fspath(path)


def _paths(paths: Iterable[PathLike]) -> tuple[str, ...]:
    return tuple(os.fspath(path) for path in paths)


def _report(say: Say, progress: ShowProgress, verbose: bool = False) -> Report:
    return Report(say=say, progress=progress, started=time.monotonic(), verbose=verbose)


def _setting(value: Setting) -> str:
    """As -x has it: "" for an option without a value."""
    return "" if value is None or value is True else str(value)


def _with_program(
    request: Request,
    source: Source,
    options: Mapping[str, Setting] | None,
    arguments: Iterable[str],
) -> Request:
    """request with a program, the options of -x, and what $1, $2, ... are."""
    texts: tuple[ProgramText, ...]
    if isinstance(source, str):
        texts = (ProgramText("s", source, "<string>"),)
    elif isinstance(source, ProgramText):
        texts = (source,)
    elif isinstance(source, os.PathLike):
        path = Path(source)
        try:
            text = path.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise KinstError(f"failed to open {path}: {error.strerror}") from error
        texts = (ProgramText("s", text, str(path)),)
    else:
        texts = tuple(source)
    settings = [(k, _setting(v)) for k, v in (options or {}).items() if v is not False]
    return replace(
        request,
        programs=texts,
        settings=(*request.settings, *settings),
        arguments=(*request.arguments, *arguments),
    )


@dataclass(frozen=True, slots=True)
class Program:
    """A D program, parsed and checked for one machine; Machine.compile() makes it.

    expanded: inline functions, source lines and local variables have become plain clauses.
    command: the one for which $target was compiled, "" for none.
    """

    request: Request
    compiled: Compiled
    expanded: bool = False
    command: str = ""

    @property
    def text(self) -> str:
        """As D, after syntactic transformation."""
        return unparse(self.compiled.tree)

    @property
    def options(self) -> Options:
        """Of the machine, the program's pragmas and compile()."""
        return self.compiled.options

    @property
    def descriptions(self) -> Sequence[ProbePattern]:
        """The probe descriptions of its clauses."""
        return self.compiled.patterns

    @property
    def wants_expansion(self) -> bool:
        """Whether it has descriptions or variables that only the kernel's files explain."""
        return not self.expanded and wants_expansion(self.compiled)

    def __str__(self) -> str:
        return self.text


class Trace:
    """A program that is ready to run; Machine.trace() makes it.

    Iterating it traces: it yields Record, Aggregation, Lost, Fault, Message, Output of the command
    and what a program asks of its client (Shell, Reopen, Truncate, OptionSet), in the order in
    which they happened, and End at last.  events() yields the same in bulk, for renderers.  A
    trace runs once.  It stops when stop() is called, from any thread or signal handler, and is
    undone by close(), which leaving a with block calls.
    """

    def __init__(
        self, machine: Machine, built: BuiltProgram, command: str, timeout: float | None = None
    ) -> None:
        """timeout: seconds after which it ends, like one that was stopped."""
        opened = machine._opened
        self._machine = machine
        self._command = command
        self._timeout = timeout
        self._built = built
        self._running = RunningTrace(
            built.compiled, built.parts, built.placed, built.image, opened.traced, opened.report,
            opened.output,
        )  # fmt: skip
        self._events: Generator[Event, None, None] | None = None
        self._over = False
        self._command_over = not command
        self.end: End | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def schema(self) -> Schema:
        """What its records mean: for renderers."""
        return self._running.schema

    @property
    def options(self) -> Options:
        """As compiled; a program may change some of them (OptionSet)."""
        return self._built.compiled.options

    @property
    def matched(self) -> tuple[tuple[ProgramText, int], ...]:
        """For each text of the program how many probes its descriptions have matched."""
        left = {e.probe.id for e in self._built.parts.running}
        probes = {e.probe.id: e for e in self._built.matched if e.probe.id in left}
        return tuple(
            (text, sum(c in clauses for e in probes.values() for c in e.clauses))
            for text, clauses in self._built.compiled.texts
        )

    def events(self) -> Iterator[Event]:
        """Trace, in bulk.  After End, raises TargetError where the guest ended by itself."""
        if self._events is None:
            if self._over:
                raise KinstError("this trace is over", "trace the program again")
            self._events = self._running.events(self._command, self._timeout)
        for event in self._events:
            if isinstance(event, End):
                self.end = event
                self._command_over = self._command_over or event.reason == "command"
            yield event

    def __iter__(self) -> Iterator[PlainEvent]:
        yield from flattened(self.events())
        self.close()

    def stop(self) -> None:
        """Ask it to end: END fires, and what is left is yielded.  For signal handlers, too."""
        self._running.stop()

    def aggregations(self) -> dict[str, Table]:
        """All aggregations as they are now, by name; also after the end."""
        return tables_of(self._running.aggregations())

    def close(self) -> None:
        """Unplant, and end the command.  Safe to call twice."""
        if self._over:
            return
        self._over = True
        try:
            if self._events is not None:
                self._events.close()
        finally:
            self._machine._trace_over(self, self._command_over)


class Machine:
    """A machine whose kernel can be traced; boot(), attach() and host() make it."""

    def __init__(
        self,
        request: Request,
        *,
        on_message: Say = _ignore,
        on_progress: ShowProgress = _ignore,
        has_kernel: bool = True,
        report: Report | None = None,
    ) -> None:
        """request: which machine, and what all of its programs have in common.  It is started
        when it is first needed.  report: for the command, which tells how long stages take."""
        self._has_kernel = has_kernel
        self._opened = OpenMachine(request, report or _report(on_message, on_progress))
        self._trace: Trace | None = None
        self._held = ""  # the command that has been prepared, and not started
        self._traces = 0  # that were made
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        request = _with_program(self._opened.request, program, options, arguments)
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

        command: prepared in the guest, so that $target is its process id."""
        found = self._compiled(program, None, ())
        if found.expanded and found.command == command:
            return found
        if command or self.needs_kernel(found):
            self.start(found if not self._roomy else None)
        return self._expanded(found, command)

    @property
    def _roomy(self) -> bool:
        return self._opened.traced.target is not None

    def _expanded(self, program: Program, command: str) -> Program:
        opened = self._opened
        compiled = program.compiled
        try:
            opened.stand()
            if command:
                pid = self._prepare(command)
                compiled = opened.compile(program.request, pid, compiled)
            compiled = opened.expand(program.request, compiled)
        except BaseException:
            self._drop_command()
            raise
        return Program(program.request, compiled, True, command)

    def build(self, program: Source | Program) -> BuiltProgram:
        """Everything that a trace of the program would write into the machine: nothing is written.
        Raises DError for descriptions that mean nothing, KinstError where nothing can be planted.
        """
        expanded = self.expand(program)
        self._opened.stand()
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
        self._opened.stand()
        found = self._opened.enable(program.request, program.compiled, listed=True)
        return self._opened.list_planned(found) if details else self._opened.list_names(found)

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
            opened.stand()
            built = opened.build(opened.enable(expanded.request, expanded.compiled))
            opened.fill(built)
            self._trace = Trace(self, built, command, expanded.request.timeout)
        except BaseException:
            self._drop_command()
            raise
        self._held = ""
        return self._trace

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
        with self.trace(program, command, options, arguments) as trace, _stopped(trace, seconds):
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

    def _trace_over(self, trace: Trace, command_over: bool) -> None:
        """trace has been undone."""
        self._trace = None
        if not command_over and not self._closed:
            self._held = "the command"
            self._drop_command()
        self._opened.output.clear()


@contextmanager
def _stopped(trace: Trace, seconds: float | None) -> Iterator[None]:
    """The trace is asked to end after so many seconds; None: it is not."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, trace.stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
