"""Page tables of riscv64, read and extended through physical memory.

Source: RISC-V privileged specification, 4.1.11 (satp), 4.3 to 4.6 (Sv39, Sv48, Sv57), Svnapot.
Everything is a function of `read_FORMAT.table(address, size) -> bytes`; nothing is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kinst.core import page_tables
from kinst.core.errors import TargetError
from kinst.core.page_tables import ENTRIES, LEAF_SIZE, Format, Leaf, Read, Root, entry_of, shift

__all__ = ["LEAF_SIZE", "Leaf", "Read", "Root"]

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

# Where the kernel's image can be (Linux, Documentation/arch/riscv/vm-layout.rst): the last
# 2 GB, of which the image's own gigabyte is the first, KASLR or not.
KERNEL_RANGE = (0xFFFF_FFFF_8000_0000, 0xFFFF_FFFF_C000_0000)
# Where scratch may be mapped: modules lie up to 2 GB below the image's end and are filled in from
# there; what reaches them and the text both is the gigabyte between, less the last 128 MB, which
# are for compiled BPF programs.
SCRATCH_RANGE = (0xFFFF_FFFF_0000_0000, 0xFFFF_FFFF_C000_0000)
_BPF = (0xFFFF_FFFF_7800_0000, 0xFFFF_FFFF_8000_0000)

_PPN = (1 << 54) - (1 << 10)
_NAPOT_SIZE = 1 << 16
_LEAF = READABLE | WRITABLE | EXECUTABLE  # an entry with any of them is a leaf
_MODES = {8: 3, 9: 4, 10: 5}  # of satp, to levels: Sv39, Sv48, Sv57


_FORMAT = Format(
    VALID,
    lambda entry, level: bool(entry & _LEAF),
    lambda entry: (entry & _PPN) << 2,
    lambda table: table >> 2 | VALID,
)


def root_of(registers: Mapping[str, int]) -> Root:
    """The root as this CPU has it; the kernel's half is the same in every process.

    Raises TargetError while the CPU does not translate addresses (satp is Bare)."""
    satp = registers["satp"]
    levels = _MODES.get(satp >> 60)
    if levels is None:
        raise TargetError("the guest's CPU has no page tables yet")
    return Root((satp & (1 << 44) - 1) << 12, levels)


def in_user_mode(registers: Mapping[str, int]) -> bool:
    """Whether the CPU stands in user mode (the stub calls the privilege level priv)."""
    return registers.get("priv", 1) == 0


def _leaf(address: int, entry: int, level: int) -> Leaf:
    size = _NAPOT_SIZE if level == 1 and entry & NAPOT else 1 << shift(level)
    return Leaf(
        address & -size,
        _FORMAT.table(entry) & -size,
        size,
        entry,
        bool(entry & WRITABLE),
        bool(entry & EXECUTABLE),
        bool(entry & USER),
    )


def walk(read: Read, root: Root, address: int) -> Leaf | None:
    """The mapping of one virtual address, or None."""
    table = root.physical
    for level in range(root.levels, 0, -1):
        _, entry = entry_of(read, table, address, level)
        if not entry & VALID:
            return None
        if entry & _LEAF:
            return _leaf(address, entry, level)
        table = _FORMAT.table(entry)
    return None


def leaves(read: Read, root: Root, low: int, high: int) -> Iterator[Leaf]:
    """Mappings that touch [low, high), in address order.  Tables that cannot be read (they
    are not in memory) are passed over."""
    yield from _leaves(_Walk(read, root.levels, low, high), root.physical, root.levels, 0)


@dataclass(frozen=True, slots=True)
class _Walk:
    read: Read
    top: int
    low: int
    high: int


def _leaves(within: _Walk, table: int, level: int, base: int) -> Iterator[Leaf]:
    bits = shift(level)
    try:
        entries = struct.unpack(f"<{ENTRIES}Q", within.read(table, 8 * ENTRIES))
    except (TargetError, struct.error):
        return
    for index, entry in enumerate(entries):
        if not entry & VALID:
            continue
        start = base + (index << bits)
        if level == within.top and index >= ENTRIES // 2:
            start += (1 << 64) - (ENTRIES << bits)  # sign-extended: the upper half is at the end
        if start >= within.high or start + (1 << bits) <= within.low:
            continue
        if not entry & _LEAF:
            yield from _leaves(within, _FORMAT.table(entry), level - 1, start)
            continue
        leaf = _leaf(start, entry, level)
        if leaf.address == start:  # the other entries of a larger page say the same
            yield leaf


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
        free += [
            at
            for at in slots
            if low <= at and at + LEAF_SIZE <= high and not _BPF[0] <= at < _BPF[1]
        ]
    return free


def slot_free(read: Read, root: Root, address: int) -> bool:
    """Whether make_leaf could map the 2 MB at address."""
    return page_tables.slot_free(read, root, address, _FORMAT)


def find_text(read: Read, root: Root) -> int:
    """The lowest executable mapping where Linux maps its image: its start, KASLR or not.
    Raises TargetError when there is none (the kernel is not up yet)."""
    for leaf in leaves(read, root, *KERNEL_RANGE):
        if leaf.executable and not leaf.user:
            return leaf.address
    raise TargetError("no kernel text found in the guest's page tables")


def text_is_final(read: Read, registers: Mapping[str, int]) -> bool:
    """Whether the tables show that Linux is about to start init: on this ISA they never do,
    because its text is mapped read-only from early on (arch/riscv/mm/init.c)."""
    return False


def _table_of(read: Read, root: Root, address: int, level: int) -> int | None:
    """Physical address of the table at `level` that covers address, or None."""
    table = root.physical
    for above in range(root.levels, level, -1):
        _, entry = entry_of(read, table, address, above)
        if not entry & VALID or entry & _LEAF:
            return None
        table = _FORMAT.table(entry)
    return table


def leaf_entry(physical: int, like: Leaf) -> int:
    """An entry that maps 2 MB at physical readable, writable and executable for the kernel,
    global as the mapping `like` is."""
    flags = VALID | _LEAF | ACCESSED | DIRTY | (like.entry & GLOBAL)
    return physical >> 2 | flags


def make_leaf(
    read: Read, root: Root, address: int, entry: int, new_table: Callable[[], int]
) -> list[tuple[int, bytes]] | None:
    """What to write so that address maps a 2 MB leaf; see kinst.core.page_tables."""
    return page_tables.make_leaf(read, root, address, entry, new_table, _FORMAT)
