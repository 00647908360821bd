"""kinst cover on a real kernel.

Its lines are those that addr2line finds for the instructions that a plain trace counts, its totals
are lcov's, and a second run reaches code that the first one has not.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests.vm.command import ran
from tests.vm.language.test_lines import addr2line

pytestmark = pytest.mark.vm

READS = "dd if=/dev/zero of=/dev/null bs=1 count=1000 2>/dev/null"


def sections(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in path.read_text().split("end_of_record\n"):
        lines = text.splitlines()
        if lines:
            found[lines[1].removeprefix("SF:")] = lines[2:]
    return found


def test_lines_of_read(tmp_path: Path, prepared: Prepared) -> None:
    info, pieces = tmp_path / "read.info", tmp_path / "read.drcov"
    said = ran("cover", "vfs_read", "-o", info, "--drcov", pieces, "-c", READS).stdout
    own = sections(info)["fs/read_write.c"]
    (count,) = (int(line.split(",")[0][5:]) for line in own if line.endswith(",vfs_read")
                and line.startswith("FNDA"))  # fmt: skip
    assert 1000 <= count < 1100

    # The same, by a plain trace and addr2line: lines that ran, and lines with code.
    program = "kinst::vfs_read: { @[probename] = count(); }"
    plain = ran("--json", "-q", "-n", program, "-c", READS).stdout
    rows = [json.loads(line) for line in plain.splitlines()]
    (table,) = (row for row in rows if row["type"] == "aggregation")
    seen = {int(row["key"][0]) for row in table["rows"]}
    listed = ran("-l", "-v", "-n", "kinst::vfs_read:").stdout
    offsets = [int(n) for n in re.findall(r"vfs_read (\d+)\n\t(?!.* refused)", listed)]
    assert seen <= set(offsets)
    symbols = subprocess.run(["nm", prepared.debug], capture_output=True, text=True, check=True)
    start = next(int(w[0], 16) for w in map(str.split, symbols.stdout.splitlines())
                 if w[-1] == "vfs_read")  # fmt: skip
    places = addr2line(prepared.debug, [start + offset for offset in offsets])
    expected: dict[str, bool] = {}
    for offset, (file, line) in zip(offsets, places, strict=True):
        if file == "read_write.c":
            expected[line] = expected.get(line, False) or offset in seen
    found = {line.split(",")[0][3:]: not line.endswith(",0") for line in own if line[:3] == "DA:"}
    assert found == expected

    # Each instruction that ran is in drcov's pieces, and no other.
    head, _, rest = pieces.read_bytes().partition(b" bbs\n")
    base = next(line for line in head.decode().splitlines() if line.startswith("0, "))
    shift = start - int(base.split(",")[1], 16)
    covered = set[int]()
    for at in range(0, len(rest), 8):
        low = int.from_bytes(rest[at : at + 4], "little") - shift
        covered |= set(range(low, low + int.from_bytes(rest[at + 4 : at + 6], "little")))
    assert {offset for offset in offsets if offset in covered} == seen

    shown = subprocess.run(["lcov", "--rc", "lcov_branch_coverage=1", "--summary", info],
                           capture_output=True, text=True, check=True).stdout  # fmt: skip
    everything = re.search(r"^\(all\) (.*)$", said, re.M)
    assert everything
    assert re.findall(r"(\d+) of (\d+) ", shown) == re.findall(r"(\d+) of (\d+)", everything[1])


def test_what_another_run_has_not_reached(tmp_path: Path) -> None:
    info = tmp_path / "wc.info"
    ran("cover", "fs/read_write.c", "-q", "-o", info, "-c", "wc -l /proc/version")
    said = ran("cover", "fs/read_write.c", "-q", "--since", info, "-c",
               "dd if=/init of=/dev/null skip=1 bs=512 count=1 2>/dev/null").stdout  # fmt: skip
    assert re.search(r"^fs/read_write.c: functions .*__do_sys_lseek.*; lines ", said, re.M)
    assert not re.search(r"functions .*\bvfs_read\b", said)
