"""kinst flame: a flame graph of stacks, traced now or kept before.

Tested by tests/views/test_folded.py and tests/vm/views/test_flame.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kinst.cli.guard import UsageError, say
from kinst.cli.interrupts import Interrupts
from kinst.cli.options import parse
from kinst.cli.outcome import kept, kept_outcome, put, traced
from kinst.cli.own_options import own_options
from kinst.views.flame import flame_svg
from kinst.views.folded import fold, folded_text, stacks_of

# Where each CPU is, when it is in the kernel and has a process to run (0 is the idle one).
PROGRAM = "profile-97 /arg0 && pid/ { @[stack()] = count(); }"
HELP = f"""\
usage: kinst flame [-o FILE] [--by NAME] [--title TEXT] [kinst's options]
       kinst flame [-o FILE] [--by NAME] [--title TEXT] RESULT

A flame graph of an aggregation whose keys have stacks: count() or sum().  Without -n, -s and the
like, the program is
    {PROGRAM}
RESULT is a file that kinst --json has made.

  -o FILE       FILE.svg: the picture, for a browser; any other name: folded stacks, for
                flamegraph.pl, speedscope and their like.  Without -o: folded stacks on
                standard output
  --by NAME     the aggregation, where several have stacks
  --title TEXT  above the picture, in place of the command or the program
  -d            show the D program, and end

What does the kernel do while a command runs?
  kinst flame -o ls.svg -c 'ls -lR / >/dev/null'
Who gets to vfs_read(), by bytes?
  kinst flame -o read.svg -n 'fbt::vfs_read:entry {{ @[execname, stack()] = sum(arg2); }}' \\
      -c 'cat /init >/dev/null'
"""


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """The command; the status of what was traced."""
    rest, own = own_options(words, values=("--by", "--title"))
    line = parse(rest, sys.stdin.read)
    request = line.request
    if request.programs or not request.arguments:
        outcome = traced(line, PROGRAM, interrupts)
        if outcome is None:
            return 0
    elif len(request.arguments) == 1:
        outcome = kept_outcome(request.arguments[0], kept(request.arguments[0]))
    else:
        raise UsageError("one result at a time", "kinst flame RESULT")
    table = stacks_of(outcome.aggregations, own.get("--by", ""))
    stacks = fold(table)
    if not stacks:
        say("kinst: no stack was seen")
    if request.output.endswith(".svg"):
        heading = outcome.heading(own.get("--title", ""))
        put(flame_svg(stacks, heading, table), request.output)
    else:
        put(folded_text(stacks), request.output)
    return outcome.status
