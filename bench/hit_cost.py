"""Measure what one hit of a probe costs: kinst, beside the kernel's own kprobes, BPF and gdb.

    .venv/bin/python bench/hit_cost.py [--isa ISA] [--boots N] [--minutes N] [--docs] ...

What is measured. A guest program calls read(2) of one byte of /dev/zero in short rounds and prints
the nanoseconds of a call in each round. The cost of a hit is (ns of a call with the probe - ns
without the probe) / hits in a call. All probes are on the same instruction. This instruction is at
least 5 bytes long, each call runs it once, and the kernel can optimise a kprobe on it to a jump:
the benchmark searches for such an instruction. (Kernels of arm64 and riscv64 have no such kprobes.
There the instruction is the first one after ftrace's instructions that does not branch and may have
a kprobe; gdb is not measured.) In the measurements of all instructions of a function, every tool
has the same instructions.

Fairness:
- There are several boots, each with kernel addresses of its own. Each boot has short takes of all
  probes in alternation, with untraced takes around each. Rounds are paired with getuid(2), which
  makes them independent of the CPU's speed. A boot's figure is the median of its takes, and the
  table has the median over boots, with the range (bench/boots.py). (gdb has a guest of its own,
  because a stub serves one debugger. Its hits cost so much that such differences do not matter.)
- In each boot the order is: kinst without traps, kinst's traps, other tools. Traps and kprobes
  leave addresses in the guest's memory, and kinst plants traps instead of a run if memory points
  into the run.
- The hits of every mode are counted. If hits are missing, or if there are more hits than the reads
  of the guest's shell explain, the benchmark fails, since a probe that misses hits would seem
  cheap. (Hits of gdb are not counted: the high cost shows that its breakpoint was hit.)
- kprobe events run at their best: no reader empties the trace buffer, an event has no arguments,
  and "tracing off" is measured as well, which leaves only the event's own hit counter. (On riscv64
  the buffer gets nothing even with tracing on: tests/vm/kprobe_events.py.)
- BPF is the program that bpftrace compiles from `@ = count()` (tests/programs/bpfcount.c), without
  bpftrace.
- gdb has no symbols to load; it ignores the hits (`ignore`) or runs an empty command.
- Modes of kinst that make records print into memory. Their first records do not count: until the
  ring buffer has been written once, the host allocates its pages, which costs 40 ns for each
  record.
- A mode that costs a microsecond or more has one take in each boot, other modes have three: figures
  of boots differ as little as takes do.

Then come sites with no room for a jump, planted alone, and the shares of ways to plant
(bench/short_sites.py), and a verdict for each figure that has a bar (bench/bars.py).

The benchmark ends after about --minutes, with fewer boots and short sites if there is no time for
all. It reports what it left out and what failed; the exit status is 1 then. Progress goes to
stderr. --docs writes the figures into docs/benchmarks.md and README.md; without it they are printed
in the same form. To measure a single mode in many boots:

    bench/hit_cost.py --only 'jump: @ = count()' --boots 30 --minutes 60 --sites 0
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from bench import hit_docs, short_sites
from bench.bars import bars_of
from bench.boots import Boots
from bench.budget import Budget, go_first
from bench.gdb_guest import measure_gdb
from bench.guest import Guest, compile_programs
from bench.hit_modes import (
    ALL,
    GETPPID,
    JUMP,
    JUMP_EVENT,
    STOPS,
    TRAP,
    TRAP_EVENT,
    Place,
    find_getppid,
    find_place,
    groups_of,
)
from bench.hit_table import Cost, table_of
from bench.hit_tools import rounds_of
from kinst import KinstError

PEERS = {
    "kprobe jump": JUMP_EVENT,
    "kprobe trap": TRAP_EVENT,
    "BPF jump": "BPF as bpftrace's @ = count(), jump",
    "BPF trap": "BPF as bpftrace's @ = count(), trap",
    "gdb": "gdb breakpoint, ignored",
}
ALL_PEERS = {
    "kprobes": "kprobe events, trace buffer",
    "tracing off": "kprobe events, tracing off",
    "BPF": "BPF as bpftrace's @ = count()",
}


def show(costs: Sequence[Cost], probed: Place, boots: int) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=140)
    method = f"the median of {boots} boots; x: how many times cheaper than"
    one_site = [one for one in costs if not one.name.startswith((ALL, GETPPID))]
    title = f"ns per hit at {probed.function}+{probed.offset} ({probed.text}); {method}"
    there = {one.name for one in costs}
    peers = {name: peer for name, peer in PEERS.items() if peer in there}
    console.print(table_of(title, one_site, peers))
    for prefix, what in ((ALL, probed.function), (GETPPID, "the function behind getppid(2)")):
        every = [one for one in costs if one.name.startswith(prefix)]
        title = f"ns per hit, all instructions of {what}; {method}"
        peers = {name: prefix + peer for name, peer in ALL_PEERS.items() if prefix + peer in there}
        if every:
            console.print(table_of(title, every, peers))
    for one in costs:
        if one.note:
            console.print(f"{one.name}: {one.note}", highlight=False)


def targets(costs: Sequence[Cost]) -> list[tuple[str, bool]]:
    """Return texts that compare the cost of kinst with that of kprobe events, each with whether it
    meets its bar. Jumps are compared if both tools have jumps on this ISA.
    """
    ns = {one.name: one.hit_ns for one in costs}
    found = []
    peer = JUMP_EVENT if JUMP_EVENT in ns else TRAP_EVENT
    if JUMP in ns and peer in ns:
        text = f"kinst jump {ns[JUMP]:,.0f} ns, {peer} {ns[peer]:,.0f} ns"
        met = ns[peer] >= 10 * ns[JUMP]
        found.append((f"{text}: {ns[peer] / ns[JUMP]:.1f} times cheaper, at least 10 wanted", met))
    if not {TRAP, TRAP_EVENT} <= set(ns):
        return found
    text = f"kinst trap {ns[TRAP]:,.0f} ns, {TRAP_EVENT} {ns[TRAP_EVENT]:,.0f} ns: not dearer"
    return [*found, (text, ns[TRAP] <= ns[TRAP_EVENT])]


# Fractions of the time at which the boots and the short sites must end.
BOOTS_END, END = 0.5, 0.95
HANGS = 30.0  # seconds after which a command is taken to hang (it usually takes three)


@dataclass(slots=True)
class Found:
    """All figures of the benchmark.

    Attributes:
        place: the probed instruction.
        boots: number of boots.
        costs: rows of the tables.
        each: nanoseconds of a hit in each boot, by mode.
        alone: costs of short sites.
        shares: shares of ways to plant among short sites; None if they were not measured.
    """

    place: Place
    boots: int
    costs: list[Cost]
    each: dict[str, list[float]]
    alone: list[short_sites.Cost] = field(default_factory=list)
    shares: short_sites.Shares | None = None


def measure(boots: int, isa: str, drawn: int, functions: int, only: str, budget: Budget) -> Found:
    """Boot guests, measure all modes, and return the figures. Failures after the first boot are
    reported, and their modes are left out.

    Args:
        boots: number of boots.
        isa: name of the guest's instruction set.
        drawn: number of short sites to draw.
        functions: number of functions to draw for the shares of ways.
        only: measure only modes whose names contain this text.
        budget: time limit.

    Raises:
        KinstError: the first boot failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        budget.say("compile the guest's programs")
        copies = compile_programs(("rounds", "bpfcount"), Path(folder), isa)
        budget.say("look for instructions that kprobes can stand on")
        places, measured, longest = _probed_instructions(copies, isa), Boots(budget), 0.0
        end = BOOTS_END if drawn else END
        while measured.count < boots and not budget.over(end, longest):
            before = budget.used()
            try:
                _boot(measured, copies, isa, only, places)
            except KinstError as error:
                if measured.count <= 1:
                    raise
                budget.failed(f"boot {measured.count}: {error}")
                break
            longest = budget.used() - before
        if measured.count < boots:
            budget.failed(f"{boots - measured.count} of {boots} boots: no time")
        each = {name: measured.costs(name) for name in measured.modes}
        found = Found(places[0], measured.count, _costs(measured), each)
        if isa == "amd64" and not only:
            _debug(found, copies, budget)
        if drawn and short_sites.are_there(isa):
            _draw(found, copies, isa, drawn, functions, budget)
    return found


