"""kinst cover: coverage of the running kernel's code, as a page, LCOV's format and a summary.

Tested by tests/vm/views/test_cover.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kinst import api
from kinst.api import Option
from kinst.cli.guard import UsageError, say, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.later import LaterModule
from kinst.cli.options import SHOW_PROGRAM, check_traces, option_rows, own_options, parse
from kinst.cli.reporting import discard, user_report
from kinst.errors import KinstError

if TYPE_CHECKING:
    from kinst.cli import outcome, sources
    from kinst.views import counting, coverage, coverage_html, coverage_text, drcov, lcov
else:
    outcome, sources = LaterModule("kinst.cli.outcome"), LaterModule("kinst.cli.sources")
    counting, coverage = LaterModule("kinst.views.counting"), LaterModule("kinst.views.coverage")
    coverage_html = LaterModule("kinst.views.coverage_html")
    coverage_text = LaterModule("kinst.views.coverage_text")
    drcov, lcov = LaterModule("kinst.views.drcov"), LaterModule("kinst.views.lcov")

_ROOT = "/"  # of the paths of a user program's source files
OPTIONS = (
    Option("--html", "FILE", "a page for a browser: files, and their source with how often each"
           " line ran"),
    Option("-o", "FILE", "write LCOV's format, which genhtml, lcov and editors take"),
    Option("--drcov", "FILE", "write DynamoRIO's format, which disassemblers take (Lighthouse)"),
    Option("--since", "FILE", "show what this run reached and the run that made FILE (by -o) did"
           " not"),
    Option(
        "--source", "DIR", "the kernel's source folder, or Debian's linux-source-*.tar.xz, for"
        " --html (without it, what is installed of that package); a folder also makes the paths in"
        " -o's file absolute",
    ),
    Option("--if", "EXPR", "count only if this D expression is true: 'pid == $target'"),
    Option("-q", "", "no summary"),
    SHOW_PROGRAM,
)  # fmt: skip
HELP = f"""\
usage: kinst cover [--html FILE] [-o FILE] [--drcov FILE] [--since FILE] [--source DIR]
                   [--if EXPR] [kinst's options] PATTERN...

Show which lines, functions and branches of the running kernel's code a command reaches (-c), or all
that runs until Ctrl-C.  The summary goes to standard output.

PATTERN: FUNCTION or a glob of functions; MODULE: or MODULE:FUNCTION; a source file, a glob of
files, or a folder, as in the kernel's source: fs/read_write.c, 'fs/*.c', fs/ext4.

{option_rows(OPTIONS)}
Which code of the file system does ls run?
  kinst cover 'fs/*.c' --html ls.html -c 'ls -lR /proc/self >/dev/null'
As a folder of pages by genhtml, which needs the source (--html does not):
  kinst cover 'fs/*.c' --source linux -o ls.info -c 'ls -lR /proc/self >/dev/null'
  genhtml --branch-coverage --ignore-errors source ls.info -o html
And which of it does cat not run?
  kinst cover 'fs/*.c' -o cat.info -c 'cat /proc/self/maps >/dev/null'
  kinst cover 'fs/*.c' --since cat.info -c 'ls -lR /proc/self >/dev/null'
"""


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """Run `kinst cover` and return the exit status of the trace."""
    rest, own = own_options(words, OPTIONS)
    request = parse(rest, sys.stdin.read).request
    check_traces(request)
    patterns = request.arguments
    if request.programs:
        raise UsageError(
            "cover makes its own program and takes none", "--if EXPR limits what it counts"
        )
    if not patterns:
        raise UsageError("no functions or files to cover", "kinst cover 'fs/*.c' -c CMD")
    # Report a wrong --source or --since before a guest boots.
    before = _saved(own["--since"]) if "--since" in own else None
    api.find_source(own.get("--source", ""), "")
    summary = not any(name == "quiet" for name, _ in request.settings)
    report = user_report(request)
    if summary:
        report.left_out = discard  # the summary counts them
    with api.Machine(replace(request, arguments=(), zero=True), report=report) as machine:
        functions = machine.functions(*patterns)
        graphs, asks = machine.graphs(functions), not machine.only_counts
        plan = counting.plan_counting(graphs, own.get("--if", ""), asks=asks)
        if request.show_program:
            write(sys.stdout, plan.program)
            return 0
        trace = machine.trace(plan.program, request.command)
        aggregations, status = outcome.finished(
            trace, request, interrupts, partial(write, sys.stdout)
        )  # fmt: skip
        sites = trace.sites
        table = next((one for one in aggregations if one.name == counting.COUNT), None)
        counts = coverage.counts_by_address(sites, table)
        flows = counting.counted(plan, aggregations, trace.left_out)
        reached = coverage.cover(functions, sites, counts, zip(plan.codes, flows, strict=True))
        if "--drcov" in own:
            _put_drcov(machine, trace, counts, own["--drcov"])
        release, source = machine.release, own.get("--source", _ROOT * machine.only_counts)
    if summary:
        write(sys.stdout, coverage_text.summary(reached))
    if "--html" in own:
        found = sources.source_files(source, release, list(reached.files))
        if found.missing:
            say(f"kinst: {found.missing}")
        title = request.command or " ".join(patterns)
        page = coverage_html.coverage_html(
            reached, found.lines, title, [f"Linux {release}"] if release else [], found.missing
        )  # fmt: skip
        outcome.put(page, own["--html"])
    folder = source if Path(source).is_dir() else ""
    text = lcov.lcov_text(reached, folder)
    if request.output:
        outcome.put(text, request.output)
        if absent := lcov.absent_source(reached, folder, request.output):
            say(f"kinst: {absent}")
    if before is not None:
        now = lcov.read_lcov(text.splitlines(), "this run")
        write(sys.stdout, coverage_text.new_text(now, before, own["--since"]))
    return status


def _saved(path: str) -> dict[str, coverage.FileCoverage]:
    with outcome.opened(path) as file:
        return lcov.read_lcov(file, path)


def _put_drcov(
    machine: api.Machine, trace: api.Trace, counts: Mapping[int, int], path: str
) -> None:
    modules = []
    for name, pieces in drcov.pieces_that_ran(trace.sites, counts).items():
        image = machine.code_image(name)
        if image is not None:
            down = image.linked - image.low
            module = drcov.DrcovModule(image.linked, image.high + down, image.path)
            modules.append((module, [(low + down, high + down) for low, high in pieces]))
    try:
        Path(path).write_bytes(drcov.drcov(modules))
    except OSError as error:
        raise KinstError(f"failed to write {path}: {error.strerror}") from error
