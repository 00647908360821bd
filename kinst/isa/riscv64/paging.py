"""Page tables of riscv64, read and extended through physical memory.

Source: RISC-V privileged specification, 4.1.11 (satp), 4.3 to 4.6 (Sv39, Sv48, Sv57), Svnapot.
Everything is a function of `read_physical(address, size) -> bytes`; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from kinst.core.errors import TargetError
from kinst.core.page_tables import Above, Format, Leaf, Read, Root, Tables, shift

VALID = 1 << 0
READABLE = 1 << 1
WRITABLE = 1 << 2
EXECUTABLE = 1 << 3
USER = 1 << 4
GLOBAL = 1 << 5
ACCESSED = 1 << 6
DIRTY = 1 << 7
NAPOT = 1 << 63

REACH = (1 << 31) - (1 << 20)  # of auipc and jalr, with a margin


_PPN = (1 << 54) - (1 << 10)
_NAPOT_SIZE = 1 << 16
_LEAF = READABLE | WRITABLE | EXECUTABLE  # an entry with any of them is a leaf
_MODES = {8: 3, 9: 4, 10: 5}  # of satp, to levels: Sv39, Sv48, Sv57


def root_of(registers: Mapping[str, int]) -> Root:
    """The root as this CPU has it; the kernel's half is the same in every process.

    Raises TargetError while the CPU does not translate addresses (satp is Bare)."""
    satp = registers["satp"]
    levels = _MODES.get(satp >> 60)
    if levels is None:
        raise TargetError("the guest's CPU has no page tables yet")
    return Root((satp & (1 << 44) - 1) << 12, levels)


def roots_of(registers: Mapping[str, int]) -> tuple[Root, ...]:
    """See core/paging.py."""
    return (root_of(registers),)


def in_user_mode(registers: Mapping[str, int]) -> bool:
    """Whether the CPU stands in user mode (the stub calls the privilege level priv)."""
    return registers.get("priv", 1) == 0


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


_TABLES = Tables(
    Format(
        valid=lambda entry, _: bool(entry & VALID),
        is_leaf=lambda entry, _: bool(entry & _LEAF),
        table=_table,
        link=lambda table: table >> 2 | VALID,
        leaf=_leaf,
    )
)
walk = _TABLES.walk
leaves = _TABLES.leaves
free_slots = _TABLES.free_slots
slot_free = _TABLES.slot_free
make_leaf = _TABLES.make_leaf


def find_text(read: Read, root: Root, image: tuple[int, int]) -> int:
    """The lowest executable mapping where the system maps its image: its start, KASLR or not.
    Raises TargetError when there is none (the kernel is not up yet)."""
    for leaf in leaves(read, root, *image):
        if leaf.executable and not leaf.user:
            return leaf.address
    raise TargetError("no kernel text found in the guest's page tables")


def text_is_final(read: Read, registers: Mapping[str, int], image: tuple[int, int]) -> bool:
    """Whether the tables show that Linux is about to start init: on this ISA they never do,
    because its text is mapped read-only from early on (arch/riscv/mm/init.c)."""
    return False


def leaf_entry(physical: int, like: Leaf) -> int:
    """An entry that maps 2 MB at physical readable, writable and executable for the kernel,
    global as the mapping `like` is."""
    flags = VALID | _LEAF | ACCESSED | DIRTY | (like.entry & GLOBAL)
    return physical >> 2 | flags
