"""Facts of running an amd64 kernel in QEMU: machine, devices, memory layout, state of a CPU.

Source: QEMU manual, "System emulation", i440fx/q35; hw/i386/pc_q35 for the memory layout.

Tested by tests/isa/test_boards.py.
"""

from __future__ import annotations

from collections.abc import Mapping

QEMU = "qemu-system-x86_64"
PACKAGE = "qemu-system-x86"
MACHINE = "q35"
CPU = ""  # QEMU's own choice
# os.uname().machine of hosts that could run it with KVM.
HOST_MACHINES: tuple[str, ...] = ("x86_64", "AMD64")

# Interrupt lines differ on purpose: isa-serial's defaults are shared.
SERIAL: tuple[str, ...] = (
    "isa-serial,index=0,iobase=0x3f8,irq=4",
    "isa-serial,index=1,iobase=0x2f8,irq=3",
    "isa-serial,index=2,iobase=0x3e8,irq=5",
)
TIMERS: tuple[tuple[str, int], ...] = ()
CARD_SLOT = "pcie-root-port"
HARDWARE_BREAKPOINTS = 4  # DR0 to DR3: Intel SDM 18.2, AMD APM 13.1
# QEMU 7.2 and 10.0, include/hw/core/cpu.h: gdb_stop_before_watchpoint.
STOPS_AFTER_WRITE = True

LINK = ""
# System V ABI, 3.2.1; flags have no meaning at a function's entry.
CALL_CHANGES: tuple[str, ...] = (
    "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "rsp", "rip",
)  # fmt: skip
_FOUR_GB = 1 << 32


def cpu_for(head: bytes) -> str:
    """Return QEMU's name of the CPU that runs a kernel: always "", for QEMU's default CPU."""
    return CPU


def interrupts_off(registers: Mapping[str, int]) -> bool:
    """Return whether the CPU takes no interrupts (flag IF is clear)."""
    return not registers["eflags"] & 1 << 9


def is_lost(registers: Mapping[str, int]) -> bool:
    """Return False: an amd64 CPU cannot fault for ever. A fault in the handling of a fault resets
    the machine (a triple fault), which ends QEMU."""
    return False


def memory_map(size: int) -> tuple[tuple[int, int, int], ...]:
    """Return (physical address, offset in RAM, bytes) of each piece of q35's RAM.

    RAM of less than 0xb0000000 bytes is one piece. Otherwise it is split at 2 GB, and the second
    piece is at 4 GB.

    Args:
        size: bytes of RAM.
    """
    if size < 0xB000_0000:
        return ((0, 0, size),)
    low = 0x8000_0000
    return ((0, 0, low), (_FOUR_GB, low, size - low))
