"""Share of the kernel that can be planted: every instruction of every function, one by one."""

from __future__ import annotations

from collections import Counter

import pytest

from kinst.core.displaced import Refused
from kinst.core.probe import Site
from kinst.image.debug_info import DebugInfo
from kinst.image.elf import open_elf
from kinst.isa import load
from kinst.session.place import rerun_refusals
from kinst.systems.linux.isafacts import facts_of
from kinst.systems.linux.system import attach
from tests.machines.booted import boot
from tests.vm.isa_guest import Guest

pytestmark = [pytest.mark.vm, pytest.mark.slow]

WANTED = 0.995

NONE = (0, 0)


def test_share_of_instructions_that_can_be_planted(
    guest: Guest, record_property: pytest.RecordProperty
) -> None:
    """Only functions that the kernel allows to be probed count."""
    isa = load(guest.isa)
    booted = boot(guest.kernel, isa=isa)
    try:
        vm = booted.vm
        elf, arch = open_elf(guest.kernel.debug), facts_of(guest.isa)
        linux = attach(vm, DebugInfo(elf), vm.find_text(), arch, isa, hook_bugs=True)
        vm.set_tables(linux.page_tables)
        scratch = vm.map_scratch(2 << 20, linux.text)
        assert scratch is not None
        why: Counter[str] = Counter()
        total = 0
        for function in linux.functions():
            if linux.refusals(function):
                continue
            code = vm.read(function.address, function.size)
            found = list(isa.decode(code, function.address))
            total += len(found)
            reasons = linux.site_refusals([(i.address, i.size) for i in found])
            unsafe, again = isa.unsafe(found), isa.rerun_starts(found)
            spans = {at: (start, at - start) for at, start in again.items()}
            rerun = rerun_refusals(linux, list(spans.values()))
            for instruction, reason in zip(found, reasons, strict=True):
                at = instruction.address
                forbidden = reason or unsafe.get(at, "") or rerun.get(spans.get(at, NONE), "")
                before = code[again.get(at, at) - function.address : at - function.address]
                site = Site(function, at - function.address, instruction.code)
                moved = isa.trampoline(site, b"", scratch, (), before)
                if forbidden or isinstance(moved, Refused):
                    why[forbidden or moved.reason] += 1  # type: ignore[union-attr]
    finally:
        booted.vm.close()
    assert total > 1_500_000
    share = 1 - why.total() / total
    for reason, count in why.most_common():
        record_property(reason, count)
    shown = "".join(f"\n  {count:7} {reason}" for reason, count in why.most_common())
    print(f"\n{guest.isa}: {share:.4%} of {total} instructions can be planted; not:{shown}")
    assert share >= WANTED
