"""Facts of running an arm64 kernel in QEMU: machine, devices, memory layout, state of a CPU.

Source: QEMU manual, "System emulation", "'virt' generic virtual platform"; hw/arm/virt.c for the
memory layout.

Tested by tests/isa/test_boards.py.
"""

from __future__ import annotations

from collections.abc import Mapping

QEMU = "qemu-system-aarch64"
PACKAGE = "qemu-system-arm"
MACHINE = "virt"
CPU = "cortex-a57"  # starts its kernel at EL1; newer CPUs cost TCG pointer authentication
_CPU_OF_16K = "neoverse-n1"  # cortex-a57 has pages of 4 and 64 KB only
_IMAGE_MAGIC = b"ARM\x64"  # Linux, Documentation/arch/arm64/booting.rst: at 56; flags at 24
_PAGES_16K = 2  # in bits 1 and 2 of the flags
# os.uname().machine of hosts that could run it with KVM.
HOST_MACHINES: tuple[str, ...] = ("aarch64",)

# The first line is the machine's own UART, a PL011 (an empty name); the others are PCI cards.
SERIAL: tuple[str, ...] = ("", "pci-serial", "pci-serial")
TIMERS: tuple[tuple[str, int], ...] = ()
CARD_SLOT = "pcie-root-port"
HARDWARE_BREAKPOINTS = 0  # never tried under KVM
# QEMU 7.2 and 10.0, include/hw/core/cpu.h: gdb_stop_before_watchpoint.
STOPS_AFTER_WRITE = False

LINK = "x30"
CALL_CHANGES = (*(f"x{n}" for n in range(19)), "x30", "sp", "pc")  # AAPCS64, 6.1.1
_RAM = 0x4000_0000
_IRQ_MASKED = 1 << 7  # PSTATE.I
_TIMER_MASK, _TIMER_FIRED = 7, 5  # CNTV_CTL_EL0: enabled, not masked, its condition met


def cpu_for(head: bytes) -> str:
    """Return the CPU to run a kernel on: for a kernel with pages of 16 KB a CPU that has them,
    otherwise the usual CPU.

    Args:
        head: first bytes of the kernel's file.
    """
    pages = int.from_bytes(head[24:32], "little") >> 1 & 3
    return _CPU_OF_16K if head[56:60] == _IMAGE_MAGIC and pages == _PAGES_16K else CPU


def interrupts_off(registers: Mapping[str, int]) -> bool:
    """Return whether the CPU holds back the interrupt of its timer: PSTATE.I is set and the timer
    has fired.

    Linux waits for work (wfi) with interrupts off. So a CPU hangs only if it does not take an
    interrupt that is pending.
    """
    fired = registers.get("CNTV_CTL_EL0", 0) & _TIMER_MASK == _TIMER_FIRED
    return fired and bool(registers["cpsr"] & _IRQ_MASKED)


def is_lost(registers: Mapping[str, int]) -> bool:
    """Return False: an arm64 CPU does not fault for ever, since Linux detects a bad stack at each
    entry to the kernel and reports it."""
    return False


def memory_map(size: int) -> tuple[tuple[int, int, int], ...]:
    """Return (physical address, offset in RAM, bytes) of each piece of virt's RAM, which is one
    piece.

    Args:
        size: bytes of RAM.
    """
    return ((_RAM, 0, size),)
