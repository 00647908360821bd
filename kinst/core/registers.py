"""Names of an instruction set's registers: all that checking a D program needs of an instruction
set.

Tested by tests/isa/test_isa_contract.py."""

from __future__ import annotations

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
    """The part of an instruction set that checking a D program needs. An Isa has it, and so has a
    NamedRegisters."""

    @property
    def name(self) -> str: ...
    @property
    def registers(self) -> tuple[Register, ...]: ...
    @property
    def argument_slots(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class NamedRegisters:
    """Names of an instruction set's registers, without the rest of the instruction set.

    Attributes:
        name: name of the instruction set.
        registers: the registers, in the order of regs[].
        argument_slots: frame slots of the C argument registers.
    """

    name: str
    registers: tuple[Register, ...]
    argument_slots: tuple[int, ...]
