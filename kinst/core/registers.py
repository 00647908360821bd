"""The registers of an instruction set: all of it that a program is checked with.

Tested by tests/isa/test_isa_contract.py.
"""

from __future__ import annotations

from typing import Protocol

from kinst.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Register:
    """One register of regs[].

    Attributes:
        d_name: its name in D (R_RAX).
        index: the number that regs[] takes.
        slot: its place in a frame: frame[slot], a u64, holds its saved value.
        gdb_name: its name in a GDB stub (rax).
    """

    d_name: str
    index: int
    slot: int
    gdb_name: str


class RegisterNames(Protocol):
    """What a program that is checked needs of an instruction set; an Isa has it too."""

    @property
    def name(self) -> str: ...
    @property
    def registers(self) -> tuple[Register, ...]: ...
    @property
    def argument_slots(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class NamedRegisters:
    """The RegisterNames of an instruction set, by themselves.

    Attributes:
        name: of the instruction set.
        registers: in the order in which regs[] has them.
        argument_slots: frame slots of the C argument registers.
    """

    name: str
    registers: tuple[Register, ...]
    argument_slots: tuple[int, ...]
