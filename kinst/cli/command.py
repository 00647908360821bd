"""The kinst command: it reads the command line, runs what the user asks for, and returns the exit
status.

Exit status: 1 for an error, 2 for a wrong command line. Otherwise the status that the D program
gives to exit(). If it does not call exit(), the exit status of the command of -c; without -c, 0.

Tested by tests/d, through the command.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from kinst import api
from kinst.api import Request
from kinst.cli.commands import command, commands
from kinst.cli.guard import UsageError, guarded, say, standard_files, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.options import CommandLine, help_text, parse
from kinst.cli.reporting import user_report
from kinst.errors import DError, KinstError, ProgramInD
from kinst.version import __version__

D_VERSION = "1.13"
SOME = "-n or -s names some"
# What to type instead of commands of perf, trace-cmd and bpftrace.
_OTHER_COMMANDS = MappingProxyType(
    {
        "trace": "-n 'syscall::NAME:entry { }' traces system calls, -n 'fbt::FUNCTION:entry { }'"
        " functions",
        "probe": "-n 'fbt::FUNCTION:entry { }' prints each call",
        "record": "-n 'profile-97 { @[stack()] = count(); }' samples; kinst flame draws it",
        "report": "kinst top and kinst flame show where time goes",
        "script": "kinst prints records as they come; -o FILE keeps them",
        "stat": "-n 'fbt::FUNCTION:entry { @ = count(); }' counts",
        "list": "-l -n 'fbt::vfs_*:entry' lists probes",
        "help": "kinst --help",
        "strace": "-n 'syscall:::entry { }' -c CMD traces system calls",
        "heat": "kinst plot draws heat maps",
        "time": "kinst top and kinst flame show where time goes, kinst flow F the time of a call",
    }
)
ALIKE = 0.75  # how alike a wrong name of a command and a right one are, 0 to 1


def started_at() -> float:
    """Return when this process began, as a value of time.monotonic(). Source: proc(5), stat,
    starttime."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    age = since_boot - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age


def complain(error: KinstError, tags: bool, words: Sequence[str] = ()) -> None:
    """Print an error in one line; for an error in a D program, also the source line with a caret,
    and the whole program in D if it is written for another tracer.

    Args:
        error: the error.
        tags: whether to print the tag of a D error, such as D_SYNTAX (-x errtags).
        words: the words of the command line without the program's name.
    """
    if isinstance(error, DError):
        tag = f"[{error.tag}] " if tags else ""
        say(f"kinst: failed to compile: {error.span}: {tag}{error}")
        caret = error.caret()
        if caret:
            say(caret)
        if error.translation is not None:
            _show_translation(error.translation, words)
    else:
        say(f"kinst: {error}")


def _show_translation(translation: ProgramInD, words: Sequence[str]) -> None:
    """Print the command line with its programs in D. A program of a file is printed alone.

    Args:
        words: the words of the command line without the program's name.
    """
    remains = translation.error
    say(f"kinst: the line in D, with this to change: {remains}:" if remains
        else "kinst: the whole line in D:")  # fmt: skip
    shown = list(words)
    for text, translated in translation.texts:
        index = next((i for i, word in enumerate(shown) if text and word.endswith(text)), None)
        if index is None:
            say(translated)
        else:
            shown[index] = shown[index].removesuffix(text) + translated
    if shown != list(words):
        say(_typed(shown))


def _typed(words: Sequence[str]) -> str:
    """Return a command line of kinst as one types it in a shell."""
    line: str = import_module("shlex").join(["kinst", *words])
    return line


def _all(name: str) -> Any:
    """Return a function of kinst.cli.tracing by its name. That module is imported only here,
    because it loads all of kinst (half a second).
    """
    return getattr(import_module("kinst.cli.tracing"), name)


