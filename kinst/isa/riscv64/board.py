"""Facts of running a riscv64 kernel in QEMU: machine, devices, memory layout, state of a CPU.

Source: QEMU manual, "'virt' Generic Virtual Platform"; hw/riscv/virt for the memory layout; RISC-V
privileged specification, 4.1 (supervisor CSRs).

Tested by tests/isa/test_boards.py.
"""

from __future__ import annotations

from collections.abc import Mapping

QEMU = "qemu-system-riscv64"
PACKAGE = "qemu-system-misc"
MACHINE = "virt"
CPU = ""  # QEMU's own choice
# os.uname().machine of hosts that could run it with KVM.
HOST_MACHINES: tuple[str, ...] = ("riscv64",)

# The first line is the machine's own UART (an empty name); the others are PCI cards.
SERIAL: tuple[str, ...] = ("", "pci-serial", "pci-serial")
# stimecmp (Sstc), which OpenSBI writes if a kernel leaves that to OpenSBI.  It is given by its
# distance from sstatus: QEMU numbers CSRs in a row, but names only those that a CPU has before it
# starts, and stimecmp does not exist by then.
TIMERS: tuple[tuple[str, int], ...] = (("sstatus", 0x14D - 0x100),)
CARD_SLOT = ""  # kernels for these boards are built without PCI hot-plug
HARDWARE_BREAKPOINTS = 0  # never tried under KVM
# QEMU 7.2 and 10.0, include/hw/core/cpu.h: gdb_stop_before_watchpoint.
STOPS_AFTER_WRITE = False
LINK = "ra"
# psABI, "Integer Register Convention".
CALL_CHANGES: tuple[str, ...] = (
    "ra", "sp", *(f"t{n}" for n in range(7)), *(f"a{n}" for n in range(8)), "pc",
)  # fmt: skip
_RAM = 0x8000_0000
_SUPERVISOR = 1
_PAGE_FAULTS = (12, 13, 15)  # of scause: fetching, loading, storing
_ENTRY = 512  # bytes of Linux's handle_exception, until all registers are saved
_SIE = 1 << 1  # of sstatus


def cpu_for(head: bytes) -> str:
    """Return QEMU's name of the CPU that runs a kernel: always "", for QEMU's default CPU."""
    return CPU


def interrupts_off(registers: Mapping[str, int]) -> bool:
    """Return whether the CPU, in supervisor mode, holds back an interrupt that is pending.

    Linux waits for work (wfi) with interrupts off. So a CPU hangs only if it does not take an
    interrupt that is pending.
    """
    if registers.get("priv", _SUPERVISOR) != _SUPERVISOR or registers["sstatus"] & _SIE:
        return False
    return bool(registers["sip"] & registers["sie"])


def is_lost(registers: Mapping[str, int]) -> bool:
    """Return whether the CPU faults for ever: each page fault leads to the entry of the trap
    handler, and saving registers there gives the next page fault.

    About one in a hundred boots with the OpenSBI 1.1 of QEMU 7.2 ends in such faults.
    sbi_hart_start() marks a CPU as started before it sets the CPU's start address. If the CPU sees
    the mark but not yet the address, it boots the kernel a second time. The second boot clears the
    data and page tables of the kernel that runs already.
    """
    vector = registers["stvec"] & -4
    entry = range(vector, vector + _ENTRY)
    faulted = registers["scause"] in _PAGE_FAULTS and registers["sepc"] in entry
    return faulted and registers["pc"] in entry


def memory_map(size: int) -> tuple[tuple[int, int, int], ...]:
    """Return (physical address, offset in RAM, bytes) of each piece of virt's RAM, which is one
    piece.

    Args:
        size: bytes of RAM.
    """
    return ((_RAM, 0, size),)
