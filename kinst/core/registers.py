"""Names of an instruction set's registers: all that checking a D program, and running a program
without a kernel, need of an instruction set.

Tested by tests/isa/test_isa_contract.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kinst.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Register:
    """A register that D programs can read as regs[].

    Attributes:
        d_name: name in D (R_RAX).
        index: the index in regs[].
        slot: index in a frame: frame[slot], a u64, holds the register's saved value.
        gdb_name: the GDB stub's name (rax).
    """

    d_name: str
    index: int
    slot: int
    gdb_name: str


class RegisterNames(Protocol):
    """The part of an instruction set that checking a D program needs, and running a program without
    a kernel. An Isa has it, and so has a NamedRegisters."""

    @property
    def name(self) -> str: ...
    @property
    def registers(self) -> tuple[Register, ...]: ...
    @property
    def argument_slots(self) -> tuple[int, ...]: ...
    @property
    def sp_slot(self) -> int: ...
    @property
    def frame_slots(self) -> int: ...


@dataclass(frozen=True, slots=True)
class NamedRegisters:
    """Names of an instruction set's registers, without the rest of the instruction set.

    Attributes:
        name: name of the instruction set.
        registers: the registers, in the order of regs[].
        argument_slots: frame slots of the C argument registers.
        sp_slot: frame slot of the stack pointer.
    """

    name: str
    registers: tuple[Register, ...]
    argument_slots: tuple[int, ...]
    sp_slot: int

    @property
    def frame_slots(self) -> int:
        return slots_of(self.registers)


def slots_of(registers: Sequence[Register]) -> int:
    """Return how many u64 slots a frame with these registers has: the saved registers that a
    trampoline, or a stop, passes to a clause."""
    return 1 + max(register.slot for register in registers)