def _into_output(line: CommandLine, interrupts: Interrupts) -> int:
    """Do what a command line without a named command asks for, and return the exit status. The
    output goes to the file of -o or to standard output.

    If the D program needs a guest, QEMU starts while kinst compiles the program, and loads a saved
    state while Python imports the rest of kinst.
    """
    path, request = line.request.output, line.request
    report = user_report(request, started_at())
    compiled = None
    early_start = api.start_early(request)
    try:
        if not request.of_file:
            compiler = api.Compiler(request, report)
            compiled = compiler, compiler.compile(request)
            compiler.check_functions(compiled[1])
        if early_start is not None:
            early_start.load()
    except BaseException:
        if early_start is not None:
            early_start.close()
        raise
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
    """Run a named command such as `kinst flame`, and return the exit status.

    Args:
        name: name of the command.
        words: the words of the command line after the name.
    """
    found = command(name)
    if {"-h", "--help"} & {*words}:
        write(sys.stdout, found.HELP)
        return 0
    return found.run(words, Interrupts())


def _shown(line: CommandLine) -> str:
    """Return the text that a command line asks for instead of a trace: help, the version, a list of
    kernels or a completion script."""
    if line.shows == "kernels":
        return str(_all("offers")(line.request))
    if line.shows == "help":
        return help_text()
    if line.shows == "version":
        return f"kinst: kinst {__version__}, D {D_VERSION}\n{_host_shown(line.request)}"
    return shell_script(line.shows)


def _host_shown(request: Request) -> str:
    """Return a line about how guests run on this host, for --version -v; "" without -v."""
    try:
        text = api.describe_host(request) if request.verbose else ""
    except KinstError as error:
        text = str(error)
    return f"kinst: {text}\n" if text else ""


def shell_script(shell: str) -> str:
    """Return the script by which bash or zsh completes kinst's command lines."""
    name = {"bash": "kinst.bash", "zsh": "_kinst"}[shell]
    return (Path(__file__).parent / "completion" / name).read_text(encoding="utf-8")


def _meant(word: str, words: Sequence[str]) -> str:
    """Return what to type instead of a word that follows no option and names no command.

    Args:
        words: the words of the command line without the program's name.
    """
    if not Path(word).is_file() and (":" in word or "{" in word):
        at = words.index(word)
        before = words[: at - 1] if words[at - 1 : at] == ["-e"] else words[:at]
        return f"type: {_typed([*before, '-n', api.translate(word), *words[at + 1 :]])}"
    if word in _OTHER_COMMANDS:
        return _OTHER_COMMANDS[word]
    near = import_module("difflib").get_close_matches(word, commands(), 1, ALIKE)
    if near:
        return f"did you mean kinst {near[0]}?"
    if Path(word).is_file():
        return f"-s {word} reads the program in this file"
    if word.isidentifier():
        return f"-f {word} names a function, -n a program"
    return SOME


def _wants_tags(request: Request) -> bool:
    return any(name == "errtags" for name, _ in request.settings)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the kinst command and return its exit status.

    Args:
        argv: the words without the program's name; None for those of sys.argv.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    standard_files()
    requests: list[Request] = []

    def work() -> int:
        if words and not words[0].startswith("-") and words[0] in commands():
            return run_command(words[0], words[1:])
        line = parse(words, sys.stdin.read)
        requests.append(line.request)
        if line.shows == "help" and words[0] in line.request.arguments:
            raise UsageError(f"there is no kinst {words[0]}", _meant(words[0], words))
        if line.shows:
            write(sys.stdout, _shown(line))
            return 0
        request = line.request
        if not request.programs and (request.arguments or not request.list_probes):
            word = next(iter(request.arguments), "")
            raise UsageError("no probes specified", _meant(word, words) if word else SOME)
        return _into_output(line, Interrupts())

    def wrong(error: KinstError) -> None:
        complain(error, bool(requests) and _wants_tags(requests[0]), words)

    return guarded(work, "kinst", wrong)


if __name__ == "__main__":
    sys.exit(main())
