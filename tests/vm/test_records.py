"""A million hits, a line each: what arrives and what is reported as dropped is all there was."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from command import Result, kinst

pytestmark = pytest.mark.vm

DROPS = re.compile(r"^dtrace: (\d+) drops? on (CPU \d+|the host)$", re.M)
LINE = '"%d %d %x %x\\n", cpu, timestamp, regs[R_RDI], regs[R_RSI]'


def dropped(done: Result) -> int:
    return sum(int(count) for count, _ in DROPS.findall(done.err))


def check(done: Result, hits: int) -> None:
    """Every line is whole, and time goes on from one to the next on its CPU."""
    lines = [line for line in done.out.splitlines() if line]
    assert len(lines) + dropped(done) == hits, (len(lines), done.err)
    rows = [line.split() for line in lines]
    assert {len(row) for row in rows} == {4}
    # One process reads one file into one buffer.
    assert len({(row[2], row[3]) for row in rows}) == 1
    assert int(rows[0][2], 16) >> 47 == (1 << 17) - 1 and 0 < int(rows[0][3], 16) < 1 << 47
    for cpu in {row[0] for row in rows}:
        times = [int(row[1]) for row in rows if row[0] == cpu]
        assert all(a < b for a, b in pairwise(times))


def test_a_million_records_with_default_buffers(read_function: str, reads: Path) -> None:
    program = f'kinst::{read_function}:0 /execname == "reads"/ {{ printf({LINE}); }}'
    done = kinst("-q", "-n", program, "-c", "reads 1000000", copy=[reads]).good()
    check(done, 1_000_000)
    # The guest has run at its speed, and kinst keeps up with the most of it at least.
    assert len(done.out.splitlines()) > 100_000


def test_drops_are_counted_to_the_last_one(read_function: str, reads: Path) -> None:
    """With buffers that cannot hold what comes between two looks at them."""
    program = f'kinst::{read_function}:0 /execname == "reads"/ {{ printf({LINE}); }}'
    done = kinst(
        "-q", "-x", "bufsize=16k", "-x", "switchrate=1s",
        "-n", program, "-c", "reads 200000", copy=[reads],
    ).good()  # fmt: skip
    check(done, 200_000)
    assert dropped(done) > 0
