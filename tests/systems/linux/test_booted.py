"""Facts that page tables, laid out by hand, show about a Linux kernel that is about to start
init."""

from __future__ import annotations

import pytest

from kinst.core.errors import TargetError
from kinst.isa.amd64.paging import PAGING as AMD64
from kinst.isa.arm64.paging import PAGING as ARM64
from kinst.systems.linux.amd64 import LINUX as ON_AMD64
from kinst.systems.linux.arm64 import LINUX as ON_ARM64
from kinst.systems.linux.guest.boot import boot_code_is_freed, text_is_protected
from tests.isa.amd64 import test_paging as amd64
from tests.isa.arm64 import test_paging as arm64

AMD64_IMAGE, ARM64_IMAGE = ON_AMD64.virtual_layout.image, ON_ARM64.virtual_layout.image


def test_amd64_has_booted_once_its_text_is_write_protected() -> None:
    ram = amd64.kernel()
    registers = {"cr0": 1 << 31, "cr3": ram.root, "cr4": 0, "cs": 0x10}
    assert text_is_protected(AMD64, ram.read, registers, AMD64_IMAGE)
    assert not text_is_protected(AMD64, ram.read, registers | {"cr0": 0x11}, AMD64_IMAGE)
    ram.map(amd64.TEXT, 0x200000 | amd64.P | amd64.RW | amd64.PS | amd64.G, 2 << 20)
    assert not text_is_protected(AMD64, ram.read, registers, AMD64_IMAGE)
    ram.map(amd64.TEXT, 0, 2 << 20)
    assert not text_is_protected(AMD64, ram.read, registers, AMD64_IMAGE)


@pytest.mark.parametrize("name", ["SCTLR", "SCTLR_EL1"])
def test_arm64_has_booted_once_the_code_that_only_boots_is_freed(name: str) -> None:
    code = arm64.AF | arm64.AP_READ_ONLY | arm64.SHARED | arm64.UXN
    ram = arm64.Ram()
    for n in range(4):
        ram.map(arm64.TEXT + 2 * arm64.MB * n, 0x4000_0000 | code | 1, 2)
    control = 16 << 16 | 16 | 2 << 30  # TCR_EL1: 48 bits, pages of 4 KB
    registers = {name: 1, "TTBR1_EL1": ram.root, "TCR_EL1": control}
    assert boot_code_is_freed(ARM64, ram.read, registers, ARM64_IMAGE)
    assert not boot_code_is_freed(
        ARM64, ram.read, {**registers, name: 0}, ARM64_IMAGE
    )  # no MMU yet
    # Code of the boot, after read-only data; it is freed later.
    ram.map(arm64.TEXT + 24 * arm64.MB, 0x4200_0000 | code | 1, 2)
    assert not boot_code_is_freed(ARM64, ram.read, registers, ARM64_IMAGE)
    ram.map(arm64.TEXT + 24 * arm64.MB, 0x4200_0000 | code | arm64.PXN | 1, 2)
    assert boot_code_is_freed(ARM64, ram.read, registers, ARM64_IMAGE)
    # A module, far away.
    ram.map(arm64.TEXT + 96 * arm64.MB, 0x4300_0000 | code | 3, 1)
    ram.map(arm64.TEXT - 64 * arm64.MB, 0x4300_0000 | code | 3, 1)
    assert boot_code_is_freed(ARM64, ram.read, registers, ARM64_IMAGE)
    assert not boot_code_is_freed(ARM64, arm64.Ram().read, registers, ARM64_IMAGE)


def test_arm64_at_el2_is_refused() -> None:
    """The EL1 registers are not the kernel's if HCR_EL2.E2H (bit 34) is set."""
    registers = {"TCR_EL1": 16 << 16 | 2 << 30, "TTBR1_EL1": 0, "HCR_EL2": 1 << 34}
    with pytest.raises(TargetError, match="EL2"):
        boot_code_is_freed(ARM64, lambda _at, size: bytes(size), registers, ARM64_IMAGE)
