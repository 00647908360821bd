"""A guest whose kernel has panicked is reported as such, at any stage of its boot."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kinst.core.endings import PANIC as PANIC_STATUS
from kinst.kernels.fetch import Prepared
from tests import second_boot
from tests.vm.attach.attach_guest import attach_guest
from tests.vm.command import Running, kinst

pytestmark = pytest.mark.vm
# A trace that the panic did not end would last so long.
TRACE_SECONDS = 500
PANIC = "end Kernel panic"

# One panic is before the kernel has per-CPU areas, one before its text is protected, which happens
# after the root file system is mounted.
EARLY, LATE = "memmap=exactmap memmap=20M@1M", ""


@contextmanager
def panicked(words: str, prepared: Prepared, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a guest whose kernel panics in its boot, while the context lasts."""
    log = folder / "log"
    line = f"""qemu-system-x86_64 -nodefaults -display none -no-reboot -m 256 -serial file:{log}
        -gdb unix:{folder}/gdb,server=on,wait=off -kernel {prepared.kernel}""".split()
    append = f"console=ttyS0 earlyprintk=serial no_timer_check {words}"

    def panics(child: subprocess.Popen[bytes], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while PANIC not in (log.read_text(errors="replace") if log.exists() else ""):
            assert child.poll() is None, "QEMU ended"
            if time.monotonic() > end:
                return False
            time.sleep(0.2)
        return True

    def start() -> subprocess.Popen[bytes]:
        log.unlink(missing_ok=True)
        return subprocess.Popen([*line, "-append", append])

    def end(child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait()

    child = second_boot.booted(start, panics, end)
    try:
        yield child
        assert child.poll() is None, "QEMU ended"
    finally:
        end(child)


@pytest.mark.parametrize("words", [EARLY, LATE], ids=["early", "no root file system"])
def test_a_panic_in_the_boot_is_told(words: str, prepared: Prepared, tmp_path: Path) -> None:
    with panicked(words, prepared, tmp_path) as child:
        done = kinst(
            "--attach", str(child.pid), "--kernel", str(prepared.debug), "-n",
            "kinst::vfs_read:0", boots=False,
        )  # fmt: skip
        assert done.status == 1
        assert "has panicked" in done.err and "build-id" not in done.err


def test_a_panic_during_a_trace_ends_it(prepared: Prepared, reads: Path, tmp_path: Path) -> None:
    with attach_guest("pc", prepared, reads, tmp_path) as vm:
        run = Running(
            "--attach", str(vm.pid), "--kernel", str(vm.debug), "-w",
            "--timeout", str(TRACE_SECONDS),
            "-n", 'kinst::vfs_read:0 /execname == "reads"/ { panic(); }',
            "-n", 'tick-100ms { printf("begun\\n"); }', boots=False,
        )  # fmt: skip
        run.until(lambda r: "begun" in r.out)
        vm.begin("reads 10")
        began = time.monotonic()
        done = run.result()
        assert time.monotonic() - began < TRACE_SECONDS / 2
    assert done.status == PANIC_STATUS, done
    assert "the guest's kernel has panicked" in done.err
    assert "nothing that runs there" not in done.err
