"""kinst annotate: functions' source and instructions, with how often each ran.

Tested by tests/vm/views/test_annotate.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from os.path import isfile
from typing import TYPE_CHECKING

from kinst import api
from kinst.api import Option
from kinst.cli.guard import UsageError, say, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.later import LaterModule
from kinst.cli.options import SHOW_PROGRAM, check_traces, option_rows, own_options, parse
from kinst.cli.pager import columns, has_colours, show

if TYPE_CHECKING:
    from kinst.cli import outcome, sources
    from kinst.views import (
        annotated_html,
        annotated_text,
        annotation,
        counting,
        flow_dot,
        measuring,
    )
else:
    outcome, sources = LaterModule("kinst.cli.outcome"), LaterModule("kinst.cli.sources")
    annotated_html = LaterModule("kinst.views.annotated_html")
    annotated_text = LaterModule("kinst.views.annotated_text")
    annotation = LaterModule("kinst.views.annotation")
    counting, flow_dot = LaterModule("kinst.views.counting"), LaterModule("kinst.views.flow_dot")
    measuring = LaterModule("kinst.views.measuring")

ORDERS = ("address", "source")
_ROOT = "/"  # of the paths of a user program's source files
OPTIONS = (
    Option("-o", "FILE", "write there; a terminal gets colours and a pager ($KINST_PAGER, $PAGER)"),
    Option("--html", "FILE", "a page for a browser: source, instructions and the flow graph; one"
           " file"),
    Option("--dot", "", "the flow graphs, for graphviz"),
    Option(
        "--by", "EXPR", "another number for each instruction: the average of a D expression there,"
        " an aggregating function such as quantize(regs[R_RDX]), or latency: nanoseconds from the"
        " start of a block to that of the next",
    ),
    Option("--if", "PREDICATE", "count only if this D expression is true: pid == $target"),
    Option("--source", "DIR", "the kernel's source, or Debian's linux-source-*.tar.xz; without it"
           " what is installed of that package"),
    Option("--order", "ORDER", "address (as the code lies in memory; the default) or source (by"
           " lines)", words=ORDERS),
    SHOW_PROGRAM,
)  # fmt: skip
# An older spelling of RESULT.
_FROM = Option("--from", "RESULT")
HELP = f"""\
usage: kinst annotate FUNCTION... [-o FILE] [--html FILE] [--dot] [--by EXPR] [--if PREDICATE]
                      [--source DIR] [--order ORDER] [kinst's options]
       kinst annotate [FUNCTION...] RESULT [-o FILE] [--html FILE] [...]

Show source and instructions of functions side by side, with how often each instruction ran, its
share of all that ran in the function, how often branches were taken, and what was inlined where.
FUNCTION is a name, a glob or MODULE:NAME.  Functions come with the parts that the compiler moved
away from them (NAME.cold).  RESULT is a file that kinst --json has made with the program that -d
shows: its counts are shown, and nothing is traced.  Without FUNCTION, all functions in RESULT are
shown.

{option_rows(OPTIONS)}
How does read(2) go, for files of /proc?
  kinst annotate vfs_read --if 'pid == $target' -c 'wc -l /proc/version'
  kinst annotate vfs_read ksys_read --html read.html -c 'wc -l /proc/version'
"""


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """Run `kinst annotate` and return the exit status of the trace."""
    rest, own = own_options(words, (*OPTIONS, _FROM))
    request = parse(rest, sys.stdin.read).request
    check_traces(request)
    if request.programs:
        raise UsageError("annotate makes its own program and takes none", "--if and --by change it")
    names, path = _names_and_result(request.arguments, own)
    if not names and not path:
        raise UsageError("no function to annotate", "kinst annotate FUNCTION... -c CMD")
    # Report a wrong --source or result before a guest boots.
    api.find_source(own.get("--source", ""), "")
    saved = outcome.saved_outcome(path, outcome.saved(path)) if path else None
    if saved is not None:
        counting.check_counts(saved.aggregations)
        names = names or counting.counted_functions(saved.aggregations)
    with outcome.open_machine(replace(request, arguments=())) as machine:
        codes = machine.code(*names)
        plan = counting.plan_counting(codes, own.get("--if", ""), asks=not machine.only_counts)
        measured = measuring.MeasuringPlan(plan.codes, own.get("--by", ""), plan.condition)
        text = plan.program + measured.program
        if request.show_program:
            write(sys.stdout, text)
            return 0
        if saved is not None:
            aggregations, status = list(saved.aggregations), 0
            left_out = machine.build(text).left_out
        else:
            trace = machine.trace(text, request.command)
            left_out = trace.left_out
            out = sys.stdout if request.output or "--html" in own else sys.stderr
            aggregations, status = outcome.finished(
                trace, request, interrupts, partial(write, out)
            )  # fmt: skip
        release, folder = machine.release, own.get("--source", _ROOT * machine.only_counts)
    flows = counting.counted(plan, aggregations, left_out)
    source = sources.source_files(folder, release, annotation.files_of(codes))
    if not annotation.fits(source.lines, codes):
        source = sources.SourceFiles(
            {}, f"the source text is of another kernel than {release}, and is left out"
        )
    if source.missing:
        say(f"kinst: {source.missing}")
    measure = measured.expression, measured.unit(aggregations)
    annotations = [
        annotation.Annotation(code, flow, left_out, source.lines, *measure, m.values, m.edges)
        for code, flow, m in zip(codes, flows, measured.measured(aggregations), strict=True)
    ]
    title = request.command or (saved.command if saved is not None else "") or " ".join(names)
    order = own.get("--order", ORDERS[0])
    if "--html" in own:
        outcome.put(
            annotated_html.annotated_html(annotations, title, source.missing), own["--html"]
        )
    if "--dot" in own:
        outcome.put(flow_dot.flow_dot(annotations), request.output)
    elif request.output:
        page = annotated_text.Page(order=order)
        outcome.put(annotated_text.annotated_text(annotations, page), request.output)
    elif "--html" not in own:
        page = annotated_text.Page(columns(), has_colours(), order)
        show(annotated_text.annotated_text(annotations, page))
    return status


def _names_and_result(words: Sequence[str], own: dict[str, str]) -> tuple[list[str], str]:
    """Return the functions among the command's arguments, and the path of the result file ("" if
    there is none).

    Args:
        words: the arguments.
        own: values of the command's options by name.
    """
    results = [word for word in words if "/" in word or word.endswith(".json") or isfile(word)]
    if "--from" in own:
        say("kinst: --from RESULT is now an argument: kinst annotate FUNCTION... RESULT")
        results.append(own["--from"])
    if len(results) > 1:
        raise UsageError("one result at a time", "kinst annotate FUNCTION... RESULT")
    return [word for word in words if word not in results], "".join(results)
