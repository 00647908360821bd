"""Count the instructions that kinst refuses to probe, by reason, in functions drawn at random.

    .venv/bin/python bench/refusals.py [ISA ...] [--functions N] [--seed N]

Prints a table for docs/safety.md for each instruction set: how many of the instructions of these
functions are planted in which way, and how many are refused for which reason.  Functions in which
nothing can be planted (init code, noinstr, entry code) are listed separately.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import kinst

AT_ONCE = 150  # number of functions to list at a time


def drawn(machine: kinst.Machine, count: int, seed: int) -> list[str]:
    """Return names of functions drawn at random from those that have an fbt probe at their
    entry."""
    rows = machine.list_probes(machine.compile("fbt:vmlinux::entry { }"), details=False)
    names = sorted({row.function for row in rows if "@" not in row.function})
    return random.Random(seed).sample(names, min(count, len(names)))


def ways(machine: kinst.Machine, names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (function, way, reason) for each instruction of these functions: the way to plant it,
    and the reason if it is refused."""
    for first in range(0, len(names), AT_ONCE):
        described = ",".join(f"kinst:vmlinux:{name}:" for name in names[first : first + AT_ONCE])
        for row in machine.list_probes(machine.compile(f"{described} {{ }}", {"zdefs": ""})):
            yield row.function, row.way, row.reason


def kind(reason: str) -> str:
    """Return the reason of a refusal without details that differ between instructions."""
    return re.sub(r"0x[0-9a-f]+|\+\d+|\b[0-9a-f]{8,}\b", "...", reason).strip()


def report(isa: str, functions: int, seed: int) -> None:
    with kinst.boot(isa) as machine:
        names = drawn(machine, functions, seed)
        listed = list(ways(machine, names))
    some = {function for function, way, _ in listed if way != "refused"}
    found = [(way, reason) for function, way, reason in listed if function in some]
    planted = Counter(way for way, _ in found if way != "refused")
    refused = Counter(kind(reason) for way, reason in found if way == "refused")
    total, parts = len(found), sum(refused.values())
    print(f"{isa}: {total:,} instructions of {len(some):,} functions, seed {seed};")
    print(f"{len(names) - len(some):,} more functions are refused as a whole:")
    whole = Counter(kind(reason) for function, _, reason in listed if function not in some)
    print("; ".join(f"{what} ({count:,} instructions)" for what, count in whole.most_common()))
    print("| | instructions | share |\n|---|---|---|")
    for what, count in (*planted.most_common(), ("refused", parts), *refused.most_common()):
        print(f"| {what} | {count:,} | {100 * count / total:.3f} % |")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("isa", nargs="*", default=["amd64", "arm64", "riscv64"])
    parser.add_argument("--functions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for isa in given.isa:
        report(isa, given.functions, given.seed)


if __name__ == "__main__":
    main()
