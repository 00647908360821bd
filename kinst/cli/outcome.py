"""Run of a whole trace, for commands that show its result instead of each record.

Tested by tests/cli/test_testing.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kinst import api
from kinst.api import ProgramText, Request
from kinst.cli.ending import ending_text
from kinst.cli.guard import say, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.reporting import user_report
from kinst.errors import KinstError
from kinst.events import Aggregation, End, Event, Fault, Lost, Message, Output, Shell
from kinst.views.picture import Heading
from kinst.views.saved_results import SavedTrace, saved_trace

if TYPE_CHECKING:
    from kinst.api import Machine, Trace


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a trace.

    Attributes:
        aggregations: the program's aggregations with their values at the end of the trace.
        status: exit status for kinst.
        program: D text of the program.
        command: the traced command; "" if there was no command.
        kernel: release of the kernel; "" if it is not known.
    """

    aggregations: Sequence[Aggregation]
    status: int
    program: str
    command: str = ""
    kernel: str = ""

    def heading(self, title: str) -> Heading:
        """Return the heading for a picture of this result.

        Args:
            title: the user's title; "" to take the command or the program.
        """
        program = "\n".join(line.strip() for line in self.program.splitlines())
        notes = [f"Linux {self.kernel}"] if self.kernel else []
        return Heading(title or self.command or program, program, notes)


def traced(
    request: Request,
    program: str,
    interrupts: Interrupts,
    see: Callable[[Event], None] | None = None,
) -> Outcome | None:
    """Trace a program and return the result; None if -d asks only to show the program.

    The traced command's output goes to standard output or, if kinst's result goes to standard
    output, to standard error.

    Args:
        request: options of the machine and of the trace.
        program: D text that is traced if the request has no program.
        interrupts: handlers that end the trace.
        see: called with each event.

    Raises:
        KinstError: the program cannot be traced.
    """
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
    """Return the machine of a request; its messages and progress go to standard error."""
    return api.Machine(request, report=user_report(request))


def trace_of(machine: Machine, request: Request) -> Trace:
    """Return a trace of a request's program, ready to run. The machine starts only if the program
    needs a kernel. Raises KinstError."""
    program = machine.compile_request(request)
    if program.has_stacks:
        machine.index_lines()
    return machine.trace(program, request.command)


def show_programs(request: Request) -> None:
    """Print the D programs of a request on standard output (-d)."""
    write(sys.stdout, "".join(f"{one.text.strip()}\n" for one in request.programs))


def finished(
    trace: Trace,
    request: Request,
    interrupts: Interrupts,
    show: Callable[[str], None],
    see: Callable[[Event], None] | None = None,
) -> tuple[list[Aggregation], int]:
    """Run a trace to its end, and return its aggregations and its exit status.

    Args:
        trace: the trace.
        request: options of the trace.
        interrupts: handlers that end the trace.
        show: called with the output of the traced command.
        see: called with each event.
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
                if ended := ending_text(event, request):
                    say(ended)
    trace.close()
    return [table.aggregation for table in trace.aggregations().values()], status


@contextmanager
def opened(path: str) -> Iterator[TextIO]:
    """Context manager that opens a saved result for reading. Raises KinstError if the file cannot
    be opened."""
    try:
        file = open(path, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    except OSError as error:
        raise KinstError(f"failed to open {path}: {error.strerror}") from error
    with file:
        yield file


def saved(path: str) -> SavedTrace:
    """Return the last trace of a file that --json has made. Raises KinstError."""
    with opened(path) as file:
        return saved_trace(file, path)


def saved_outcome(path: str, trace: SavedTrace) -> Outcome:
    """Return the result of a saved trace. If the trace has neither a command nor a program, take
    the file's name as the command."""
    command = trace.command or ("" if trace.program else os.path.basename(path))
    return Outcome(trace.aggregations, 0, trace.program, command, trace.kernel)


def put(text: str, path: str) -> None:
    """Write a command's result to a file, replacing its contents, or to standard output if `path`
    is "". Raises KinstError."""
    if not path:
        write(sys.stdout, text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise KinstError(f"failed to write {path}: {error.strerror}") from error
