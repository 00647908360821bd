"""The page table format of riscv64.

Source: RISC-V privileged specification, 4.1.11 (satp), 4.3 to 4.6 (Sv39, Sv48, Sv57), Svnapot.

Tested by tests/isa/riscv64/test_paging.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from kinst.core.errors import TargetError
from kinst.core.page_tables import Above, Format, Leaf, Paging, Root, shift

VALID = 1 << 0
READABLE = 1 << 1
WRITABLE = 1 << 2
EXECUTABLE = 1 << 3
USER = 1 << 4
GLOBAL = 1 << 5
ACCESSED = 1 << 6
DIRTY = 1 << 7
NAPOT = 1 << 63

_PPN = (1 << 54) - (1 << 10)
_NAPOT_SIZE = 1 << 16
_LEAF = READABLE | WRITABLE | EXECUTABLE  # an entry with any of these bits is a leaf
_MODES = {8: 3, 9: 4, 10: 5}  # levels by satp's mode: Sv39, Sv48, Sv57


def _leaf(address: int, entry: int, level: int, _above: Above) -> Leaf:
    size = _NAPOT_SIZE if level == 1 and entry & NAPOT else 1 << shift(level)
    return Leaf(
        address & -size,
        _table(entry) & -size,
        size,
        entry,
        bool(entry & WRITABLE),
        bool(entry & EXECUTABLE),
        bool(entry & USER),
    )


def _table(entry: int) -> int:
    return (entry & _PPN) << 2


class Riscv64Paging(Paging):
    """The page table format of riscv64; implements Paging (core/page_tables.py)."""

    REACH = (1 << 31) - (1 << 20)  # of auipc and jalr
    USER_END = 1 << 47  # lower half of Sv48 (privileged architecture, "Sv48")

    def root_of(self, registers: Mapping[str, int]) -> Root:
        """Return the root of the page tables, by satp; the kernel's half of them is the same in
        every process.

        Raises:
            TargetError: the CPU does not translate addresses yet (satp is Bare).
        """
        satp = registers["satp"]
        levels = _MODES.get(satp >> 60)
        if levels is None:
            raise TargetError("the guest's CPU has no page tables yet")
        return Root((satp & (1 << 44) - 1) << 12, levels)

    def in_user_mode(self, registers: Mapping[str, int]) -> bool:
        """Return whether the CPU is in user mode (the privilege level, which the stub calls priv,
        is U)."""
        return registers.get("priv", 1) == 0

    def translates(self, registers: Mapping[str, int]) -> bool:
        """Return whether the CPU translates addresses (satp has mode Sv39, Sv48 or Sv57)."""
        return registers["satp"] >> 60 in _MODES

    def leaf_entry(self, physical: int, like: Leaf) -> int:
        """Return a page table entry that maps a physical address, readable, writable and
        executable; it is global if the mapping `like` is."""
        flags = VALID | _LEAF | ACCESSED | DIRTY | (like.entry & GLOBAL)
        return physical >> 2 | flags


PAGING = Riscv64Paging(
    Format(
        valid=lambda entry, _: bool(entry & VALID),
        is_leaf=lambda entry, _: bool(entry & _LEAF),
        table=_table,
        link=lambda table: table >> 2 | VALID,
        leaf=_leaf,
    )
)
