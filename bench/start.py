"""Measure how soon kinst answers and a first record arrives, and how many records come in a second.

    .venv/bin/python bench/start.py [--answers] [--runs N] [--hits N] [--json FILE]

First, and with --answers only: commands that should answer at once, against bars
(bench/command_starts.py).

Then: kinst traces one instruction of vfs_read in a VM whose kernel has been fetched: cold (--cold:
the kernel boots) and warm (the VM starts from a saved state). kinst's -v message splits the time
from the start of its process to the first printed record by stage. The time from outside, by this
benchmark's clock, is from before the process is made to the arrival of the first byte of a record.

Second: the same program is traced again and again on an open machine of the library.

Third: the command is run with fbt:::entry (40,000 probes), from the start of its process until the
probes are planted, cold and warm.

Fourth: a guest program calls read(2) as fast as it can, while each call makes a record of a time
and two registers, which is printed as text into a file. Records that arrived and records that were
dropped are counted; their sum is the number of hits.

The processes have real-time priority if the host allows it, so that other processes do not disturb
them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

import kinst
from bench.budget import go_first
from bench.command_starts import run_commands, show_commands
from bench.guest import compile_programs
from kinst import KinstError

KINST = Path(sys.executable).with_name("kinst")
SECONDS = 120
ENTRIES = "fbt:::entry"
SITE = "kinst::vfs_read:0"
READS = "wc -l /etc/passwd >/dev/null"  # calls vfs_read(); busybox's cat does not
FIRST = SITE + ' { printf("%d\\n", timestamp); }'
RECORD = (
    SITE + ' /execname == "reads"/ { printf("%d %x %x\\n", timestamp, regs[R_RSI], regs[R_RDX]); }'
)


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds of one start of kinst.

    Attributes:
        outside: total, by this benchmark's clock.
        told: total, by kinst's message.
        stages: seconds of each stage by kinst's message, in order.
    """

    outside: float
    told: float
    stages: dict[str, float]


@dataclass(frozen=True, slots=True)
class Flow:
    """Numbers of records in one trace.

    Attributes:
        hits: number of reads that the guest made.
        arrived: number of records that arrived.
        dropped: number of records that were dropped.
        guest_seconds: time that the reads took.
        seconds: time from the arrival of the first record to the end of kinst.
    """

    hits: int
    arrived: int
    dropped: int
    guest_seconds: float
    seconds: float


def start_once(*, cold: bool) -> Start:
    """Run kinst until its first record, and return the times. Raises KinstError."""
    argv = [str(KINST), "-q", "-v", "-n", FIRST, "-c", READS]
    argv += ["--cold"] if cold else []
    began = time.monotonic()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as traced:
        assert traced.stdout is not None
        traced.stdout.read(1)
        outside = time.monotonic() - began
        said = traced.communicate(timeout=SECONDS)[1].decode()
    found = re.search(r"([\d.]+) s to the first record: (.*)", said)
    if traced.returncode or found is None:
        raise KinstError(f"kinst ended with {traced.returncode}: {said.strip()}")
    return Start(outside, float(found[1]), _stages(found[2]))


def plant_once(*, cold: bool) -> Start:
    """Run kinst once with a program that counts the entries of all functions, and return the times.
    Raises KinstError."""
    argv = [str(KINST), "-q", "-v", "-n", ENTRIES + " { @ = count(); }", "-c", "true"]
    began = time.monotonic()
    ran = subprocess.run([*argv, *["--cold"][:cold]], capture_output=True, timeout=SECONDS)
    said = ran.stderr.decode()
    found = re.search(r"([\d.]+) s to the plant: (.*)", said)
    if ran.returncode or found is None:
        raise KinstError(f"kinst ended with {ran.returncode}: {said.strip()}")
    return Start(time.monotonic() - began, float(found[1]), _stages(found[2]))


def _stages(said: str) -> dict[str, float]:
    return {k: float(s) for k, s in re.findall(r"([^,]+?) ([\d.]+) s(?:, |$)", said)}


def start_again(runs: int) -> list[float]:
    """Return the seconds from the call to the first record for traces on an open machine. The first
    trace, which fills caches, is left out."""
    found = []
    with kinst.boot() as machine:
        for _ in range(runs + 1):
            began = time.monotonic()
            with machine.trace(FIRST, command=READS) as trace:
                next(iter(trace))
                found.append(time.monotonic() - began)
    return found[1:]


