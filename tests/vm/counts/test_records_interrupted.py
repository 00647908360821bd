"""Records written without a call, while ticks interrupt the writing and threads are preempted.

In each function the second instruction records and the first one counts: both run equally often.
The tick's own function records as well, sometimes in the middle of another record.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from bench.guest import compile_programs
from tests.vm.command import kinst

pytestmark = pytest.mark.vm

FUNCTIONS = ("vfs_read", "ksys_read", "update_process_times")
PRINTED = "cpu, timestamp, regs[R_RDX], regs[R_RSP], regs[R_RSP]"
PROGRAM = "".join(
    f'kinst::{name}:5 {{ printf("{number} %d %d %x %x %x\\n", {PRINTED}); }}'
    f"kinst::{name}:0 {{ @[{number}] = count(); }}"
    for number, name in enumerate(FUNCTIONS)
)
WORK = "for n in 1 2 3; do rounds 500 120 >/dev/null & done; wait"
READS = 3 * 500 * 120


@pytest.mark.parametrize(
    "append", ["preempt=full", pytest.param("preempt=voluntary", marks=pytest.mark.slow)]
)
def test_each_hit_has_its_record_and_each_is_whole(append: str, tmp_path: Path) -> None:
    done = kinst(
        "-q", "-x", "bufsize=32m", "-n", PROGRAM, "-c", WORK,
        append=append, copy=[Path(path) for path in compile_programs(["rounds"], tmp_path)],
    ).good()  # fmt: skip
    assert "drop" not in done.err
    lines, counts = done.out.rstrip("\n").split("\n\n")
    rows = [line.split() for line in lines.splitlines()]
    assert {len(row) for row in rows} == {6}
    recorded = Counter(int(row[0]) for row in rows)
    assert recorded == {int(k): int(n) for k, n in re.findall(r"^ +(\d) +(\d+)$", counts, re.M)}
    # Ticks come by the clock: the faster the machine, the fewer ticks for each read.
    assert recorded[0] >= READS and recorded[1] >= READS and recorded[2] > 20
    # A stack pointer twice, and the size of reads, nearly always one byte.
    assert all(row[4] == row[5] and row[4].startswith("ffff") for row in rows)
    assert Counter(row[3] for row in rows if row[0] != "2")["1"] >= 2 * READS
    for cpu in {row[1] for row in rows}:
        times = [int(row[2]) for row in rows if row[1] == cpu]
        assert all(a <= b for a, b in pairwise(times))
    assert {row[1] for row in rows} == {"0", "1"}
