"""How much of the kernel can be planted: every instruction of every function, asked one by one."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from kinst.core.isa import Refused
from kinst.image.elf import open_elf
from kinst.isa import load
from kinst.targets.fetch import Prepared
from kinst.targets.linux import attach

sys.path.insert(0, str(Path(__file__).parent.parent / "targets"))

from booted import boot

pytestmark = [pytest.mark.vm, pytest.mark.slow]

SCRATCH = 0xFFFFFFFF9FE00000  # near the text, as scratch is
WANTED = 0.995


def test_share_of_instructions_that_can_be_planted(
    prepared: Prepared, record_property: pytest.RecordProperty
) -> None:
    """Of the functions that the kernel lets be probed at all: 99.5% or more."""
    isa = load("amd64")
    guest = boot(prepared)
    try:
        vm = guest.vm
        linux = attach(vm, open_elf(prepared.debug), vm.find_text(), hook_bugs=True)
        vm.set_tables(linux.page_tables())
        why: Counter[str] = Counter()
        total = 0
        for function in linux.functions():
            if linux.refusals(function):
                continue
            code = vm.read(function.address, function.size)
            found = list(isa.decode(code, function.address))
            total += len(found)
            reasons = linux.site_refusals([(i.address, i.size) for i in found])
            for instruction, reason in zip(found, reasons, strict=True):
                moved = isa.displace(instruction.code, instruction.address, SCRATCH)
                if reason or isinstance(moved, Refused):
                    why[reason or moved.reason] += 1  # type: ignore[union-attr]
    finally:
        guest.vm.close()
    assert total > 2_000_000
    share = 1 - why.total() / total
    for reason, count in why.most_common():
        record_property(reason, count)
    print(f"\n{share:.4%} of {total} instructions can be planted; not: {dict(why.most_common(8))}")
    assert share >= WANTED
