"""read(2) is called exactly so many times and counted as often, for every way of planting, whether
a clause only counts or does more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vm.command import Row, counts, kinst
from tests.vm.language.machine_code import entry_line

pytestmark = pytest.mark.vm

MILLION = 1_000_000


@pytest.fixture(scope="module")
def once(read_function: str, read_path: dict[str, list[Row]]) -> list[Row]:
    """Return the instructions that run exactly once in each read."""
    return entry_line(read_path[read_function])


def program(sites: list[Row], actions: str) -> list[str]:
    return ["-q", "-n", ", ".join(site.name for site in sites) + f" {{ {actions} }}"]


def expected(sites: list[Row], count: int) -> dict[tuple[str, ...], int]:
    return {(str(site.offset),): count for site in sites}


@pytest.mark.parametrize("plant", ["auto", "no-chain"])
def test_a_million_reads_at_jumps_and_traps(once: list[Row], reads: Path, plant: str) -> None:
    """kinst chooses the way, or plants each site by itself; offset 0 is reserved by ftrace."""
    assert once[0].offset == 0
    assert {row.way for row in once} >= {"jump", "trap"}
    arguments = program(once, "@[probename] = count();")
    done = kinst("-x", f"plant={plant}", *arguments, "-c", f"reads {MILLION}", copy=[reads]).good()
    assert counts(done.out) == expected(once, MILLION)
    assert f"reads {MILLION} ns" in done.guest


@pytest.mark.parametrize("way, count", [("jump", MILLION), ("trap", MILLION), ("stop", 1000)])
def test_one_site_in_each_way(once: list[Row], reads: Path, way: str, count: int) -> None:
    """@ = count() at one instruction, and nothing else."""
    site = next(row for row in once if row.offset > 0 and (row.way == "jump" or way != "jump"))
    done = kinst(
        "-x", f"plant={way}", *program([site], "@ = count();"), "-c", f"reads {count}", copy=[reads]
    ).good()
    assert counts(done.out) == {(): count}


@pytest.mark.parametrize(
    "way, count",
    [("auto", 200_000), ("trap", 100_000), pytest.param("stop", 300, marks=pytest.mark.slow)],
)
def test_clauses_that_do_more_than_count(
    once: list[Row], reads: Path, way: str, count: int
) -> None:
    """Counting alone needs no call of a clause; these clauses do.  read(2) asks for 1 byte: rdx is
    1."""
    actions = "@n[probename, execname] = count(); @sum[probename] = sum(regs[R_RDX] + 2); hits++;"
    sites = once[:3]
    done = kinst(
        "-x", f"plant={way}", *program(sites, actions),
        "-n", 'END { printf("hits %d\\n", hits); }', "-c", f"reads {count}", copy=[reads],
    ).good()  # fmt: skip
    found = counts(done.out)
    for site in sites:
        assert found[str(site.offset), "reads"] == count
        assert found[str(site.offset),] == 3 * count
    # One process makes the reads, so no two CPUs add to the global variable at once.
    assert found["hits",] == count * len(sites)


@pytest.mark.parametrize("way", ["jump", "trap"])
def test_two_processes_at_once(once: list[Row], reads: Path, way: str) -> None:
    """A counter, a table of keys and a distribution on both CPUs: none lost or doubled."""
    site = next(row for row in once if row.offset > 0 and (row.way == "jump" or way != "jump"))
    done = kinst(
        "-x", f"plant={way}", *program([once[0]], "@[probename] = count();"),
        "-n", f"{site.name} {{ @k[cpu, regs[R_RDX]] = count(); @q = quantize(regs[R_RDX]); }}",
        "-n", 'END { printa("key %d %d %@d\\n", @k); }',
        "-c", "reads 150000 & reads 150000; wait", copy=[reads],
    ).good()  # fmt: skip
    found = counts(done.out)
    assert found["0",] == 300_000
    assert sum(n for key, n in found.items() if key[0] == "key") == 300_000
    assert {key[2] for key in found if key[0] == "key"} == {"1"}
    assert "drop" not in done.err, done.err
