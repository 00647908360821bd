"""A guest whose kernel has panicked is reported as such, at any stage of its boot."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from kinst.core.endings import PANIC as PANIC_STATUS
from kinst.kernels.fetch import Prepared
from tests.vm.attach.attach_guest import attach_guest
from tests.vm.command import Running, kinst

pytestmark = pytest.mark.vm
SECONDS = 240.0
PANIC = "end Kernel panic"

# One panic is before the kernel has per-CPU areas, one before its text is protected, which happens
# after the root file system is mounted.
EARLY, LATE = "memmap=exactmap memmap=20M@1M", ""


@pytest.mark.parametrize("words", [EARLY, LATE], ids=["early", "no root file system"])
def test_a_panic_in_the_boot_is_told(words: str, prepared: Prepared, tmp_path: Path) -> None:
    log = tmp_path / "log"
    line = f"""qemu-system-x86_64 -nodefaults -display none -no-reboot -m 256 -serial file:{log}
        -gdb unix:{tmp_path}/gdb,server=on,wait=off -kernel {prepared.kernel}""".split()
    append = f"console=ttyS0 earlyprintk=serial no_timer_check {words}"
    child = subprocess.Popen([*line, "-append", append])
    try:
        end = time.monotonic() + SECONDS
        while PANIC not in (log.read_text(errors="replace") if log.exists() else ""):
            assert child.poll() is None and time.monotonic() < end, "the guest does not panic"
            time.sleep(0.2)
        done = kinst(
            "--attach", str(child.pid), "--kernel", str(prepared.debug), "-n",
            "kinst::vfs_read:0", boots=False,
        )  # fmt: skip
        assert done.status == 1
        assert "has panicked" in done.err and "build-id" not in done.err
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_a_panic_during_a_trace_ends_it(prepared: Prepared, reads: Path, tmp_path: Path) -> None:
    with attach_guest("pc", prepared, reads, tmp_path) as vm:
        run = Running(
            "--attach", str(vm.pid), "--kernel", str(vm.debug), "-w", "--timeout", "100",
            "-n", 'kinst::vfs_read:0 /execname == "reads"/ { panic(); }',
            "-n", 'tick-100ms { printf("begun\\n"); }', boots=False,
        )  # fmt: skip
        run.until(lambda r: "begun" in r.out)
        vm.begin("reads 10")
        began = time.monotonic()
        done = run.result()
        assert time.monotonic() - began < 60
    assert done.status == PANIC_STATUS, done
    assert "the guest's kernel has panicked" in done.err
    assert "nothing that runs there" not in done.err
