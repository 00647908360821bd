"""A whole trace, for a command that shows its result and not each record.

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
from kinst.cli.guard import say, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.progress import Progress
from kinst.errors import KinstError
from kinst.events import Aggregation, End, Event, Fault, Lost, Message, Output, Shell
from kinst.views.picture import Heading
from kinst.views.saved_results import SavedTrace, saved_trace

if TYPE_CHECKING:
    from kinst.api import Machine, Trace


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a trace."""

    # As they were at its end.
    aggregations: Sequence[Aggregation]
    # The exit status that kinst would have.
    status: int
    # Its D text.
    program: str
    # The command that was traced, or "".
    command: str = ""
    # The release of the kernel, or "".
    kernel: str = ""

    def heading(self, title: str) -> Heading:
        """Return what stands above a picture.

        title: the user's, or ""."""
        program = "\n".join(line.strip() for line in self.program.splitlines())
        notes = [f"Linux {self.kernel}"] if self.kernel else []
        return Heading(title or self.command or program, program, notes)


def traced(
    request: Request,
    program: str,
    interrupts: Interrupts,
    see: Callable[[Event], None] | None = None,
) -> Outcome | None:
    """Trace the programs of a request, or `program` if it has none, and return the result; None if
    -d only asked for the program.

    What the command writes goes to standard output or, if the result goes there, to standard error.
    see: gets each event.  Raises KinstError."""
    if not request.programs:
        request = replace(request, programs=(ProgramText("n", program, "<command line>"),))
    if request.show_program:
        show_programs(request)
        return None
    show = partial(write, sys.stdout if request.output not in ("", "-") else sys.stderr)
    with open_machine(request) as machine:
        trace = trace_of(machine, request)
        aggregations, status = finished(trace, request, interrupts, show, see)
        release = machine.release
    program = "\n".join(one.text for one in request.programs)
    return Outcome(aggregations, status, program, request.command, release)


def open_machine(request: Request) -> Machine:
    """Return the machine of a request, which reports on standard error."""
    progress = Progress("kinst")
    report = Report(
        say, progress, time.monotonic(), request.verbose,
        confirm=None if request.yes else progress.confirm,
    )  # fmt: skip
    return api.Machine(request, report=report)


def trace_of(machine: Machine, request: Request) -> Trace:
    """Return the trace that a request asks for, ready to run.  A machine is started only if the
    program needs a kernel.  Raises KinstError."""
    program = machine.compile_request(request)
    if program.has_stacks:
        machine.index_lines()
    return machine.trace(program, request.command)


def show_programs(request: Request) -> None:
    """Print the D programs of a request (-d)."""
    write(sys.stdout, "".join(f"{one.text.strip()}\n" for one in request.programs))


def finished(
    trace: Trace,
    request: Request,
    interrupts: Interrupts,
    show: Callable[[str], None],
    see: Callable[[Event], None] | None = None,
) -> tuple[list[Aggregation], int]:
    """Run a trace to its end, and return its aggregations and its status.

    Args:
        trace: of the request.
        show: gets what the command writes.
        see: gets each event.
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
                raise KinstError("system() cannot be used with this command", "take it out")
            case End():
                status = event.status
                if ended := ending_text(event, request.timeout, request.command):
                    say(ended)
    trace.close()
    return [table.aggregation for table in trace.aggregations().values()], status


@contextmanager
def opened(path: str) -> Iterator[TextIO]:
    """Open a file that --json has made.  Raises KinstError."""
    try:
        file = open(path, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    except OSError as error:
        raise KinstError(f"failed to open {path}: {error.strerror}") from error
    with file:
        yield file


def saved(path: str) -> SavedTrace:
    """Return the trace in a file that --json has made.  Raises KinstError."""
    with opened(path) as file:
        return saved_trace(file, path)


def saved_outcome(path: str, trace: SavedTrace) -> Outcome:
    """Return the result of the trace in a file; one that does not say what was traced is called by
    the file's name."""
    command = trace.command or ("" if trace.program else os.path.basename(path))
    return Outcome(trace.aggregations, 0, trace.program, command, trace.kernel)


def put(text: str, path: str) -> None:
    """Write a command's result over a file, or to standard output if path is "".  Raises
    KinstError."""
    if not path:
        write(sys.stdout, text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise KinstError(f"failed to write {path}: {error.strerror}") from error
