"""What one counting jump costs in each of many boots, each with addresses of its own (KASLR).

    .venv/bin/python bench/each_boot.py [--boots N] [--site FUNCTION:OFFSET] [--isa ISA] ...

QEMU finds translated code and pages in tables by hashes of their addresses, so what meets what
there is decided anew by each boot.  That costs some 10 ns; the host's processor, which may run at
half its speed for a while, changes a read(2) by 400.  So each round of 150 read(2) stands between
as many untraced getuid(2), and counts as a multiple of those (tests/programs/rounds.c, paired).
A hit costs the median of traced rounds less that of untraced ones, in ns of the quickest getuid(2)
that there was in any boot.  Each boot has several takes, each of a planting of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.budget import go_first
from bench.guest import Guest, compile_programs
from bench.hit_tools import counts_of
from kinst import KinstError

CALLS, ROUNDS = 150, 400
COMMAND = f"rounds ask {CALLS} {ROUNDS} paired"
TAKES = 3
FAR = 2  # times the median of all boots: dear


@dataclass(frozen=True, slots=True)
class Paired:
    """Rounds of one command.

    Attributes:
        unit: ns of a getuid(2) in the quickest round.
        times: getuid(2) that a read(2) took as long as, the median of rounds.
    """

    unit: float
    times: float


@dataclass(frozen=True, slots=True)
class Boot:
    """What was measured in one boot.

    Attributes:
        units: ns of the quickest getuid(2) of each command: the pace of the host's processor.
        untraced: getuid(2) for a read(2), the median of takes.
        traced: the same of each take with the site planted.
    """

    units: list[float]
    untraced: float
    traced: list[float]

    def costs(self, unit: float) -> list[float]:
        """ns of a hit in each take."""
        return [(take - self.untraced) * unit for take in self.traced]


def paired_of(text: str) -> Paired:
    """What tests/programs/rounds.c printed.  Raises KinstError if no round was undisturbed."""
    found = re.search(r"^paired \d+ ns ([\d.]+) times (.*)$", text, re.M)
    times = [number for word in found[2].split() if (number := float(word))] if found else []
    if found is None or not times:
        raise KinstError(f"the guest printed no rounds that can be used: {text.strip()[:200]!r}")
    return Paired(float(found[1]), statistics.median(times))


def measure(program: str, isa: str, site: str) -> Boot:
    """Boot, and take the site's cost.  Raises KinstError, also if hits are missing."""
    guest = Guest([program], isa, cold=True)
    try:
        guest.run("rounds serve")
        counting = guest.compile(f"kinst::{site} {{ @ = count(); }}")
        untraced, traced = [paired_of(guest.run(COMMAND))], []
        for _ in range(TAKES):
            ran = guest.trace(counting, COMMAND)
            hits = sum(counts_of(ran).values())
            if hits < CALLS * ROUNDS:
                raise KinstError(f"{hits} hits were counted, and there were {CALLS * ROUNDS}")
            traced.append(paired_of(ran.output))
            untraced.append(paired_of(guest.run(COMMAND)))
    finally:
        guest.close()
    middle = statistics.median(one.times for one in untraced)
    return Boot([one.unit for one in (*untraced, *traced)], middle, [one.times for one in traced])


def show(boots: Sequence[Boot], site: str) -> None:
    unit = min(min(boot.units) for boot in boots)
    costs = [boot.costs(unit) for boot in boots]
    middle = statistics.median(cost for each in costs for cost in each)
    for number, (boot, each) in enumerate(zip(boots, costs, strict=True), 1):
        pace = f"getuid(2) {min(boot.units):.0f} to {max(boot.units):.0f} ns"
        print(f"boot {number}: {', '.join(f'{cost:.0f}' for cost in each)} ns a hit; {pace}")
    every = [cost for each in costs for cost in each]
    dear = [each for each in costs if min(each) > FAR * middle]
    print(
        f"{site} in {len(boots)} boots: {middle:.1f} ns a hit, the median of {len(every)} takes;"
        f" {sum(cost > FAR * middle for cost in every)} takes above {FAR} times that, the dearest"
        f" {max(every):.0f}; {len(dear)} boots with all takes above it"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="One counting jump in each of many boots.")
    parser.add_argument("--boots", type=int, default=30, help="(30)")
    parser.add_argument("--site", default="vfs_read:19", help="FUNCTION:OFFSET (vfs_read:19)")
    parser.add_argument("--isa", default="amd64", choices=("amd64", "arm64", "riscv64"))
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args(argv)
    print(f"{go_first()}load {os.getloadavg()[0]:.1f}", flush=True)
    boots: list[Boot] = []
    with tempfile.TemporaryDirectory() as folder:
        (program,) = compile_programs(("rounds",), Path(folder), options.isa)
        for _ in range(options.boots):
            try:
                boots.append(measure(program, options.isa, options.site))
            except KinstError as error:
                print(f"each_boot: a boot is left out: {error}", file=sys.stderr)
    if not boots:
        return 1
    show(boots, options.site)
    if options.json:
        options.json.write_text(json.dumps([asdict(boot) for boot in boots], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
