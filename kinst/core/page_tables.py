"""What the page tables of every ISA of kinst have in common: trees of 512 entries of 8 bytes, in
which kinst maps leaves of 2 MB.  Levels are counted from the last one up (1: pages of 4 KB).

Everything is a function of `read_physical(address, size) -> bytes`; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Read = Callable[[int, int], bytes]

LEAF_SIZE = 2 << 20  # what make_leaf maps
ENTRIES = 512


@dataclass(frozen=True, slots=True)
class Root:
    """A top-level table: its physical address, and 3 to 5 levels."""

    physical: int
    levels: int = 4


@dataclass(frozen=True, slots=True)
class Leaf:
    """A mapping of `size` bytes at `address`; entry: the raw entry.  executable: by the kernel."""

    address: int
    physical: int
    size: int
    entry: int
    writable: bool
    executable: bool
    user: bool


@dataclass(frozen=True, slots=True)
class Format:
    """How one ISA writes its entries.  valid: the bit of one that means something.  is_leaf:
    whether a valid entry of a level maps memory.  table: where the table is that an entry points
    at.  link: the entry for a table."""

    valid: int
    is_leaf: Callable[[int, int], bool]
    table: Callable[[int], int]
    link: Callable[[int], int]


def shift(level: int) -> int:
    """Bits of the address below the index of a table at level (1: last)."""
    return 3 + 9 * level


def entry_of(read: Read, table: int, address: int, level: int) -> tuple[int, int]:
    """(physical address of the entry, the entry) for address in a table at level."""
    at = table + 8 * (address >> shift(level) & (ENTRIES - 1))
    return at, int.from_bytes(read(at, 8), "little")


def slot_free(read: Read, root: Root, address: int, form: Format) -> bool:
    """Whether make_leaf could map the 2 MB at address: nothing is there, at any level, and no
    top-level entry is needed (each process of the guest may have its own top level)."""
    table = root.physical
    for level in range(root.levels, 1, -1):
        _, entry = entry_of(read, table, address, level)
        if not entry & form.valid:
            return entry == 0 and level != root.levels
        if level == 2 or form.is_leaf(entry, level):
            return False
        table = form.table(entry)
    return False


def make_leaf(
    read: Read,
    root: Root,
    address: int,
    entry: int,
    new_table: Callable[[], int],
    form: Format,
) -> list[tuple[int, bytes]] | None:
    """The (physical address, bytes) to write, in order, so that address maps a 2 MB leaf.

    new_table gives the physical address of an empty (zeroed) page for each table that is
    missing.  None when the slot is taken, or when a top-level entry would be needed: each
    process of the guest may have its own top level.
    """
    writes: list[tuple[int, bytes]] = []
    table = root.physical
    linked = True  # whether `table` is part of the tables yet
    for level in range(root.levels, 2, -1):
        at = table + 8 * (address >> shift(level) & (ENTRIES - 1))
        value = int.from_bytes(read(at, 8), "little") if linked else 0
        if value & form.valid:
            if form.is_leaf(value, level):
                return None
            table = form.table(value)
            continue
        if value or level == root.levels:
            return None
        table = new_table()
        writes.append((at, form.link(table).to_bytes(8, "little")))
        linked = False
    at = table + 8 * (address >> shift(2) & (ENTRIES - 1))
    if linked and int.from_bytes(read(at, 8), "little"):
        return None
    writes.append((at, entry.to_bytes(8, "little")))
    # The deepest first: a table is complete before anything points at it.
    return writes[::-1]
