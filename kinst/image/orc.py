"""ORC, the x86 kernel's unwind tables: where the caller's frame is at each instruction.

An image has two parallel tables, with an entry for each range of instructions. An entry of
.orc_unwind_ip is the 32-bit distance from the entry itself to the start of the range. An entry of
.orc_unwind has 6 bytes: two signed offsets (of the previous stack pointer and the previous frame
pointer) and a word of 16 bits. The layout of the word changed with Linux 6.4. Before 6.4: 4 bits
base register, 4 bits for the frame pointer, 2 bits type, 1 bit end. Since 6.4 (the image has an
.orc_header): 3 bits type, 1 bit signal; type 0 is "no information", 1 is "end of stack" and 2 is a
plain call frame.

The numbers of the registers changed as well, with Linux 7.2 at the latest. The file does not say
which numbering it has, but the stack pointer is the base register of nearly all frames: the most
frequent number shows the numbering. (Source of the new numbers: unwind_next_frame() of Linux 7.3
shows which register each number means.)

Format: the kernel's Documentation/arch/x86/orc-unwinder.rst and struct orc_entry.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.image.elf import Elf

ENTRY = np.dtype([("stack_offset", "<i2"), ("bp_offset", "<i2"), ("word", "<u2")])


@dataclass(frozen=True, slots=True)
class Numbers:
    """A numbering of the registers in ORC entries (ORC_REG_*).

    Attributes:
        registers: D names by number, of the registers to which stack_offset is added to get the
            CFA. Numbers that stand for a value in memory are left out.
        previous_sp: the number that stands for the CFA itself. If an entry has it for the frame
            pointer, the caller's frame pointer is saved at CFA + bp_offset.
    """

    registers: Mapping[int, str]
    previous_sp: int


NUMBERS = (
    Numbers({2: "R_RDX", 3: "R_RDI", 4: "R_RBP", 5: "R_RSP", 6: "R_R10", 7: "R_R13"}, 1),
    Numbers({2: "R_RDX", 3: "R_RSP", 4: "R_RBP", 5: "R_RDI", 6: "R_R10", 7: "R_R13"}, 8),
)


@dataclass(frozen=True, slots=True)
class OrcRule:
    """Rule to find the caller's frame at an instruction: CFA = register + offset; the return
    address is saved at CFA + return_address.

    Attributes:
        register: D name, such as R_RSP.
        offset: bytes.
        return_address: bytes.
    """

    register: str
    offset: int
    return_address: int


class Orc:
    """ORC unwind tables of one image. open_orc() makes it."""

    def __init__(
        self,
        starts: npt.NDArray[np.uint64],
        entries: npt.NDArray[np.void],
        new_layout: bool,
        numbers: Numbers = NUMBERS[0],
    ) -> None:
        self._starts = starts
        self._stack_offset = entries["stack_offset"]
        self._bp_offset = entries["bp_offset"]
        self._word = entries["word"]
        self._new = new_layout  # of kernel 6.4 and later
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._starts)

    def rule(self, address: int) -> OrcRule | None:
        """Return the rule to find the caller's frame at a linked address; None if ORC gives no such
        rule.

        ORC gives no rule in these cases: the table has no information; the end of the stack;
        exception and entry frames (above them are the saved registers, not a return address); a
        frame whose address must first be loaded from memory.
        """
        index = int(np.searchsorted(self._starts, np.uint64(address), side="right")) - 1
        if index < 0:
            return None
        word = int(self._word[index])
        register = self._numbers.registers.get(word & 15)
        # Three bits: the type since 6.4; before, two bits of type (0: call) and the end bit.
        if word >> 8 & 7 != (2 if self._new else 0) or register is None:
            return None
        return OrcRule(register, int(self._stack_offset[index]), -8)

    def saved_frame_pointer(self, address: int) -> int | None:
        """Return where the caller's frame pointer is saved at an instruction: bytes from the CFA.
        None if the tables do not say; usually the frame pointer is still in its register then.

        Args:
            address: the instruction's linked address.
        """
        index = int(np.searchsorted(self._starts, np.uint64(address), side="right")) - 1
        if index < 0 or int(self._word[index]) >> 4 & 15 != self._numbers.previous_sp:
            return None
        return int(self._bp_offset[index])


def open_orc(elf: Elf) -> Orc | None:
    """Return the ORC tables of a linked image; None if the image has none. Raises KinstError if the
    two tables have different numbers of entries, or number registers in an unknown way."""
    instructions, rules = elf.section(".orc_unwind_ip"), elf.section(".orc_unwind")
    if instructions is None or rules is None or not instructions.size:
        return None
    distances = np.frombuffer(elf.data(instructions), dtype="<i4", count=instructions.size // 4)
    raw = elf.data(rules)
    if len(raw) != len(distances) * ENTRY.itemsize:
        raise KinstError(
            f"{elf.path}: .orc_unwind has {len(raw)} bytes for {len(distances)} addresses: "
            "not an ORC layout that kinst knows"
        )
    entries = np.frombuffer(raw, dtype=ENTRY)
    starts = (
        np.arange(len(distances), dtype=np.int64) * 4
        + np.int64(np.uint64(instructions.address).astype(np.int64))
        + distances
    ).astype(np.uint64)
    if np.any(starts[1:] < starts[:-1]):
        # Sorted at build time since Linux 5.6; before, at boot.  "No information" entries must
        # come before real ones of the same address, so the sort keeps the file's order.
        order = np.argsort(starts, kind="stable")
        starts, entries = starts[order], entries[order]
    new_layout = elf.section(".orc_header") is not None
    return Orc(starts, entries, new_layout, numbers_of(entries, str(elf.path)))


def numbers_of(entries: npt.NDArray[np.void], where: str) -> Numbers:
    """Return the register numbering that an image's ORC entries use; the most frequent base
    register shows it. Raises KinstError, naming the file `where`, if the numbering is unknown."""
    bases = np.bincount(entries["word"] & 15, minlength=16)
    bases[0] = 0  # no base at all
    stack_pointer = int(np.argmax(bases))
    for numbers in NUMBERS:
        if numbers.registers.get(stack_pointer) == "R_RSP" or not bases.any():
            return numbers
    raise KinstError(f"{where}: .orc_unwind numbers registers in a way that kinst does not know")