def _probed_instructions(copies: Sequence[str], isa: str) -> tuple[Place, Place]:
    """Return the instructions to probe: one instruction of a function that read(2) calls, and all
    instructions of the function of getppid(2). A separate guest finds them, because kprobes leave
    addresses in memory. Raises KinstError.
    """
    guest = Guest(copies, isa)
    try:
        return find_place(guest), find_getppid(guest)
    finally:
        guest.close()


def _boot(
    measured: Boots, copies: Sequence[str], isa: str, only: str, probed: tuple[Place, Place]
) -> None:
    """Boot a guest, and measure all modes in it. Raises KinstError."""
    guest = Guest(copies, isa, cold=True, seconds=HANGS)
    try:
        # With this setting kprobes are set up and removed in a quarter of the time.
        guest.run("echo 1 >/sys/kernel/rcu_expedited || :")
        groups = groups_of(guest, *probed)
        measured.measure(guest, [[one for one in group if only in one.name] for group in groups])
    finally:
        guest.close()


def _costs(measured: Boots) -> list[Cost]:
    """Return the costs in the order of the tables; each table begins with its untraced calls."""
    costs = measured.table()

    def untraced(name: str, call: str) -> list[Cost]:
        each = measured.untraced(call)
        middle = statistics.median(each) if each else 0.0
        return [Cost(name, 0, middle, 0.0, min(each), max(each), len(each), "")] if each else []

    one_site = [one for one in costs if not one.name.startswith((ALL, GETPPID))]
    return [
        *untraced("untraced", ""), *one_site,
        *(one for one in costs if one.name.startswith(ALL)),
        *untraced(f"{GETPPID}untraced", "getppid"),
        *(one for one in costs if one.name.startswith(GETPPID)),
    ]  # fmt: skip


