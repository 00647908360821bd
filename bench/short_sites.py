"""What a probe costs that stands alone on an instruction with no room for a jump.

    .venv/bin/python bench/short_sites.py [--isa ISA] [--sites N] [--seed N] [--shares N]

A guest program calls read(2) of one byte of /dev/zero in short rounds.  Of the functions that each
call runs, by a count of all entries, instructions are drawn at random that are run by each call and
have no room for a jump of their own.  Each is planted alone, in turns with untraced rounds, in the
best way and by its trap; a hit costs (ns of a call with the probe - ns without) / hits in a call,
by the least of all rounds.  Hits are counted: a probe that misses would be cheap.

The shares of ways are of all instructions of functions that are drawn at random from the whole
kernel: planted with all of their function, and each by itself (of those, some are drawn).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.bars import bars_of
from bench.guest import Guest, compile_programs
from bench.hit_tools import Effort, counts_of, rounds_of
from kinst import KinstError, Program

EFFORT = Effort(200, 60)  # short rounds: some fit between two interruptions
PROBING = 500  # reads for finding out what a read runs
ROOM = {"amd64": 5, "arm64": 4, "riscv64": 8}  # bytes of a jump
CHEAP = 60  # ns


@dataclass(frozen=True, slots=True)
class Cost:
    """hits: in one call.  way: the best.  ns: of a hit by it, trap: by a trap."""

    function: str
    offset: int
    text: str
    way: str
    hits: int
    ns: float
    trap: float


def in_a_call(guest: Guest, program: Program) -> dict[str, int]:
    """Of what a program counts, what each call runs, and how often: by the difference that more
    calls make."""
    few, many = (counts_of(guest.trace(program, f"rounds {n} 1")) for n in (PROBING, 3 * PROBING))
    each = {key: (n - few.get(key, 0) + PROBING) // (2 * PROBING) for key, n in many.items()}
    return {
        key: n
        for key, n in each.items()
        if n and abs(many[key] - few.get(key, 0) - 2 * PROBING * n) < PROBING // 4
    }


def sites(guest: Guest, room: int, drawn: int, seed: int) -> list[tuple[str, int, str, int]]:
    """(function, offset, text, hits in a call) of short instructions that each call runs."""
    entries = 'fbt:::entry /execname == "rounds"/ { @[probefunc] = count(); }'
    functions = sorted(in_a_call(guest, guest.compile(entries)))
    print(f"{len(functions)} functions are run by each call: {' '.join(functions)}", flush=True)
    possible = []
    for name in functions:
        every = guest.compile(f"kinst::{name}: {{ @[probename] = count(); }}")
        hits = in_a_call(guest, every)
        possible += [
            (name, int(p.name), p.text, hits[p.name])
            for p in guest.machine.list_probes(every)
            if len(p.code) < room and p.name in hits
        ]
    return random.Random(seed).sample(possible, min(drawn, len(possible)))


def measure(guest: Guest, site: tuple[str, int, str, int]) -> Cost:
    """Untraced rounds before and behind each of the two ways."""
    function, offset, text, hits = site
    costs, way = [], ""
    for plant in ("", "trap"):
        program = guest.compile(f"kinst::{function}:{offset} {{ @ = count(); }}", plant)
        way = way or guest.ways(program)[0]
        bare = rounds_of(guest.run(EFFORT.command))
        ran = guest.trace(program, EFFORT.command)
        bare += rounds_of(guest.run(EFFORT.command))
        seen = sum(counts_of(ran).values())
        if seen < EFFORT.total * hits:  # others of the guest may come there, too
            raise KinstError(f"{function}+{offset}: {seen} hits, not {EFFORT.total * hits}")
        costs.append((min(rounds_of(ran.output)) - min(bare)) / hits)
    return Cost(function, offset, text, way, hits, *costs)


@dataclass(frozen=True, slots=True)
class Shares:
    """Instructions by the way they are planted.  whole: with all of their function.  short: of
    those, which have no room for a jump.  alone: ways of some of these, each by itself."""

    whole: Counter[str]
    short: int
    alone: Counter[str]

    def traps(self) -> float:
        """Percent of instructions that are traps with all of their function planted."""
        return 100 * self.whole["trap"] / max(1, self.whole.total())

    def traps_alone(self) -> float:
        """Percent of all instructions that are traps when planted by themselves: those with room
        for a jump are none."""
        part = 100 * self.short / max(1, self.whole.total())
        return part * self.alone["trap"] / max(1, self.alone.total())


def shares(guest: Guest, room: int, functions: int, seed: int) -> Shares:
    """How the instructions of functions drawn from all of the kernel are planted."""
    random_ = random.Random(seed)
    names = sorted({p.function for p in guest.machine.probes("fbt:::entry", details=False)})
    whole, alone, short = Counter[str](), Counter[str](), []
    for name in random_.sample(names, min(functions, len(names))):
        try:
            found = [p for p in guest.machine.probes(f"kinst::{name}:") if p.way != "refused"]
        except KinstError:  # several have the name
            continue
        whole.update(p.way for p in found)
        short += [(name, p.name) for p in found if len(p.code) < room]
    for name, offset in random_.sample(short, min(functions, len(short))):
        alone.update(p.way for p in guest.machine.probes(f"kinst::{name}:{offset}"))
    return Shares(whole, len(short), alone)


def measure_all(
    guest: Guest, isa: str, drawn: int, functions: int, seed: int
) -> tuple[list[Cost], Shares | None]:
    """Costs of `drawn` sites, and shares in so many functions; None for no function."""
    room = ROOM[isa]
    costs = [measure(guest, site) for site in sites(guest, room, drawn, seed)]
    return costs, shares(guest, room, functions, seed) if functions else None


def show(costs: Sequence[Cost], found: Shares | None) -> None:
    for one in sorted(costs, key=lambda cost: cost.ns):
        print(f"{one.function}+{one.offset:<5} {one.text:<44} {one.way:<5} {one.ns:8.1f} ns"
              f"   trap {one.trap:8.1f} ns   {one.hits} hits a call")  # fmt: skip
    cheap = sum(one.ns < CHEAP for one in costs)
    ten = sum(one.trap >= 10 * one.ns for one in costs)
    print(
        f"{cheap} of {len(costs)} cost less than {CHEAP} ns, {ten} a tenth of their trap or less;"
        f" median {statistics.median(one.ns for one in costs):.1f} ns, of traps"
        f" {statistics.median(one.trap for one in costs):.1f}; load {os.getloadavg()[0]:.1f}"
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
        guest = Guest(compile_programs(["rounds"], Path(folder), options.isa), options.isa)
        try:
            costs, found = measure_all(
                guest, options.isa, options.sites, options.shares, options.seed
            )
        except KinstError as error:
            print(f"short_sites: {error}", file=sys.stderr)
            return 1
        finally:
            guest.close()
    show(costs, found)
    for text, met in bars_of(options.isa, {}, costs, found):
        print(f"{'met   ' if met else 'MISSED'} {text}")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in costs], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
