"""struct pt_regs: where Linux saves registers, by instruction set (arch/*/include/asm/ptrace.h).

Names of D to (member, bytes behind it).  Where a member lies says the kernel's BTF.

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinst.image.btf import Btf

PT_REGS = "pt_regs"
Places = Mapping[str, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class SavedRegisters:
    """places: every register of regs[] that is saved.  pc, stack, frame: D names of the program
    counter, the stack pointer and the frame pointer.  link: of the return address's register,
    "" where calls push it.  next_at, return_at: where, from the frame pointer, the caller's
    frame pointer and the return address are (each ABI's frame record).  padding: symbol of a
    kernel that leaves so many bytes above the registers on a thread's stack.  kernel: constants
    by member that say that the registers are the kernel's.  user_bits: of a user address.
    """

    places: Places
    pc: str
    stack: str
    frame: str
    link: str
    next_at: int
    return_at: int
    kernel: tuple[tuple[str, int], ...] = ()
    padding: tuple[str, int] = ("", 0)
    user_bits: int = 64

    def offset(self, btf: Btf, name: str) -> int:
        """Of a register, by its D name, in the structure.  Raises KinstError for a kernel
        without that member."""
        member, behind = self.places[name]
        return btf.offset(PT_REGS, member) + behind
