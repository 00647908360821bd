"""--attach without --kernel: the vmlinux is found by the build-id in the guest's memory."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.core.options import MachineOptions
from kinst.machines import attach
from kinst.session import kernel_files
from kinst.session.kernel_files import with_vmlinux
from kinst.session.report import Report
from kinst.session.request import Request

RELEASE = "9.9.0-1-amd64"
BUILD_ID = "0123456789abcdef0123456789abcdef01234567"
# Start of a VMCOREINFO note: Documentation/admin-guide/kdump/vmcoreinfo.rst.
NOTE = f"OSRELEASE={RELEASE}\nBUILD-ID={BUILD_ID}\nPAGESIZE=4096\n".encode()
PAGE = 4096
ATTACHED = MachineOptions(kind="attach", address="auto")
STUB = MachineOptions(kind="gdb", address=":1234")


@pytest.fixture
def vmlinux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file with that build-id, in a separate cache, without a debuginfod server."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)
    folder = tmp_path / f"kinst/kernels/amd64/{RELEASE}/usr/lib/debug/boot"
    folder.mkdir(parents=True)
    file = folder / f"vmlinux-{RELEASE}"
    identity = f"-Wl,--build-id=0x{BUILD_ID}"
    command = ["gcc", "-nostdlib", "-static", identity, "-x", "c", "-o", str(file), "-"]
    subprocess.run(command, input=b"void _start(void) {}", check=True)
    return file


class Said:
    """Messages, and work that is reported."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.work: list[str] = []
        self.report = Report(self.texts.append, lambda what, part: self.work.append(what), 0.0)


def hold(monkeypatch: pytest.MonkeyPatch, *pieces: bytes) -> None:
    """Use these bytes as the memory of every machine."""

    def memory(address: str) -> Iterator[bytes]:
        assert address == "auto"
        yield from pieces

    monkeypatch.setattr(attach.MACHINE, "memory", memory)


def test_the_build_in_memory_is_taken(vmlinux: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(monkeypatch, bytes(PAGE), bytes(PAGE) + NOTE.ljust(PAGE, b"\0"))
    said = Said()
    assert with_vmlinux(Request(ATTACHED), said.report).machine.debug == str(vmlinux)
    assert said.texts == [f"kinst: the machine runs kernel {RELEASE}; its vmlinux is {vmlinux}"]
    assert not said.work


def test_a_named_file_is_not_looked_for(vmlinux: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(monkeypatch, NOTE)
    for request in (Request(replace(ATTACHED, kernel="mine")), Request(STUB), Request()):
        assert with_vmlinux(request, Said().report) is request


def test_memory_without_the_note(vmlinux: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The format of a note's lines, which is in the kernel's file, is no note."""
    hold(monkeypatch, b"OSRELEASE=%s\nBUILD-ID=%20phN\n")
    with pytest.raises(KinstError, match="no VMCOREINFO note") as told:
        with_vmlinux(Request(ATTACHED), Said().report)
    assert "--kernel VMLINUX" in str(told.value.hint)


def test_a_long_search_is_reported(vmlinux: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_files, "_LONG", -1.0)
    hold(monkeypatch, bytes(PAGE), NOTE)
    said = Said()
    assert with_vmlinux(Request(ATTACHED), said.report).machine.debug
    assert said.work == ["looking for the build-id of the kernel there"] * 2
