"""The protocol of boards: how QEMU runs a kernel of an instruction set.

Tested by tests/isa/test_boards.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Board(Protocol):
    """QEMU's options and behaviour for kernels of an instruction set. Registers are by the names of
    QEMU's GDB stub."""

    # The program, and the Debian package that has it.
    QEMU: str
    PACKAGE: str
    MACHINE: str
    # The CPU that cpu_for() returns for most kernels; "" for QEMU's default.
    CPU: str
    # os.uname().machine of hosts that could run the kernel with KVM.
    HOST_MACHINES: tuple[str, ...]
    # QEMU's -device for the console, the output and the control port; "" for the machine's own
    # port.
    SERIAL: tuple[str, ...]
    # Registers that arm a CPU's timer when they are written: a saved state has their values, but
    # not that the timer is armed.  The stub does not name these registers, so each is given as
    # (name of another register, how many register numbers after that one).
    TIMERS: tuple[tuple[str, int], ...]
    # QEMU's -device with the slot for a card that is inserted while the guest runs; "" if kernels
    # support no such card.
    CARD_SLOT: str
    # How many debugger's breakpoints a processor can hold in registers of its own, under KVM; 0 if
    # they are written into the code instead.
    HARDWARE_BREAKPOINTS: int
    # Whether QEMU's TCG stops the machine after a write to watched memory. Otherwise it stops the
    # machine before the write.
    STOPS_AFTER_WRITE: bool
    # The register that holds a function's return address; "" if the address is on the stack.
    LINK: str
    # Registers that a call of a C function may change, program counter and stack pointer included.
    CALL_CHANGES: tuple[str, ...]

    def cpu_for(self, head: bytes) -> str:
        """Return QEMU's name of a CPU that can run a kernel.

        Args:
            head: the first 64 bytes of the kernel's file.
        """
        ...

    def interrupts_off(self, registers: Mapping[str, int]) -> bool:
        """Whether interrupts are disabled on the CPU with these registers."""
        ...

    def is_lost(self, registers: Mapping[str, int]) -> bool:
        """Whether the CPU with these registers can only fault, again and again."""
        ...

    def memory_map(self, size: int) -> tuple[tuple[int, int, int], ...]:
        """Return where QEMU places RAM of `size` bytes: (physical address, offset in the backing
        file, bytes) of each part."""
        ...
