"""Counts of user programs on the real processor: each planted instruction has the count of a
single-stepper, which is the tests' own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import ROOT
from tests.machines.process.stepped import built, counted, needs_programs, stepped
from tests.tiers import draws

pytestmark = needs_programs
# Share of its instructions that a program may lose at most because only a trap could plant them.
FEW = 0.06


def compare(
    words: list[str | Path],
    folder: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    options: dict[str, str] | None = None,
) -> tuple[int, int]:
    """Compare kinst's counts, output and status with those of single steps.

    Returns how many instructions were compared, and their hits.
    """
    expected, status, output = stepped(words, folder)
    found = counted(words, capfdbinary, options=options)
    assert (found.status, found.output) == (status, output)
    wrong = {
        hex(address): (count, expected.get(address, 0))
        for address, count in found.counts.items()
        if count != expected.get(address, 0)
    }
    assert not wrong
    assert len(found.left_out) <= FEW * len(found.counts), found.left_out
    # What was stepped through and not planted is left out with a reason, or in no function.
    assert sum(address in found.counts for address in expected) > 0.9 * len(expected)
    return len(found.counts), sum(found.counts.values())


STATIC = pytest.param(("-static", "-no-pie"), marks=pytest.mark.full)  # all of a C library


@pytest.mark.parametrize("options", [(), ("-O0", "-fcf-protection"), STATIC])
def test_a_program_of_many_shapes(
    options: tuple[str, ...], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Loops, recursion, a switch, calls by pointer, the red zone, longjmp, a signal handler."""
    program = built(tmp_path, "shapes.c", *options)
    planted, hits = compare([program, "word"], tmp_path, capfdbinary)
    assert planted > 300 and hits > 20_000


@pytest.mark.parametrize("options", [("-s",), ("-s", "-no-pie", "-fno-pie")])
def test_a_switch_of_which_parts_were_moved_away(
    options: tuple[str, ...], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Without symbols, nothing says that two parts belong together. No jump covers a case."""
    program = built(tmp_path, "cold.c", *options)
    expected, status, output = stepped([program], tmp_path)
    found = counted([program], capfdbinary)
    assert (found.status, found.output) == (status, output)
    assert found.counts == {at: expected.get(at, 0) for at in found.counts}
    assert sum(found.counts.values()) > 10_000


@pytest.mark.parametrize("plant", ["no-block", "no-gate", "no-run", "no-chain"])
def test_each_way_of_planting_counts_the_same(
    plant: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    program = built(tmp_path, "shapes.c")
    expected, _, _ = stepped([program], tmp_path)
    found = counted([program], capfdbinary, options={"plant": plant})
    assert found.counts == {at: expected.get(at, 0) for at in found.counts}
    assert found.counts


@pytest.mark.drawn
def test_every_instruction_of_a_stripped_gzip(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Debian's gzip has no symbols: its unwind tables say where its functions are."""
    text = tmp_path / "text"
    text.write_bytes((ROOT / "docs" / "kinst.1").read_bytes()[: draws(3_000, 20_000)])
    planted, hits = compare(["/usr/bin/gzip", "-1", "-n", "-c", text], tmp_path, capfdbinary)
    assert planted > 10_000 and hits > draws(200_000, 1_000_000)
    whole = subprocess.run(["gzip", "-1", "-n", "-c", text], capture_output=True, check=True)
    assert len(whole.stdout) > 1000


def test_programs_that_the_program_executes_are_told(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Only the instructions of the program itself are counted: env(1) becomes echo."""
    where = "kinst::main: { @[probefunc, probename] = count(); }"
    found = counted(["/usr/bin/env", "echo", "said"], capfdbinary, where)
    assert (found.status, found.output) == (0, b"said\n")
    assert any("executed other programs (1)" in text for text in found.messages)
    alone = counted(["/usr/bin/echo", "said"], capfdbinary, where)
    assert not any("executed" in text for text in alone.messages)
