"""Page tables of riscv64.

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
_LEAF = READABLE | WRITABLE | EXECUTABLE  # an entry with any of them is a leaf
_MODES = {8: 3, 9: 4, 10: 5}  # of satp, to levels: Sv39, Sv48, Sv57


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
    """Paging (core/page_tables.py) for riscv64."""

    REACH = (1 << 31) - (1 << 20)  # of auipc and jalr

    def root_of(self, registers: Mapping[str, int]) -> Root:
        """Return the root; the kernel's half is the same in every process.

        Raises TargetError while the CPU does not translate addresses (satp is Bare)."""
        satp = registers["satp"]
        levels = _MODES.get(satp >> 60)
        if levels is None:
            raise TargetError("the guest's CPU has no page tables yet")
        return Root((satp & (1 << 44) - 1) << 12, levels)

    def in_user_mode(self, registers: Mapping[str, int]) -> bool:
        """Whether the privilege level, which the stub calls priv, is U."""
        return registers.get("priv", 1) == 0

    def translates(self, registers: Mapping[str, int]) -> bool:
        """Whether satp has one of the modes that translate."""
        return registers["satp"] >> 60 in _MODES

    def leaf_entry(self, physical: int, like: Leaf) -> int:
        """Return an entry that is global if the mapping `like` is."""
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
