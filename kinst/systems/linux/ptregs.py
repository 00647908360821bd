"""Layout of struct pt_regs, in which Linux saves registers (arch/*/include/asm/ptrace.h).

The kernel's BTF has the offsets of its members.

Tested by tests/systems/linux/test_system.py and tests/vm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kinst.core.dataclass import dataclass

if TYPE_CHECKING:
    from kinst.image.btf import Btf

PT_REGS = "pt_regs"
Places = Mapping[str, tuple[str, int]]  # D name to (member, bytes after its start)


@dataclass(frozen=True, slots=True)
class SavedRegisters:
    """Where Linux saves each register of one ISA in struct pt_regs.

    Attributes:
        places: where each register is, by its D name: (member of pt_regs, offset in the member).
        pc: D name of the program counter.
        stack: D name of the stack pointer.
        frame: D name of the frame pointer.
        link: D name of the register with the return address; "" if calls push it.
        next_at: offset of the caller's frame pointer from the frame pointer (the ABI's frame
            record).
        return_at: offset of the return address from the frame pointer.
        kernel: (member, value) of members of struct pt_regs. With these values, the kernel's
            unwinder takes the registers for registers of kernel mode.
        padding: (symbol, bytes): if a kernel has this symbol, it leaves this number of bytes above
            the registers on a thread's stack.
        user_bits: number of bits of an address in user mode.
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
        """Return the offset of a register in struct pt_regs, by the register's D name. Raises
        KinstError if this kernel's structure lacks the member."""
        member, after = self.places[name]
        return btf.offset(PT_REGS, member) + after
