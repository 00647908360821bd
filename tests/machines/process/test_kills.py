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
from tests.machines.process.test_running import running, wait_until_planted

pytestmark = needs_programs
_SET_SUBREAPER = 36  # prctl(2)
KILLS = [pytest.param(8, marks=pytest.mark.full), pytest.param(100, marks=pytest.mark.slow)]
SEED = 29


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


def drawn() -> random.Random:
    """Return random numbers: the same each time, or new ones in make test-release."""
    return random.Random(None if os.environ.get("KINST_RANDOM") else SEED)


def kinst_count(*words: str | Path, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "kinst.cli.command", "count", "-o", os.devnull, *words],
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip


def wait_for_output(tracer: subprocess.Popen[bytes], output: Path) -> None:
    while not output.stat().st_size and tracer.poll() is None:
        time.sleep(0.002)


def kill_often(command: Sequence[str | Path], kills: int, folder: Path) -> int:
    """Count a command again and again, and kill kinst each time at a random moment.

    Returns how often the command went on.
    """
    plain = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    words = ("-c", " ".join(map(str, command)))
    output = folder / "output"
    began = time.monotonic()
    tracer = kinst_count(*words, output=output)
    wait_for_output(tracer, output)
    until_it_ran = time.monotonic() - began
    assert tracer.wait() == plain.returncode
    run = time.monotonic() - began - until_it_ran
    draw, went_on = drawn(), 0
    with reaping():
        for k in range(kills):
            tracer = kinst_count(*words, output=output)
            if k % 2:  # while the program runs
                wait_for_output(tracer, output)
            # After the program has ended, kinst reads its counters.
            late = draw.uniform(0.0, run / 2 if k % 2 else until_it_ran)
            time.sleep(0.0 if k == 1 else late)  # the program has just begun once at least
            tracer.send_signal(signal.SIGKILL)
            tracer.wait()
            goes_on = plain.returncode in statuses_of_orphans()
            # A program that is killed with kinst has not begun.
            assert output.read_bytes() in ((plain.stdout,) if goes_on else (b"", plain.stdout))
            went_on += goes_on
    return went_on


@pytest.mark.parametrize("kills", KILLS)
def test_threads_forks_and_stops_go_on(kills: int, tmp_path: Path) -> None:
    program = built(tmp_path, "crowd.c", "-pthread")
    assert kill_often([program, "2000", "1000"], kills, tmp_path)


@pytest.mark.parametrize("kills", KILLS)
def test_a_program_of_debian_goes_on(kills: int, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(random.Random(7).randbytes(3_000_000) + bytes(50_000_000))
    assert kill_often(["gzip", "-6", "-n", "-c", text], kills, tmp_path)


@pytest.mark.parametrize("kills", KILLS)
def test_a_process_that_ran_before_goes_on(kills: int, tmp_path: Path) -> None:
    """Each time a new process is attached to: the jumps of a killed kinst stay in the old one."""
    draw, stayed = drawn(), 0
    for k in range(kills):
        with running(tmp_path) as one:
            tracer = kinst_count("-p", str(one.pid), output=tmp_path / "output")
            if k % 2:
                wait_until_planted(one)
            time.sleep(draw.uniform(0.0, 0.2 if k % 2 else 2.5))
            tracer.kill()
            tracer.wait()
            one.ask(1000)
            there, file = one.text()
            stayed += there != file
            one.end()
    assert stayed
