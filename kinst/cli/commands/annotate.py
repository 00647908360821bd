"""kinst annotate: functions' source and instructions, with how often each ran.

Tested by tests/vm/views/test_annotate.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from os.path import isfile

from kinst.api import find_source
from kinst.cli.guard import UsageError, say, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.options import parse
from kinst.cli.outcome import (
    Outcome,
    check_traces,
    finished,
    kept,
    kept_outcome,
    open_machine,
    put,
)
from kinst.cli.own_options import own_options
from kinst.cli.pager import columns, has_colours, show
from kinst.cli.sources import source_lines
from kinst.errors import KinstError
from kinst.views.annotated_html import annotated_html
from kinst.views.annotated_text import ORDERS, Page, annotated_text
from kinst.views.annotation import Annotation, files_of, fits
from kinst.views.counting import COUNT, counted, plan_counting, site_rows
from kinst.views.flow_dot import flow_dot
from kinst.views.measuring import MeasuringPlan

HELP = """\
usage: kinst annotate FUNCTION... [-o FILE] [--html FILE] [--dot] [--by EXPR] [--if PREDICATE]
                      [--source DIR] [--order ORDER] [kinst's options]
       kinst annotate [FUNCTION...] RESULT [-o FILE] [--html FILE] [...]

Source and instructions of functions side by side, with how often each instruction ran, its share
of all that ran in the function, how often branches were taken, and what was inlined where.
FUNCTION is a name, a glob or MODULE:NAME.  Functions come with what the compiler moved away from
them (NAME.cold).  RESULT is a file that kinst --json has made with the program of -d: it is shown
in place of tracing, and without FUNCTION all functions that it has.

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
    names, path = _names_and_result(request.arguments, own)
    if not names and not path:
        raise UsageError("no function to annotate", "kinst annotate FUNCTION... -c CMD")
    order = own.get("--order", ORDERS[0])
    if order not in ORDERS:
        raise UsageError(f"--order {order}: no such order", ", ".join(ORDERS))
    # What is wrong is said before a guest boots.
    find_source(own.get("--source", ""), "")
    saved = kept_outcome(path, kept(path)) if path else None
    if saved is not None:
        names = names or _functions_of(saved)
    with open_machine(replace(request, arguments=())) as machine:
        codes = machine.code(*names)
        plan = plan_counting(codes, own.get("--if", ""))
        measuring = MeasuringPlan(plan.codes, own.get("--by", ""), plan.condition)
        text = plan.program + measuring.program
        if request.show_program:
            write(sys.stdout, text)
            return 0
        if saved is not None:
            found, status = list(saved.aggregations), 0
            left_out = machine.build(text).left_out
        else:
            trace = machine.trace(text, request.command)
            left_out = trace.left_out
            out = sys.stdout if request.output or "--html" in own else sys.stderr
            found, status = finished(trace, request, interrupts, partial(write, out))
        release = machine.release
    flows = counted(plan, found, left_out)
    sources = source_lines(own.get("--source", ""), release, files_of(codes))
    if not fits(sources, codes):
        say("kinst: the source text is not this kernel's: it is left out")
        sources = {}
    measure = measuring.expression, measuring.unit(found)
    annotations = [
        Annotation(code, flow, left_out, sources, *measure, m.values, m.edges)
        for code, flow, m in zip(codes, flows, measuring.measured(found), strict=True)
    ]
    title = request.command or (saved.command if saved is not None else "") or " ".join(names)
    _put(annotations, own, request.output, title, order)
    return status


def _names_and_result(words: Sequence[str], own: dict[str, str]) -> tuple[list[str], str]:
    """The functions and the result, "" for none, of the command's arguments."""
    results = [word for word in words if "/" in word or word.endswith(".json") or isfile(word)]
    if "--from" in own:
        say("kinst: --from RESULT is now an argument: kinst annotate FUNCTION... RESULT")
        results.append(own["--from"])
    if len(results) > 1:
        raise UsageError("one result at a time", "kinst annotate FUNCTION... RESULT")
    return [word for word in words if word not in results], "".join(results)


def _functions_of(saved: Outcome) -> list[str]:
    """The functions that a result has counted, without their parts that were moved away."""
    counts = next((one for one in saved.aggregations if one.name == COUNT), None)
    rows = site_rows(counts) if counts is not None else {}
    names = [f"{module}:{name.partition('.cold')[0]}" for module, name, _ in rows]
    if not names:
        raise KinstError("the result has no counts of functions", "kinst annotate -d FUNCTION...")
    return list(dict.fromkeys(names))


def _put(
    annotations: Sequence[Annotation], own: dict[str, str], output: str, title: str, order: str
) -> None:
    if "--html" in own:
        put(annotated_html(annotations, title), own["--html"])
    if "--dot" in own:
        put(flow_dot(annotations), output)
    elif output:
        put(annotated_text(annotations, Page(order=order)), output)
    elif "--html" not in own:
        show(annotated_text(annotations, Page(columns(), has_colours(), order)))
