"""Detours of a plan in an emulator: a hook answers for its function, or gives it another
argument."""

from __future__ import annotations

import pytest
from unicorn import UC_ARCH_X86, UC_MODE_64, Uc
from unicorn.x86_const import UC_X86_REG_RAX, UC_X86_REG_RDI, UC_X86_REG_RDX, UC_X86_REG_RSP

from kinst.isa import load
from kinst.patch.plan import Hook, plan_hooks

TEXT, SCRATCH, HANDLER, STACK, DONE = 0x10_0000, 0x20_0000, 0x20_0800, 0x30_0000, 0x40_0000
FUNCTION = bytes.fromhex("4889f8 ba4d000000 c3")  # mov rax, rdi; mov edx, 77; ret
ONE_MORE = bytes.fromhex("488d4701 c3")  # lea rax, [rdi + 1]; ret


def called(argument: int, translate: bool) -> tuple[bool, int]:
    """Return whether the hooked function itself ran, and what it returned: its argument."""
    plan = plan_hooks([Hook(TEXT, FUNCTION, HANDLER, translate)], load("amd64"), SCRATCH)
    machine = Uc(UC_ARCH_X86, UC_MODE_64)
    for at in (TEXT, SCRATCH, STACK, DONE):
        machine.mem_map(at, 0x1000)
    machine.mem_write(TEXT, FUNCTION)
    machine.mem_write(HANDLER, ONE_MORE)
    for at, code in [*plan.text, *((patch.address, patch.new) for patch in plan.patches)]:
        machine.mem_write(at, code)
    machine.mem_write(STACK + 0x808, DONE.to_bytes(8, "little"))
    machine.reg_write(UC_X86_REG_RSP, STACK + 0x808)
    machine.reg_write(UC_X86_REG_RDI, argument & (1 << 64) - 1)
    machine.reg_write(UC_X86_REG_RDX, 0)
    machine.emu_start(TEXT, DONE, count=1000)
    assert machine.reg_read(UC_X86_REG_RSP) == STACK + 0x810
    return machine.reg_read(UC_X86_REG_RDX) == 77, machine.reg_read(UC_X86_REG_RAX)


@pytest.mark.parametrize("argument", [0, 1, 0xFFFF_8880_0000_0000])
def test_a_hook_that_translates(argument: int) -> None:
    assert called(argument, translate=True) == (True, argument + 1)


def test_a_hook_that_answers() -> None:
    """A hook returns 0 to continue in the function, with the original arguments."""
    assert not called(0, translate=False)[0]
    assert called(-1, translate=False) == (True, (1 << 64) - 1)
