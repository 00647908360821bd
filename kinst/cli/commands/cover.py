"""kinst cover: coverage of the running kernel's code, as a page, LCOV's format and a summary.

Tested by tests/vm/views/test_cover.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from kinst.api import Machine, Trace, find_source
from kinst.cli.guard import UsageError, write
from kinst.cli.interrupts import Interrupts
from kinst.cli.options import parse
from kinst.cli.outcome import check_traces, finished, open_machine, opened, put
from kinst.cli.own_options import own_options
from kinst.cli.sources import source_lines
from kinst.errors import KinstError
from kinst.views.counting import COUNT, counted, plan_counting
from kinst.views.coverage import FileCoverage, counts_by_address, cover
from kinst.views.coverage_html import coverage_html
from kinst.views.coverage_text import new_text, summary
from kinst.views.drcov import DrcovModule, drcov, pieces_that_ran
from kinst.views.lcov import lcov_text, read_lcov

HELP = """\
usage: kinst cover [--html FILE] [-o FILE] [--drcov FILE] [--since FILE] [--source DIR]
                   [--if EXPR] [kinst's options] PATTERN...

Which lines, functions and branches of the running kernel's code a command reaches (-c), or
whatever runs until Ctrl-C.  The summary goes to standard output.

PATTERN: FUNCTION or a glob of functions; MODULE: or MODULE:FUNCTION; a source file, a glob of
files, or a folder, as in the kernel's source: fs/read_write.c, 'fs/*.c', fs/ext4.

  --html FILE   a page for a browser: files, and their source with how often each line ran
  -o FILE       write LCOV's format, which genhtml, lcov and editors take
  --drcov FILE  write DynamoRIO's format, which disassemblers take (Lighthouse)
  --since FILE  say what this run has reached and the run that made FILE (by -o) has not
  --source DIR  the kernel's source, or Debian's linux-source-*.tar.xz, for --html; a folder makes
                the paths of -o absolute.  Without it --html has what is installed of that package
  --if EXPR     count only where this D expression is true: 'pid == $target'
  -q            no summary
  -d            show the D program, and end

Which code of the file system does ls run?
  kinst cover 'fs/*.c' --html ls.html -c 'ls -lR /proc/self >/dev/null'
As a folder of pages by genhtml, which needs the source:
  kinst cover 'fs/*.c' --source linux -o ls.info -c 'ls -lR /proc/self >/dev/null'
  genhtml --ignore-errors source ls.info -o html
And what of it does cat not run?
  kinst cover 'fs/*.c' -o cat.info -c 'cat /proc/self/maps >/dev/null'
  kinst cover 'fs/*.c' --since cat.info -c 'ls -lR /proc/self >/dev/null'
"""


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """The command; the status of what was traced."""
    rest, own = own_options(words, values=("--drcov", "--html", "--since", "--source", "--if"))
    request = parse(rest, sys.stdin.read).request
    check_traces(request)
    patterns = request.arguments
    if request.programs:
        raise UsageError("cover has a program of its own", "--if EXPR limits what it counts")
    if not patterns:
        raise UsageError("cover of what?", "kinst cover 'fs/*.c' -c CMD")
    before = _saved(own["--since"]) if "--since" in own else None
    # What is wrong is said before a guest boots.
    find_source(own.get("--source", ""), "")
    with open_machine(replace(request, arguments=(), zero=True)) as machine:
        functions = machine.functions(*patterns)
        plan = plan_counting(machine.graphs(functions), own.get("--if", ""))
        if request.show_program:
            write(sys.stdout, plan.program)
            return 0
        trace = machine.trace(plan.program, request.command)
        found, status = finished(trace, request, interrupts, partial(write, sys.stdout))
        sites = trace.sites
        counts = counts_by_address(sites, next((one for one in found if one.name == COUNT), None))
        flows = counted(plan, found, trace.left_out)
        coverage = cover(functions, sites, counts, zip(plan.codes, flows, strict=True))
        if "--drcov" in own:
            _put_drcov(machine, trace, counts, own["--drcov"])
        release = machine.release
    quiet = any(name == "quiet" for name, _ in request.settings)
    if not quiet:
        write(sys.stdout, summary(coverage))
    if "--html" in own:
        sources = source_lines(own.get("--source", ""), release, list(coverage.files))
        title = request.command or " ".join(patterns)
        put(coverage_html(coverage, sources, title, [f"Linux {release}"]), own["--html"])
    source = own.get("--source", "")
    text = lcov_text(coverage, source if Path(source).is_dir() else "")
    if request.output:
        put(text, request.output)
    if before is not None:
        now = read_lcov(text.splitlines(), "this run")
        write(sys.stdout, new_text(now, before, own["--since"]))
    return status


def _saved(path: str) -> dict[str, FileCoverage]:
    with opened(path) as file:
        return read_lcov(file, path)


def _put_drcov(machine: Machine, trace: Trace, counts: Mapping[int, int], path: str) -> None:
    modules = []
    for name, pieces in pieces_that_ran(trace.sites, counts).items():
        image = machine.code_image(name)
        if image is not None:
            down = image.linked - image.low
            module = DrcovModule(image.linked, image.high + down, image.path)
            modules.append((module, [(low + down, high + down) for low, high in pieces]))
    try:
        Path(path).write_bytes(drcov(modules))
    except OSError as error:
        raise KinstError(f"failed to write {path}: {error.strerror}") from error
