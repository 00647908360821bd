"""A kernel that KASLR has put so high that kinst's trampolines fit only below its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinst.kernels.fetch import Prepared
from tests.vm.attach.attach_guest import AttachGuest, attach_guest
from tests.vm.attach.test_attach import kill_with_its_guardian, options, traced
from tests.vm.command import kinst, listed

pytestmark = [pytest.mark.vm, pytest.mark.slow]
HIGH = 0xFFFF_FFFF_BB80_0000  # above this address kinst's scratch does not fit after the kernel
BOOTS = 300  # about 2 % of the boots put the kernel there


def text_of(vm: AttachGuest) -> int:
    return int(vm.run("grep -w _text /proc/kallsyms").split()[0], 16)


def test_what_a_killed_kinst_left_below_the_text_is_undone(
    prepared: Prepared, reads: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for _ in range(BOOTS):
        with attach_guest("pc", prepared, reads, tmp_path_factory.mktemp("high")) as vm:
            if text_of(vm) < HIGH:
                continue
            listing = options(vm, "-l", "-v", "-n", "kinst::vfs_read:0")
            before = listed(kinst(*listing, boots=False).good().out)
            kill_with_its_guardian(traced(vm, "jump"))
            done = kinst(*listing, boots=False).good()
            assert "an earlier kinst was killed" in done.err
            assert listed(done.out) == before
            return
    pytest.fail(f"none of {BOOTS} boots had its kernel at {HIGH:#x} or above")
