"""Measure how much longer a command takes while the kernel functions that it calls are traced.

    .venv/bin/python bench/traced_command.py [DESCRIPTION ...] [--vm ISA] [--passes N]

The command is tests/programs/busy.c, which makes system calls of many kinds, the same in each
round, and measures its own time. In one guest it runs alternately untraced and with all probes of a
description counted, several times in each turn, and untraced again at the end. Other processes can
only make a time longer, so the ratio is that of the shortest times. The median ratio of each turn
to the untraced turns around it is shown as well: if the two ratios differ, the host was too busy.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from bench.budget import go_first
from bench.guest import Guest, compile_programs
from kinst import KinstError

DESCRIPTIONS = ("kinst::vfs_*:", "fbt::vfs_*:entry")
ROUNDS, TIMES = 100, 7
COMMAND = f"for k in {' '.join(map(str, range(TIMES)))}; do busy {ROUNDS}; done"
UNTRACED = ""
MOST = 1.2  # bar: most time of a traced command, in multiples of the untraced time


def least(output: str) -> float:
    """Return the microseconds of a round in the quickest run, from the output of busy."""
    found = re.findall(r"busy \d+ ns (\d+)", output)
    if len(found) != TIMES:
        raise KinstError(f"the guest printed no times: {output.strip()!r}")
    return min(map(int, found)) / 1000


def measure(guest: Guest, descriptions: Sequence[str], passes: int) -> dict[str, list[float]]:
    """Return the microseconds of a round in each turn, by description. UNTRACED has one more turn
    than each description."""
    found: dict[str, list[float]] = {text: [] for text in (UNTRACED, *descriptions)}
    programs = {text: guest.compile(f"{text} {{ @ = count(); }}") for text in descriptions}
    for k in range(passes):
        found[UNTRACED].append(least(guest.run(COMMAND)))
        # Alternate the order of descriptions, since the first one may have to fill caches.
        for text in descriptions[:: -1 if k % 2 else 1]:
            found[text].append(least(guest.trace(programs[text], COMMAND).output))
    found[UNTRACED].append(least(guest.run(COMMAND)))
    return found


def ratios(found: dict[str, list[float]], text: str) -> list[float]:
    """Return the ratio of each turn of a description to the quicker of the untraced turns before
    and after it."""
    plain = map(min, itertools.pairwise(found[UNTRACED]))
    return [one / beside for one, beside in zip(found[text], plain, strict=True)]


def show(found: dict[str, list[float]]) -> bool:
    """Print the ratios, and return whether all are at most MOST."""
    table = Table(title="a round of system calls")
    for column in ("", "us at least", "ratio", "of turns: least", "middle", "most"):
        table.add_column(column, justify="right" if column else "left")
    plain, good = min(found[UNTRACED]), True
    table.add_row("untraced", f"{plain:.0f}")
    for text in filter(None, found):
        low, each = min(found[text]), ratios(found, text)
        good &= low <= MOST * plain
        table.add_row(
            text, f"{low:.0f}", f"{low / plain:.2f}", f"{min(each):.2f}",
            f"{statistics.median(each):.2f}", f"{max(each):.2f}",
        )  # fmt: skip
    Console(width=100 if not sys.stdout.isatty() else None).print(table)
    return good


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What tracing does to the traced command.")
    parser.add_argument("descriptions", nargs="*", default=DESCRIPTIONS, help="probes to count")
    parser.add_argument("--vm", default="amd64", help="the guest's instruction set (amd64)")
    parser.add_argument("--passes", type=int, default=7, help="by turns (7)")
    options = parser.parse_args(argv)
    how = go_first()
    with tempfile.TemporaryDirectory() as folder:
        guest = Guest(compile_programs(["busy"], Path(folder), options.vm), options.vm)
        try:
            good = show(measure(guest, options.descriptions, options.passes))
        finally:
            guest.close()
    print(f"{'met   ' if good else 'MISSED'} a traced command in {MOST:g} times its untraced time")
    print(f"{how}load average: " + " ".join(f"{n:.1f}" for n in os.getloadavg()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
