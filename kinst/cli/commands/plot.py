"""kinst plot: histograms of distributions, and heat maps of how they change.

Tested by tests/views/test_distributions.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kinst.api import Option, Request
from kinst.cli.guard import UsageError
from kinst.cli.interrupts import Interrupts
from kinst.cli.later import LaterModule
from kinst.cli.options import SHOW_PROGRAM, TITLE, check_traces, option_rows, own_options, parse

if TYPE_CHECKING:
    from kinst import events
    from kinst.cli import added, outcome
    from kinst.views import buckets, distributions, picture
else:
    added, outcome = LaterModule("kinst.cli.added"), LaterModule("kinst.cli.outcome")
    buckets, events = LaterModule("kinst.views.buckets"), LaterModule("kinst.events")
    distributions = LaterModule("kinst.views.distributions")

OPTIONS = (
    Option("-o", "FILE", 'FILE.svg: the picture; FILE.html: a page with the picture and its'
           ' program; "-" is standard output, for SVG'),
    Option(
        "--every", "TIME", "100ms, 1s, ...: add to the program tick-TIME { trace(timestamp);"
        " printa(@NAME); clear(@NAME); } and the same for END, which makes a heat map",
    ),
    Option("--by", "NAME", "the aggregation, if there are several"),
    TITLE,
    SHOW_PROGRAM,
)  # fmt: skip
HELP = f"""\
usage: kinst plot -o FILE [--every TIME] [--by NAME] [--title TEXT] [kinst's options]
       kinst plot -o FILE [--by NAME] [--title TEXT] RESULT

Draw an aggregation made by quantize(), lquantize() or llquantize(), each key by itself: as a
histogram; or, if the program prints it several times, as a heat map of what was added in between.
An axis of values that come from timestamp shows times.
RESULT is a file that kinst --json has made.

{option_rows(OPTIONS)}
How long does vfs_read() take, and when?
  kinst plot -o reads.svg --every 100ms \\
      -c 'wc /proc/*/maps; dd if=/dev/zero of=/dev/null bs=64k count=4000' \\
      -n 'fbt::vfs_read:entry {{ self->t = timestamp; }}
          fbt::vfs_read:return /self->t/ {{ @[execname] = quantize(timestamp - self->t); }}'
"""


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """Run `kinst plot` and return the exit status of the trace."""
    rest, own = own_options(words, OPTIONS)
    request = parse(rest, sys.stdin.read).request
    by = own.get("--by", "")
    if not (request.output or request.show_program):
        raise UsageError("-o FILE is needed", "FILE.svg, FILE.html, or - for standard output")
    if Path(request.output).suffix.lower() not in ("", ".svg", ".html"):
        raise UsageError(f"-o {request.output}: plot draws no such pictures", "FILE.svg, FILE.html")
    status = 0
    if request.programs:
        check_traces(request)
        if "--every" in own:
            request = _every(request, own["--every"], by)
        printed = _Printed()
        result = outcome.traced(request, "", interrupts, printed.see)
        if result is None:
            return 0
        status = result.status
        snapshots = printed.snapshots or [
            buckets.DistributionSnapshot(None, t) for t in result.aggregations
        ]
    elif len(request.arguments) == 1:
        if "--every" in own:
            raise UsageError(
                "--every needs a program to trace, not a result file", "leave --every out"
            )
        saved = outcome.saved(request.arguments[0])
        result = outcome.saved_outcome(request.arguments[0], saved)
        snapshots = list(saved.snapshots)
    else:
        raise UsageError("no probes specified", "-n or -s names some, or kinst plot RESULT")
    _draw(snapshots, request.output, by, result.heading(own.get("--title", "")))
    return status


def _draw(
    snapshots: Sequence[buckets.DistributionSnapshot], path: str, by: str, heading: picture.Heading
) -> None:
    name = buckets.chosen([(one.table.name, one.table.function) for one in snapshots], by)
    drawn = [one for one in snapshots if one.table.name == name]
    if len(drawn) > 1:
        svg = distributions.heat_map_svg(drawn, heading)
    else:
        svg = distributions.histogram_svg(drawn[0], heading)
    page = path.lower().endswith(".html")
    text = distributions.html_page(svg, heading.title, heading.program) if page else svg
    outcome.put(text, "" if path == "-" else path)


class _Printed:
    """Collector of the aggregations that a trace prints, with the times of the prints.

    The clauses of --every record the time before they print. So the time of a print is the time of
    the last record before it.
    """

    def __init__(self) -> None:
        self.snapshots: list[buckets.DistributionSnapshot] = []
        self._time: int | None = None

    def see(self, event: events.Event) -> None:
        if isinstance(event, events.Batch) and event.part == 0 and len(event):
            last = replace(event, offsets=event.offsets[-1:], clauses=event.clauses[-1:])
            self._time = next(iter(last)).time_ns
        elif isinstance(event, events.Printed):
            self.snapshots += [
                buckets.DistributionSnapshot(self._time, one) for one in event.aggregations
            ]


def _every(request: Request, time: str, by: str) -> Request:
    """Return the request with clauses that print and clear its distributions at an interval.

    Args:
        request: options of the machine and of the trace.
        time: the interval, from --every.
        by: name of the only distribution to print, from --by; "" for all distributions.

    Raises:
        UsageError: `time` is not an interval, or the program has no distribution.
    """
    tick = added.tick_of(time)
    names = [by.removeprefix("@")] if by else added.made_by(request.programs, buckets.FUNCTIONS)
    if not names:
        raise UsageError("--every: the program has no distribution", "--by NAME says which")
    actions = "".join(f" printa(@{name}); clear(@{name});" for name in names)
    prints = "".join(f" printa(@{name});" for name in names)
    text = f"{tick} {{ trace(timestamp);{actions} }}\ndtrace:::END {{ trace(timestamp);{prints} }}"
    return added.with_clauses(request, text, "--every")
