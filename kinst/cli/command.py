"""The kinst command: options in, text out, exit status.  The only module that prints or exits.

Exit status: 0 success, 1 an error, 2 a wrong command line, what exit() said or, without exit(), the
status of the command of -c.
"""

from __future__ import annotations

import gc
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TextIO

from kinst.api import Machine, Program, Report, Request, Trace, expand_request, list_kernels
from kinst.cli.guard import Interrupted, UsageError, guarded, say, standard_files, write
from kinst.cli.options import HELP, CommandLine, parse
from kinst.cli.progress import Progress
from kinst.errors import DError, KinstError
from kinst.events import End
from kinst.render import Destination, renderer
from kinst.render.dtrace.listing import (
    description_reports,
    matched_message,
    planned_rows,
    probe_rows,
    program_reports,
)
from kinst.version import __version__

D_VERSION = "1.13"
# Objects until Python looks for cycles again: the millions of instructions of a whole kernel are
# in none, and to look through them took a third of the time.
COLLECT = 200_000


class Interrupts:
    """Ctrl-C, SIGTERM and SIGHUP.  The first asks a trace to end, the second ends kinst at once,
    and so does the first where there is no trace yet (booting, compiling, -l).

    SIGHUP stays ignored where kinst was started with nohup(1)."""

    def __init__(self) -> None:
        self._arrivals = 0
        self._trace: Trace | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._arrived)

    def _arrived(self, number: int, frame: object) -> None:
        self._arrivals += 1
        if self._arrivals > 1 or self._trace is None:
            raise Interrupted(number)
        self._trace.stop()

    def end(self, trace: Trace) -> None:
        """From now on the first signal asks this trace to end."""
        self._trace = trace


def started_at() -> float:
    """When this process began, on the scale of time.monotonic() (proc(5), stat, starttime)."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    age = since_boot - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age


def complain(error: KinstError, tags: bool) -> None:
    """An error, for a person: one line, and for D the source line with a caret."""
    if isinstance(error, DError):
        tag = f"[{error.tag}] " if tags else ""
        say(f"kinst: failed to compile: {error.span}: {tag}{error}")
        caret = error.caret()
        if caret:
            say(caret)
    else:
        say(f"kinst: {error}")


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


def _follow(trace: Trace, format_: str, out: TextIO) -> int:
    """Every event to the renderer; the exit status."""
    destination = Destination(
        write=partial(write, out),
        say=say,
        console=partial(write, sys.stdout),
        shell=run_shell,
        truncate=_emptying(out),
    )
    status = 0
    with closing(renderer(format_)(destination, trace.schema)) as shown:
        for event in trace.events():
            shown.show(event)
            if isinstance(event, End):
                status = event.status
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


def _run(line: CommandLine, interrupts: Interrupts, out: TextIO) -> int:
    """Do what the command line says; the exit status.  Raises KinstError."""
    request, show = line.request, partial(write, out)
    if request.of_file:
        text = expand_request(request, say, Progress("kinst"))
        show(text + "\n")
        return 0
    report = Report(say, Progress("kinst"), started_at(), request.verbose)
    with Machine(request, report=report) as machine:
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
        if request.verbose:
            show(program_reports(machine.stability(expanded)) + "\n")
        interrupts.end(trace)
        return _follow(trace, line.format, out)


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


def _into_output(line: CommandLine, interrupts: Interrupts) -> int:
    path = line.request.output
    if not path:
        return _run(line, interrupts, sys.stdout)
    try:
        out = open(path, "a", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    except OSError as error:
        raise KinstError(f"failed to open {path}: {error.strerror}") from error
    with out:
        return _run(line, interrupts, out)


def _offers(request: Request) -> str:
    """--kernel list: a kernel a line, as --kernel takes it."""
    rows = [("--kernel", "RELEASE", "DEBIAN", "FETCHED")]
    for one in list_kernels(request.vm or "amd64", on_progress=Progress("kinst")):
        there = "yes" if one.there else "no"
        rows.append((one.release.short, one.release.name, one.suite or "-", there))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _wants_tags(request: Request) -> bool:
    return any(name == "errtags" for name, _ in request.settings)


def main(argv: Sequence[str] | None = None) -> int:
    """The kinst command.  argv: without the program's name; sys.argv when None."""
    gc.set_threshold(COLLECT)
    words = list(sys.argv[1:] if argv is None else argv)
    standard_files()
    requests: list[Request] = []

    def work() -> int:
        line = parse(words, sys.stdin.read)
        requests.append(line.request)
        if line.kernels:
            write(sys.stdout, _offers(line.request))
            return 0
        if line.help or line.version:
            version = f"kinst: kinst {__version__}, D {D_VERSION}\n"
            write(sys.stdout, HELP if line.help else version)
            return 0
        if not line.request.programs and not line.request.list_probes:
            raise UsageError("no probes specified", "-n or -s names some")
        return _into_output(line, Interrupts())

    def wrong(error: KinstError) -> None:
        complain(error, bool(requests) and _wants_tags(requests[0]))

    return guarded(work, "kinst", wrong)


if __name__ == "__main__":
    sys.exit(main())
