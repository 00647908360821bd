"""kinst boot: which parts of a kernel's boot take how long.

Tested by tests/vm/boot/test_boot_view.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kinst.api import Option, ProgramText
from kinst.cli.guard import UsageError, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.later import LaterModule
from kinst.cli.options import SHOW_PROGRAM, TITLE, check_traces, option_rows, own_options, parse
from kinst.errors import KinstError

if TYPE_CHECKING:
    from kinst import events
    from kinst.cli import outcome
    from kinst.dlang.vocabulary import d_options
    from kinst.views import boot_timeline, picture
else:
    outcome = LaterModule("kinst.cli.outcome")
    boot_timeline, events = LaterModule("kinst.views.boot_timeline"), LaterModule("kinst.events")
    d_options = LaterModule("kinst.dlang.vocabulary.d_options")
    picture = LaterModule("kinst.views.picture")

LEAST = "1ms"
OPTIONS = (
    Option("-o", "FILE", "FILE.svg: a picture, for a browser; without -o: a table, slowest first"),
    Option("--least", "TIME", f"leave out what took less (100us, 5ms, ...; {LEAST} without it)"),
    TITLE,
    SHOW_PROGRAM,
)  # fmt: skip
HELP = f"""\
usage: kinst boot [-o FILE.svg] [--least TIME] [--title TEXT] [kinst's options]

Boot a guest, and show which parts of its kernel's boot took how long, up to the start of the first
program: its initcalls, and the large steps before and between them.

{option_rows(OPTIONS)}
What takes longest in the boot of this kernel?
  kinst boot
And when does it run?
  kinst boot -o boot.svg --least 200us
"""


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """Run `kinst boot` and return the exit status of the trace."""
    rest, own = own_options(words, OPTIONS)
    request = parse(rest, sys.stdin.read).request
    check_traces(request)
    if request.programs or request.arguments:
        raise UsageError(
            "boot makes its own program and takes none", "kinst --boot traces your own"
        )
    least = _nanoseconds(own.get("--least", LEAST))
    options = replace(request.machine, trace_boot=True)
    request = replace(request, machine=options, zero=True)
    records: list[events.Record] = []

    def see(event: events.Event) -> None:
        records.extend(one for one in events.flattened([event]) if isinstance(one, events.Record))

    with outcome.open_machine(request) as machine:
        program = boot_timeline.program_of(*machine.boot_functions())
        if request.show_program:
            write(sys.stdout, program)
            return 0
        request = replace(request, programs=(ProgramText("n", program, "<command line>"),))
        trace = outcome.trace_of(machine, request)
        _, status = outcome.finished(trace, request, interrupts, partial(write, sys.stderr), see)
        release = machine.release
    parts = boot_timeline.parts_of(records)
    if request.output:
        heading = picture.Heading(own.get("--title", "") or f"Boot of Linux {release}")
        outcome.put(boot_timeline.timeline_svg(parts, heading, least), request.output)
    else:
        write(sys.stdout, boot_timeline.slowest_text(parts, least))
    return status


def _nanoseconds(time: str) -> int:
    """Return the nanoseconds of the value of --least.  Raises UsageError."""
    try:
        return d_options.parse_rate("--least", time, 0)
    except KinstError as error:
        raise UsageError(f"--least {time}: not a time", "100us, 5ms") from error
