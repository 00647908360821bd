"""The kinst command: options in, text out, exit status.  The only module that prints or exits.

Exit status: 0 success, 1 an error, 2 a wrong command line, what exit() said or, without exit(), the
status of the command of -c.

Tested by tests/d, through the command.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from kinst import api
from kinst.api import Report, Request
from kinst.cli.commands import command, commands
from kinst.cli.guard import UsageError, guarded, say, standard_files, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.options import CommandLine, help_text, parse
from kinst.cli.progress import Progress
from kinst.errors import DError, KinstError
from kinst.version import __version__

D_VERSION = "1.13"
# Objects until Python looks for cycles again.  The millions of instructions of a whole kernel are
# in none, and scanning them repeatedly took a third of the time.
COLLECT = 200_000


def started_at() -> float:
    """Return when this process began, by time.monotonic() (proc(5), stat, starttime)."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    age = since_boot - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age


def complain(error: KinstError, tags: bool) -> None:
    """Print an error in one line, and for D the source line with a caret."""
    if isinstance(error, DError):
        tag = f"[{error.tag}] " if tags else ""
        say(f"kinst: failed to compile: {error.span}: {tag}{error}")
        caret = error.caret()
        if caret:
            say(caret)
    else:
        say(f"kinst: {error}")


def _all(name: str) -> Any:
    """Return a function of a module that needs all of kinst: half a second to load."""
    return getattr(import_module("kinst.cli.tracing"), name)


def _into_output(line: CommandLine, interrupts: Interrupts) -> int:
    """Check the program, then start the guest early, if there is to be one: it starts while the
    rest of kinst is loaded."""
    path, request = line.request.output, line.request
    progress = Progress("kinst")
    report = Report(
        say, progress, started_at(), request.verbose,
        confirm=None if request.yes else progress.confirm,
    )  # fmt: skip
    compiled = None
    if not request.of_file:
        compiler = api.Compiler(request, report)
        compiled = compiler, compiler.compile(request)
    early_start = api.start_early(request)
    run: Callable[[TextIO], int] = partial(
        _all("run"), line, interrupts.end, report=report, compiled=compiled,
        early_start=early_start,
    )  # fmt: skip
    if not path:
        return run(sys.stdout)
    try:
        out = open(path, "a", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    except OSError as error:
        raise KinstError(f"failed to open {path}: {error.strerror}") from error
    with out:
        return run(out)


def run_command(name: str, words: Sequence[str]) -> int:
    """Run a command that has a name, such as flame, and return the exit status."""
    found = command(name)
    if {"-h", "--help"} & {*words}:
        write(sys.stdout, found.HELP)
        return 0
    return found.run(words, Interrupts())


def _shown(line: CommandLine) -> str:
    """Return the text that is asked for in place of a trace."""
    if line.shows == "kernels":
        return str(_all("offers")(line.request))
    if line.shows == "help":
        return help_text()
    if line.shows == "version":
        return f"kinst: kinst {__version__}, D {D_VERSION}\n"
    return shell_script(line.shows)


def shell_script(shell: str) -> str:
    """Return the script that makes bash or zsh complete kinst's command lines."""
    name = {"bash": "kinst.bash", "zsh": "_kinst"}[shell]
    return (Path(__file__).parent / "completion" / name).read_text(encoding="utf-8")


def _wants_tags(request: Request) -> bool:
    return any(name == "errtags" for name, _ in request.settings)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the kinst command and return its exit status.

    argv: the words without the program's name; None for sys.argv's."""
    gc.set_threshold(COLLECT)
    words = list(sys.argv[1:] if argv is None else argv)
    standard_files()
    requests: list[Request] = []

    def work() -> int:
        if words and not words[0].startswith("-") and words[0] in commands():
            return run_command(words[0], words[1:])
        line = parse(words, sys.stdin.read)
        requests.append(line.request)
        if line.shows:
            write(sys.stdout, _shown(line))
            return 0
        if not line.request.programs and not line.request.list_probes:
            raise UsageError("no probes specified", "-n or -s names some")
        return _into_output(line, Interrupts())

    def wrong(error: KinstError) -> None:
        complain(error, bool(requests) and _wants_tags(requests[0]))

    return guarded(work, "kinst", wrong)


if __name__ == "__main__":
    sys.exit(main())
