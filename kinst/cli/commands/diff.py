"""kinst diff: what differs between two results."""

from __future__ import annotations

from collections.abc import Sequence

from kinst.cli.guard import UsageError
from kinst.cli.interrupts import Interrupts
from kinst.cli.outcome import kept, put
from kinst.cli.own_options import own_options
from kinst.views.differences import LEVELS, compare, comparison_text

HELP = """\
usage: kinst diff [--level LEVEL] [--normalize] A B

What differs between two results that kinst --json has made, a table for each aggregation: keys
that only B has, those that only A has, and those whose values changed most.

  --level LEVEL  how stacks and symbols are compared: by instruction (function and offset; the
                 default), line (of source) or function
  --normalize    scale B, so that the values of an aggregation add up to what they do in A

Exit status: 0 when nothing differs, 1 when something does, 2 for a wrong command line.

Which functions of the file system does the second kernel call more often?
  kinst --json -o a.json --kernel 6.1 -n 'fbt::vfs_*:entry { @[probefunc] = count(); }' -c ls
  kinst --json -o b.json --kernel 6.12 -n 'fbt::vfs_*:entry { @[probefunc] = count(); }' -c ls
  kinst diff a.json b.json
"""


def run(words: Sequence[str], interrupts: Interrupts) -> int:
    """The command; 1 where something differs, as diff(1)."""
    files, own = own_options(words, values=("--level",), flags=("--normalize",))
    wrong = next((word for word in files if word.startswith("-") and word != "--"), "")
    if wrong:
        raise UsageError(f"unknown option {wrong}")
    files = [word for word in files if word != "--"]
    if len(files) != 2:
        raise UsageError("two results are needed", "kinst diff A B")
    level = own.get("--level", LEVELS[0])
    if level not in LEVELS:
        raise UsageError(f"--level {level}: no such level", ", ".join(LEVELS))
    a, b = map(kept, files)
    found = compare(a, b, level, normalised="--normalize" in own)
    put(comparison_text(found), "")
    return int(any(one.differences for one in found))
