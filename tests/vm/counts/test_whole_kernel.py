"""Every instruction of the kernel that can be planted, in batches, each under a mixed workload.

The workload uses files, pipes, sockets on loopback, fork and exec, memory, signals, timers, and
loads and unloads a module.  The default is shorter than

    KINST_BATCH_SECONDS=20 python -m pytest -s tests/vm/counts/test_whole_kernel.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from bench.guest import compile_programs
from tests.tiers import ISAS
from tests.vm.command import guest_script, kinst

pytestmark = [pytest.mark.vm, pytest.mark.slow]

SECONDS = float(os.environ.get("KINST_BATCH_SECONDS", "5"))
# Least share of each kernel's text: one guest has Debian's kernel for clouds.
LEAST = {"amd64": 2_400_000, "arm64": 2_800_000, "riscv64": 3_400_000}
CALLS = 1000  # of getppid(), in each batch
TOLD = re.compile(r"kinst: (\d+) instructions were planted, in (\d+) batches; (\d+) cannot")
MODULE = "/lib/kinst/*dummy.ko"
SCRIPT = f"""\
ifconfig lo up
variety 1000 >/dev/null 2>&1 & V=$!
sleepers 3 >/tmp/slept 2>&1 & S=$!
for k in 1 2 3; do rmmod dummy && insmod {MODULE} || echo ==lost module; sleep 1; done & M=$!
workload {SECONDS:g} || echo ==lost workload
wait $S || echo ==lost sleepers
wait $M
kill -9 $V
for k in 1 2 3; do getppid {CALLS} >/dev/null || echo ==lost getppid; done
dmesg | grep -E 'BUG|WARNING|Oops|stall|lockup' && echo ==complaint
echo ==batch
"""


@pytest.mark.parametrize("isa", ISAS)
def test_the_kernel_does_not_notice(isa: str, tmp_path: Path) -> None:
    programs = compile_programs(["workload", "variety", "sleepers", "getppid"], tmp_path, isa)
    script = guest_script(tmp_path, "whole.sh", SCRIPT)
    done = kinst(
        "-q", "-x", "batch=10min", "--module", "dummy",
        "-n", "kinst:vmlinux:*: { @all = count(); }",
        "-n", 'fbt::__*_sys_getppid:entry /execname == "getppid"/ { @calls = count(); }',
        "-c", "whole.sh", f"--vm={isa}", copy=[*map(Path, programs), script], seconds=6 * 3600.0,
    ).good()  # fmt: skip
    assert "==lost" not in done.guest and "==complaint" not in done.guest, done.guest
    (told,) = TOLD.findall(done.err)
    planted, batches, refused = map(int, told)
    print(f"\n{isa}: {planted} instructions in {batches} batches, {refused} refused")
    assert planted > LEAST[isa] and done.guest.count("==batch") == batches
    # The program's calls while its function was planted: in one batch of all.
    assert 3 * CALLS in map(int, re.findall(r"^\s*(\d+)$", done.out, re.M))
