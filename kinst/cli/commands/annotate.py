"""kinst annotate: functions' source and instructions, with how often each ran."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kinst.api import Request, find_source, package_of, read_sources
from kinst.cli.guard import UsageError, say, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.options import parse
from kinst.cli.outcome import check_traces, finished, kept, open_machine, put
from kinst.cli.own_options import own_options
from kinst.cli.pager import columns, has_colours, show
from kinst.cli.progress import Progress
from kinst.views.annotated_html import annotated_html
from kinst.views.annotated_text import ORDERS, Page, annotated_text
from kinst.views.annotation import Annotation, files_of, fits
from kinst.views.counting import counted, plan_counting
from kinst.views.flow_dot import flow_dot
from kinst.views.measuring import MeasuringPlan

HELP = """\
usage: kinst annotate FUNCTION... [-o FILE] [--html FILE] [--dot] [--by EXPR] [--if PREDICATE]
                      [--source DIR] [--order ORDER] [--from RESULT] [kinst's options]

Source and instructions of functions side by side, with how often each instruction ran, its share
of all that ran in the function, how often branches were taken, and what was inlined where.
FUNCTION is a name, a glob or MODULE:NAME.  Functions come with what the compiler moved away from
them (NAME.cold).

  -o FILE         write there; a terminal gets colours and a pager ($KINST_PAGER, $PAGER)
  --html FILE     a page for a browser: source, instructions and the flow graph; one file
  --dot           the flow graphs, for graphviz
  --by EXPR       another number for each instruction: the average of a D expression there, an
                  aggregating function such as quantize(regs[R_RDX]), or latency: nanoseconds from
                  the start of a block to that of the next
  --if PREDICATE  count only where this D expression is true: pid == $target
  --source DIR    the kernel's source, or Debian's linux-source-*.tar.xz; without it what is
                  installed of that package
  --order ORDER   address (as it lies in memory; the default) or source (by lines)
  --from RESULT   what kinst --json kept of the program of -d, in place of tracing
  -d              show the D program, and end

How does read(2) go, for files of /proc?
  kinst annotate vfs_read --if 'pid == $target' -c 'cat /proc/version'
  kinst annotate vfs_read ksys_read --html read.html -c 'cat /proc/version'
"""
_VALUES = ("--html", "--by", "--if", "--source", "--order", "--from")


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """The command; the status of what was traced."""
    rest, own = own_options(words, values=_VALUES, flags=("--dot",))
    request = parse(rest, sys.stdin.read).request
    check_traces(request)
    if request.programs:
        raise UsageError("annotate has a program of its own", "--if and --by change it")
    if not request.arguments:
        raise UsageError("no function to annotate", "kinst annotate FUNCTION... -c CMD")
    order = own.get("--order", ORDERS[0])
    if order not in ORDERS:
        raise UsageError(f"--order {order}: no such order", ", ".join(ORDERS))
    # What is wrong is said before a guest boots.
    find_source(own.get("--source", ""), "")
    saved = list(kept(own["--from"])) if "--from" in own else None
    with open_machine(replace(request, arguments=())) as machine:
        codes = machine.code(*request.arguments)
        plan = plan_counting(codes, own.get("--if", ""))
        measuring = MeasuringPlan(plan.codes, own.get("--by", ""), plan.condition)
        text = plan.program + measuring.program
        if request.show_program:
            write(sys.stdout, text)
            return 0
        if saved is not None:
            found, status = saved, 0
            left_out = machine.build(text).left_out
        else:
            trace = machine.trace(text, request.command)
            left_out = trace.left_out
            out = sys.stdout if request.output or "--html" in own else sys.stderr
            found, status = finished(trace, interrupts, partial(write, out))
        release = machine.release
    flows = counted(plan, found, left_out)
    sources = _sources(own.get("--source", ""), release, files_of(codes))
    if not fits(sources, codes):
        say("kinst: the source text is not this kernel's: it is left out")
        sources = {}
    annotations = [
        Annotation(code, flow, left_out, sources, measuring.name, m.values, m.edges)
        for code, flow, m in zip(codes, flows, measuring.measured(found), strict=True)
    ]
    _put(annotations, own, request, order)
    return status


def _sources(given: str, release: str, files: Sequence[str]) -> dict[str, Sequence[str]]:
    place = find_source(given, release)
    if place is None:
        package = package_of(release)
        install = f", or apt install {package}" if package else ""
        say(f"kinst: no source text is shown: --source DIR{install}")
        return {}
    found = read_sources(place, files, Progress("kinst"))
    if files and not found:
        say(f"kinst: {place} has none of the source files, such as {files[0]}")
    return found


def _put(
    annotations: Sequence[Annotation], own: dict[str, str], request: Request, order: str
) -> None:
    if "--html" in own:
        title = request.command or " ".join(request.arguments)
        put(annotated_html(annotations, title), own["--html"])
    if "--dot" in own:
        put(flow_dot(annotations), request.output)
    elif request.output:
        put(annotated_text(annotations, Page(order=order)), request.output)
    elif "--html" not in own:
        show(annotated_text(annotations, Page(columns(), has_colours(), order)))
