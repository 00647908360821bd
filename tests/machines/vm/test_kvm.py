"""KVM or TCG: the choice, its proof by a guest's own start, and the start under TCG if KVM fails.

The device is a file that can be opened, and QEMU a program first in PATH that fails, hangs or waits
when it is told to use KVM, and is QEMU otherwise.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kinst.cli import command
from kinst.core.errors import TargetError
from kinst.core.options import MachineOptions
from kinst.isa import load
from kinst.kernels.fetch import Prepared
from kinst.machines.vm.accelerators import accelerator_of, says_accelerator
from kinst.machines.vm.kvm import SILENCE, Accelerator, KvmRecord, choose
from kinst.machines.vm.machine import Vm
from kinst.machines.vm.qemu import VmConfig
from kinst.systems.linux.guest.initramfs import build
from tests.machines.booted import ISA, boot_of
from tests.machines.vm.test_machine import VIRTUAL_LAYOUT

ASKED = MachineOptions(accel="kvm")
NONE = MachineOptions()
NOBODY = 65534  # a user's id
pytestmark = pytest.mark.skipif(
    os.uname().machine not in ISA.board.HOST_MACHINES, reason="no host that could have KVM"
)


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """Return a file that can be opened as /dev/kvm can."""
    path = tmp_path / "kvm"
    path.touch()
    return path


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "vmlinuz"
    path.write_bytes(b"a kernel")
    return path


def fake_qemu(folder: Path, monkeypatch: pytest.MonkeyPatch, under_kvm: str) -> Path:
    """Put a QEMU first in PATH that runs a shell command if it is told to use KVM."""
    real = shutil.which(ISA.board.QEMU)
    program = folder / "bin" / ISA.board.QEMU
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *"-accel kvm"*) {under_kvm};; esac\nexec {real} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


# The choice.


def test_without_a_device_it_is_tcg(tmp_path: Path, kernel: Path) -> None:
    absent = tmp_path / "absent"
    chosen = choose(ISA, NONE, kernel, tmp_path, absent)
    assert chosen.name == "tcg" and not chosen.falls_back
    assert chosen.text == f"TCG: {absent}: No such file or directory"
    with pytest.raises(TargetError, match=r"--accel kvm: .*absent: No such file"):
        choose(ISA, ASKED, kernel, tmp_path, absent)


def test_a_device_without_permission(tmp_path: Path, kernel: Path, device: Path) -> None:
    device.chmod(0)
    user = os.geteuid()
    os.seteuid(user or NOBODY)  # root may open every file
    try:
        chosen = choose(ISA, NONE, kernel, tmp_path, device)
        with pytest.raises(TargetError, match=r"Permission denied \(join the group kvm, or run"):
            choose(ISA, ASKED, kernel, tmp_path, device)
    finally:
        os.seteuid(user)
    assert chosen.name == "tcg" and "Permission denied" in chosen.reason


def test_another_instruction_set_is_emulated(tmp_path: Path, kernel: Path, device: Path) -> None:
    chosen = choose(load("arm64"), NONE, kernel, tmp_path, device)
    assert chosen.name == "tcg" and "runs no arm64 guests" in chosen.reason
    with pytest.raises(TargetError, match="runs no arm64 guests"):
        choose(load("arm64"), ASKED, kernel, tmp_path, device)


def test_the_first_guest_is_the_proof(tmp_path: Path, kernel: Path, device: Path) -> None:
    first = choose(ISA, NONE, kernel, tmp_path, device)
    assert (first.name, first.falls_back, first.silence) == ("kvm", True, SILENCE)
    assert "no guest has been started" in first.text
    assert first.record is not None
    first.record.came_up()
    second = choose(ISA, NONE, kernel, tmp_path, device)
    assert (second.name, second.falls_back) == ("kvm", True) and second.silence > 1e9
    assert "has come up" in second.text


def test_a_guest_that_did_not_come_up_counts_for_its_kernel(
    tmp_path: Path, kernel: Path, device: Path
) -> None:
    KvmRecord(tmp_path, ISA.board, kernel).failed("failed to set MSR 0x10a")
    chosen = choose(ISA, NONE, kernel, tmp_path, device)
    assert chosen.name == "tcg" and "MSR 0x10a" in chosen.text
    assert chosen.short_text == (
        "TCG: a guest did not come up under KVM (kinst --version -v says why)"
    )
    assert choose(ISA, ASKED, kernel, tmp_path, device).name == "kvm"
    other = tmp_path / "other"
    other.touch()
    assert choose(ISA, NONE, other, tmp_path, device).name == "tcg"  # none has come up
    KvmRecord(tmp_path, ISA.board, kernel.parent).came_up()
    assert choose(ISA, NONE, other, tmp_path, device).name == "kvm"
    assert "has come up" in choose(ISA, NONE, None, tmp_path, device).text
    assert choose(ISA, NONE, kernel, tmp_path, device).name == "tcg"


def test_a_record_ends_with_the_hosts_boot_and_with_qemu(
    tmp_path: Path, kernel: Path, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = KvmRecord(tmp_path, ISA.board, kernel)
    record.failed("hangs")
    (file,) = tmp_path.glob("kvm-*.json")
    before = file.read_text()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert boot_id in before
    file.write_text(before.replace(boot_id, "an earlier boot"))
    assert record.outcome() is None
    file.write_text(before)
    assert record.outcome() == "hangs"
    for damaged in ("", "{}", "[1]", '{"host": 1, "kernels": []}', before[:-3]):
        file.write_text(damaged)
        assert record.outcome() is None
    file.write_text(before)
    fake_qemu(tmp_path, monkeypatch, "exit 1")
    assert KvmRecord(tmp_path, ISA.board, kernel).outcome() is None
    kernel.write_bytes(b"another kernel")
    assert record.outcome() == "hangs"  # of the old file
    monkeypatch.undo()
    assert KvmRecord(tmp_path, ISA.board, kernel).outcome() == "hangs"  # none has come up
    KvmRecord(tmp_path, ISA.board, tmp_path).came_up()
    assert KvmRecord(tmp_path, ISA.board, kernel).outcome() is None


def test_what_may_pass_is_not_recorded(tmp_path: Path, kernel: Path) -> None:
    """Another hypervisor, such as VirtualBox, has the processor."""
    record = KvmRecord(tmp_path, ISA.board, kernel)
    record.failed("QEMU ended with status 1: failed to initialize kvm: Device or resource busy")
    assert record.outcome() is None


def test_a_guest_with_the_users_own_parts_proves_nothing(
    tmp_path: Path, kernel: Path, device: Path
) -> None:
    every = (MachineOptions(initrd="/i"), MachineOptions(qemu_args=("-s",)))
    for options in every:
        assert choose(ISA, options, kernel, tmp_path, device).name == "tcg"
    KvmRecord(tmp_path, ISA.board, kernel).came_up()
    for options in every:
        chosen = choose(ISA, options, kernel, tmp_path, device)
        assert chosen.name == "kvm" and chosen.falls_back and chosen.record is None


@pytest.mark.parametrize(
    ("arguments", "name"),
    [("-accel kvm", "kvm"), ("-accel tcg,thread=single -accel kvm", "tcg"), ("-enable-kvm", "kvm"),
     ("--accel kvm", "kvm"), ("-accel hvf", "tcg"), ("-accel", "tcg")],
)  # fmt: skip
def test_qemus_arguments_count(
    tmp_path: Path, kernel: Path, device: Path, arguments: str, name: str
) -> None:
    words = tuple(arguments.split())
    assert says_accelerator(words) and accelerator_of(words) == name
    chosen = choose(ISA, MachineOptions(qemu_args=words), kernel, tmp_path, device)
    assert (chosen.name, chosen.falls_back) == (name, False)


def test_accel_says_so(tmp_path: Path, kernel: Path, device: Path) -> None:
    for name in ("kvm", "tcg"):
        chosen = choose(ISA, MachineOptions(accel=name), kernel, tmp_path, device)
        assert chosen.name == name and not chosen.falls_back and "--accel" in chosen.text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], r"amd64 guests run under (KVM|TCG): .+"),
        (["--accel", "tcg"], r"amd64 guests run under TCG: --accel says so"),
        (["--vm=riscv64"], r"riscv64 guests run under TCG: KVM of this host .* no riscv64 guests"),
    ],
)
def test_the_version_says_it(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--version", *words]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert command.main(["--version", "-v", *words]) == 0
    assert re.fullmatch(f"kinst: {said}", capsys.readouterr().out.splitlines()[1])


# The start.


@contextmanager
def guest(prepared: Prepared, chosen: Accelerator) -> Iterator[tuple[Vm, list[str]]]:
    """Start a guest with an accelerator; yield it and the list of its messages."""
    config = VmConfig(prepared.kernel, boot_of(ISA), build(prepared.busybox, {}), accel=chosen.name)
    vm = Vm(ISA, config, VIRTUAL_LAYOUT, accelerator=chosen)
    try:
        yield vm, []
    finally:
        vm.close()


FAILURES = {
    "a QEMU without KVM": ("echo '-accel kvm: invalid accelerator kvm' >&2; exit 1", "invalid"),
    "a device that refuses": (
        "echo 'error: failed to set MSR 0x10a to 0x0' >&2; kill -ABRT $$", "MSR 0x10a"
    ),
    "a guest that hangs": ("exec sleep 600", "printed nothing for 1 s"),
}  # fmt: skip


@pytest.mark.vm
@pytest.mark.parametrize("case", FAILURES)
def test_what_fails_under_kvm_is_started_under_tcg(
    prepared: Prepared, tmp_path: Path, device: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    under_kvm, said = FAILURES[case]
    fake_qemu(tmp_path, monkeypatch, under_kvm)
    chosen = replace(choose(ISA, NONE, prepared.kernel, tmp_path, device), silence=1.0)
    with guest(prepared, chosen) as (vm, messages):
        assert vm.bring_up(messages.append).text
        (message,) = [text for text in messages if "hung during boot" not in text]
        assert said in message and "again under TCG" in message
        assert vm.describe() == (
            "the guest runs under TCG: a guest did not come up under KVM"
            " (kinst --version -v says why)"
        )
        assert vm.abilities.code_table is not None
        vm.prepare_command("echo up")
    later = choose(ISA, NONE, prepared.kernel, tmp_path, device)
    assert later.name == "tcg" and said in later.text


@pytest.mark.vm
def test_accel_kvm_that_fails_is_an_error(
    prepared: Prepared, tmp_path: Path, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_qemu(tmp_path, monkeypatch, FAILURES["a QEMU without KVM"][0])
    chosen = choose(ISA, ASKED, prepared.kernel, tmp_path, device)
    with guest(prepared, chosen) as (vm, messages), pytest.raises(TargetError, match="invalid"):
        vm.bring_up(messages.append)
    assert not messages


@pytest.mark.vm
@pytest.mark.parametrize("threads", [1, 2])  # 1: those of the guest's CPUs are not started yet
def test_a_busy_host_decides_nothing(
    prepared: Prepared,
    tmp_path: Path,
    device: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
) -> None:
    """The threads of a QEMU that only computes, at the lowest priority, share one CPU with eight
    programs (each in a session of its own: the scheduler may share a CPU by session): the guest is
    booted under TCG this time, and KVM is tried again the next time."""
    cpu = min(os.sched_getaffinity(0))
    spin = f"import os, threading; os.sched_setaffinity(0, {{{cpu}}})\n"
    spin += "def work():\n while True: pass\n"
    code = tmp_path / "spin.py"
    code.write_text(f"{spin}os.nice(int(os.environ['NICE']))\n"
                    "for _ in range(int(os.environ['MORE'])):\n"
                    " threading.Thread(target=work).start()\n"
                    "print('computes', flush=True)\nwork()\n")  # fmt: skip
    environment = f"NICE=0 MORE={threads - 1}"
    fake_qemu(
        tmp_path,
        monkeypatch,
        f"{environment} exec nice -n 19 taskset -c {cpu} {sys.executable} {code}",
    )
    chosen = replace(choose(ISA, NONE, prepared.kernel, tmp_path, device), silence=1.0)
    others = [
        subprocess.Popen(
            [sys.executable, str(code)],
            env={**os.environ, "NICE": "0", "MORE": "1"},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for _ in range(8)
    ]
    try:
        for other in others:
            assert other.stdout is not None and other.stdout.readline() == b"computes\n"
        with guest(prepared, chosen) as (vm, said):

            def say(text: str) -> None:
                said.append(text)
                if "again under TCG" in text:  # then kinst has decided
                    for other in others:
                        other.kill()

            vm.bring_up(say)
            assert any("again under TCG" in text for text in said)
            assert "TCG" in vm.describe()
    finally:
        for other in others:
            other.kill()
            other.communicate()
    assert choose(ISA, NONE, prepared.kernel, tmp_path, device).name == "kvm"
    assert not list(tmp_path.glob("kvm-*.json"))


@pytest.mark.vm
def test_a_kernel_that_fails_everywhere_decides_nothing(
    prepared: Prepared, tmp_path: Path, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_qemu(tmp_path, monkeypatch, "exit 1")
    chosen = choose(ISA, NONE, prepared.kernel, tmp_path, device)
    config = VmConfig(prepared.kernel, boot_of(ISA), b"no archive", accel="kvm")
    vm = Vm(ISA, config, VIRTUAL_LAYOUT, accelerator=chosen)
    try:
        with pytest.raises(TargetError, match="panic"):
            vm.bring_up(lambda text: None)
    finally:
        vm.close()
    assert not list(tmp_path.glob("kvm-*.json"))
