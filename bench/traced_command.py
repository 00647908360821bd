"""How much longer a command takes while what it goes through is traced.

    .venv/bin/python bench/traced_command.py [DESCRIPTION ...] [--vm ISA] [--passes N]

The command is tests/programs/busy.c: system calls of many kinds, the same in each round, timed by
itself.  It runs untraced and traced by turns in one guest, with all that a description matches
counted; the ratio is that of the shortest times, and besides it that of the medians.
"""

from __future__ import annotations

import argparse
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

from bench.guest import Guest, compile_programs
from kinst import KinstError

DESCRIPTIONS = ("kinst::vfs_*:", "fbt::vfs_*:entry")
ROUNDS = 300


def time_of(output: str) -> float:
    """Microseconds of a round, as busy printed it."""
    found = re.search(r"busy \d+ ns (\d+)", output)
    if found is None:
        raise KinstError(f"the guest printed no time: {output.strip()!r}")
    return int(found[1]) / 1000


def measure(guest: Guest, descriptions: Sequence[str], passes: int) -> dict[str, list[float]]:
    """Microseconds of a round, of each pass, by description; "" untraced."""
    found: dict[str, list[float]] = {text: [] for text in ("", *descriptions)}
    programs = {text: guest.compile(f"{text} {{ @ = count(); }}") for text in descriptions}
    command = f"busy {ROUNDS}"
    for _ in range(passes):
        found[""].append(time_of(guest.run(command)))
        for text, program in programs.items():
            ran = guest.trace(program, command)
            found[text].append(time_of(ran.output))
    return found


def show(found: dict[str, list[float]]) -> None:
    table = Table(title="a round of system calls")
    for column in ("", "us at least", "ratio", "us in the middle", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    least, middle = min(found[""]), statistics.median(found[""])
    for text, times in found.items():
        low, half = min(times), statistics.median(times)
        table.add_row(
            text or "untraced", f"{low:.0f}", f"{low / least:.2f}", f"{half:.0f}",
            f"{half / middle:.2f}",
        )  # fmt: skip
    Console(width=100 if not sys.stdout.isatty() else None).print(table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What tracing does to the traced command.")
    parser.add_argument("descriptions", nargs="*", default=DESCRIPTIONS, help="probes to count")
    parser.add_argument("--vm", default="amd64", help="the guest's instruction set (amd64)")
    parser.add_argument("--passes", type=int, default=7, help="by turns (7)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        guest = Guest(compile_programs(["busy"], Path(folder), options.vm), options.vm)
        try:
            show(measure(guest, options.descriptions, options.passes))
        finally:
            guest.close()
    print("load average: " + " ".join(f"{n:.1f}" for n in os.getloadavg()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
