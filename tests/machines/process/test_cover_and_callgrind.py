"""Lines that kinst cover counts, compared with callgrind(1), an emulator that counts instructions
by address and line. Neither kcov nor DynamoRIO's drcov is in Debian 12."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.machines.process.debian import CALLGRIND, executed
from tests.machines.process.stepped import needs_programs
from tests.machines.process.test_cover_and_gcov import Source, by_kinst, write

pytestmark = [
    needs_programs,
    pytest.mark.full,
    pytest.mark.skipif(not shutil.which("valgrind"), reason="apt install valgrind"),
]
# 2,000,000 and 3 times 2,000 rounds, of six instructions with Debian's gcc.
FORKS = """\
#include <sys/wait.h>
#include <unistd.h>
static volatile int x;
__attribute__((noinline)) static void work(int rounds) { for (int k = 0; k < rounds; k++) x += k; }
int main(void) {
  work(2000000);
  for (int k = 0; k < 3; k++) {
    if (!fork()) { work(2000); return 0; }
    wait(0);
  }
}
"""
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


def test_what_ran_before_a_fork_is_in_one_profile(tmp_path: Path) -> None:
    """debian.py adds up the profiles of all processes."""
    (tmp_path / "forks.c").write_text(FORKS)
    program, profiles = tmp_path / "forks", tmp_path / "profiles"
    profiles.mkdir()
    subprocess.run(["gcc", "-O1", "-o", program, tmp_path / "forks.c"], check=True)
    command = f"{CALLGRIND} --callgrind-out-file={profiles}/%p {program}"
    subprocess.run(["sh", "-c", command], check=True)
    total = sum(executed(file, str(program)) for file in profiles.iterdir())
    assert 3 <= total / 2_006_000 <= 8  # 24 with what ran before each fork four times


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
