"""Measure what probes of a boot cost (kinst --boot), beside gdb's breakpoints in the same boot.

    python -m bench.boot_hits [--takes N] [FUNCTION ...]

Each take boots guests of amd64, one after the other: with one probe that fires once; with a
counting probe at the entry of one function, for some functions; and with probes at functions that
this boot does not call. Then it boots plain guests with the same kernel, in which gdb sets a
breakpoint, with an ignore count, at the same functions. gdb itself says how often the breakpoint
was hit. gdb does not find a kernel that KASLR has moved, so its guests have nokaslr.

The cost of a hit is the time that a boot takes longer than with one hit, divided by the hits. The
table has medians of the takes, in wall time, and in CPU time of QEMU and its debugger together.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import kinst
from bench.gdb_guest import archive
from kinst import KinstError

FIRST, LAST = "start_kernel", "run_init_process"
FUNCTIONS = ("kernfs_new_node",)  # ten thousand hits
UNUSED = "nvme_*"  # this guest has no such disk
SECONDS = 600
FEW = 100  # with fewer hits, their cost cannot be told from the boot's
QEMU = (
    "qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -machine q35,accel=tcg"
    " -m 1G -smp 2 -S"
)
SCRIPT = """\
set pagination off
set confirm off
set width 0
set remotetimeout 120
file {debug}
target remote {stub}
break *{first}
continue
delete
{breaks}
break *{last}
shell echo began $(date +%s.%N)
continue
shell echo ended $(date +%s.%N)
info breakpoints
kill
"""


@dataclass(frozen=True, slots=True)
class BootCost:
    """What a traced boot took.

    Attributes:
        hits: how often its probes or breakpoints were hit.
        probes: number of probes or breakpoints.
        seconds: wall time from the kernel's first function to its first program.
        cpu_seconds: CPU time of QEMU and of kinst or gdb, from the start of QEMU to its end.
    """

    hits: int
    probes: int
    seconds: float
    cpu_seconds: float


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def by_kinst(function: str) -> BootCost:
    """Trace a boot with a counting probe at each entry that a glob of functions matches."""
    before = _cpu_seconds()
    with kinst.boot(trace_boot=True) as machine:
        with machine.trace(f"fbt::{function}:entry {{ @ = count(); }}") as trace:
            began = time.monotonic()
            for _ in trace:
                pass
            seconds = time.monotonic() - began
        if trace.end is None or trace.end.reason != "boot":
            raise KinstError(f"{function}: the boot did not reach its first program")
        counts = trace.aggregations().get("")
        hits = 0 if counts is None else counts.get((), 0)
        probes = len(trace.sites) - len(trace.left_out)
    assert isinstance(hits, int)
    return BootCost(hits, probes, seconds, _cpu_seconds() - before)


def by_gdb(function: str) -> BootCost:
    """Boot a plain guest in which gdb has a breakpoint at a function, which it ignores."""
    files, before = kinst.kernel_files(), _cpu_seconds()
    assert files.kernel is not None and files.busybox is not None
    contents = {"bin/busybox": files.busybox.read_bytes(), "init": b"#!/bin/busybox sh\n"}
    with tempfile.TemporaryDirectory() as folder:
        initrd, stub, script = (Path(folder, name) for name in ("initrd", "gdb", "script"))
        initrd.write_bytes(archive(contents))
        breaks = f"break *{function}\nignore 2 1000000000" if function != FIRST else ""
        script.write_text(
            SCRIPT.format(debug=files.debug, stub=stub, first=FIRST, last=LAST, breaks=breaks)
        )
        argv = [
            *QEMU.split(), "-kernel", str(files.kernel), "-initrd", str(initrd), "-append",
            "nokaslr quiet panic=-1", "-gdb", f"unix:{stub},server=on,wait=off",
        ]  # fmt: skip
        with subprocess.Popen(argv) as qemu:
            try:
                while not stub.exists() and qemu.poll() is None:
                    time.sleep(0.05)
                done = subprocess.run(
                    ["gdb", "-nx", "-batch", "-x", str(script)],
                    stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS,
                )  # fmt: skip
            finally:
                qemu.kill()
    began, ended = (
        re.search(rf"^{word} ([\d.]+)$", done.stdout, re.M) for word in ("began", "ended")
    )
    if began is None or ended is None or LAST not in done.stdout[began.end() : ended.start()]:
        raise KinstError(f"gdb did not follow the boot: {done.stdout[-500:]}{done.stderr[-500:]}")
    # The last breakpoint is that of LAST.
    told = re.findall(r"breakpoint already hit (\d+) time", done.stdout)[:-1] or ["1"]
    seconds = float(ended[1]) - float(began[1])
    return BootCost(sum(map(int, told)), len(told), seconds, _cpu_seconds() - before)


def measure(functions: Sequence[str], takes: int) -> dict[tuple[str, str], list[BootCost]]:
    """Return the boots of each row, by (way, function). The rows take turns."""
    rows = [("kinst", one) for one in (FIRST, *functions, UNUSED)]
    rows += [("gdb", one) for one in (FIRST, *functions)]
    found: dict[tuple[str, str], list[BootCost]] = {row: [] for row in rows}
    for _ in range(takes):
        for way, function in rows:
            run = by_kinst if way == "kinst" else by_gdb
            found[way, function].append(run(function))
            print(way, function, found[way, function][-1], file=sys.stderr, flush=True)
    return found


def table(found: dict[tuple[str, str], list[BootCost]]) -> str:
    """Return the table, in Markdown."""
    lines = [
        "| | at | number | hits | boot, s | a hit, ms | hits a second | a hit, ms of CPU |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for (way, function), boots in found.items():
        plain = found[way, FIRST]
        hits = statistics.median(one.hits for one in boots)
        seconds = statistics.median(one.seconds for one in boots)
        more = seconds - statistics.median(one.seconds for one in plain)
        cpu = statistics.median(one.cpu_seconds for one in boots)
        cpu -= statistics.median(one.cpu_seconds for one in plain)
        cells = ["", "", ""]
        if hits > FEW and more > 0:
            cells = [f"{1000 * more / hits:.2f}", f"{hits / more:,.0f}", f"{1000 * cpu / hits:.2f}"]
        row = [way, f"`{function}`", f"{boots[0].probes:,}", f"{hits:,.0f}", f"{seconds:.1f}"]
        lines.append(f"| {' | '.join([*row, *cells])} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what probes of a boot cost.")
    parser.add_argument("functions", nargs="*", default=FUNCTIONS, help="functions with hits")
    parser.add_argument("--takes", type=int, default=3, help="boots for each row (3)")
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    found = measure(arguments.functions, arguments.takes)
    print(f"{date.today()}, {os.cpu_count()} CPUs, load {before:.1f} before,"
          f" {os.getloadavg()[0]:.1f} after, {arguments.takes} takes\n")  # fmt: skip
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
