"""Programs whose kinst is killed at a random moment: they go on, and end as without kinst."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import ROOT
from tests.machines.process.stepped import built, needs_programs
from tests.machines.process.test_running import running

pytestmark = needs_programs
_SET_SUBREAPER = 36  # prctl(2)
KILLS = [pytest.param(12, marks=pytest.mark.full), pytest.param(100, marks=pytest.mark.slow)]


@contextmanager
def reaping() -> Iterator[None]:
    """Make this process the parent of all processes whose parent ends in the with block."""
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_SET_SUBREAPER, 0, 0, 0, 0)


def statuses_of_orphans() -> list[int]:
    """Wait for all child processes, and return their exit statuses."""
    found = []
    while True:
        try:
            _, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return found
        found.append(os.waitstatus_to_exitcode(status))


def kinst_count(*words: str | Path, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "kinst.cli.command", "count", "-o", os.devnull, *words],
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip


def kill_often(command: Sequence[str | Path], kills: int, folder: Path) -> int:
    """Count a command again and again, and kill kinst each time at a random moment.

    Returns how often the command went on.
    """
    plain = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    words = ("-c", " ".join(map(str, command)))
    output = folder / "output"
    began = time.monotonic()
    assert kinst_count(*words, output=output).wait() == plain.returncode
    whole = time.monotonic() - began
    draw, went_on = random.Random(), 0
    with reaping():
        for _ in range(kills):
            tracer = kinst_count(*words, output=output)
            time.sleep(draw.uniform(0.0, whole))
            tracer.send_signal(signal.SIGKILL)
            at_once = tracer.wait()
            statuses = [at_once, *statuses_of_orphans()]
            written = output.read_bytes()
            if plain.returncode in statuses:
                assert written == plain.stdout
                went_on += at_once < 0
            else:  # killed with kinst, before its first instruction
                assert not written
    return went_on


@pytest.mark.parametrize("kills", KILLS)
def test_threads_forks_and_stops_go_on(kills: int, tmp_path: Path) -> None:
    program = built(tmp_path, "crowd.c", "-pthread")
    assert kill_often([program, "200", "5000"], kills, tmp_path)


@pytest.mark.parametrize("kills", KILLS)
def test_a_program_of_debian_goes_on(kills: int, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(random.Random(7).randbytes(3_000_000) + bytes(50_000_000))
    assert kill_often(["gzip", "-6", "-n", "-c", text], kills, tmp_path)


@pytest.mark.parametrize("kills", KILLS)
def test_a_process_that_ran_before_goes_on(kills: int, tmp_path: Path) -> None:
    """Each time a new process is attached to: the jumps of a killed kinst stay in the old one."""
    draw, stayed = random.Random(), 0
    for _ in range(kills):
        with running(tmp_path) as one:
            tracer = kinst_count("-p", str(one.pid), output=tmp_path / "output")
            time.sleep(draw.uniform(0.0, 2.5))
            tracer.kill()
            tracer.wait()
            one.ask(1000)
            there, file = one.text()
            stayed += there != file
            one.end()
    assert stayed
