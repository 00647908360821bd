"""The command's work, when it is known what it is: a trace, a listing, what the compiler makes.

Tested by tests/d, through the command.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import TextIO

from kinst.api import (
    EarlyStart,
    Machine,
    Program,
    Report,
    Request,
    Trace,
    expand_request,
    list_kernels,
)
from kinst.cli.completion.prepare import prepare_names
from kinst.cli.ending import ending_text
from kinst.cli.guard import say, write
from kinst.cli.options import CommandLine
from kinst.cli.progress import Progress
from kinst.cli.terminal import HostTerminal, shell_command
from kinst.errors import KinstError
from kinst.events import End
from kinst.render import Destination, renderer, shows_lines
from kinst.render.dtrace.listing import (
    description_reports,
    matched_message,
    planned_rows,
    probe_rows,
    program_reports,
)

Begins = Callable[[Trace], None]  # told of a trace that begins


def _emptying(out: TextIO) -> Callable[[], None] | None:
    """What empties the file that data goes to; None for a terminal or a pipe."""
    try:
        regular = stat.S_ISREG(os.fstat(out.fileno()).st_mode)
    except OSError:
        return None

    def empty() -> None:
        out.flush()
        os.ftruncate(out.fileno(), 0)
        os.lseek(out.fileno(), 0, os.SEEK_SET)

    return empty if regular else None


def _follow(trace: Trace, line: CommandLine, out: TextIO, traced: Mapping[str, str]) -> int:
    """Every event to the renderer; the exit status.  traced: as of Destination."""
    destination = Destination(
        write=partial(write, out),
        say=say,
        console=partial(write, sys.stdout),
        shell=run_shell,
        truncate=_emptying(out),
        traced=traced,
    )
    status, ended = 0, ""
    with closing(renderer(line.format)(destination, trace.schema)) as shown:
        for event in trace.events():
            shown.show(event)
            if isinstance(event, End):
                status = event.status
                ended = ending_text(event, line.request.timeout, line.request.command)
    if ended:
        say(ended)
    return status


def run_shell(command: str, capture: bool) -> bytes:
    """system(): by the host's shell, to its end.  What it prints goes where kinst's output goes,
    or, with capture, is returned."""
    text = command.encode("utf-8", "surrogateescape")
    done = subprocess.run(
        ["/bin/sh", "-c", text],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if capture else None,
        check=False,
    )
    return done.stdout or b""


def run(
    line: CommandLine, begins: Begins, out: TextIO, started: float, early_start: EarlyStart | None
) -> int:
    """Do what the command line says; the exit status.

    begins: is told of the trace.  out: for what is data.  started: see Report.  early_start: of the
    machine, see start_early().  Raises KinstError."""
    request, show = line.request, partial(write, out)
    if request.of_file:
        text = expand_request(request, say, Progress("kinst"))
        show(text + "\n")
        return 0
    # What is left out of a match is told after what matched.
    left_out: list[str] = []
    progress = Progress("kinst")
    report = Report(
        say, progress, started, request.verbose, left_out=left_out.append,
        confirm=None if request.yes else progress.confirm,
    )  # fmt: skip

    def tell_left_out() -> None:
        report.left_out = None
        while left_out:
            say(left_out.pop(0))

    with ExitStack() as stack:
        stack.callback(tell_left_out)
        terminal = None
        if request.shell:
            terminal = stack.enter_context(HostTerminal())
            request = replace(request, command=shell_command(os.environ))
        machine = stack.enter_context(
            Machine(request, report=report, early_start=early_start, terminal=terminal)
        )
        program = machine.compile_request(request)
        if request.show_program and not program.wants_expansion:
            show(program.text)
        if request.dump in ("tree", "typed"):
            show(machine.dump(program, request.dump) + "\n")
            return 0
        if request.list_probes:
            return _list(machine, program, request, show)
        if not program.descriptions:
            raise KinstError("no probes specified", "-n or -s names some; -h is help")
        command = "" if request.compile_only else request.command
        if program.has_stacks and shows_lines(line.format):
            machine.index_lines()
        if request.command or machine.needs_kernel(program):
            machine.start(program)
        expanded = machine.expand(program, command)
        if request.show_program and program.wants_expansion:
            show(expanded.text + "\n")
        if request.show_code or request.dump or request.compile_only:
            return _compile_only(machine, expanded, request, show)
        trace = machine.trace(expanded, command)
        if not trace.options.quiet:
            for one, count in trace.matched:
                say(matched_message(one, count))
        tell_left_out()
        if request.verbose:
            show(program_reports(machine.stability(expanded)) + "\n")
        begins(trace)
        if terminal is not None:
            terminal.stop = trace.stop
        traced = {
            "program": "\n".join(one.text.strip() for one in request.programs),
            "command": request.command,
            "kernel": machine.release,
        }
        status = _follow(trace, line, out, traced)
    # Completion is for people; it makes what it needs where this has not.
    if sys.stdin.isatty() and sys.stderr.isatty():
        prepare_names(request)
    return status


def _list(machine: Machine, program: Program, request: Request, show: Callable[[str], None]) -> int:
    """-l, with -v or without."""
    details = request.verbose and bool(program.descriptions)
    probes = machine.list_probes(program, details=details)
    if request.show_program and program.wants_expansion:
        show(machine.expand(program).text + "\n")
    show(planned_rows(probes) if details else probe_rows(probes))
    return 0


def _compile_only(
    machine: Machine, program: Program, request: Request, show: Callable[[str], None]
) -> int:
    """-S, --dump and -e."""
    if request.show_code or request.dump:
        show(machine.dump(program, "ir" if request.show_code else request.dump) + "\n")
        return 0
    machine.build(program)
    if request.verbose:
        show(program_reports(machine.stability(program)))
        show(description_reports(machine.description_stability(program)))
    return 0


def offers(request: Request) -> str:
    """--kernel list: a kernel a line, as --kernel takes it."""
    rows = [("--kernel", "RELEASE", "DEBIAN", "FETCHED")]
    for one in list_kernels(request.vm or "amd64", on_progress=Progress("kinst")):
        there = "yes" if one.there else "no"
        rows.append((one.release.short, one.release.name, one.suite or "-", there))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)
