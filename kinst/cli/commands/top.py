"""kinst top: an aggregation as a live table.

Tested by tests/cli/test_top_terminal.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kinst.api import Option, ProgramText, Request
from kinst.cli.guard import UsageError, say
from kinst.cli.interrupts import Interrupts
from kinst.cli.later import LaterModule
from kinst.cli.options import SHOW_PROGRAM, check_traces, option_rows, own_options, parse
from kinst.errors import KinstError

if TYPE_CHECKING:
    from kinst import events
    from kinst.cli import added, live, outcome
else:
    added, live = LaterModule("kinst.cli.added"), LaterModule("kinst.cli.live")
    events, outcome = LaterModule("kinst.events"), LaterModule("kinst.cli.outcome")

# Kernel functions that each CPU runs, unless the CPU runs user code or is idle (pid 0).
PROGRAM = "profile-97 /arg0 && pid/ { @[execname, func(arg0)] = count(); }"
EVERY = "1s"
FUNCTIONS = (
    "count", "sum", "avg", "min", "max", "stddev", "quantize", "lquantize", "llquantize",
)  # fmt: skip
OPTIONS = (
    Option(
        "--every", "TIME", f"500ms, 2s, ...: how often the table is updated ({EVERY}); it adds"
        f" tick-{EVERY} {{ printa(@NAME); }} to the program",
    ),
    Option("--by", "NAME", "the aggregation; without it all of the program's, one at a time (tab)"),
    SHOW_PROGRAM,
)  # fmt: skip
HELP = f"""\
usage: kinst top [--every TIME] [--by NAME] [kinst's options]

Show an aggregation as a live table: each key with its value, the growth of the value per second,
and a small picture of the growth so far.  Without -n, -s and the like, the program is
    {PROGRAM}

{option_rows(OPTIONS)}
Keys: q quits; the left and right arrows, or a digit, choose the column to sort by; r reverses the
order; up, down, page up, page down and home scroll; space pauses.  Ctrl-C quits as well.  The last
table stays on the terminal.

Which functions of the kernel does a program spend its time in?
  kinst top -c 'while :; do ls -lR / >/dev/null; done'
Which programs read, and how much?
  kinst top -n 'fbt::vfs_read:return {{ @[execname, pid] = sum(arg1); }}' -c 'wc /proc/*/maps'
"""


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """Run `kinst top` and return the exit status of the trace."""
    rest, own = own_options(words, OPTIONS)
    request = parse(rest, sys.stdin.read).request
    check_traces(request)
    if request.output or request.shell:
        raise UsageError(
            "-o and --shell cannot be used with kinst top", "kinst without a command has both"
        )
    instead = "kinst without a command prints the same aggregation"
    if not request.programs:
        program = ProgramText("n", PROGRAM, "<command line>")
        request = replace(request, programs=(program,))
        instead = f"without one: kinst -n '{PROGRAM}'"
    title = request.command or request.programs[0].text
    request = _printing(request, own.get("--every", EVERY), own.get("--by", ""))
    if request.show_program:
        outcome.show_programs(request)
        return 0
    return _shown(request, live.Screen(title, instead), interrupts)


def _printing(request: Request, time: str, by: str) -> Request:
    """Return the request with a clause that prints its aggregations at an interval.

    Args:
        request: options of the machine and of the trace.
        time: the interval, from --every.
        by: name of the only aggregation to print, from --by; "" for all aggregations.

    Raises:
        UsageError: `time` is not an interval, or the program has no aggregation.
    """
    tick = added.tick_of(time)
    names = [by.removeprefix("@")] if by else added.made_by(request.programs, FUNCTIONS)
    if not names:
        raise UsageError("the program has no aggregation to show", "--by NAME says which")
    prints = "".join(f" printa(@{name});" for name in names)
    return added.with_clauses(request, f"{tick} {{{prints} }}", "--every")


def _shown(request: Request, screen: live.Screen, interrupts: Interrupts) -> int:
    messages: list[str] = []
    status = 0
    with outcome.open_machine(request) as machine:
        trace = outcome.trace_of(machine, request)
        screen.stop = trace.stop
        interrupts.end(trace)
        try:
            with screen:
                for event in trace.events():
                    _see(event, screen, messages)
                    if isinstance(event, events.End):
                        status = event.status
                for table in trace.aggregations().values():
                    screen.show(table.aggregation)
        finally:
            for text in messages:
                say(text)
    screen.last()
    return status


def _see(event: events.Event, screen: live.Screen, messages: list[str]) -> None:
    match event:
        case events.Printed():
            for one in event.aggregations:
                screen.show(one)
        case events.Output():
            screen.note(event.data.decode("utf-8", "replace"))
        case events.Lost() | events.Fault() | events.Message():
            messages.append(event.text)
            screen.note(event.text)
        case events.Shell():
            raise KinstError("system() cannot be used with a live table", "take it out")
