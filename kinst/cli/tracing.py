"""Execution of a command line without a named command: a trace, a list of probes, or the output of
a compiler stage.

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
from importlib import import_module
from typing import TextIO

from kinst.api import (
    Compiler,
    EarlyStart,
    Machine,
    Program,
    Report,
    Request,
    Trace,
    expand_request,
    list_kernels,
)
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

Begins = Callable[[Trace], None]  # called with a trace before it begins


def _emptying(out: TextIO) -> Callable[[], None] | None:
    """Return a function that deletes what was written to the output file so far; None if the output
    is a terminal or a pipe."""
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
    """Run a trace, hand every event to the renderer, and return the exit status.

    Args:
        trace: the trace.
        line: the command line.
        out: file for the output.
        traced: texts named "program", "command" and "kernel" that say what is traced, as far as
            known.
    """
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
                ended = ending_text(event, line.request)
    if ended:
        say(ended)
    return status


def run_shell(command: str, capture: bool) -> bytes:
    """Run a command of D's system() by the host's shell, to its end.

    Return its output if `capture` is true. Otherwise the output goes where kinst's output goes, and
    b"" is returned.
    """
    text = command.encode("utf-8", "surrogateescape")
    done = subprocess.run(
        ["/bin/sh", "-c", text],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if capture else None,
        check=False,
    )
    return done.stdout or b""


def run(
    line: CommandLine,
    begins: Begins,
    out: TextIO,
    report: Report,
    compiled: tuple[Compiler, Program] | None,
    early_start: EarlyStart | None,
) -> int:
    """Do what a command line without a named command asks for, and return the exit status.

    Args:
        line: the command line.
        begins: called with the trace before it begins.
        out: file for the output.
        report: gets messages and progress.
        compiled: the compiler, and the D program that it has compiled. None for -d -e with an ELF
            file: this needs no machine, and only prints the D program, with its clauses expanded
            for the code in the file.
        early_start: the start of the machine that start_early() has begun; None if it has not begun
            one.

    Raises:
        KinstError: the work cannot be done.
    """
    request, show = line.request, partial(write, out)
    if compiled is None:
        text = expand_request(request, say, report.progress)
        show(text + "\n")
        return 0
    # Messages about probes that are left out follow the messages about probes that match.
    left_out: list[str] = []
    report.left_out = left_out.append
    compiler, program = compiled

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
            Machine(
                request,
                report=report,
                early_start=early_start,
                terminal=terminal,
                compiler=compiler,
            )
        )
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
        expanded = machine.expand(program, command)
        if request.show_program and program.wants_expansion:
            show(expanded.text + "\n")
        if request.dump or request.compile_only:
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
    # Only interactive users need completion. Completion makes the index itself if it is missing.
    if sys.stdin.isatty() and sys.stderr.isatty():
        import_module("kinst.cli.completion.prepare").prepare_names(request)
    return status


def _list(machine: Machine, program: Program, request: Request, show: Callable[[str], None]) -> int:
    """List the probes of a program (-l; with -v also how each is planted), and return the exit
    status."""
    details = request.verbose and bool(program.descriptions)
    probes = machine.list_probes(program, details=details)
    if request.show_program and program.wants_expansion:
        show(machine.expand(program).text + "\n")
    show(planned_rows(probes) if details else probe_rows(probes))
    if not program.descriptions:
        say(
            "kinst: these probes need no kernel; the probes of a kernel are listed by provider,"
            " such as fbt, syscall, sdt, sched or io: kinst -l -P syscall"
        )
    return 0


def _compile_only(
    machine: Machine, program: Program, request: Request, show: Callable[[str], None]
) -> int:
    """Do what -S, --dump or -e asks for instead of tracing, and return the exit status."""
    if request.dump:
        show(machine.dump(program, request.dump) + "\n")
        return 0
    machine.build(program)
    if request.verbose:
        show(program_reports(machine.stability(program)))
        show(description_reports(machine.description_stability(program)))
    return 0


def offers(request: Request) -> str:
    """Return the table of --kernel list: a line for each kernel, named as --kernel takes it."""
    rows = [("--kernel", "RELEASE", "DEBIAN", "FETCHED")]
    for one in list_kernels(request.machine.isa or "amd64", on_progress=Progress("kinst")):
        fetched = "yes" if one.is_cached else "no"
        rows.append((one.release.short, one.release.name, one.suite or "-", fetched))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)
