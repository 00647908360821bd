"""--build: the kernel's files in the folder in which it was built."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.core.options import MachineOptions
from kinst.session.kernel_files import KernelFiles, find_file, with_build
from kinst.session.report import Report
from kinst.session.request import Request

BUILDS = [
    ("gcc", "amd64", "arch/x86/boot/bzImage"),
    ("aarch64-linux-gnu-gcc", "arm64", "arch/arm64/boot/Image"),
    ("riscv64-linux-gnu-gcc", "riscv64", "arch/riscv/boot/Image"),
]


def build(folder: Path, compiler: str, image: str) -> Request:
    command = [compiler, "-nostdlib", "-static", "-x", "c", "-o", str(folder / "vmlinux"), "-"]
    subprocess.run(command, input=b"void _start(void) {}", check=True)
    if image:
        (folder / image).parent.mkdir(parents=True)
        (folder / image).write_bytes(b"")
    return Request(MachineOptions(build=str(folder)))


@pytest.mark.parametrize(("compiler", "isa", "image"), BUILDS)
def test_the_files_of_each_isa(tmp_path: Path, compiler: str, isa: str, image: str) -> None:
    found = with_build(build(tmp_path, compiler, image)).machine
    assert (found.isa, found.kernel, found.debug) == (
        isa, str(tmp_path / image), str(tmp_path / "vmlinux"),
    )  # fmt: skip
    assert found.debug_folders == ()


def test_modules_have_their_debug_information_there(tmp_path: Path) -> None:
    made = build(tmp_path, "gcc", BUILDS[0][2]).machine
    request = Request(MachineOptions(build=made.build, modules=("dummy",)))
    assert with_build(request).machine.debug_folders == (str(tmp_path),)


def test_a_module_elsewhere_has_its_own_debug_information(tmp_path: Path) -> None:
    """A module of --module that is outside the build folder."""
    (tmp_path / "build").mkdir()
    made = build(tmp_path / "build", "gcc", BUILDS[0][2]).machine
    own = tmp_path / "elsewhere" / "own.ko"
    own.parent.mkdir()
    assembly = b'.section .modinfo\n.asciz "depends="\n'
    subprocess.run(["as", "-o", str(own), "-"], input=assembly, check=True)
    request = with_build(Request(MachineOptions(build=made.build, modules=(str(own),))))
    report = Report(lambda text: None, lambda what, part: None, 0.0)
    files = KernelFiles(request, "amd64", report)
    assert find_file("own", files.folders) == own


def test_without_it_nothing_changes() -> None:
    request = Request(MachineOptions(isa="arm64"))
    assert with_build(request) is request


def test_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(KinstError, match="no such folder"):
        with_build(Request(MachineOptions(build=str(tmp_path / "none"))))
    with pytest.raises(KinstError, match="there is no vmlinux in it"):
        with_build(Request(MachineOptions(build=str(tmp_path))))
    request = build(tmp_path, "gcc", "")
    with pytest.raises(KinstError, match=r"no arch/x86/boot/bzImage in it \(make bzImage\)"):
        with_build(request)


def test_another_isa_than_was_asked_for(tmp_path: Path) -> None:
    request = build(tmp_path, "gcc", BUILDS[0][2])
    with pytest.raises(KinstError, match="a kernel for amd64, and --vm=arm64"):
        with_build(Request(MachineOptions(build=request.machine.build, isa="arm64")))


def test_of_a_kernel_that_runs_already(tmp_path: Path) -> None:
    """The kernel's image need not be there, because nothing is booted."""
    options = replace(build(tmp_path, "gcc", "").machine, kind="attach", address="auto")
    found = with_build(Request(options)).machine
    assert (found.kernel, found.debug) == ("", str(tmp_path / "vmlinux"))
    assert found.debug_folders == (str(tmp_path),)
