"""Programs with threads, children, signals and exceptions, and programs whose kinst is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.machines.process.stepped import built, counted, needs_programs, stepped

pytestmark = [needs_programs, pytest.mark.slow]
SERIAL, CHILDREN = 200, 4  # of many_threads.c
KILLS = 100


@pytest.mark.parametrize("options", [(), ("-static",)])
def test_each_thread_and_child_is_counted(
    options: tuple[str, ...], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The program says how often it works: nothing is lost between threads."""
    program = built(tmp_path, "many_threads.c", "-pthread", *options)
    threads, rounds = 8, 20_000
    where = "kinst::one_round: { @[probefunc, probename] = count(); }"
    words = [program, str(threads), str(rounds)]
    found = counted(words, capfdbinary, where)
    assert (found.status, found.output) == (6, b"8 threads\n")
    assert set(found.counts.values()) == {rounds * (threads + SERIAL + CHILDREN)}
    whole = counted([program, "8", "2000"], capfdbinary)
    assert (whole.status, whole.output) == (6, b"8 threads\n")
    assert 2000 * (threads + SERIAL + CHILDREN) in whole.counts.values()


def test_exceptions_through_planted_frames(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    program = built(tmp_path, "thrown.cc", compiler="g++")
    expected, status, output = stepped([program], tmp_path)
    found = counted([program], capfdbinary)
    assert (found.status, found.output) == (status, output)
    assert found.counts == {at: expected.get(at, 0) for at in found.counts}


def test_a_program_goes_on_if_kinst_is_killed(tmp_path: Path) -> None:
    """kinst is killed at random moments: while it plants, while the program runs, at its end."""
    program, text = tmp_path / "gzip", tmp_path / "text"
    program.write_bytes(Path("/usr/bin/gzip").read_bytes())
    program.chmod(0o755)
    text.write_bytes(random.Random(7).randbytes(3_000_000) + bytes(20_000_000))
    plain = subprocess.run([program, "-n", "-c", text], capture_output=True, check=True).stdout
    draw, went_on = random.Random(), 0
    for k in range(KILLS):
        out = tmp_path / "out"
        with out.open("wb") as file:
            tracer = subprocess.Popen(
                [sys.executable, "-m", "kinst.cli.command", "count", "-o", tmp_path / "table",
                 "-c", f"{program} -n -c {text}"], stdout=file, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            while k % 2 and tracer.poll() is None and not out.stat().st_size:
                time.sleep(0.01)  # until the program writes
            time.sleep(draw.uniform(0.0, 0.5 if k % 2 else 4.0))
            os.kill(tracer.pid, signal.SIGKILL)
            tracer.wait()
            while subprocess.run(["pgrep", "-f", f"^{program} "], capture_output=True).stdout:
                time.sleep(0.05)
        written = out.read_bytes()
        # Before it has run, the program ends with kinst.
        assert written == plain if k % 2 else written in (b"", plain)
        went_on += written == plain
    assert went_on
