"""The page table format of amd64.

Source: Intel SDM volume 3, chapter 4, 4-level and 5-level paging; AMD APM volume 2, chapter 5.

Tested by tests/isa/amd64/test_paging.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kinst.core.page_tables import Above, Format, Leaf, Paging, Root, shift

PRESENT = 1 << 0
WRITABLE = 1 << 1
USER = 1 << 2
ACCESSED = 1 << 5
DIRTY = 1 << 6
LARGE = 1 << 7
GLOBAL = 1 << 8
NO_EXECUTE = 1 << 63

_ADDRESS = 0x000F_FFFF_FFFF_F000
_PAGING = 1 << 31  # of cr0
_LA57 = 1 << 12  # of cr4
_USER_ROOT = 1 << 12  # of cr3, for the user's tables if the kernel is unmapped from them (PTI)
_KERNEL_TABLE = PRESENT | WRITABLE | ACCESSED | DIRTY


def _leaf(address: int, entry: int, level: int, above: Above) -> Leaf:
    size = 1 << shift(level)
    rights = (*above, entry)
    return Leaf(
        address & -size,
        entry & _ADDRESS & -size,
        size,
        entry,
        all(e & WRITABLE for e in rights),
        not any(e & NO_EXECUTE for e in rights),
        all(e & USER for e in rights),
    )


class Amd64Paging(Paging):
    """The page table format of amd64; implements Paging (core/page_tables.py)."""

    REACH = (1 << 31) - (1 << 20)
    USER_END = 1 << 47  # lower half of what four levels of tables map (SDM vol. 3, 4.5)

    def root_of(self, registers: Mapping[str, int]) -> Root:
        """Return the root of the kernel's page tables: the address in cr3, without PCID. If the CPU
        is in user mode under PTI, cr3 has the root of the user's tables; the root of the kernel's
        tables is made from it."""
        levels = 5 if registers.get("cr4", 0) & _LA57 else 4
        root = registers["cr3"] & _ADDRESS
        if self.in_user_mode(registers):
            root &= ~_USER_ROOT
        return Root(root, levels)

    def roots_of(self, registers: Mapping[str, int]) -> tuple[Root, ...]:
        """Return the roots of the page tables that the CPU may use in the kernel: one root, or two.

        There are two if the CPU is in the kernel but cr3 has the user's tables. Under PTI this is
        so at the first and the last instructions of each entry to the kernel (Linux,
        arch/x86/entry/calling.h, SWITCH_TO_KERNEL_CR3). The second root is that of the kernel's
        tables.
        """
        root = self.root_of(registers)
        if not root.physical & _USER_ROOT:
            return (root,)
        return root, replace(root, physical=root.physical & ~_USER_ROOT)

    def in_user_mode(self, registers: Mapping[str, int]) -> bool:
        """Return whether the CPU is in user mode (the current privilege level is 3)."""
        return registers.get("cs", 0) & 3 == 3

    def translates(self, registers: Mapping[str, int]) -> bool:
        """Return whether the CPU translates addresses (cr0.PG is set)."""
        return bool(registers.get("cr0", 0) & _PAGING)

    def leaf_entry(self, physical: int, like: Leaf) -> int:
        """Return a page table entry that maps a large page at a physical address, writable and
        executable; it is global if the mapping `like` is (Linux: phys | 0x1e3)."""
        flags = PRESENT | WRITABLE | ACCESSED | DIRTY | LARGE | (like.entry & GLOBAL)
        return physical | flags


PAGING = Amd64Paging(
    Format(
        valid=lambda entry, _: bool(entry & PRESENT),
        is_leaf=lambda entry, level: level == 1 or (level < 4 and bool(entry & LARGE)),
        table=lambda entry: entry & _ADDRESS,
        link=lambda table: table | _KERNEL_TABLE,
        leaf=_leaf,
    )
)
