"""kinst flame on a real kernel: what it folds is what the same program counts without stacks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.vm.command import KINST

pytestmark = pytest.mark.vm

PROGRAM = "fbt::vfs_read:entry { @[execname, stack()] = count(); @total = sum(1); }"


def test_stacks_of_reads(tmp_path: Path) -> None:
    """cat reads its file and then finds its end: the lines of cat are those two reads, and all
    lines together are what the program counts without stacks."""
    result = tmp_path / "result.json"
    arguments = ["--json", "-q", "-o", str(result), "-n", PROGRAM, "-c", "cat /proc/1/comm"]
    subprocess.run([KINST, *arguments], check=True, capture_output=True)
    done = subprocess.run([KINST, "flame", str(result)], check=True, capture_output=True, text=True)
    lines = [re.fullmatch(r"(\S+) (\d+)", line) for line in done.stdout.splitlines()]
    assert lines and all(lines)
    folded = {one[1].split(";")[0]: int(one[2]) for one in lines if one}
    assert folded["cat"] == 2
    total = re.search(r'"name":"total".*"value":(\d+)', result.read_text())
    assert total and sum(folded.values()) == int(total[1])
    assert all(one[1].endswith(";ksys_read;vfs_read") for one in lines if one)

    again = subprocess.run([KINST, "diff", result, result], check=True, capture_output=True)
    assert again.stdout == b""


def test_what_the_command_does_is_its_status(tmp_path: Path) -> None:
    picture = tmp_path / "out.svg"
    arguments = ["flame", "-q", "-o", str(picture), "-n", PROGRAM, "-c", "cat /proc/1/comm; exit 3"]
    done = subprocess.run([KINST, *arguments], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "init\n"), done
    assert ">vfs_read (" in picture.read_text()
