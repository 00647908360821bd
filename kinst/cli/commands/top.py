"""kinst top: an aggregation as a live table.

Tested by tests/cli/test_top_terminal.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from kinst.api import ProgramText
from kinst.cli.added import made_by, tick_of, with_clauses
from kinst.cli.guard import UsageError, say
from kinst.cli.interrupts import Interrupts
from kinst.cli.options import CommandLine, parse
from kinst.cli.outcome import check_traces, open_machine, show_programs, trace_of
from kinst.cli.own_options import own_options
from kinst.errors import KinstError
from kinst.events import (
    End,
    Event,
    Fault,
    Lost,
    Message,
    Output,
    Printed,
    Shell,
)

if TYPE_CHECKING:
    from kinst.cli.live import Screen

# Where each CPU is, when it is in the kernel and has a process to run (0 is the idle one).
PROGRAM = "profile-97 /arg0 && pid/ { @[execname, func(arg0)] = count(); }"
EVERY = "1s"
FUNCTIONS = (
    "count", "sum", "avg", "min", "max", "stddev", "quantize", "lquantize", "llquantize",
)  # fmt: skip
HELP = f"""\
usage: kinst top [--every TIME] [--by NAME] [kinst's options]

An aggregation as a live table: each key with its value, how much it has grown in the last second
and in those before.  Without -n, -s and the like, the program is
    {PROGRAM}

  --every TIME  500ms, 2s, ...: how often the table is made anew ({EVERY}); what is added to the
                program for that is
                    tick-{EVERY} {{ printa(@NAME); }}
  --by NAME     the aggregation; without it all of the program's, one at a time (tab)
  -d            show the D program, and end

Keys: q quits; the left and right arrows, or a digit, choose the column that is sorted by; r
reverses; up, down, page up, page down and home go through the rows; space pauses.  Ctrl-C ends it
as well.  The last table stays on the terminal.

Which functions of the kernel does a program spend its time in?
  kinst top -c 'while :; do ls -lR / >/dev/null; done'
Who reads, and how much?
  kinst top -n 'fbt::vfs_read:return {{ @[execname, pid] = sum(arg1); }}' -c 'wc /proc/*/maps'
"""


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """The command; the status of what was traced."""
    rest, own = own_options(words, values=("--every", "--by"))
    line = parse(rest, sys.stdin.read)
    request = line.request
    check_traces(request)
    if request.output or request.shell:
        raise UsageError("-o and --shell have no place beside a table", "kinst without a command")
    if not request.programs:
        program = ProgramText("n", PROGRAM, "<command line>")
        line = replace(line, request=replace(request, programs=(program,)))
    title = request.command or line.request.programs[0].text
    line = _printing(line, own.get("--every", EVERY), own.get("--by", ""))
    if request.show_program:
        show_programs(line.request)
        return 0
    screen: Screen = import_module("kinst.cli.live").Screen(title)
    return _shown(line, screen, interrupts)


def _printing(line: CommandLine, time: str, by: str) -> CommandLine:
    tick = tick_of(time)
    programs = line.request.programs
    names = [by.removeprefix("@")] if by else made_by(programs, FUNCTIONS)
    if not names:
        raise UsageError("the program has no aggregation to show", "--by names one")
    prints = "".join(f" printa(@{name});" for name in names)
    return with_clauses(line, f"{tick} {{{prints} }}", "--every")


def _shown(line: CommandLine, screen: Screen, interrupts: Interrupts) -> int:
    said: list[str] = []
    status = 0
    with open_machine(line.request) as machine:
        trace = trace_of(machine, line.request)
        screen.stop = trace.stop
        interrupts.end(trace)
        try:
            with screen:
                for event in trace.events():
                    _see(event, screen, said)
                    if isinstance(event, End):
                        status = event.status
                for table in trace.aggregations().values():
                    screen.show(table.aggregation)
        finally:
            for text in said:
                say(text)
    screen.last()
    return status


def _see(event: Event, screen: Screen, said: list[str]) -> None:
    match event:
        case Printed():
            for one in event.aggregations:
                screen.show(one)
        case Output():
            screen.note(event.data.decode("utf-8", "replace"))
        case Lost() | Fault() | Message():
            said.append(event.text)
            screen.note(event.text)
        case Shell():
            raise KinstError("system() has no place beside a table", "take it out")
