"""Two hundred functions of the busiest paths, every instruction of each planted: the counts are
those of instructions that are planted one by one.

The workload does the same in each of its rounds (tests/programs/busy.c), and is counted only
meanwhile, so most instructions run a whole number of times a round.  Those are compared that did
so in a run before and in one behind.  `python -m pytest -s` prints how many that are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.guest import Guest, compile_programs

pytestmark = [pytest.mark.vm, pytest.mark.slow]

ROUNDS = 97  # a prime: what happens by chance is seldom a multiple
FUNCTIONS = 200
AT_WORK = '/execname == "at work"/'
MORE_RUNS = 3
ROOM = {"aggsize": 1 << 23, "bufsize": 1 << 20}
Counts = dict[tuple[str, ...], int]


@pytest.fixture(scope="module", params=["amd64", "arm64", "riscv64"])
def guest(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guest]:
    folder: Path = tmp_path_factory.mktemp("busy")
    made = Guest(compile_programs(["busy"], folder, request.param), request.param, seconds=300.0)
    try:
        yield made
    finally:
        made.close()


def counted(guest: Guest, sites: str, keys: str, plant: str = "") -> Counts:
    options: dict[str, str | int] = {**ROOM, **({"plant": plant} if plant else {})}
    program = guest.machine.compile(f"{sites} {AT_WORK} {{ @[{keys}] = count(); }}", options)
    ran = guest.trace(program, f"busy {ROUNDS}")
    assert f"busy {ROUNDS}" in ran.output and not ran.lost
    (table,) = ran.aggregations.values()
    return {tuple(map(str, key)): n for key, n in table.items() if isinstance(n, int)}


@pytest.fixture(scope="module")
def busiest(guest: Guest) -> list[str]:
    """The functions that run most often in a round, and always as often."""
    entries = counted(guest, "fbt:::entry", "probefunc")
    regular = {name: n for (name,), n in entries.items() if n and n % ROUNDS == 0}
    assert len(regular) >= FUNCTIONS, f"only {len(regular)} of {len(entries)}"
    return sorted(regular, key=lambda name: (-regular[name], name))[:FUNCTIONS]


RULES = ("", "no-run", "no-gate")


def test_every_site_counts_what_it_counts_alone(guest: Guest, busiest: list[str]) -> None:
    """What differs is counted alone again, some times: memory is given and taken back by slow ways
    and quick ones, whichever way instructions are planted.  And what differs must do so twice: a
    timer's tick in the right moment takes another branch behind `dec preempt_count`."""
    sites = ", ".join(f"kinst::{name}:" for name in busiest)

    def run(plant: str) -> Counts:
        return counted(guest, sites, "probefunc, probename", plant)

    alone = [run("no-chain")]
    found = {plant: run(plant) for plant in RULES}
    alone.append(run("no-chain"))
    regular = {
        key: n for key, n in alone[0].items() if n and n % ROUNDS == 0 and alone[1].get(key) == n
    }
    wrong = {
        (plant, *key): (n, counts.get(key))
        for plant, counts in found.items()
        for key, n in regular.items()
        if counts.get(key) != n
    }
    for _ in range(MORE_RUNS if wrong else 0):
        again = run("no-chain")
        regular = {key: n for key, n in regular.items() if again.get(key) == n}
        wrong = {key: values for key, values in wrong.items() if key[1:] in regular}
    for plant in {key[0] for key in wrong}:
        again = run(plant)
        wrong = {
            key: values
            for key, values in wrong.items()
            if key[0] != plant or again.get(key[1:]) != values[0]
        }
    functions = {name for name, _ in regular}
    program = guest.machine.compile(f"{sites} {{ @ = count(); }}", ROOM)
    print(
        f"\n{guest.machine.isa}: {len(regular)} sites of {len(functions)} functions,"
        f" {sum(regular.values())} hits; {len(alone[0])} sites were hit;"
        f" ways: {dict(Counter(guest.ways(program)))}"
    )
    assert len(functions) >= FUNCTIONS * 9 // 10
    assert not wrong, f"{len(wrong)}, {list(wrong.items())[:9]}"
