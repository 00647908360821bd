"""Refusals of kinst --attach: one line gives the reason, nothing is planted, the guest runs on."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from kinst.kernels.fetch import prepared as prepared_kernel
from kinst.machines.attach.monitor import Monitor
from tests.vm.attach.attach_guest import AttachGuest, attach_guest
from tests.vm.attach.attach_picture import Photographer
from tests.vm.attach.test_attach import READS
from tests.vm.command import KINST, Result, kinst

pytestmark = [pytest.mark.vm, pytest.mark.slow]


@pytest.fixture(scope="module")
def vm(
    prepared: Prepared, reads: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AttachGuest]:
    folder = tmp_path_factory.mktemp("refused")
    line = ["-gdb", f"unix:{folder}/gdb,server=on,wait=off"]
    line += ["-qmp", f"unix:{folder}/qmp,server=on,wait=off"]
    with attach_guest("pc", prepared, reads, folder, line) as found:
        yield found


@pytest.fixture(scope="module")
def photographer(vm: AttachGuest) -> Photographer:
    return Photographer(vm, "amd64", 512)


@pytest.fixture(autouse=True)
def unharmed(vm: AttachGuest, photographer: Photographer) -> Iterator[None]:
    """Check after each test that the guest runs and its text is as before."""
    before = photographer.text()
    yield
    assert "reads 10 " in vm.run("reads 10")
    assert photographer.text() == before


def attach(vm: AttachGuest, *more: str, kernel: Path | None = None) -> Result:
    return kinst(
        "--attach", str(vm.pid), "--kernel", str(kernel or vm.debug), "-n", READS, *more,
        boots=False,
    )  # fmt: skip


def refused(done: Result, *words: str) -> None:
    assert done.status == 1, done
    assert len(done.err.strip().splitlines()) == 1, done.err
    for word in words:
        assert word in done.err, done.err


def test_a_vmlinux_of_another_build(vm: AttachGuest) -> None:
    other = prepared_kernel("amd64", "6.12")
    if other is None:
        pytest.skip("there is no second kernel")
    refused(attach(vm, kernel=other.debug), "build")


def test_a_vmlinux_of_another_instruction_set(vm: AttachGuest) -> None:
    other = prepared_kernel("arm64")
    if other is None:
        pytest.skip("there is no kernel for arm64")
    refused(attach(vm, kernel=other.debug), "qemu-system-aarch64")


def test_a_debugger_is_connected(vm: AttachGuest) -> None:
    with socket.socket(socket.AF_UNIX) as debugger:
        debugger.connect(str(vm.stub))
        debugger.recv(64)  # QEMU stops the machine for it
        refused(attach(vm), "paused")
        debugger.sendall(b"+$c#63")
        debugger.recv(1)
        refused(attach(vm), "debugger")
        debugger.sendall(b"\x03")
        debugger.recv(64)
        debugger.sendall(b"+$D#44")
        debugger.recv(64)


def test_a_machine_that_is_migrating(vm: AttachGuest) -> None:
    with Monitor(str(vm.monitor)) as monitor:
        monitor.execute("migrate-set-parameters", {"max-bandwidth": 4096})
        monitor.execute("migrate", {"uri": "exec:cat >/dev/null"})
    try:
        refused(attach(vm), "migrating")
    finally:
        with Monitor(str(vm.monitor)) as monitor:
            monitor.execute("migrate_cancel")


def test_no_permission_to_trace(vm: AttachGuest) -> None:
    """QEMU has a capability that kinst lacks, so ptrace(2) is refused."""
    if os.geteuid() or not shutil.which("setpriv"):
        pytest.skip("only root has capabilities to give up")
    without = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    command = [*without, str(KINST), "--attach", str(vm.pid), "--kernel", str(vm.debug)]
    done = subprocess.run([*command, "-n", READS], capture_output=True, text=True)
    refused(Result(done.returncode, "", done.stdout, done.stderr), "CAP_SYS_PTRACE")


def test_another_users_machine(vm: AttachGuest) -> None:
    """Run kinst as the user nobody, with permission to read kinst's files."""
    if os.geteuid() or not shutil.which("setpriv"):
        pytest.skip("only root can be somebody else")
    reads = "+dac_override,+dac_read_search"
    nobody = ["setpriv", "--reuid=65534", "--clear-groups", f"--inh-caps={reads}"]
    command = [*nobody, f"--ambient-caps={reads}", str(KINST), "--attach", str(vm.pid)]
    done = subprocess.run(
        [*command, "--kernel", str(vm.debug), "-n", READS], capture_output=True, text=True
    )
    refused(Result(done.returncode, "", done.stdout, done.stderr), "another user", "as root")


def test_the_stub_of_another_machine(
    vm: AttachGuest, prepared: Prepared, reads: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with attach_guest("q35", prepared, reads, tmp_path_factory.mktemp("second")) as other:
        refused(attach(vm, "--gdb", str(other.stub)), "RAM")
        assert "reads 10 " in other.run("reads 10")
        other.run("(sleep 1; echo c >/proc/sysrq-trigger) & true")
        time.sleep(3.0)
        refused(attach(other), "panicked")


def test_a_machine_in_its_firmware(vm: AttachGuest, tmp_path: Path) -> None:
    stub = f"unix:{tmp_path}/gdb,server=on,wait=off"
    argv = f"qemu-system-x86_64 -display none -m 128 -nodefaults -gdb {stub}".split()
    with subprocess.Popen(argv) as firmware:
        try:
            program = ["--kernel", str(vm.debug), "-n", READS]
            done = kinst("--attach", str(firmware.pid), *program, boots=False)
            refused(done, "no kernel is running")
        finally:
            firmware.kill()
