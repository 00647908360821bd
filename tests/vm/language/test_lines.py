"""Source lines in -l -v, and as kinst::F:@LINE, compared with addr2line(1)."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests.vm.command import kinst

pytestmark = pytest.mark.vm

FUNCTIONS = ("vfs_read", "ksys_write", "do_sys_openat2")
ROW = re.compile(r"^ *\d+ +kinst +vmlinux +(\w+) (\d+)\n\t.*?(?: (\S+):(\d+))?$", re.M)


def addr2line(debug: Path, addresses: list[int]) -> list[tuple[str, str]]:
    """Return (file name, line) of linked addresses."""
    shown = subprocess.run(
        ["addr2line", "-e", str(debug), *(f"{a:#x}" for a in addresses)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    places = [line.split(" (")[0].rpartition(":") for line in shown.splitlines()]
    return [(file.rpartition("/")[2], line) for file, _, line in places]


def test_lines_of_instructions(prepared: Prepared) -> None:
    done = kinst("-l", "-v", *(w for f in FUNCTIONS for w in ("-n", f"kinst::{f}:"))).good()
    rows = ROW.findall(done.out)
    assert {name for name, *_ in rows} == set(FUNCTIONS)
    symbols = subprocess.run(
        ["nm", str(prepared.debug)], capture_output=True, text=True, check=True
    ).stdout
    start = {w[2]: int(w[0], 16) for w in map(str.split, symbols.splitlines()) if len(w) == 3}
    expected = addr2line(prepared.debug, [start[name] + int(at) for name, at, *_ in rows])
    found = [(file.rpartition("/")[2], line) for _, _, file, line in rows]
    wrong = [(r, e) for r, e, f in zip(rows, expected, found, strict=True) if e != f]
    assert not wrong, wrong[:5]
    # A line of a function's own file with several instructions, as a probe.
    own = Counter(
        line for name, _, file, line in rows if name == "vfs_read" and "read_write" in file
    )
    line, count = own.most_common(1)[0]
    listed = kinst("-l", "-n", f"kinst::vfs_read:@{line}*").good()
    offsets = re.findall(r"vfs_read (\d+)$", listed.out, re.M)
    wanted = [at for name, at, file, n in rows if (name, n) == ("vfs_read", line)]
    assert offsets == wanted and len(offsets) == count
    # A line of the file that code was inlined from.
    other = next((f, n) for name, _, f, n in rows if name == "vfs_read" and "read_write" not in f)
    inlined = kinst("-l", "-n", f"kinst::vfs_read:@{other[0].rpartition('/')[2]}@{other[1]}").good()
    assert re.findall(r"vfs_read (\d+)$", inlined.out, re.M)


def test_a_line_without_code() -> None:
    done = kinst("-n", "kinst::vfs_read:@1 { }")
    assert done.status == 1
    assert "vfs_read has no instruction of" in done.err
    assert "the nearest lines with instructions: " in done.err
