"""Two hundred functions of the busiest paths, every instruction of each planted.

The counts equal those of instructions that are planted one by one (site_counts.py). `python -m
pytest -s` prints how many were compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.guest import Guest, compile_programs
from tests.vm.counts.site_counts import ROOM, compare, counted

pytestmark = [pytest.mark.vm, pytest.mark.slow]

# Primes, so that chance counts are seldom a multiple.  riscv64 has fewer, because its trapped hits
# take longest.
ROUNDS = {"amd64": 97, "arm64": 97, "riscv64": 41}
FUNCTIONS = 200
RULES = ("", "no-run", "no-gate")


@pytest.fixture(scope="module", params=ROUNDS)
def guest(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guest]:
    folder: Path = tmp_path_factory.mktemp("busy")
    made = Guest(compile_programs(["busy"], folder, request.param), request.param, seconds=600.0)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def rounds(guest: Guest) -> int:
    return ROUNDS[guest.machine.isa]


@pytest.fixture(scope="module")
def busiest(guest: Guest, rounds: int) -> list[str]:
    """Return the functions that run most often in a round, and equally often in each."""
    # Patches of entries need no runs, which would only take time to find.
    entries = counted(guest, "fbt:::entry", "probefunc", f"busy {rounds} ticks", "no-run,no-gate")
    regular = {name: n for (name,), n in entries.items() if n and n % rounds == 0}
    assert len(regular) >= FUNCTIONS, f"only {len(regular)} of {len(entries)}"
    return sorted(regular, key=lambda name: (-regular[name], name))[:FUNCTIONS]


def test_every_site_counts_what_it_counts_alone(
    guest: Guest, rounds: int, busiest: list[str]
) -> None:
    found = compare(guest, busiest, f"busy {rounds} ticks", rounds, RULES)
    sites = ", ".join(f"kinst::{name}:" for name in busiest)
    program = guest.machine.compile(f"{sites} {{ @ = count(); }}", ROOM)
    print(f"{found.told(guest.machine.isa)}; ways: {dict(Counter(guest.ways(program)))}")
    assert len(found.functions) >= FUNCTIONS * 9 // 10
    where = sorted({name for _, name, _ in found.wrong})
    assert not found.wrong, f"{len(found.wrong)}, {where}, {list(found.wrong.items())[:9]}"
