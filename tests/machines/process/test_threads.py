"""Programs with threads, children, signals and exceptions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.machines.process.stepped import built, counted, needs_programs, stepped

pytestmark = [needs_programs, pytest.mark.slow]
SERIAL, CHILDREN = 200, 4  # of many_threads.c


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


def test_threads_of_a_large_program(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """40 MB of code: the counters of all threads take more than the 2 GB that code reaches."""
    filler = tmp_path / "filler.s"
    filler.write_text('.section .text.filler, "ax"\n.zero 40000000\n')
    program = built(tmp_path, "many_threads.c", "-pthread", str(filler))
    where = "kinst::one_round: { @[probefunc, probename] = count(); }"
    found = counted([program, "8", "2000"], capfdbinary, where)
    assert (found.status, found.output) == (6, b"8 threads\n")
    assert set(found.counts.values()) == {2000 * (8 + SERIAL + CHILDREN)}


def test_exceptions_through_planted_frames(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    program = built(tmp_path, "thrown.cc", compiler="g++")
    expected, status, output = stepped([program], tmp_path)
    found = counted([program], capfdbinary)
    assert (found.status, found.output) == (status, output)
    assert found.counts == {at: expected.get(at, 0) for at in found.counts}


def test_threads_by_the_thousand_with_forks_and_stops(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """3,000 threads, 150 of which fork, while another process stops and continues all of them."""
    program = built(tmp_path, "crowd.c", "-pthread")
    threads, rounds, forks = 3000, 100, 20
    words = [program, str(threads), str(rounds)]
    plain = subprocess.run(words, capture_output=True, check=False)
    where = "kinst::crowd_round: { @[probefunc, probename] = count(); }"
    found = counted(words, capfdbinary, where)
    assert (found.status, found.output) == (plain.returncode, plain.stdout) == (6, plain.stdout)
    assert set(found.counts.values()) == {rounds * (threads + threads // forks)}
