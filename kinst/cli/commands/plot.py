"""kinst plot: histograms of distributions, and heat maps of how they change.

Tested by tests/views/test_distributions.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from kinst.cli.added import made_by, tick_of, with_clauses
from kinst.cli.guard import UsageError
from kinst.cli.interrupts import Interrupts
from kinst.cli.options import CommandLine, parse
from kinst.cli.outcome import kept, kept_outcome, put, traced
from kinst.cli.own_options import own_options
from kinst.events import Batch, Event, Printed
from kinst.views.buckets import FUNCTIONS, DistributionSnapshot, chosen
from kinst.views.distributions import heat_map_svg, histogram_svg, html_page
from kinst.views.picture import Heading

HELP = """\
usage: kinst plot -o FILE [--every TIME] [--by NAME] [--title TEXT] [kinst's options]
       kinst plot -o FILE [--by NAME] [--title TEXT] RESULT

Draw an aggregation made by quantize(), lquantize() or llquantize(), each key by itself: as a
histogram; or, where the program prints it several times, as a heat map of what came in between.
Values that come from timestamp have times along their axis.
RESULT is a file that kinst --json has made.

  -o FILE       FILE.svg: the picture; FILE.html: a page with the picture and its program; "-" is
                standard output, for SVG
  --every TIME  100ms, 1s, ...: add to the program
                    tick-TIME { trace(timestamp); printa(@NAME); clear(@NAME); }
                and the same for END, which makes a heat map
  --by NAME     the aggregation, where there are several
  --title TEXT  above the picture, in place of the command or the program
  -d            show the D program, and end

How long does vfs_read() take, and when?
  kinst plot -o reads.svg --every 100ms \\
      -c 'wc /proc/*/maps; dd if=/dev/zero of=/dev/null bs=64k count=4000' \\
      -n 'fbt::vfs_read:entry { self->t = timestamp; }
          fbt::vfs_read:return /self->t/ { @[execname] = quantize(timestamp - self->t); }'
"""


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """The command; the status of what was traced."""
    rest, own = own_options(words, values=("--by", "--title", "--every"))
    line = parse(rest, sys.stdin.read)
    request, by = line.request, own.get("--by", "")
    if not (request.output or request.show_program):
        raise UsageError("-o FILE is needed", "FILE.svg, FILE.html, or - for standard output")
    status = 0
    if request.programs:
        if "--every" in own:
            line = _every(line, own["--every"], by)
        seen = _Seen()
        outcome = traced(line, "", interrupts, seen.see)
        if outcome is None:
            return 0
        status = outcome.status
        found = seen.snapshots or [DistributionSnapshot(None, one) for one in outcome.aggregations]
    elif len(request.arguments) == 1:
        if "--every" in own:
            raise UsageError("--every is about what is traced now")
        saved = kept(request.arguments[0])
        outcome = kept_outcome(request.arguments[0], saved)
        found = list(saved.snapshots)
    else:
        raise UsageError("no probes specified", "-n or -s names some, or kinst plot RESULT")
    _draw(found, request.output, by, outcome.heading(own.get("--title", "")))
    return status


def _draw(found: Sequence[DistributionSnapshot], path: str, by: str, heading: Heading) -> None:
    name = chosen([(one.table.name, one.table.function) for one in found], by)
    mine = [one for one in found if one.table.name == name]
    svg = heat_map_svg(mine, heading) if len(mine) > 1 else histogram_svg(mine[0], heading)
    made = html_page(svg, heading.title, heading.program) if path.endswith(".html") else svg
    put(made, "" if path == "-" else path)


class _Seen:
    """The aggregations that a trace prints, each with the time of the record before it."""

    def __init__(self) -> None:
        self.snapshots: list[DistributionSnapshot] = []
        self._time: int | None = None

    def see(self, event: Event) -> None:
        if isinstance(event, Batch) and event.part == 0 and len(event):
            last = replace(event, offsets=event.offsets[-1:], clauses=event.clauses[-1:])
            self._time = next(iter(last)).time_ns
        elif isinstance(event, Printed):
            self.snapshots += [DistributionSnapshot(self._time, one) for one in event.aggregations]


def _every(line: CommandLine, time: str, by: str) -> CommandLine:
    """With clauses that print and empty the program's distributions.  Raises UsageError."""
    tick = tick_of(time)
    names = [by.removeprefix("@")] if by else made_by(line.request.programs, FUNCTIONS)
    if not names:
        raise UsageError("--every: the program has no distribution", "--by names one")
    actions = "".join(f" printa(@{name}); clear(@{name});" for name in names)
    prints = "".join(f" printa(@{name});" for name in names)
    text = f"{tick} {{ trace(timestamp);{actions} }}\ndtrace:::END {{ trace(timestamp);{prints} }}"
    return with_clauses(line, text, "--every")
