"""Guests with a CPU that Debian 12's QEMU does not know, in Debian 13's QEMU.

Spin locks have instructions with operands that other instructions of the same opcode lack.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vm.command import counts, kinst, listed

MACHINE = ("--vm=riscv64", "--kernel", "7.2", "--qemu-arg=-cpu", "--qemu-arg=max")
FUNCTION = "do_raw_spin_lock"
# Fixed bits of amocas.w (Zacas), which compares with rd.
AMOCAS_MASK, AMOCAS = 0xF800707F, 0x2800202F
COMMAND = "ls -lR /proc/1 >/dev/null; cat /proc/*/status >/dev/null"
MANY = 10_000  # functions that take spin locks


pytestmark = [pytest.mark.vm, pytest.mark.slow]


def test_spin_locks_of_a_cpu_with_zacas_are_counted_and_still_lock(newer_qemu: Path) -> None:
    """Count before each amocas and at the function's entry: one try for each lock.

    If the register that amocas compares with were taken for dead, code would take locks that are
    held, and the guest would panic.
    """
    assert (newer_qemu / "qemu-system-riscv64").exists()
    shown = kinst(*MACHINE, "-l", "-v", "-n", f"kinst::{FUNCTION}:").good()
    rows = listed(shown.out)
    words = [int.from_bytes(row.code, "little") for row in rows]
    before = [rows[k - 1].offset for k, w in enumerate(words) if w & AMOCAS_MASK == AMOCAS]
    assert before, "this kernel has no amocas in its spin locks"
    probes = ", ".join(f"kinst::{FUNCTION}:{offset}" for offset in (0, *before))
    program = f"{probes} {{ @[probename] = count(); }}"
    found = counts(kinst("-q", *MACHINE, "-n", program, "-c", COMMAND).good().out)
    entered = found.pop(("0",))
    assert entered > MANY and sum(found.values()) == entered, (entered, found)
