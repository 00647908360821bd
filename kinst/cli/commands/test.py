"""kinst test: D programs with assertions, as TAP and JUnit's XML.

Tested by tests/cli/test_testing.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinst.api import Option
from kinst.cli.guard import UsageError, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.later import LaterModule
from kinst.cli.options import option_rows, own_options, parse

if TYPE_CHECKING:
    from kinst.cli import outcome, testing
    from kinst.views import reports
else:
    outcome, testing = LaterModule("kinst.cli.outcome"), LaterModule("kinst.cli.testing")
    reports = LaterModule("kinst.views.reports")

SECONDS = 60.0  # time limit for the trace of a file
OPTIONS = (
    Option("--junit", "FILE", "write JUnit's XML, too; standard output gets TAP"),
    Option("-v", "", "show what the programs and their commands print, not only for files that"
           " fail"),
)  # fmt: skip
HELP = f"""\
usage: kinst test [-v] [--junit FILE] [kinst's options] FILE...

Run test files, each a D program with clauses like
    TEST "every read is checked once" {{ @checks == @reads; @reads > 0; }}
whose statements must hold when its trace is over: operators over aggregations (@a, @a[key],
count(@a), sum(@a), min(@a), max(@a)), variables and all else of D, and $status.  A predicate says
when a TEST is skipped.  In the file, or else in the options:
    #pragma D test command "wc -l /etc/passwd"    (-c)
    #pragma D test timeout 20                     (--timeout; {SECONDS:g} seconds without it)
The trace itself is a test as well.  It fails if something happens that -x fail=LIST names (without
the option, anything that LIST can name), if the status of the command or of exit() is not 0 and no
TEST reads $status, or if its time is over.

{option_rows(OPTIONS)}
One guest is booted for all files, and another one after a panic, a hang, an oops or a warning.
Exit status: 0 when all hold, 1 when something does not, 2 for a wrong command line.

What does it say?
  kinst test reads.d writes.d
  kinst test --kernel 6.12 --junit results.xml tests/*.d
  prove --exec 'kinst test' tests/
"""


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """Run `kinst test` and return the exit status: 1 if a test failed, otherwise 0."""
    rest, own = own_options(words, OPTIONS)
    request = parse(rest, sys.stdin.read).request
    if request.programs:
        raise UsageError(
            "kinst test takes test files, not programs of -n, -s and the like", "kinst test FILE..."
        )
    if request.list_probes or request.dump or request.output:
        raise UsageError(
            "kinst test has no -l, -S, --dump and -o", "kinst without a command has them"
        )
    if request.shell:
        raise UsageError("--shell cannot be used with tests", "leave out --shell")
    if not request.arguments:
        raise UsageError("no test files", "kinst test FILE...")
    done: list[reports.FileReport] = []
    with testing.Runner(request, interrupts, SECONDS) as runner:
        planned = [runner.read(path) for path in request.arguments]
        write(sys.stdout, reports.tap_head(sum(one.points for one in planned)))
        first = 1
        for one in planned:
            report = runner.run(one)
            write(sys.stdout, reports.tap_lines(report, first, verbose=request.verbose))
            first += one.points
            done.append(report)
            if runner.interrupted:
                write(sys.stdout, "Bail out! interrupted\n")
                break
    if "--junit" in own:
        outcome.put(reports.junit_xml(done), own["--junit"])
    return int(runner.interrupted or any(report.failed for report in done))
