"""D programs give the same result wherever they run.

They run on the host in BEGIN and in a timer, at a stop-planted, a jump-planted and a trap-planted
instruction of a running kernel, and in an evaluator in Python.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from tests.vm.command import Row, Running
from tests.vm.language.d_evaluator import Script, of_programs, script

pytestmark = pytest.mark.vm

OPTIONS = ("-q", "-x", "bufsize=8m", "-x", "dynvarsize=16m")
# Each script fires twice: values left in variables are there the second time.
HOST = """
BEGIN, tick-20ms { rounds++; }
tick-20ms /rounds == 2/ { exit(0); }
"""
# Messages about faults: the first ones, and how many more there were. On a busy host, firings of
# the timer may be missed, which changes no result: the program waits for the second firing.
EXPECTED = re.compile(
    r"error on enabled probe|^kinst: \d+ more errors?\b|firings? of profile:::tick-20ms w"
)
GUARD = 'execname == "reads"'


FIXED = 4243  # of those that `make test` runs: the same programs each time


def seed_of_today(scripts: int) -> int:
    """Return the seed; KINST_SEED repeats a run."""
    drawn = random.SystemRandom().randrange(1 << 32) if scripts > 1 else FIXED
    return int(os.environ.get("KINST_SEED") or drawn)


def site(read_path: dict[str, list[Row]], way: str) -> Row:
    """Return an instruction that every read(2) executes: the first of its function that is planted
    this way."""
    rows = next(rows for name, rows in read_path.items() if name == "ksys_read")
    return next(row for row in rows if row.way == way)


def differences(got: str, wanted: Script) -> list[str]:
    """Return the programs whose output is not as expected."""
    found = of_programs(got.splitlines(), len(wanted.programs))
    return [
        f"{program.text('BEGIN')}\n  must print {lines}\n  prints     {own}"
        for program, lines, own in zip(wanted.programs, wanted.lines, found, strict=True)
        if lines != own
    ]


def check(seed: int, count: int, reads: Path, sites: str, folder: Path) -> None:
    """Check one script of so many programs, on the host and in two guests."""
    wanted = script(seed, count, firings=2)
    host, planted = folder / "host.d", folder / "planted.d"
    host.write_text("int rounds;\n" + wanted.text("BEGIN, tick-20ms", "rounds < 2") + HOST)
    planted.write_text(wanted.text(sites, GUARD))
    # In parallel: most of the time is spent compiling.
    started = {"host": Running(*OPTIONS, "-s", str(host), boots=False)}
    for name, words in (("jump and trap", ()), ("stop", ("-x", "plant=stop"))):
        started[name] = Running(
            *OPTIONS, *words, "-s", str(planted), "-c", "reads 1", copy=[reads]
        )  # fmt: skip
    for where, running in started.items():
        result = running.result(600).good()
        wrong = differences(result.out, wanted)
        assert not wrong, f"{where}, seed {seed}: {len(wrong)} differ:\n" + "\n".join(wrong[:5])
        others = [line for line in result.err.splitlines() if not EXPECTED.search(line)]
        assert others == [], (where, seed)
    faults = sum(line.startswith("error ") for lines in wanted.lines for line in lines)
    assert faults > count // 10


@pytest.mark.parametrize(
    ("count", "scripts"),
    [(40, 1), *(pytest.param(100, 5, marks=pytest.mark.slow, id=f"500-{n}") for n in range(3))],
)
def test_everywhere_as_the_evaluator_says(
    count: int, scripts: int, reads: Path, read_path: dict[str, list[Row]], tmp_path: Path
) -> None:
    seed = seed_of_today(scripts)
    print(f"\nKINST_SEED={seed}")
    sites = ", ".join(site(read_path, way).name for way in ("jump", "trap"))
    for number in range(scripts):
        check(seed + number, count, reads, sites, tmp_path)
