"""A guest that hibernates while it is traced.

It stops its processes, turns CPUs off, copies all of its memory with the patches in it, and
resumes, because it has no swap to write to.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.vm.command import guest_script, kinst, warnings

pytestmark = [pytest.mark.vm, pytest.mark.slow]
READS = 1000
SCRIPT = f"""
dmesg -c > /dev/null
reads {READS}
echo disk 2>/dev/null > /sys/power/state && echo asleep
reads {READS}
nproc
dmesg -r
"""
# Functions that run with one CPU, interrupts off and all threads stopped; besides the read path.
PATH = (
    "vfs_read, hibernate, freeze_processes, create_image, freeze_secondary_cpus, dpm_suspend_start"
)


def test_hibernation(program_for: object, tmp_path: Path) -> None:
    reads = program_for("reads", "amd64")  # type: ignore[operator]
    script = guest_script(tmp_path, "sleep.sh", SCRIPT)
    everything = ",".join(f"kinst::{name}:" for name in PATH.split(", "))
    done = kinst(
        "-v", "-Z",
        "-n", f"{everything} {{ @all[probefunc] = count(); }}",
        "-n", 'kinst::vfs_read:0 /execname == "reads"/ { @reads["reads"] = count(); }',
        "-n", 'END { printa("reads %@d\\n", @reads); printa("all %s %@d\\n", @all); }',
        "-c", "sleep.sh", copy=[reads, script],
    ).good()  # fmt: skip
    assert "Image created" in done.guest and "Cannot get swap writer" in done.guest, done.guest
    assert "asleep" not in done.guest and re.search(r"^2$", done.guest, re.M)
    assert re.findall(r"reads (\d+)", done.out) == [str(2 * READS)]
    everywhere = dict(re.findall(r"all (\S+) (\d+)", done.out))
    assert {"hibernate", "freeze_processes", "vfs_read"} <= set(everywhere)
    assert "kernel text is as before" in done.err, done.err
    said = [line for line in warnings(done.guest) if "swap" not in line]
    assert not said, said
    assert "drop" not in done.err
