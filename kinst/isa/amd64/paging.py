"""Page tables of amd64, read and extended through physical memory.

Source: Intel SDM volume 3, chapter 4, 4-level and 5-level paging; AMD APM volume 2, chapter 5.
Everything is a function of `read_physical(address, size) -> bytes`; nothing is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kinst.core import page_tables
from kinst.core.errors import TargetError
from kinst.core.page_tables import ENTRIES, LEAF_SIZE, Format, Leaf, Read, Root, entry_of, shift

__all__ = ["LEAF_SIZE", "Leaf", "Read", "Root"]

PRESENT = 1 << 0
WRITABLE = 1 << 1
USER = 1 << 2
ACCESSED = 1 << 5
DIRTY = 1 << 6
LARGE = 1 << 7
GLOBAL = 1 << 8
NO_EXECUTE = 1 << 63

REACH = (1 << 31) - (1 << 20)  # of a direct branch, with a margin

# Where the kernel's text can be: __START_KERNEL_map up to the modules (Linux,
# Documentation/arch/x86/x86_64/mm.rst).
KERNEL_RANGE = (0xFFFF_FFFF_8000_0000, 0xFFFF_FFFF_C000_0000)
# Where scratch may be mapped.
SCRATCH_RANGE = KERNEL_RANGE

_ADDRESS = 0x000F_FFFF_FFFF_F000
_LA57 = 1 << 12  # of cr4
_USER_ROOT = 1 << 12  # of cr3, where Linux keeps the user's tables under PTI
_KERNEL_TABLE = PRESENT | WRITABLE | ACCESSED | DIRTY


_FORMAT = Format(
    PRESENT,
    lambda entry, level: level < 4 and bool(entry & LARGE),
    lambda entry: entry & _ADDRESS,
    lambda table: table | _KERNEL_TABLE,
)


def root_of(registers: Mapping[str, int]) -> Root:
    """The kernel's root as this CPU has it: cr3 without PCID, and under PTI not the user's."""
    levels = 5 if registers.get("cr4", 0) & _LA57 else 4
    root = registers["cr3"] & _ADDRESS
    if in_user_mode(registers):
        root &= ~_USER_ROOT
    return Root(root, levels)


def in_user_mode(registers: Mapping[str, int]) -> bool:
    """Whether the CPU stands in user mode (current privilege level 3)."""
    return registers.get("cs", 0) & 3 == 3


def _leaf(address: int, entry: int, level: int, writable: bool, nx: bool, user: bool) -> Leaf:
    size = 1 << shift(level)
    physical = entry & _ADDRESS & -size
    return Leaf(address & -size, physical, size, entry, writable, not nx, user)


def walk(read: Read, root: Root, address: int) -> Leaf | None:
    """The mapping of one virtual address, with the rights of all levels, or None."""
    table, writable, nx, user = root.physical, True, False, True
    for level in range(root.levels, 0, -1):
        _, entry = entry_of(read, table, address, level)
        if not entry & PRESENT:
            return None
        writable &= bool(entry & WRITABLE)
        user &= bool(entry & USER)
        nx |= bool(entry & NO_EXECUTE)
        if level == 1 or (level < 4 and entry & LARGE):
            return _leaf(address, entry, level, writable, nx, user)
        table = entry & _ADDRESS
    return None


def leaves(read: Read, root: Root, low: int, high: int) -> Iterator[Leaf]:
    """Mappings that touch [low, high), in address order.  Tables that cannot be read (they
    are not in memory) are passed over."""
    top = _Walk(read, root.levels, low, high)
    yield from _leaves(top, root.physical, root.levels, 0, (True, False, True))


@dataclass(frozen=True, slots=True)
class _Walk:
    read: Read
    top: int
    low: int
    high: int


def _leaves(
    within: _Walk, table: int, level: int, base: int, rights: tuple[bool, bool, bool]
) -> Iterator[Leaf]:
    bits = shift(level)
    try:
        entries = struct.unpack(f"<{ENTRIES}Q", within.read(table, 8 * ENTRIES))
    except (TargetError, struct.error):
        return
    for index, entry in enumerate(entries):
        if not entry & PRESENT:
            continue
        start = base + (index << bits)
        if level == within.top and index >= ENTRIES // 2:
            start += (1 << 64) - (ENTRIES << bits)  # canonical: the upper half is at the end
        if start >= within.high or start + (1 << bits) <= within.low:
            continue
        now = (
            rights[0] and bool(entry & WRITABLE),
            rights[1] or bool(entry & NO_EXECUTE),
            rights[2] and bool(entry & USER),
        )
        if level == 1 or (level < 4 and entry & LARGE):
            yield _leaf(start, entry, level, *now)
        else:
            yield from _leaves(within, entry & _ADDRESS, level - 1, start, now)


def free_slots(read: Read, root: Root, low: int, high: int) -> list[int]:
    """Virtual addresses in [low, high) of 2 MB slots that are free in tables that exist."""
    free: list[int] = []
    gigabyte = 1 << shift(3)
    for base in range(low & -gigabyte, high, gigabyte):
        table = _table_of(read, root, base, 2)
        if table is None:
            continue
        entries = struct.unpack(f"<{ENTRIES}Q", read(table, 8 * ENTRIES))
        slots = (base + i * LEAF_SIZE for i, entry in enumerate(entries) if entry == 0)
        free += [at for at in slots if low <= at and at + LEAF_SIZE <= high]
    return free


def slot_free(read: Read, root: Root, address: int) -> bool:
    """Whether make_leaf could map the 2 MB at address."""
    return page_tables.slot_free(read, root, address, _FORMAT)


def find_text(read: Read, root: Root) -> int:
    """The lowest executable mapping where Linux maps its image: the start of the kernel's
    text, KASLR or not.  Raises TargetError when there is none (the kernel is not up yet)."""
    for leaf in leaves(read, root, *KERNEL_RANGE):
        if leaf.executable and not leaf.user:
            return leaf.address
    raise TargetError("no kernel text found in the guest's page tables")


def text_is_final(read: Read, registers: Mapping[str, int]) -> bool:
    """Whether Linux has write-protected its text, which is the last thing it does before it
    starts init (init/main.c, mark_readonly), as a CPU with these registers sees it."""
    if not registers.get("cr0", 0) >> 31 & 1:
        return False
    root = root_of(registers)
    try:
        leaf = walk(read, root, find_text(read, root))
    except TargetError:
        return False
    return leaf is not None and not leaf.writable


def _table_of(read: Read, root: Root, address: int, level: int) -> int | None:
    """Physical address of the table at `level` that covers address, or None."""
    table = root.physical
    for above in range(root.levels, level, -1):
        _, entry = entry_of(read, table, address, above)
        if not entry & PRESENT or (above < 4 and entry & LARGE):
            return None
        table = entry & _ADDRESS
    return table


def leaf_entry(physical: int, like: Leaf) -> int:
    """An entry that maps 2 MB at physical writable and executable for the kernel, global as
    the mapping `like` is (Linux: phys | 0x1e3)."""
    flags = PRESENT | WRITABLE | ACCESSED | DIRTY | LARGE | (like.entry & GLOBAL)
    return physical | flags


def make_leaf(
    read: Read, root: Root, address: int, entry: int, new_table: Callable[[], int]
) -> list[tuple[int, bytes]] | None:
    """What to write so that address maps a 2 MB leaf; see kinst.core.page_tables."""
    return page_tables.make_leaf(read, root, address, entry, new_table, _FORMAT)
