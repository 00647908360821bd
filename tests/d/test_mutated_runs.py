"""Mutated programs, run to their end on this machine: what they record, count and print.

tests/dlang/test_fuzz.py only compiles such programs.  To run many, and list the faulty ones:
    KINST_FUZZ_COUNT=5000 python -m pytest -s -m slow tests/d/test_mutated_runs.py
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import pytest

from tests.d.test_conformance import Server
from tests.dlang import d_mutations

SHOWN = ("-q", "-x quiet=0", "--json", "-F", "-q -x aggsortkey", "-x rawbytes")
# Programs that may change this machine, or that use its kernel's symbols, are left out.
UNWANTED = ("destructive", "`", "curthread")


def programs(seed: int) -> Iterator[str]:
    """Yield mutations of the suite's programs that compile, need no kernel, and end
    immediately."""
    mutator = d_mutations.Mutator(seed)
    for number in itertools.count():
        tokens = mutator.chance.choice(mutator.tokens)
        change = mutator.by_tokens if number % 4 == 0 else mutator.by_kind
        text = change(tokens) + "\nBEGIN { exit(0); }"
        if any(word in text for word in UNWANTED):
            continue
        program = d_mutations.compiles(text)
        if program and d_mutations.needs_no_kernel(program):
            yield text


class Runner(Protocol):
    """A way to run the command with its files in `cwd`; run() returns the exit status, or minus
    the signal."""

    def run(self, argv: list[str], cwd: Path) -> int: ...


def wrong_in(text: str, shown: str, folder: Path, server: Runner) -> str:
    """Return what was wrong in a run, or ""."""
    folder.mkdir()
    (folder / "stdin").write_bytes(b"")
    argv = [*shown.split(), "-x", "errtags", "-x", "defaultargs", "-n", text]
    try:
        status = server.run([*argv, *d_mutations.MACROS.arguments[1:]], folder)
    except AssertionError as error:  # it did not end
        return f"{error}"
    told = (folder / "stderr").read_text(errors="surrogateescape")
    if status < 0 or "a defect of kinst" in told or "Traceback" in told:
        return f"status {status}, {shown}\n{text}\n{told}"
    return ""


def run(seed: int, count: int, folder: Path) -> list[str]:
    """Return what was wrong in `count` runs."""
    chance = random.Random(seed)
    servers = [Server() for _ in os.sched_getaffinity(0)]
    wrong: list[str] = []

    def of_one(worker: int) -> None:
        for number in range(worker, count, len(servers)):
            text, shown = work[number]
            found = wrong_in(text, shown, folder / str(number), servers[worker])
            if found:
                wrong.append(found)
                print(found, flush=True)

    work = [(text, chance.choice(SHOWN)) for text in itertools.islice(programs(seed), count)]
    with ThreadPoolExecutor(len(servers)) as pool:
        list(pool.map(of_one, range(len(servers))))
    for server in servers:
        server.close()
    return wrong


def test_a_few_runs(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30) if os.environ.get("KINST_RANDOM") else 26
    assert run(seed, 25, tmp_path) == [], f"seed {seed}"


@pytest.mark.slow
def test_many_runs(tmp_path: Path) -> None:
    """Run KINST_FUZZ_COUNT programs (500 by default)."""
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}", flush=True)
    assert run(seed, int(os.environ.get("KINST_FUZZ_COUNT", "500")), tmp_path) == [], f"seed {seed}"


class Pretended:
    """A server whose runs have a given status and stderr."""

    def __init__(self, status: int, told: str) -> None:
        self._status, self._told = status, told

    def run(self, argv: list[str], cwd: Path) -> int:
        (cwd / "stderr").write_text(self._told)
        return self._status


@pytest.mark.parametrize(
    ("status", "told", "seen"),
    [
        (-11, "", "status -11"),
        (70, "kinst: a defect of kinst: ValueError", "a defect of kinst"),
        (1, "Traceback (most recent call last):", "Traceback"),
        (3, "dtrace: 3 drops on CPU 0", ""),
    ],
)
def test_what_goes_wrong_is_seen(tmp_path: Path, status: int, told: str, seen: str) -> None:
    found = wrong_in("BEGIN { }", "-q", tmp_path / "one", Pretended(status, told))
    assert bool(found) == bool(seen) and seen in found
