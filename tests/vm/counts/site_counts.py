"""Compare counts of many instructions, planted in several ways, under a workload of equal rounds.

tests/programs/busy.c is the workload.  An instruction that runs a whole number of times in each
round does so however sites are planted, except for what the kernel does by itself: memory is
allocated and freed on slow and fast paths, and a timer's tick at the right moment takes another
branch after `dec preempt_count`.  So counts that differ are taken again; they count as different
only if no count of the one way ever equals one of the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import kinst
from bench.guest import Guest

AT_WORK = '/execname == "at work"/'
ALONE = "no-chain"
ROOM = {"aggsize": 1 << 23, "bufsize": 1 << 20}
MORE_RUNS = 5

Site = tuple[str, ...]  # function, offset
Counts = dict[Site, int]


@dataclass(frozen=True, slots=True)
class Compared:
    """Outcome of a comparison.

    Attributes:
        regular: counts of the instructions that were compared.
        hit: how many instructions ran at all.
        runs: number of runs of the workload.
        wrong: counts by a rule and by single sites, for each (rule, function, offset) that
            differs.
    """

    regular: Counts
    hit: int
    runs: int
    wrong: dict[Site, tuple[list[int], list[int]]]

    @property
    def functions(self) -> set[str]:
        return {name for name, _ in self.regular}

    def told(self, what: str) -> str:
        return (
            f"\n{what}: {len(self.regular)} sites of {len(self.functions)} functions,"
            f" {sum(self.regular.values())} hits; {self.hit} sites were hit; {self.runs} runs"
        )


def counted(
    guest: Guest, sites: str, keys: str, command: str, plant: str = "", where: str = AT_WORK
) -> Counts:
    """Return the counts of a program's sites while a command runs, which reports its own
    success."""
    options: dict[str, str | int] = {**ROOM, **({"plant": plant} if plant else {})}
    program = guest.machine.compile(f"{sites} {where} {{ @[{keys}] = count(); }}", options)
    ran = guest.trace(program, command)
    assert command in ran.output and not ran.lost, ran
    (table,) = ran.aggregations.values()
    return {tuple(map(str, key)): n for key, n in table.items() if isinstance(n, int)}


def present(guest: Guest, names: Sequence[str]) -> list[str]:
    """Return the functions that this kernel has, once each; globs are allowed."""
    found = list[str]()
    for name in names:
        try:
            found += [p.function for p in guest.machine.probes(f"kinst::{name}:0")]
        except kinst.KinstError:
            continue
    return list(dict.fromkeys(found))


def compare(
    guest: Guest,
    functions: Sequence[str],
    command: str,
    rounds: int,
    rules: Sequence[str],
    where: str = AT_WORK,
) -> Compared:
    """Compare every instruction of some functions, planted by each of the rules and by itself."""
    sites, runs = ", ".join(f"kinst::{name}:" for name in functions), 0
    seen: dict[str, dict[Site, list[int]]] = defaultdict(lambda: defaultdict(list))

    def run(plant: str) -> None:
        nonlocal runs
        runs += 1
        found = counted(guest, sites, "probefunc, probename", command, plant, where)
        for key in {*found, *seen[plant], *seen[ALONE]}:
            seen[plant][key].append(found.get(key, 0))

    for plant in (ALONE, *rules, ALONE):
        run(plant)
    alone = seen[ALONE]
    hit = len(alone)
    regular = {
        key: values[0]
        for key, values in alone.items()
        if len(values) == 2 and values[0] == values[1] and values[0] % rounds == 0 and values[0]
    }

    def differing() -> dict[Site, tuple[list[int], list[int]]]:
        return {
            (plant, *key): (seen[plant][key], alone[key])
            for plant in rules
            for key in regular
            if not {*seen[plant][key]} & {*alone[key]}
        }

    wrong = differing()
    for _ in range(MORE_RUNS):
        if not wrong:
            break
        for plant in (ALONE, *sorted({key[0] for key in wrong})):
            run(plant)
        wrong = differing()
    return Compared(regular, hit, runs, wrong)
