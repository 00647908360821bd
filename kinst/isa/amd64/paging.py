"""Page tables of amd64, read and extended through physical memory.

Source: Intel SDM volume 3, chapter 4, 4-level and 5-level paging; AMD APM volume 2, chapter 5.
Everything is a function of `read_physical(address, size) -> bytes`; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kinst.core.errors import TargetError
from kinst.core.page_tables import Above, Format, Leaf, Read, Root, Tables, shift

PRESENT = 1 << 0
WRITABLE = 1 << 1
USER = 1 << 2
ACCESSED = 1 << 5
DIRTY = 1 << 6
LARGE = 1 << 7
GLOBAL = 1 << 8
NO_EXECUTE = 1 << 63

REACH = (1 << 31) - (1 << 20)  # of a direct branch, with a margin


_ADDRESS = 0x000F_FFFF_FFFF_F000
_LA57 = 1 << 12  # of cr4
_USER_ROOT = 1 << 12  # of cr3, where Linux keeps the user's tables under PTI
_KERNEL_TABLE = PRESENT | WRITABLE | ACCESSED | DIRTY


def root_of(registers: Mapping[str, int]) -> Root:
    """The kernel's root as this CPU has it: cr3 without PCID, and under PTI not the user's."""
    levels = 5 if registers.get("cr4", 0) & _LA57 else 4
    root = registers["cr3"] & _ADDRESS
    if in_user_mode(registers):
        root &= ~_USER_ROOT
    return Root(root, levels)


def roots_of(registers: Mapping[str, int]) -> tuple[Root, ...]:
    """See core/paging.py: the first and the last instructions of the kernel's entries run with the
    user's tables under PTI (arch/x86/entry/calling.h, SWITCH_TO_KERNEL_CR3)."""
    root = root_of(registers)
    if not root.physical & _USER_ROOT:
        return (root,)
    return root, replace(root, physical=root.physical & ~_USER_ROOT)


def in_user_mode(registers: Mapping[str, int]) -> bool:
    """Whether the CPU stands in user mode (current privilege level 3)."""
    return registers.get("cs", 0) & 3 == 3


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


_TABLES = Tables(
    Format(
        valid=lambda entry, _: bool(entry & PRESENT),
        is_leaf=lambda entry, level: level == 1 or (level < 4 and bool(entry & LARGE)),
        table=lambda entry: entry & _ADDRESS,
        link=lambda table: table | _KERNEL_TABLE,
        leaf=_leaf,
    )
)
walk = _TABLES.walk
leaves = _TABLES.leaves
free_slots = _TABLES.free_slots
slot_free = _TABLES.slot_free
make_leaf = _TABLES.make_leaf


def find_text(read: Read, root: Root, image: tuple[int, int]) -> int:
    """The lowest executable mapping where Linux maps its image: the start of the kernel's
    text, KASLR or not.  Raises TargetError when there is none (the kernel is not up yet)."""
    for leaf in leaves(read, root, *image):
        if leaf.executable and not leaf.user:
            return leaf.address
    raise TargetError("no kernel text found in the guest's page tables")


def text_is_final(read: Read, registers: Mapping[str, int], image: tuple[int, int]) -> bool:
    """Whether Linux has write-protected its text, which is the last thing it does before it
    starts init (init/main.c, mark_readonly), as a CPU with these registers sees it."""
    if not registers.get("cr0", 0) >> 31 & 1:
        return False
    root = root_of(registers)
    try:
        leaf = walk(read, root, find_text(read, root, image))
    except TargetError:
        return False
    return leaf is not None and not leaf.writable


def leaf_entry(physical: int, like: Leaf) -> int:
    """An entry that maps 2 MB at physical writable and executable for the kernel, global as
    the mapping `like` is (Linux: phys | 0x1e3)."""
    flags = PRESENT | WRITABLE | ACCESSED | DIRTY | LARGE | (like.entry & GLOBAL)
    return physical | flags
