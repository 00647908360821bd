"""Measure what a probe costs that is planted alone on an instruction with no room for a jump.

    .venv/bin/python bench/short_sites.py [--isa ISA] [--sites N] [--seed N] [--shares N]

A guest program calls read(2) of one byte of /dev/zero in short rounds. (On riscv64 it calls
getppid(2): QEMU forgets all addresses whenever the kernel opens or closes its access to a program's
memory, so that each page used after a read costs half a microsecond, with or without probes.)

A count of all function entries shows the functions that each call runs. Sites are drawn at random
from the instructions of these functions that each call runs and that have no room for a jump of
their own. Each site is planted alone in the best way; if the ISA has a bar for it, also by a trap,
in the first boot. The cost of a hit is (ns of a call with the probe - ns without the probe) / hits
in a call. All sites are measured in each of several boots, by a few takes between untraced ones; a
site's figure is the median over boots (bench/boots.py). Hits are counted, since a probe that misses
hits would seem cheap.

The shares of ways are those of all instructions in functions drawn at random from the whole kernel:
planted with their whole functions, and planted alone (for a random part of the short ones).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.bars import BARS, bars_of
from bench.boots import Boot, Mode
from bench.budget import Budget
from bench.guest import Guest, compile_programs
from bench.hit_tools import Effort, Kinst, counts_of, total
from kinst import KinstError, Program

ROUNDS = 200, 400  # calls in a round, number of rounds
CALLS = {"riscv64": "getppid"}  # system call of the rounds; read(2) for other ISAs
TRAP_ROUNDS = 100
BOOTS = 3
ENTRIES = 5000  # number of calls that shows which functions each call runs
PROBING = 500  # number of calls that shows which instructions each call runs
ROOM = {"amd64": 5, "arm64": 4, "riscv64": 8}  # bytes of a jump
CHEAP, CHEAPER = 60, 10  # a cheap site costs less than CHEAP ns, or a CHEAPERth of a trap
TAKES = 3  # number of takes in a boot


@dataclass(frozen=True, slots=True)
class Site:
    """A short instruction, and the best way to plant it alone.

    Attributes:
        function: name of its function.
        offset: offset in the function.
        text: disassembly.
        way: the best way to plant it alone; "" before it was measured.
        hits: number of hits in one call.
    """

    function: str
    offset: int
    text: str
    way: str
    hits: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Nanoseconds of a hit of one site.

    Attributes:
        site: the site.
        ns: nanoseconds of a hit if the site is planted in the best way, the median over boots.
        low: the least value of a boot.
        high: the greatest value of a boot.
        boots: number of boots with a figure.
        trap: nanoseconds of a hit by a trap; 0 if that was not measured.
    """

    site: Site
    ns: float
    low: float
    high: float
    boots: int
    trap: float

    @property
    def way(self) -> str:
        return self.site.way


def are_there(isa: str) -> bool:
    """Return whether an ISA has instructions that are shorter than a jump."""
    return ROOM[isa] > 4


