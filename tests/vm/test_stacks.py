"""stack() beside the kernel's own unwinder, hit by hit."""

from __future__ import annotations

import os
import random
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Row, counts, kinst, list_functions
from kernel_stacks import choose_pairs, compare, draw

from kinst.targets.fetch import Prepared

pytestmark = pytest.mark.vm

NAMES = Path(__file__).with_name("functions.txt")


def seed_of_today() -> int:
    """KINST_SEED repeats a run."""
    return int(os.environ.get("KINST_SEED") or random.SystemRandom().randrange(1 << 32))


def test_stacks_are_the_kernels(
    read_path: dict[str, list[Row]], reads: Path, tmp_path: Path
) -> None:
    """At instructions on the path of a read(2): stack() equals what the kernel's stacktrace
    trigger records for the same hit."""
    chosen = []
    for rows in read_path.values():
        sites = [row for row in rows if row.offset > 0]
        chosen += choose_pairs(rows, sites)[:12]
    found = compare(chosen, "reads 20", "reads", tmp_path, [reads])
    assert found.differences == []
    assert found.sites >= 25 and min(found.ways.values()) >= 5, found


@pytest.mark.slow
def test_stacks_at_500_random_sites(
    prepared: Prepared, guest_program: Callable[[str], Path], tmp_path: Path
) -> None:
    """The same at instructions that were drawn from what a workload runs in 200 functions."""
    seed = seed_of_today()
    print(f"KINST_SEED={seed}")
    shown = subprocess.run(["nm", str(prepared.debug)], capture_output=True, text=True, check=True)
    seen = Counter(w[2] for w in map(str.split, shown.stdout.splitlines()) if w[1] in "tT")
    names = [name for name in NAMES.read_text().split() if seen[name] == 1]
    functions = list_functions(*names)
    program = guest_program("workload")
    description = ", ".join(f"kinst::{name}:" for name in names)
    count = '/execname == "workload"/ { @[probefunc, probename] = count(); }'
    ran = kinst(
        "-q", "-n", f"{description} {count}", "-c", "workload 2 1", copy=[program]
    ).good()  # fmt: skip
    hit = {(name, int(offset)) for name, offset in counts(ran.out)}
    chosen = draw(functions, hit, 600, seed)
    found = compare(chosen, "workload 6 1", "workload", tmp_path, [program])
    print(f"{found.sites} sites {found.ways}, {found.stacks} stacks, {found.refused} refused")
    assert found.differences == [], (seed, found.done.err)
    assert found.sites >= 500 and min(found.ways.values()) >= 100, (seed, found)
