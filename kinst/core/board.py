"""What QEMU is asked for to run a kernel of an ISA, and what its GDB stub calls things.

Tested by tests/isa/test_isa_contract.py and tests/isa/test_boards.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Board(Protocol):
    """What QEMU is asked for to run a kernel of this ISA, and what its GDB stub calls things."""

    QEMU: str  # the program
    PACKAGE: str  # of Debian, that has it
    MACHINE: str
    CPU: str  # which cpu_for() answers for most kernels; "" for QEMU's own choice
    HOST_MACHINES: tuple[str, ...]  # os.uname().machine of hosts that could run it with KVM
    SERIAL: tuple[str, ...]  # -device of console, output and control; "" for the machine's own
    # Registers that arm a CPU's timer when they are written: QEMU saves what is in them, but not
    # that anything is to happen then.  The stub does not name them: each is so many numbers behind
    # one that has a name.
    TIMERS: tuple[tuple[str, int], ...]
    CARD_SLOT: str  # -device into which a card is put while it runs; "" where kernels take none
    PC: str  # the stub's name of the program counter
    SP: str  # and of the stack pointer
    LINK: str  # of the register that holds a function's return address; "" where its stack does
    CALL_CHANGES: tuple[str, ...]  # of what a call of a C function may change, PC and SP included
    VECTORS: tuple[str, ...]  # the stub's names of registers that hold the trap handler's address
    GDB_REGISTERS: tuple[tuple[str, int], ...]  # (name, bytes) of the g packet without description

    def cpu_for(self, head: bytes) -> str:
        """QEMU's name of a CPU that can run a kernel whose file begins with these 64 bytes."""
        ...

    def interrupts_off(self, registers: Mapping[str, int]) -> bool:
        """Whether the CPU does not come when it is called."""
        ...

    def is_lost(self, registers: Mapping[str, int]) -> bool:
        """Whether the CPU can do nothing but fault any more."""
        ...

    def memory_map(self, size: int) -> tuple[tuple[int, int, int], ...]:
        """(physical address, offset in the backing file, bytes) of RAM of `size` bytes."""
        ...
