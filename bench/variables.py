"""Measure what D's variables cost in a clause, beside a clause without variables and beside kprobe
events.

    .venv/bin/python bench/variables.py [--json FILE] [--boots N]

The method is that of bench/hit_cost.py: modes alternate in several boots, and the figure is the
median over boots. Every clause also counts its hits, and a mode that misses a hit fails. The cost
of a variable is the difference to the first mode, which stores a register in a global variable.

The mode with two probes is the latency histogram of the Dynamic Tracing Guide, from a function's
entry to an instruction of the function that each call runs once. This mode is compared with the
kernel's own histogram: two kprobe events (optimised to jumps) with hist triggers, the second of
which reads a variable of the first.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.boots import Boots, Mode
from bench.budget import Budget
from bench.guest import Guest, Ran, compile_programs
from bench.hit_modes import MIDDLE, QUICK, Place, find_place
from bench.hit_table import Cost
from bench.hit_tools import (
    OPTIMIZATION,
    TRACING,
    Effort,
    Kinst,
    Paired,
    distribution,
    paired_of,
    total,
)
from kinst import KinstError

BASE = "g = register"
PAIR, PLAIN_PAIR, KERNEL = "self->ts pair", "the same with a global", "kprobe events, hist triggers"
# Statements of a clause, by the name of the mode in the table.
CLAUSES = {
    BASE: "g = regs[R_RDX];",
    "this->a = register": "this->a = regs[R_RDX]; g = this->a;",
    "g = timestamp": "g = timestamp;",
    "self->a = register": "self->a = regs[R_RDX];",
    "self->n++": "self->n++;",
    "a[pid]++": "a[pid]++;",
    "a[pid, tid] = register": "a[pid, tid] = regs[R_RDX];",
}


@dataclass(frozen=True, slots=True)
class Histogram:
    """The kernel's own latency histogram, made by two optimised kprobe events."""

    guest: Guest
    place: Place

    def take(self, effort: Effort) -> tuple[Paired, int]:
        first = "hist:keys=common_pid:ts0=common_timestamp.usecs"
        second = "hist:keys=common_pid:d=common_timestamp.usecs-$ts0:onmatch(kprobes.k0).lat($d)"
        function, offset = self.place.function, self.place.offset
        text = self.guest.run(
            f"echo 1 >{OPTIMIZATION}\ncd {TRACING}\necho 0 >tracing_on\n"
            f"echo 'p:k0 {function}' >>kprobe_events\n"
            f"echo 'p:k1 {function}+{offset}' >>kprobe_events\n"
            "echo 'lat u64 d' >synthetic_events\n"
            f"echo '{first}' >events/kprobes/k0/trigger\n"
            f"echo '{second}' >events/kprobes/k1/trigger\n"
            "echo 'hist:keys=d.log2' >events/synthetic/lat/trigger\n"
            "echo 1 >tracing_on\nusleep 200000\n"
            f"{effort.command}\ngrep Hits events/synthetic/lat/hist\n"
            "echo '!hist:keys=d.log2' >events/synthetic/lat/trigger\n"
            f"echo '!{second}' >events/kprobes/k1/trigger\n"
            f"echo '!{first}' >events/kprobes/k0/trigger\n"
            "echo >synthetic_events\necho >kprobe_events\nusleep 200000\n"
        )
        hits = re.search(r"^\s*Hits: (\d+)", text, re.M)
        if hits is None:
            raise KinstError(f"the kernel made no histogram: {text.strip()}")
        return paired_of(text, effort), int(hits[1])


def modes_of(guest: Guest, probed: Place) -> list[Mode]:
    """Return all modes. Raises KinstError."""
    site = f"kinst::{probed.function}:{probed.offset}"
    entry = f"fbt::{probed.function}:entry"

    def kinst(name: str, count: Callable[[Ran], int], text: str) -> Mode:
        program = guest.compile(text)
        ways = set(guest.ways(program))
        if ways != {"jump"}:
            raise KinstError(f"{name}: planted by {ways}")
        return Mode(name, QUICK, 1, Kinst(guest, program, count).take)

    pair = (
        f"{entry} {{ self->ts = timestamp; }}"
        f"{site} /self->ts/ {{ @ = quantize(timestamp - self->ts); self->ts = 0; }}"
    )
    plain = f"{entry} {{ g = timestamp; }} {site} /g/ {{ @ = quantize(timestamp - g); g = 0; }}"
    return [
        *[
            kinst(name, total, f"{site} {{ {text} @ = count(); }}")
            for name, text in CLAUSES.items()
        ],
        kinst("@[pid] = count()", total, f"{site} {{ g = regs[R_RDX]; @[pid] = count(); }}"),
        kinst(PLAIN_PAIR, distribution, plain),
        kinst(PAIR, distribution, pair),
        Mode(KERNEL, MIDDLE, 1, Histogram(guest, probed).take),
    ]


def measure(boots: int) -> tuple[Place, list[Cost]]:
    """Measure all modes in several boots, and return the probed instruction and the costs. Raises
    KinstError."""
    measured, place = Boots(Budget(math.inf)), None
    with tempfile.TemporaryDirectory() as folder:
        copies = compile_programs(("rounds",), Path(folder))
        for _ in range(boots):
            guest = Guest(copies, cold=True)
            try:
                place = place or find_place(guest)
                measured.measure(guest, [modes_of(guest, place)])
            finally:
                guest.close()
    costs = measured.table()
    if measured.budget.failures or place is None:
        raise KinstError("; ".join(measured.budget.failures) or "nothing was measured")
    untraced = statistics.median(measured.untraced())
    return place, [Cost("untraced", 0, untraced, 0, 0, 0, boots, ""), *costs]


def show(costs: Sequence[Cost], probed: Place, boots: int) -> None:
    by_name = {one.name: one.hit_ns for one in costs}
    where = f"{probed.function}+{probed.offset}"
    table = Table(title=f"ns per call of a clause at {where}; median of {boots} boots")
    for column in ("", "ns", "boots'", f"more than `{BASE}`"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for one in costs:
        if not one.hits:
            table.add_row(f"{one.name}, a read(2)", f"{one.call_ns:,.0f}")
            continue
        more = "" if one.name == BASE else f"{one.hit_ns - by_name[BASE]:+,.0f}"
        table.add_row(
            escape(one.name), f"{one.hit_ns:,.0f}", f"{one.low:,.0f} to {one.high:,.0f}", more
        )
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(table)
    pair, plain, kernel = by_name[PAIR], by_name[PLAIN_PAIR], by_name[KERNEL]
    console.print(
        f"the pair: self-> {pair - plain:+,.0f} ns beside a global variable; the kernel's"
        f" triggers cost {kernel / pair:,.1f} times as much",
        highlight=False,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What D's variables cost in a clause.")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--boots", type=int, default=3, help="in how many all is measured (3)")
    options = parser.parse_args(argv)
    load = os.getloadavg()
    try:
        place, costs = measure(options.boots)
    except KinstError as error:
        print(f"variables: {error}", file=sys.stderr)
        return 1
    show(costs, place, options.boots)
    print(f"load of this machine's {os.cpu_count()} CPUs: {load[0]:.1f}, {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in costs], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
