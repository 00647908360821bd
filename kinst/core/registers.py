"""Names of an instruction set's registers. Checking a D program needs no more of an instruction
set, and neither does running a D program without a kernel.

Tested by tests/isa/test_isa_contract.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
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
    """Names of an instruction set's registers: enough to check a D program, or to run it without a
    kernel. Isa and NamedRegisters implement this protocol."""

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
    @property
    def result_slot(self) -> int: ...
    @property
    def exit_slot(self) -> int: ...
    @property
    def writable_slots(self) -> frozenset[int]: ...
    @property
    def fixed_slots(self) -> Mapping[int, str]: ...


@dataclass(frozen=True, slots=True)
class NamedRegisters:
    """Names of an instruction set's registers, without the rest of the instruction set.

    Attributes:
        name: name of the instruction set.
        registers: the registers, in the order of regs[].
        argument_slots: frame slots of the C argument registers.
        sp_slot: frame slot of the stack pointer.
        result_slot: frame slot of the register with a C function's result.
        exit_slot: an additional frame slot, which belongs to no register: in it clauses store where
            control goes after them (Exit.number in core/bodies.py). -1 if frames have no such slot.
        writable_slots: frame slots of the registers that a program may assign.
        fixed_slots: frame slot of another register -> the reason why it cannot be assigned.
    """

    name: str
    registers: tuple[Register, ...]
    argument_slots: tuple[int, ...]
    sp_slot: int
    result_slot: int
    exit_slot: int = -1
    writable_slots: frozenset[int] = frozenset()
    fixed_slots: Mapping[int, str] = field(default_factory=dict)

    @property
    def frame_slots(self) -> int:
        return slots_of(self.registers, self.exit_slot)


def slots_of(registers: Sequence[Register], exit_slot: int = -1) -> int:
    """Return how many u64 slots a frame has. A frame is passed to a clause: it has a slot with the
    saved value of each register and, if exit_slot is not -1, the exit slot.

    Args:
        exit_slot: the slot in which clauses store where control goes after them; -1 if frames have
            no such slot.
    """
    return 1 + max(exit_slot, *(register.slot for register in registers))
