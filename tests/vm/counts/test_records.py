"""A million hits, a line each: printed lines and reported drops add up to all hits."""

from __future__ import annotations

import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from tests.vm.command import KINST, Result, kinst

pytestmark = pytest.mark.vm

DROPS = re.compile(r"^dtrace: (\d+) drops? on (CPU \d+|the host)$", re.M)
LINE = '"%d %d %x %x\\n", cpu, timestamp, regs[R_RDI], regs[R_RSI]'


def dropped(done: Result) -> int:
    return sum(int(count) for count, _ in DROPS.findall(done.err))


def check(done: Result, hits: int) -> None:
    """Check that every line is whole, and that time increases from line to line of a CPU."""
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
    # The guest ran at its full speed, and kinst keeps up with most of it at least.
    assert len(done.out.splitlines()) > 100_000


def test_drops_are_counted_to_the_last_one(read_function: str, reads: Path) -> None:
    """The buffers cannot hold the records between two reads of them."""
    program = f'kinst::{read_function}:0 /execname == "reads"/ {{ printf({LINE}); }}'
    done = kinst(
        "-q", "-x", "bufsize=16k", "-x", "switchrate=1s",
        "-n", program, "-c", "reads 200000", copy=[reads],
    ).good()  # fmt: skip
    check(done, 200_000)
    assert dropped(done) > 0


# The bad address is the time itself, so that a fault's message tells when it was.
TIME = re.compile(r"(?:^\d+ at (\d+)$|invalid address \(0x([0-9a-f]+)\))", re.M)
IN_TURN = """
fbt::ksys_read:entry /execname == "dd"/ { printf("%d at %d\\n", cpu, timestamp); }
fbt::ksys_read:entry /execname == "dd" && n++ % 40 == 0/ { trace(*(int *)timestamp); }
fbt::ksys_read:return /execname == "dd"/ { printf("%d at %d\\n", cpu, timestamp); }
"""


def test_messages_of_faults_stand_among_the_records_by_time(tmp_path: Path) -> None:
    """Messages of faults are printed in order of time, on all CPUs, at the point where each clause
    failed.

    bufpolicy=fill prints everything at the end, as one batch, so that the order is exact.
    """
    script = tmp_path / "turns.d"
    script.write_text(IN_TURN)
    dd = "dd if=/dev/zero of=/dev/null bs=1 count=300 2>/dev/null"
    done = subprocess.run(
        [
            str(KINST), "-q", "-x", "bufpolicy=fill", "-x", "bufsize=8m", "-s", str(script),
            "-c", f"{dd} & {dd}; wait",
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=600, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    kinds = [(" at " in line, "invalid address (0x" in line) for line in lines]
    assert kinds.count((False, True)) > 10 and kinds.count((True, False)) >= 1200, done.stdout
    times = [int(t) if t else int(a, 16) for t, a in TIME.findall(done.stdout)]
    assert len(times) == kinds.count((False, True)) + kinds.count((True, False))
    assert times == sorted(times)