def flow(program: str, hits: int) -> Flow:
    """Trace reads of the compiled guest program, and return the numbers of records. Raises
    KinstError.

    Args:
        program: path of the guest program.
        hits: number of reads.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "records"
        argv = [str(KINST), "-q", "-o", str(out), "--copy", program, "-n", RECORD,
                "-c", f"reads {hits}"]  # fmt: skip
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as traced:
            while traced.poll() is None and not (out.exists() and out.stat().st_size):
                time.sleep(0.005)
            began = time.monotonic()
            printed, said = traced.communicate(timeout=SECONDS)
            took = time.monotonic() - began
        found = re.search(r"reads \d+ ns ([\d.]+)", printed.decode())
        if traced.returncode or found is None:
            raise KinstError(f"kinst ended with {traced.returncode}: {said.decode().strip()}")
        with out.open("rb") as file:
            arrived = sum(1 for line in file if line.strip())
    dropped = sum(int(n) for n in re.findall(r"(\d+) drops? on CPU", said.decode()))
    return Flow(hits, arrived, dropped, float(found[1]) * hits / 1e9, took)


def starts_by_kind(start: Callable[..., Start], runs: int) -> dict[str, list[Start]]:
    """Return the times of several cold and of several warm starts.

    Cold and warm starts alternate, so that other processes disturb both alike. A first warm start,
    which is not counted, leaves a saved state.

    Args:
        start: starts kinst once.
        runs: number of starts of each kind.
    """
    start(cold=False)
    found: dict[str, list[Start]] = {"cold": [], "warm": []}
    for _ in range(runs):
        for kind, starts in found.items():
            starts.append(start(cold=kind == "cold"))
    return found


def show_starts(console: Console, what: str, starts: Sequence[Start]) -> None:
    """Print a table of the stages of starts."""
    table = Table(title=f"seconds to {what}, {len(starts)} runs")
    for column in ("", "least", "median", "most"):
        table.add_column(column, justify="right" if column else "left")
    rows = {name: [s.stages.get(name, 0.0) for s in starts] for s in starts for name in s.stages}
    rows |= {"all, kinst says": [s.told for s in starts]}
    rows |= {"all, from outside": [s.outside for s in starts]}
    for name, seconds in rows.items():
        middle = statistics.median(seconds)
        table.add_row(name, f"{min(seconds):.2f}", f"{middle:.2f}", f"{max(seconds):.2f}")
    console.print(table)


def show(
    starts: dict[str, list[Start]], entries: dict[str, list[Start]], flows: Sequence[Flow]
) -> None:
    console = Console(width=100 if not sys.stdout.isatty() else None)
    for kind, some in starts.items():
        show_starts(console, f"the first record, {kind}", some)
    for kind, some in entries.items():
        show_starts(console, f"the plant of {ENTRIES}, {kind}", some)
    for one in flows:
        rate = one.hits / one.guest_seconds
        exact = "all accounted for" if one.arrived + one.dropped == one.hits else "NOT ALL THERE"
        print(
            f"{one.hits:,} hits at {rate:,.0f} a second: {one.arrived:,} records arrived, "
            f"{one.dropped:,} dropped, {exact}; printed in {one.seconds:.2f} s "
            f"({one.arrived / one.seconds:,.0f} a second)"
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="How soon and how fast records arrive.")
    parser.add_argument("--answers", action="store_true", help="only commands that answer at once")
    parser.add_argument("--runs", type=int, default=5, help="starts to time (5)")
    parser.add_argument("--entries", type=int, default=3, help=f"runs of {ENTRIES} (3)")
    parser.add_argument("--hits", type=int, default=1_000_000, help="records to make (1000000)")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args(argv)
    load, priority = os.getloadavg(), "" if options.answers else go_first()
    try:
        answers = run_commands(options.runs)
        show_commands(Console(width=100 if not sys.stdout.isatty() else None), answers)
        if options.answers:
            return 0
        with tempfile.TemporaryDirectory() as folder:
            (reads,) = compile_programs(("reads",), Path(folder))
            starts = starts_by_kind(start_once, options.runs)
            entries = starts_by_kind(plant_once, options.entries)
            again = start_again(options.runs)
            flows = [flow(reads, options.hits)]
    except (KinstError, subprocess.TimeoutExpired) as error:
        print(f"start: {error}", file=sys.stderr)
        return 1
    show(starts, entries, flows)
    for kind, limit in (("cold", 5.0), ("warm", 1.2)):
        middle = statistics.median(s.outside for s in starts[kind])
        verdict = "met   " if middle <= limit else "MISSED"
        print(f"{verdict} first record in {limit:g} s, {kind}: {middle:.2f} s")
    for kind, some in entries.items():
        middle = statistics.median(s.told for s in some)
        verdict = "met   " if middle <= 8 else "MISSED"
        print(f"{verdict} {ENTRIES} planted in 8 s, {kind}: {middle:.2f} s")
    once_more = statistics.median(again)
    verdict = "met   " if once_more < 0.7 else "MISSED"
    print(f"{verdict} first record of a trace on an open machine under 0.7 s: {once_more:.2f} s")
    after = os.getloadavg()
    print(
        f"{priority}load of this machine's {os.cpu_count()} CPUs: {load[0]:.1f} before,"
        f" {after[0]:.1f} after"
    )
    if options.json:
        figures = {
            "answers": {
                command.name: [asdict(t) for t in took] for command, took in answers.items()
            },
            "starts": {kind: [asdict(s) for s in some] for kind, some in starts.items()},
            "entries": {kind: [asdict(s) for s in some] for kind, some in entries.items()},
            "again": again,
            "flows": [asdict(f) for f in flows],
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
