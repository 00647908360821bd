"""Runs and gates in running kernels count the same as single sites."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import kinst
from bench.guest import Guest, compile_programs
from bench.hit_tools import counts_of

pytestmark = pytest.mark.vm

READS = 400
ROOM = {"amd64": 5, "riscv64": 8}  # bytes of a jump
FUNCTIONS = ("ksys_read", "vfs_read", "rw_verify_area", "__fdget_pos", "__fget_light")
MINE = '/execname == "reads"/'


@pytest.fixture(scope="module", params=sorted(ROOM))
def booted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Guest]]:
    folder: Path = tmp_path_factory.mktemp("runs")
    yield from fresh(request.param, folder)


@pytest.fixture
def untouched(booted: tuple[str, Guest], tmp_path: Path) -> Iterator[Guest]:
    """Start another guest, in which nothing was planted yet.

    After a timer interrupts the code of a trace, a word of memory can hold an address in it for
    long, and meanwhile no run includes the instructions that this code leads back to.  After a
    trace of whole functions that may be all of their sites.
    """
    yield from (guest for _, guest in fresh(booted[0], tmp_path))


def fresh(isa: str, folder: Path) -> Iterator[tuple[str, Guest]]:
    guest = Guest(compile_programs(["reads"], folder, isa), isa)
    try:
        yield isa, guest
    finally:
        guest.close()


def counted(guest: Guest, sites: str, plant: str = "") -> dict[str, int]:
    """Return the counts of one program's reads, by function and offset."""
    key = '@[strjoin(probefunc, strjoin("+", probename))]'
    program = guest.compile(f"{sites} {MINE} {{ {key} = count(); }}", plant)
    return counts_of(guest.trace(program, f"reads {READS}"))


def present(guest: Guest) -> list[str]:
    found = []
    for name in FUNCTIONS:
        try:
            found += sorted({p.function for p in guest.machine.probes(f"kinst::{name}:0")})
        except kinst.KinstError:
            continue
    return found


def test_whole_functions(booted: tuple[str, Guest]) -> None:
    _, guest = booted
    sites = ", ".join(f"kinst::{name}:" for name in present(guest))
    ways = guest.ways(guest.compile(f"{sites} {{ @ = count(); }}"))
    assert ways.count("run") > len(ways) // 3
    expected = counted(guest, sites, "no-chain")
    assert READS in expected.values()
    assert counted(guest, sites) == expected
    assert counted(guest, sites, "no-run") == expected


def test_sites_alone(booted: tuple[str, Guest], untouched: Guest) -> None:
    """Each site is planted by itself, which may displace instructions around it."""
    isa, guest = booted
    whole = counted(guest, ", ".join(f"kinst::{name}:" for name in present(guest)), "no-chain")
    short = [
        f"{p.function}+{p.name}"
        for name in present(guest)
        for p in guest.machine.probes(f"kinst::{name}:")
        if len(p.code) < ROOM[isa] and whole.get(f"{p.function}+{p.name}", 0) >= READS
    ]
    ways = []
    for one in random.Random(7).sample(short, 6):
        function, offset = one.split("+")
        site = f"kinst::{function}:{offset}"
        ways += untouched.ways(untouched.compile(f"{site} {{ @ = count(); }}"))
        assert counted(untouched, site) == {one: whole[one]}, f"{one}, {ways[-1]}"
    assert "run" in ways
