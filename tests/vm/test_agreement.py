"""The same D gives the same result wherever it runs: by the host in BEGIN, at a stop-planted and
at a jump-planted instruction of a running kernel, and in an evaluator in Python."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from command import Row, Running
from d_evaluator import programs

pytestmark = pytest.mark.vm

COUNT = 500


def _script(folder: Path, name: str, probe: str, bodies: list[str]) -> Path:
    """One clause for each body; `probe` has its predicate with it."""
    path = folder / f"{name}.d"
    path.write_text("\n".join(f"{probe}\n{{ {body} }}" for body in bodies))
    return path


@pytest.fixture(scope="module")
def seed() -> int:
    found = random.SystemRandom().randrange(1 << 32)
    print(f"\nseed {found}")
    return found


def _differences(got: list[str], wanted: list[tuple[str, str]]) -> list[str]:
    found = {line.split(" ", 1)[0]: line for line in got}
    return [
        f"{body}\n  must print {line!r}, prints {found.get(line.split(' ', 1)[0])!r}"
        for body, line in wanted
        if found.get(line.split(" ", 1)[0]) != line
    ]


def test_host_stop_and_jump_agree_with_an_evaluator(
    reads: Path, read_path: dict[str, list[Row]], seed: int, tmp_path: Path
) -> None:
    wanted = programs(seed, COUNT)
    bodies = [body for body, _ in wanted]
    jump = next(row for rows in read_path.values() for row in rows if row.way == "jump")
    host = _script(tmp_path, "host", "BEGIN", bodies)
    host.write_text(host.read_text() + "\nBEGIN { exit(0); }\n")
    probe = f'{jump.name} /execname == "reads"/'
    planted = _script(tmp_path, "planted", probe, bodies)
    # Beside each other: most of the time is spent compiling 500 clauses for each.
    started = {"host": Running("-q", "-s", str(host), boots=False)}
    for way in ("jump", "stop"):
        words = ("-q", "-x", f"plant={way}", "-s", str(planted), "-c", "reads 1")
        started[way] = Running(*words, copy=[reads])
    for where, running in started.items():
        result = running.result().good()
        lines = [line for line in result.out.splitlines() if line]
        assert len(lines) == COUNT, (where, seed, result.err)
        wrong = _differences(lines, wanted)
        assert not wrong, f"{where}, seed {seed}: {len(wrong)} differ:\n" + "\n".join(wrong[:5])
