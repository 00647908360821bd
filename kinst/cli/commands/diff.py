"""kinst diff: what differs between two results.

Tested by tests/views/test_differences.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinst.api import find_source, paths_within, read_sources
from kinst.cli.guard import UsageError
from kinst.cli.interrupts import Interrupts
from kinst.cli.outcome import kept, put
from kinst.cli.own_options import own_options
from kinst.cli.progress import Progress
from kinst.views.differences import LEVELS, compare, comparison_text
from kinst.views.line_pairs import NUMBERS, files_in, paired

HELP = """\
usage: kinst diff [--level LEVEL] [--normalize] [--source-a DIR --source-b DIR] A B

What differs between two results that kinst --json has made, a table for each aggregation: keys
that only B has, those that only A has, and those whose values changed most.

  --level LEVEL  how stacks and symbols are compared: by instruction (function and offset; the
                 default), line (of source) or function
  --source-a DIR, --source-b DIR
                 the sources of both kernels, folders or Debian's linux-source-*.tar.xz, where they
                 differ: lines are compared by what stands there then, not by their numbers, which
                 are A's; +N is a line that only B's source has, -N one that only A's has
  --normalize    scale B, so that the values of an aggregation add up to what they do in A

Exit status: 0 when nothing differs, 1 when something does, 2 for a wrong command line.

Which functions of the file system does the second kernel call more often?
  kinst --json -o a.json --kernel 6.1 -n 'fbt::vfs_*:entry { @[probefunc] = count(); }' -c ls
  kinst --json -o b.json --kernel 6.12 -n 'fbt::vfs_*:entry { @[probefunc] = count(); }' -c ls
  kinst diff a.json b.json
Which lines of vfs_read() does a patch add to its way?
  kinst --json -o a.json --build linux -n 'kinst::vfs_read: { @[stack(1)] = count(); }' -c CMD
  kinst --json -o b.json --build patched -n 'kinst::vfs_read: { @[stack(1)] = count(); }' -c CMD
  kinst diff --source-a linux --source-b patched a.json b.json
"""
_SOURCES = ("--source-a", "--source-b")


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """The command; 1 where something differs, as diff(1)."""
    files, own = own_options(words, values=("--level", *_SOURCES), flags=("--normalize",))
    wrong = next((word for word in files if word.startswith("-") and word != "--"), "")
    if wrong:
        raise UsageError(f"unknown option {wrong}")
    files = [word for word in files if word != "--"]
    if len(files) != 2:
        raise UsageError("two results are needed", "kinst diff A B")
    given = [own[name] for name in _SOURCES if name in own]
    level = own.get("--level", "line" if given else LEVELS[0])
    if level not in LEVELS:
        raise UsageError(f"--level {level}: no such level", ", ".join(LEVELS))
    if given and (len(given) != len(_SOURCES) or level != "line"):
        raise UsageError("--source-a and --source-b belong together, and to --level line")
    places = [place for name in given if (place := find_source(name, "")) is not None]
    a, b = (kept(path).aggregations for path in files)
    lines = NUMBERS, NUMBERS
    if places:
        wanted = files_in([*a, *b])
        old, new = (read_sources(place, wanted, Progress("kinst")) for place in places)
        lines = paired(old, new, paths_within(places[0], wanted))
    found = compare(a, b, level, normalised="--normalize" in own, lines=lines)
    put(comparison_text(found), "")
    return int(any(one.differences for one in found))
