"""The kinst command: options in, text out, exit status.  The only module that prints or exits.

Exit status, as dtrace(1): 0 success, 1 an error, 2 a wrong command line, or what exit() said.
"""

from __future__ import annotations

import gc
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TextIO

from kinst import __version__
from kinst.cli.guard import Interrupted, UsageError, guarded, say, standard_files, write
from kinst.cli.options import HELP, parse
from kinst.cli.progress import Progress
from kinst.cli.tracing import follow_trace, run_shell
from kinst.core.errors import DError, KinstError
from kinst.render import Destination, renderer
from kinst.session.path import run
from kinst.session.report import Report
from kinst.session.values import Request

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
        self._asked = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._arrived)

    def _arrived(self, number: int, frame: object) -> None:
        self._arrivals += 1
        if self._arrivals > 1 or not self._asked:
            raise Interrupted(number)

    def requested(self) -> bool:
        """Whether the trace is to end.  From the first call on somebody listens."""
        self._asked = True
        return self._arrivals > 0


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


def _report(request: Request, out: TextIO, interrupts: Interrupts) -> Report:
    return Report(
        write=partial(write, out),
        say=say,
        progress=Progress("kinst"),
        stop_requested=interrupts.requested,
        started=started_at(),
        verbose=request.verbose,
    )


def _into(request: Request, out: TextIO, interrupts: Interrupts) -> int:
    destination = Destination(
        write=partial(write, out),
        say=say,
        console=partial(write, sys.stdout),
        shell=run_shell,
        truncate=_emptying(out),
    )
    follow = partial(follow_trace, renderer("dtrace"), destination)
    return run(request, _report(request, out, interrupts), follow)


def _wants_tags(request: Request) -> bool:
    return any(name == "errtags" for name, _ in request.settings)


def _run(request: Request, interrupts: Interrupts) -> int:
    if not request.output:
        return _into(request, sys.stdout, interrupts)
    try:
        out = open(request.output, "a", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    except OSError as error:
        raise KinstError(f"failed to open {request.output}: {error.strerror}") from error
    with out:
        return _into(request, out, interrupts)


def main(argv: Sequence[str] | None = None) -> int:
    """The kinst command.  argv: without the program's name; sys.argv when None."""
    gc.set_threshold(COLLECT)
    words = list(sys.argv[1:] if argv is None else argv)
    standard_files()
    requests: list[Request] = []

    def work() -> int:
        line = parse(words, sys.stdin.read)
        requests.append(line.request)
        if line.help or line.version:
            version = f"kinst: kinst {__version__}, D {D_VERSION}\n"
            write(sys.stdout, HELP if line.help else version)
            return 0
        if not line.request.programs and not line.request.list_probes:
            raise UsageError("no probes specified", "-n or -s names some")
        return _run(line.request, Interrupts())

    def wrong(error: KinstError) -> None:
        complain(error, bool(requests) and _wants_tags(requests[0]))

    return guarded(work, "kinst", wrong)


if __name__ == "__main__":
    sys.exit(main())
