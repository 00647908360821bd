"""Lines that kinst cover counts, compared with callgrind(1), an emulator that counts instructions
by address and line. Neither kcov nor DynamoRIO's drcov is in Debian 12."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.machines.process.stepped import needs_programs
from tests.machines.process.test_cover_and_gcov import Source, by_kinst, write

pytestmark = [
    needs_programs,
    pytest.mark.full,
    pytest.mark.skipif(not shutil.which("valgrind"), reason="apt install valgrind"),
]
_ROW = re.compile(r"(0x[0-9a-f]+) (\d+) (\d+)")


def by_callgrind(program: Path, name: str) -> dict[int, int]:
    """Return how often the most frequent instruction of each line that ran was executed, from the
    profile that callgrind writes (the manual's "Callgrind Format Specification").

    Args:
        program: the program, which is not position-independent.
        name: name of the source file.
    """
    profile = program.parent / "profile"
    subprocess.run(
        ["valgrind", "-q", "--tool=callgrind", "--dump-instr=yes", "--dump-line=yes",
         "--skip-plt=no", "--compress-strings=no", "--compress-pos=no",
         f"--callgrind-out-file={profile}", program],
        capture_output=True, check=True,
    )  # fmt: skip
    inside = inclusive = False
    counts: dict[tuple[int, str], int] = {}
    for row in profile.read_text().splitlines():
        if row.startswith(("fl=", "fi=", "fe=")):
            inside = row.endswith(name)
        elif row.startswith("calls="):
            inclusive = True  # the next row has the instructions of the called functions
        elif found := _ROW.fullmatch(row):
            if inside and not inclusive:
                at = int(found[2]), found[1]
                counts[at] = counts.get(at, 0) + int(found[3])
            inclusive = False
    lines: dict[int, int] = {}
    for (line, _), count in counts.items():
        lines[line] = max(lines.get(line, 0), count)
    return lines


@pytest.mark.parametrize("seed", [4, 5])
def test_each_line_has_the_count_of_callgrind(
    seed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without inlining, each line is compiled once: its count is that of its most frequent
    instruction."""
    source = write(Source(seed).lines, tmp_path / "source")
    ours = by_kinst(source, ["-O1", "-fno-inline", "-no-pie"], tmp_path)
    theirs = by_callgrind(tmp_path / "plain", source.name)
    assert {line: count for line, count in ours.items() if count} == theirs
    assert len(theirs) > 400 and len(ours) - len(theirs) > 50


def test_the_same_lines_ran_with_inlining(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = write(Source(6).lines, tmp_path / "source")
    ours = by_kinst(source, ["-O2", "-no-pie"], tmp_path)
    theirs = by_callgrind(tmp_path / "plain", source.name)
    assert {line for line, count in ours.items() if count} == {*theirs}
    assert len(theirs) > 400 and len(ours) - len(theirs) > 50
