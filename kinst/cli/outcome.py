"""A whole trace for a command that shows what came of it, not each record.

Tested by tests/cli/test_testing.py.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kinst import api
from kinst.api import ProgramText, Report, Request
from kinst.cli.ending import ending_text
from kinst.cli.guard import UsageError, say, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.options import CommandLine
from kinst.cli.progress import Progress
from kinst.errors import KinstError
from kinst.events import Aggregation, End, Event, Fault, Lost, Message, Output, Shell
from kinst.views.picture import Heading
from kinst.views.saved_results import SavedTrace, saved_trace

if TYPE_CHECKING:
    from kinst.api import Machine, Trace


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trace has left.

    Attributes:
        aggregations: as they were at its end.
        status: as kinst's own would be.
        program: its D text.
        command: that was traced, or "".
        kernel: the release of the kernel, or "".
    """

    aggregations: Sequence[Aggregation]
    status: int
    program: str
    command: str = ""
    kernel: str = ""

    def heading(self, title: str) -> Heading:
        """What stands above a picture.  title: that the user gave, or ""."""
        program = "\n".join(line.strip() for line in self.program.splitlines())
        notes = [f"Linux {self.kernel}"] if self.kernel else []
        return Heading(title or self.command or program, program, notes)


def traced(
    line: CommandLine,
    program: str,
    interrupts: Interrupts,
    see: Callable[[Event], None] | None = None,
) -> Outcome | None:
    """Trace what the command line says, or `program` where it names no probes; None when -d only
    asked for the program.  What the command writes goes to standard output, or where the result is
    to go there, to standard error.  see: is given each event.  Raises KinstError."""
    request = line.request
    if not request.programs:
        request = replace(request, programs=(ProgramText("n", program, "<command line>"),))
    check_traces(request)
    if request.show_program:
        show_programs(request)
        return None
    show = partial(write, sys.stdout if request.output not in ("", "-") else sys.stderr)
    with open_machine(request) as machine:
        found, status = finished(trace_of(machine, request), request, interrupts, show, see)
        release = machine.release
    program = "\n".join(one.text for one in request.programs)
    return Outcome(found, status, program, request.command, release)


def check_traces(request: Request) -> None:
    """Raises UsageError where the command line asks for something else than a trace."""
    if request.list_probes or request.compile_only or request.show_code or request.dump:
        raise UsageError("-l, -e, -S and --dump show what is not traced", "kinst without a command")


def open_machine(request: Request) -> Machine:
    """The machine, which tells a person what it does."""
    progress = Progress("kinst")
    report = Report(
        say, progress, time.monotonic(), request.verbose,
        confirm=None if request.yes else progress.confirm,
    )  # fmt: skip
    return api.Machine(request, report=report)


def trace_of(machine: Machine, request: Request) -> Trace:
    """The trace that a command line asks for, ready to run; boots only where a kernel is needed.
    Raises KinstError."""
    compiled = machine.compile_request(request)
    if compiled.has_stacks:
        machine.index_lines()
    if request.command or machine.needs_kernel(compiled):
        machine.start(compiled)
    return machine.trace(machine.expand(compiled, request.command), request.command)


def show_programs(request: Request) -> None:
    """-d: the D program that is traced."""
    write(sys.stdout, "".join(f"{one.text.strip()}\n" for one in request.programs))


def finished(
    trace: Trace,
    request: Request,
    interrupts: Interrupts,
    show: Callable[[str], None],
    see: Callable[[Event], None] | None = None,
) -> tuple[list[Aggregation], int]:
    """A trace to its end: the aggregations as they are then, and its status.

    Args:
        trace: of the request.
        show: is told what the command writes.
        see: is given each event.
    """
    status = 0
    interrupts.end(trace)
    for event in trace.events():
        if see is not None:
            see(event)
        match event:
            case Output():
                show(event.data.decode("utf-8", "surrogateescape"))
            case Lost() | Fault() | Message():
                say(event.text)
            case Shell():
                raise KinstError("system() has no place in a picture", "take it out")
            case End():
                status = event.status
                if ended := ending_text(event, request.timeout, request.command):
                    say(ended)
    trace.close()
    return [table.aggregation for table in trace.aggregations().values()], status


@contextmanager
def opened(path: str) -> Iterator[TextIO]:
    """A file that --json has made.  Raises KinstError."""
    try:
        file = open(path, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    except OSError as error:
        raise KinstError(f"failed to open {path}: {error.strerror}") from error
    with file:
        yield file


def kept(path: str) -> SavedTrace:
    """The trace in a file that --json has made.  Raises KinstError."""
    with opened(path) as file:
        return saved_trace(file, path)


def kept_outcome(path: str, saved: SavedTrace) -> Outcome:
    """What that trace has left; files that do not say what was traced are called by their name."""
    command = saved.command or ("" if saved.program else os.path.basename(path))
    return Outcome(saved.aggregations, 0, saved.program, command, saved.kernel)


def put(text: str, path: str) -> None:
    """Write a command's result: to a file, anew, or to standard output where path is "".
    Raises KinstError."""
    if not path:
        write(sys.stdout, text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise KinstError(f"failed to write {path}: {error.strerror}") from error
