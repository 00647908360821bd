"""Measure what planning costs for each site, in time and memory.

    .venv/bin/python bench/planning.py [DESCRIPTION ...] [--vm ISA] [--json FILE]

Each description is planned in the best way (chains, runs, block counters), without runs, and with
every site by itself, each in a process and a guest of its own. Times are those of Machine.build:
from a compiled program to all bytes that would be written into the machine. Memory is anonymous
memory of the process, without guest memory and files: the amount that planning added, and the peak.
The process has real-time priority if the host allows it, so that other processes do not add to its
wall time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

import kinst
from bench.budget import go_first

DESCRIPTIONS = ("kinst::vfs_*:", "kinst::v*:", "kinst::[t-z]*:", "fbt:::entry")
RULES = ("auto", "no-run", "no-chain")
SECONDS = 600
COLLECT = 200_000  # new objects between two runs of Python's cycle collector, as in the command


@dataclass(frozen=True, slots=True)
class Planned:
    """Cost of one plan.

    Attributes:
        description: probe description.
        plant: value of -x plant=.
        sites: number of sites that were planned.
        seconds: wall time.
        cpu: CPU seconds of this process.
        megabytes: anonymous memory that planning added.
        peak: peak of anonymous memory, in megabytes.
    """

    description: str
    plant: str
    sites: int
    seconds: float
    cpu: float
    megabytes: float
    peak: float


def anonymous() -> float:
    """Return the megabytes of anonymous memory that this process has now."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


class Peak:
    """Context manager that records the peak of this process's anonymous memory, measured 20 times a
    second."""

    def __init__(self) -> None:
        self.megabytes = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self.megabytes = max(self.megabytes, anonymous())


def plan(description: str, plant: str, isa: str) -> Planned:
    """Plan counting at the probes of a description in this process, and return the cost."""
    with kinst.boot(isa) as machine:
        program = machine.compile(f"{description} {{ @ = count(); }}", {"plant": plant})
        machine.start(program)
        before, began, cpu = anonymous(), time.monotonic(), time.process_time()
        with Peak() as peak:
            built = machine.build(program)
            took, used = time.monotonic() - began, time.process_time() - cpu
        more = anonymous() - before
        return Planned(
            description, plant, len(built.placement.planted), took, used, more, peak.megabytes
        )


def apart(description: str, plant: str, isa: str) -> Planned:
    """Plan counting at the probes of a description in a separate process, and return the cost."""
    argv = [sys.executable, __file__, "--one", plant, "--vm", isa, description]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=True)
    return Planned(**json.loads(done.stdout))


def show(rows: Sequence[Planned]) -> None:
    table = Table(title="planning")
    for column in (
        "",
        "plant=",
        "sites",
        "s",
        "CPU s",
        "us of CPU a site",
        "MB more",
        "MB at most",
    ):
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        each = 1e6 * row.cpu / max(row.sites, 1)
        table.add_row(
            row.description, row.plant, f"{row.sites:,}", f"{row.seconds:.1f}", f"{row.cpu:.1f}",
            f"{each:.0f}", f"{row.megabytes:.0f}", f"{row.peak:.0f}",
        )  # fmt: skip
    Console(width=110 if not sys.stdout.isatty() else None).print(table)


def main(argv: Sequence[str] | None = None) -> int:
    gc.set_threshold(COLLECT)
    parser = argparse.ArgumentParser(description="What planning costs for each site.")
    parser.add_argument("descriptions", nargs="*", default=DESCRIPTIONS, help="probes to plan")
    parser.add_argument("--vm", default="amd64", help="the guest's instruction set (amd64)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args(argv)
    priority = go_first()
    if options.one:
        print(json.dumps(asdict(plan(options.descriptions[0], options.one, options.vm))))
        return 0
    rows = [apart(text, plant, options.vm) for text in options.descriptions for plant in RULES]
    show(rows)
    print(f"{priority}load average: " + " ".join(f"{n:.1f}" for n in os.getloadavg()))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
