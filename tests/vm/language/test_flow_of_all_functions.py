"""-F over the entries and returns of all functions of the kernel: one call as a tree, and progress
on a pipe before it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.vm.command import KINST

pytestmark = [pytest.mark.vm, pytest.mark.slow]

PROGRAM = """
fbt::do_sys_openat2:entry /execname == "cat"/ { self->in = 1; }
fbt:vmlinux::entry, fbt:vmlinux::return /self->in/ { }
fbt::do_sys_openat2:return /self->in/ { self->in = 0; exit(0); }
"""
MOST_CPU_SECONDS = 60  # of kinst's process and its QEMU, also on a busy host
ROW = re.compile(r"\s*\d+\s+(-> |<- | \| )(\S+)")


def test_one_call(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("w") as output, err.open("w") as errors:
        traced = subprocess.Popen(
            [KINST, "-F", "-v", "-n", PROGRAM, "-c", "cat /etc/passwd"],
            stdout=output, stderr=errors,
        )  # fmt: skip
        _, status, used = os.wait4(traced.pid, 0)
        traced.returncode = os.waitstatus_to_exitcode(status)
    said, text = err.read_text(), out.read_text()
    print(said, f"{used.ru_utime + used.ru_stime:.1f} CPU s, {used.ru_maxrss // 1024} MB")
    assert traced.returncode == 0, said
    for work in ("finding the probes of", "planning", "planting"):
        assert re.search(rf"^kinst: {work} [\d,]+ \w+.* \d+%$", said, re.M), said
    rows = [(match[1], match[2]) for line in text.splitlines() if (match := ROW.match(line))]
    names = [name for _, name in rows]
    assert rows[0][1] == rows[-1][1] == "do_sys_openat2", text[:2000]
    # Each of these calls the next one (fs/open.c, fs/namei.c), in the order of their entries.
    entered = [name for arrow, name in rows if arrow != "<- "]
    path = ["do_filp_open", "path_openat", "link_path_walk", "do_dentry_open"]
    found = [entered.index(next(n for n in entered if n.startswith(one))) for one in path]
    assert found == sorted(found) and len({*names}) > 40
    assert used.ru_utime + used.ru_stime < MOST_CPU_SECONDS