def _debug(found: Found, copies: Sequence[str], budget: Budget) -> None:
    """Measure gdb's breakpoints, and add their costs to the figures."""
    base = found.costs[0].call_ns
    try:
        budget.say("gdb, in a guest of its own")
        told = measure_gdb(copies, found.place.function, found.place.offset, STOPS.alone)
    except KinstError as error:
        budget.failed(f"gdb: {error}")
        return
    for name, text in told.items():
        rounds = rounds_of(text)
        each = [ns - base for ns in rounds]
        found.costs.append(Cost(name, 1, min(rounds), min(each), min(each), max(each), 1, ""))


def _draw(
    found: Found, copies: Sequence[str], isa: str, drawn: int, functions: int, budget: Budget
) -> None:
    """Measure short sites and shares of ways, in guests of their own, and add them to the
    figures."""

    def boot() -> Guest:
        return Guest(copies, isa, cold=True)

    try:
        budget.say("shares of ways")
        guest = boot()
        try:
            found.shares = short_sites.shares(guest, short_sites.ROOM[isa], functions, 1)
        finally:
            guest.close()
        found.alone = short_sites.measure_all(boot, isa, drawn, 1, budget, END)
    except (KinstError, KeyboardInterrupt) as error:  # the report has the figures so far
        budget.failed(f"short sites: {error or 'interrupted'}")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What one hit of a probe costs.")
    parser.add_argument("--isa", default="amd64", help="the ISA of the guest (amd64)")
    parser.add_argument("--sites", type=int, default=100, help="short sites, drawn (100; 0: none)")
    parser.add_argument("--shares", type=int, default=200, help="functions for shares (200)")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--boots", type=int, default=5, help="in how many all is measured (5)")
    parser.add_argument("--only", default="", help="ways to probe with this in their names")
    parser.add_argument("--minutes", type=float, default=12, help="end in about so many (12)")
    parser.add_argument("--docs", action="store_true", help="put the figures into README and docs")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    budget, load, priority = Budget(60 * options.minutes), os.getloadavg(), go_first()
    try:
        found = measure(
            options.boots, options.isa, options.sites, options.shares, options.only, budget
        )
    except KinstError as error:
        print(f"hit_cost: {error}", file=sys.stderr)
        return 1
    costs, place = found.costs, found.place
    show(costs, place, found.boots)
    if found.alone:
        short_sites.show(found.alone, found.shares)
    ns = {one.name: one.hit_ns for one in costs}
    wanted = [*targets(costs), *bars_of(options.isa, ns, found.alone, found.shares)]
    for text, met in wanted:
        print(f"{'met   ' if met else 'MISSED'} {text}")
    for text in budget.failures:
        print(f"not measured: {text}")
    after = os.getloadavg()
    loads = f"{load[0]:.1f} before, {after[0]:.1f} after"
    print(
        f"{budget.used():.0f} s; {priority}load of this machine's {os.cpu_count()} CPUs: {loads} "
        "(2 or less is this benchmark's own)"
    )
    told = (
        f"`bench/hit_cost.py --isa {options.isa} --boots {found.boots}` on "
        f"{time.strftime('%Y-%m-%d')}, {priority and 'with ' + priority}on {os.cpu_count()} CPUs"
        f" (load {loads})."
    )
    text = hit_docs.section(options.isa, place.function, costs, wanted, told)
    row = hit_docs.readme_row(costs)
    if options.docs:
        print("\n".join(f"written: {path}" for path in hit_docs.write(options.isa, text, row)))
    else:
        print(f"\n{text}{row}")
    if options.json:
        figures = {
            "isa": options.isa,
            "function": place.function, "offset": place.offset, "instruction": place.text,
            "load": [load[0], after[0]], "costs": [asdict(one) for one in costs],
            "boots": found.each,
            "short": [asdict(one) for one in found.alone],
        }  # fmt: skip
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return int(bool(budget.failures) or (options.check and not all(met for _, met in wanted)))


if __name__ == "__main__":
    sys.exit(main())