def in_a_call(guest: Guest, program: Program, call: str) -> dict[str, int]:
    """Return how often each call hits each probe of a counting program, by probe: the difference
    between many and few calls. Probes that do not hit a fixed number of times are left out.

    Args:
        guest: the guest.
        program: counts hits by probe.
        call: "" for read(2), or "getppid".
    """
    few, many = (
        counts_of(guest.trace(program, f"rounds {n} 1 {call}")) for n in (PROBING, 3 * PROBING)
    )
    each = {key: (n - few.get(key, 0) + PROBING) // (2 * PROBING) for key, n in many.items()}
    return {
        key: n
        for key, n in each.items()
        if n and 0 <= many[key] - few.get(key, 0) - 2 * PROBING * n < PROBING // 4
    }


def sites(guest: Guest, jump_size: int, call: str, drawn: int, seed: int) -> list[Site]:
    """Return short instructions that each call runs, drawn at random.

    Args:
        guest: the guest.
        jump_size: bytes of a jump.
        call: "" for read(2), or "getppid".
        drawn: number of instructions.
        seed: seed of the random numbers.
    """
    # Only count, without runs: all functions of the kernel are planned at once. A predicate at each
    # one, or riscv64's search for a free register in each one, would take minutes.
    entries = guest.compile("fbt:::entry { @[probefunc] = count(); }", "no-run,no-gate")
    counts = counts_of(guest.trace(entries, f"rounds {ENTRIES} 1 {call}"))
    functions = sorted(name for name, n in counts.items() if n >= ENTRIES)
    print(
        f"{len(functions)} functions are run by about each call: {' '.join(functions)}", flush=True
    )
    possible = []
    for name in functions:
        every = guest.compile(f"kinst::{name}: {{ @[probename] = count(); }}")
        try:
            hits = in_a_call(guest, every, call)
        except KinstError as error:
            print(f"{name} is left out: {error}", flush=True)
            continue
        possible += [
            Site(name, int(p.name), p.text, "", hits[p.name])
            for p in guest.machine.list_probes(every)
            if len(p.code) < jump_size and p.name in hits
        ]
    return random.Random(seed).sample(possible, min(drawn, len(possible)))


def measure(
    boot: Boot, effort: Effort, site: Site, plant: str = "", takes: int = TAKES
) -> tuple[str, float | None]:
    """Measure a site in a boot. Return the way in which it is planted, and the cost of a hit in
    multiples of getuid(2) (None if no take counts). Raises KinstError if hits are missing.

    Args:
        boot: the boot.
        effort: calls of a take.
        site: the site.
        plant: way to plant; "" for the best way.
        takes: number of takes.
    """
    guest = boot.guest
    program = guest.compile(f"kinst::{site.function}:{site.offset} {{ @ = count(); }}", plant)
    # Other programs of the guest may hit the site as well.
    mode = Mode(f"{site.function}+{site.offset} {plant}", effort, site.hits,
                Kinst(guest, program, total).take, others=math.inf)  # fmt: skip
    for _ in range(takes):
        boot.take(mode)
    return guest.ways(program)[0], boot.hit(mode)


def measure_all(
    boot_guest: Callable[[], Guest], isa: str, drawn: int, seed: int, budget: Budget,
    end: float = 1.0,
) -> list[Cost]:  # fmt: skip
    """Draw sites, measure them in several boots, and return their costs.

    Args:
        boot_guest: boots a guest.
        isa: name of the instruction set.
        drawn: number of sites to draw.
        seed: seed of the random numbers.
        budget: time limit.
        end: fraction of the time limit at which measuring ends.
    """
    effort = Effort(*ROUNDS, CALLS.get(isa, ""))
    short = replace(effort, rounds=TRAP_ROUNDS)
    chosen, taken = list[Site](), dict[Site, list[float]]()
    ways, traps = dict[Site, str](), dict[Site, float]()
    pace = math.inf
    for number in range(BOOTS):
        if budget.over(end):
            break
        guest = boot_guest()
        boot = Boot(guest)
        try:
            if not chosen:
                budget.say("short sites: look for what a call runs")
                chosen = sites(guest, ROOM[isa], effort.call, drawn, seed)
            budget.say(f"short sites: boot {number + 1}")
            for site in chosen:
                if budget.over(end):
                    break
                way, hit = measure(boot, effort, site)
                if hit is not None:
                    ways[site] = way
                    taken.setdefault(site, []).append(hit)
            # Plant traps after all other ways: they leave addresses in memory, and kinst plants no
            # run that memory points into.
            for site in chosen if number == 0 and BARS[isa].reached is not None else ():
                if not budget.over(end):
                    traps[site] = measure(boot, short, site, "trap", 1)[1] or 0.0
        finally:
            guest.close()
        pace = min(pace, boot.pace)
    several = sum(len(each) > 1 for each in taken.values())
    if several < len(chosen):
        budget.failed(f"short sites: {len(chosen) - several} of {len(chosen)} in several boots")
    return [
        Cost(replace(site, way=ways[site]), pace * statistics.median(each), pace * min(each),
             pace * max(each), len(each), pace * traps.get(site, 0.0))
        for site, each in taken.items()
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shares:
    """Numbers of instructions by the way in which they are planted.

    Attributes:
        whole: number of instructions by way, if whole functions are planted.
        short: number of instructions of these functions that have no room for a jump.
        alone: number of instructions by way, if each is planted alone, of some of the short
            instructions, drawn at random.
    """

    whole: Counter[str]
    short: int
    alone: Counter[str]

    def traps(self) -> float:
        """Return the percentage of instructions that are traps if whole functions are planted."""
        return 100 * self.whole["trap"] / max(1, self.whole.total())

    def traps_alone(self) -> float:
        """Return the percentage of instructions that are traps if each is planted alone. An
        instruction with room for a jump is never a trap then."""
        part = 100 * self.short / max(1, self.whole.total())
        return part * self.alone["trap"] / max(1, self.alone.total())


def shares(guest: Guest, jump_size: int, functions: int, seed: int) -> Shares | None:
    """Return how the instructions of functions drawn at random from the whole kernel are planted;
    None if `functions` is 0.

    Args:
        guest: the guest.
        jump_size: bytes of a jump.
        functions: number of functions to draw, and of short instructions to plant alone.
        seed: seed of the random numbers.
    """
    if not functions:
        return None
    random_ = random.Random(seed)
    names = sorted({p.function for p in guest.machine.probes("fbt:::entry", details=False)})
    whole, alone, short = Counter[str](), Counter[str](), []
    for name in random_.sample(names, min(functions, len(names))):
        try:
            found = [p for p in guest.machine.probes(f"kinst::{name}:") if p.way != "refused"]
        except KinstError:  # several functions have this name
            continue
        whole.update(p.way for p in found)
        short += [(name, p.name) for p in found if len(p.code) < jump_size]
    for name, offset in random_.sample(short, min(functions, len(short))):
        alone.update(p.way for p in guest.machine.probes(f"kinst::{name}:{offset}"))
    return Shares(whole, len(short), alone)


def show(costs: Sequence[Cost], found: Shares | None) -> None:
    for one in sorted(costs, key=lambda cost: cost.ns):
        site = one.site
        print(f"{site.function}+{site.offset:<5} {site.text:<44} {site.way:<5} {one.ns:8.1f} ns"
              f" ({one.low:.1f} to {one.high:.1f})   {site.hits} hits a call"
              + (f"   trap {one.trap:8.1f} ns" if one.trap else ""))  # fmt: skip
    cheap = sum(one.ns < CHEAP for one in costs)
    traps = [one for one in costs if one.trap]
    median = statistics.median(one.ns for one in costs)
    print(
        f"{cheap} of {len(costs)} cost less than {CHEAP} ns; median {median:.1f} ns;"
        f" load {os.getloadavg()[0]:.1f}"
    )
    if traps:
        ten = sum(one.trap >= CHEAPER * one.ns for one in traps)
        median = statistics.median(one.trap for one in traps)
        print(
            f"{ten} of {len(traps)} cost a tenth of their trap or less; traps' median {median:.1f}"
        )
    if found is None:
        return
    print(f"{found.whole.total()} instructions, planted with all of their function:",
          _percent(found.whole))  # fmt: skip
    part = 100 * found.short / max(1, found.whole.total())
    print(f"{part:.1f}% of them have no room for a jump; planted alone those are:",
          f"{_percent(found.alone)}: traps {found.traps_alone():.1f}% of all")  # fmt: skip


def _percent(ways: Counter[str]) -> str:
    total = max(1, ways.total())
    return ", ".join(f"{way} {100 * n / total:.1f}%" for way, n in ways.most_common())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What a probe on a short instruction costs.")
    parser.add_argument("--isa", default="amd64", help="the ISA of the guest (amd64)")
    parser.add_argument("--sites", type=int, default=100, help="how many are drawn (100)")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (1)")
    parser.add_argument("--shares", type=int, default=200, help="functions for shares (200)")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        copies = compile_programs(["rounds"], Path(folder), options.isa)

        def boot() -> Guest:
            return Guest(copies, options.isa, cold=True)

        try:
            guest = boot()
            try:
                found = shares(guest, ROOM[options.isa], options.shares, options.seed)
            finally:
                guest.close()
            budget = Budget(math.inf)
            costs = measure_all(boot, options.isa, options.sites, options.seed, budget)
        except KinstError as error:
            print(f"short_sites: {error}", file=sys.stderr)
            return 1
    if costs:
        show(costs, found)
    for text, met in bars_of(options.isa, {}, costs, found):
        print(f"{'met   ' if met else 'MISSED'} {text}")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in costs], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
