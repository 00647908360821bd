"""kinst flame: a flame graph of stacks, traced now or read from a file.

Tested by tests/views/test_folded.py and tests/vm/views/test_flame.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinst.api import Option
from kinst.cli.guard import UsageError, say
from kinst.cli.interrupts import Interrupts
from kinst.cli.later import LaterModule
from kinst.cli.options import SHOW_PROGRAM, TITLE, check_traces, option_rows, own_options, parse

if TYPE_CHECKING:
    from kinst.cli import outcome
    from kinst.views import flame, folded
else:
    outcome = LaterModule("kinst.cli.outcome")
    flame, folded = LaterModule("kinst.views.flame"), LaterModule("kinst.views.folded")

# Kernel stacks of each CPU, unless the CPU runs user code or is idle (pid 0).
PROGRAM = "profile-97 /arg0 && pid/ { @[stack()] = count(); }"
OPTIONS = (
    Option(
        "-o", "FILE", "FILE.svg: the picture, for a browser; any other name: folded stacks, for"
        " flamegraph.pl, speedscope and their like; without -o: folded stacks on standard output",
    ),
    Option("--by", "NAME", "the aggregation, if several have stacks"),
    TITLE,
    SHOW_PROGRAM,
)  # fmt: skip
HELP = f"""\
usage: kinst flame [-o FILE] [--by NAME] [--title TEXT] [kinst's options]
       kinst flame [-o FILE] [--by NAME] [--title TEXT] RESULT

Draw a flame graph of an aggregation whose keys have stacks: count() or sum().  Without -n, -s and
the like, the program is
    {PROGRAM}
RESULT is a file that kinst --json has made.

{option_rows(OPTIONS)}
What does the kernel do while a command runs?
  kinst flame -o ls.svg -c 'ls -lR / >/dev/null'
Which callers reach vfs_read(), by bytes?
  kinst flame -o read.svg -n 'fbt::vfs_read:entry {{ @[execname, stack()] = sum(arg2); }}' \\
      -c 'wc /init >/dev/null'
"""


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """Run `kinst flame` and return the exit status of the trace."""
    rest, own = own_options(words, OPTIONS)
    request = parse(rest, sys.stdin.read).request
    if request.programs or not request.arguments:
        check_traces(request)
        result = outcome.traced(request, PROGRAM, interrupts)
        if result is None:
            return 0
    elif len(request.arguments) == 1:
        path = request.arguments[0]
        result = outcome.saved_outcome(path, outcome.saved(path))
    else:
        raise UsageError("one result at a time", "kinst flame RESULT")
    table = folded.stacks_of(result.aggregations, own.get("--by", ""))
    stacks = folded.fold(table)
    if not stacks:
        say("kinst: the aggregation has no stacks: nothing was recorded")
    if request.output.endswith(".svg"):
        heading = result.heading(own.get("--title", ""))
        outcome.put(flame.flame_svg(stacks, heading, table), request.output)
    else:
        outcome.put(folded.folded_text(stacks), request.output)
    return result.status
