"""kinst diff: what differs between two results.

Tested by tests/views/test_differences.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinst import api
from kinst.api import Option
from kinst.cli.guard import UsageError
from kinst.cli.interrupts import Interrupts
from kinst.cli.later import LaterModule
from kinst.cli.options import option_rows, own_options
from kinst.cli.progress import Progress

if TYPE_CHECKING:
    from kinst.cli import outcome
    from kinst.views import differences, line_pairs
else:
    outcome = LaterModule("kinst.cli.outcome")
    differences = LaterModule("kinst.views.differences")
    line_pairs = LaterModule("kinst.views.line_pairs")

LEVELS = ("instruction", "line", "function")
_SOURCE = (
    "the sources of both kernels, if they differ: folders or Debian's linux-source-*.tar.xz; lines"
    " are then compared by their text, and shown with their numbers in A; +N is a line that only"
    " B's source has, -N a line that only A's source has"
)
OPTIONS = (
    Option("--level", "LEVEL", "how stacks and symbols are compared: by instruction (function and"
           " offset; the default), line (of source) or function", words=LEVELS),
    Option("--source-a", "DIR", _SOURCE),
    Option("--source-b", "DIR", _SOURCE),
    Option("--normalize", "", "scale B's values, so that each aggregation has the same sum in A and"
           " B"),
)  # fmt: skip
HELP = f"""\
usage: kinst diff [--level LEVEL] [--normalize] [--source-a DIR --source-b DIR] A B

Show what differs between two results that kinst --json has made, a table for each aggregation: keys
that only B has, those that only A has, and those whose values changed most.

{option_rows(OPTIONS)}
Exit status: 0 when nothing differs, 1 when something does, 2 for a wrong command line.

Which functions of the file system does the second kernel call more often?
  kinst --json -o a.json --kernel 6.1 -n 'fbt::vfs_*:entry {{ @[probefunc] = count(); }}' -c ls
  kinst --json -o b.json --kernel 6.12 -n 'fbt::vfs_*:entry {{ @[probefunc] = count(); }}' -c ls
  kinst diff a.json b.json
Which lines of vfs_read() run only with a patch?
  kinst --json -o a.json --build linux -n 'kinst::vfs_read: {{ @[stack(1)] = count(); }}' -c CMD
  kinst --json -o b.json --build patched -n 'kinst::vfs_read: {{ @[stack(1)] = count(); }}' -c CMD
  kinst diff --source-a linux --source-b patched a.json b.json
"""
_SOURCES = ("--source-a", "--source-b")


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """Run `kinst diff` and return 1 if the results differ, 0 if they are equal, as diff(1) does."""
    files, own = own_options(words, OPTIONS, alone=True)
    unknown = next((word for word in files if word.startswith("-") and word != "--"), "")
    if unknown:
        raise UsageError(f"unknown option {unknown}", "kinst diff --help")
    files = [word for word in files if word != "--"]
    if len(files) != 2:
        raise UsageError("two results are needed", "kinst diff A B")
    given = [own[name] for name in _SOURCES if name in own]
    level = own.get("--level", "line" if given else LEVELS[0])
    if given and (len(given) != len(_SOURCES) or level != "line"):
        raise UsageError("give both --source-a and --source-b, and only with --level line")
    found = [api.find_source(name, "") for name in given]
    sources = [source for source in found if source is not None]
    a, b = (outcome.saved(path).aggregations for path in files)
    lines = line_pairs.NUMBERS, line_pairs.NUMBERS
    if sources:
        wanted = line_pairs.files_in([*a, *b])
        old, new = (api.read_sources(one, wanted, Progress("kinst")) for one in sources)
        lines = line_pairs.paired(old, new, api.paths_within(sources[0], wanted))
    normalised = "--normalize" in own
    tables = differences.compare(a, b, level, normalised=normalised, lines=lines)
    outcome.put(differences.comparison_text(tables), "")
    return int(any(table.differences for table in tables))
