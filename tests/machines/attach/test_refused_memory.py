"""Guests whose memory kinst --attach cannot read or replace are refused, with the reason."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from kinst.core.errors import TargetError
from kinst.isa import load
from kinst.machines.attach.find import check, hardware_breakpoints
from kinst.wire.other_process import Mapping, OtherProcess

QEMU = "qemu-system-x86_64"
UNDER_KVM = {5: "/dev/kvm", 6: "anon_inode:kvm-vm", 7: "anon_inode:kvm-vcpu:0"}
RAM = Mapping(0x7F00_0000_0000, 0x7F00_4000_0000, "rw-p", 0, "00:00", 0, "")


def process(files: dict[int, str], line: str = "", page: int = 4096, mapping: Mapping = RAM) -> Any:
    """Return a process as check() sees it."""
    return SimpleNamespace(
        pid=7, program=QEMU, owner=os.geteuid(), tracer=0, arguments=[QEMU, *line.split()],
        descriptors=lambda: files, mappings=lambda: [mapping], page_size=lambda mapping: page,
    )  # fmt: skip


def test_a_guest_under_kvm_is_taken() -> None:
    check(process(UNDER_KVM), QEMU)
    check(process({**UNDER_KVM, 9: "/dev/vhost-net"}, page=2 << 20), QEMU)
    assert hardware_breakpoints(process(UNDER_KVM), load("amd64")) == 4
    assert hardware_breakpoints(process({}), load("amd64")) == 0


@pytest.mark.parametrize(
    ("files", "line", "page", "said"),
    [
        ({9: "/dev/vfio/vfio"}, "", 4096, "VFIO"),
        ({9: "/dev/vfio/17"}, "", 4096, "VFIO"),
        ({9: "anon_inode:[vfio-device]"}, "", 4096, "VFIO"),
        ({9: "/dev/iommu"}, "", 4096, "VFIO"),
        ({9: "/dev/vhost-vdpa-0"}, "", 4096, "vDPA"),
        ({9: "/dev/sev"}, "", 4096, "encrypted"),
        ({}, "-object sev-guest,id=sev0,cbitpos=47", 4096, "encrypted"),
        ({}, "-object sev-snp-guest,id=sev0", 4096, "encrypted"),
        ({}, "-object tdx-guest,id=tdx", 4096, "encrypted"),
        ({}, "", 1 << 30, "pages of 1024 MB"),
    ],
)
def test_what_is_refused(files: dict[int, str], line: str, page: int, said: str) -> None:
    with pytest.raises(TargetError, match=said) as refused:
        check(process({**UNDER_KVM, **files}, line, page), QEMU)
    assert "7" in refused.value.message and refused.value.hint


def test_other_mappings_may_have_any_pages() -> None:
    firmware = Mapping(0x7F00_0000_0000, 0x7F00_0100_0000, "rw-p", 0, "00:00", 0, "")
    check(process(UNDER_KVM, page=1 << 30, mapping=firmware), QEMU)


def test_ordinary_memory_and_files_have_ordinary_pages() -> None:
    here = OtherProcess(os.getpid())
    assert {here.page_size(mapping) for mapping in here.mappings()} == {4096}
