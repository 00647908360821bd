"""kinst flame on a real kernel: it folds as many stacks as the same program counts without
stacks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.vm.command import ran

pytestmark = pytest.mark.vm

PROGRAM = "fbt::vfs_read:entry { @[execname, stack()] = count(); @total = sum(1); }"


def test_stacks_of_reads(tmp_path: Path) -> None:
    """cat reads its file and then finds its end.

    The lines of cat are those two reads, and all lines together are the program's count without
    stacks.
    """
    result = tmp_path / "result.json"
    arguments = ["--json", "-q", "-o", str(result), "-n", PROGRAM, "-c", "cat /proc/1/comm"]
    ran(*arguments)
    done = ran("flame", result)
    lines = [re.fullmatch(r"(\S+) (\d+)", line) for line in done.stdout.splitlines()]
    assert lines and all(lines)
    folded = {one[1].split(";")[0]: int(one[2]) for one in lines if one}
    assert folded["cat"] == 2
    total = re.search(r'"name":"total".*"value":(\d+)', result.read_text())
    assert total and sum(folded.values()) == int(total[1])
    assert all(one[1].endswith(";ksys_read;vfs_read") for one in lines if one)

    assert ran("diff", result, result).stdout == ""


def test_what_the_command_does_is_its_status(tmp_path: Path) -> None:
    picture = tmp_path / "out.svg"
    arguments = ["flame", "-q", "-o", str(picture), "-n", PROGRAM, "-c", "cat /proc/1/comm; exit 3"]
    assert ran(*arguments, status=3).stdout == "init\n"
    assert ">vfs_read (" in picture.read_text()


def test_a_heat_map_has_every_value(tmp_path: Path) -> None:
    """The fields' numbers add up to what the program counts beside them."""
    kept, picture = tmp_path / "kept.json", tmp_path / "heat.svg"
    program = 'fbt::vfs_read:entry /execname == "dd"/ { @sizes = quantize(arg2); @all = count(); }'
    every = "tick-100ms { trace(timestamp); printa(@sizes); clear(@sizes); }"
    end = "dtrace:::END { trace(timestamp); printa(@sizes); }"
    one = "dd if=/dev/zero of=/dev/null bs=$((n * 700)) count=3000; usleep 150000"
    command = f"for n in 1 2 3 4; do {one}; done"
    words = ["--json", "-q", "-o", kept, "-n", program, "-n", every, "-n", end, "-c", command]
    ran(*words)
    total = re.search(r'"name":"all".*"value":(\d+)', kept.read_text())
    assert total and int(total[1]) >= 12000
    ran("plot", "-o", picture, kept)
    fields = re.findall(r", ([\d,]+) to [\d,]+: ([\d,]+)</title>", picture.read_text())
    found = [(int(low.replace(",", "")), int(count.replace(",", ""))) for low, count in fields]
    assert sum(count for _, count in found) == int(total[1])
    assert sum(count for low, count in found if low == 2048) == 6000  # of 2100 and of 2800 bytes


def test_samples_that_were_missed_are_told_in_one_line(tmp_path: Path) -> None:
    """The program's period is 0.2 ms: on any host a firing stops the guest for longer."""
    program = "profile-4999 { @[stack()] = count(); }"
    words = ["flame", "-o", tmp_path / "out.svg", "-n", program, "-c", "sleep 1"]
    done = ran(*words)
    told = [line for line in done.stderr.splitlines() if "missed" in line]
    assert len(told) == 1, done.stderr
    assert re.match(
        r"kinst: \d{3,} firings of profile:::profile-4999 were missed on each CPU: ", told[0]
    )
