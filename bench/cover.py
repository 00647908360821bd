"""Measure what coverage of the kernel's file system costs: a shell's work in the guest, untraced,
with each instruction of fs/*.c counted, and untraced again.

    python bench/cover.py [--pattern PATTERN] [--rounds N] [--isa ISA]

Seconds are the guest's own, from before the first command to after the last.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import kinst
from kinst.events import Aggregation, Output
from kinst.views.counting import COUNT, counted, plan_counting
from kinst.views.coverage import counts_by_address, cover, total

WORK = """
mkdir /tmp/w; cd /tmp/w
for n in 1 2 3 4 5 6 7 8 9 10; do
    cp /bin/busybox b$n; ln b$n l$n; ln -s b$n s$n; mv b$n c$n; cat c$n s$n 2>/dev/null | wc -c
    chmod 600 c$n; touch l$n; echo more >>l$n; head -c 100 c$n; dd if=c$n of=d$n bs=512 count=200
    ls -l; find . -name 'c*'; rm -f s$n d$n
done
ls -lR /proc/self /sys/class; cd /; rm -r /tmp/w
"""
TIMED = f"""
read a _ </proc/uptime; {{ {WORK} }} >/dev/null 2>&1; read b _ </proc/uptime; echo took $a $b
"""


def seconds(output: bytes) -> list[float]:
    """Return the seconds of each run of the work, from the output of the guest."""
    rows = (line.split() for line in output.decode().splitlines() if line.startswith("took "))
    return [float(end) - float(start) for _, start, end in rows]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pattern", default="fs/*.c")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--isa", default="amd64")
    given = options.parse_args()
    work = TIMED * given.rounds
    print(f"load {os.getloadavg()[0]:.1f}")
    with kinst.boot(given.isa) as machine:
        start = time.monotonic()
        functions = machine.functions(given.pattern)
        plan = plan_counting(machine.graphs(functions))
        asked = sum(map(len, plan.asked))
        print(
            f"{len(functions)} functions, {asked} branches that have to be asked for; found in"
            f" {time.monotonic() - start:.1f} s"
        )
        machine.execute(TIMED)  # load files before the measured runs
        plain = seconds(machine.execute(work).output)
        start = time.monotonic()
        with machine.trace(plan.program, work, {"zdefs": True}) as trace:
            planned = time.monotonic() - start
            output = b"".join(event.data for event in trace if isinstance(event, Output))
            found = [
                Aggregation(name, table.function, table.key_types, table)
                for name, table in trace.aggregations().items()
            ]
        covered = seconds(output)
        plain += seconds(machine.execute(work).output)
    counts = counts_by_address(trace.sites, next(one for one in found if one.name == COUNT))
    flows = counted(plan, found, trace.left_out)
    seen = cover(functions, trace.sites, counts, zip(plan.codes, flows, strict=True))
    lines = total(count for file in seen.files.values() for count in file.lines.values())
    print(
        f"{seen.sites} instructions planned in {planned:.1f} s; {sum(counts.values()):,} hits;"
        f" {lines.seen} of {lines.all} lines seen"
    )
    for name, times in (("untraced", plain), ("covered", covered)):
        print(f"{name}: {' '.join(f'{one:.2f}' for one in times)} s, load {os.getloadavg()[0]:.1f}")
    ratio = statistics.median(covered) / statistics.median(plain)
    print(f"medians: {ratio:.2f} times")


if __name__ == "__main__":
    main()
