"""What the page tables of every ISA of kinst have in common: trees of 512 entries of 8 bytes, in
which kinst maps leaves of 2 MB.  Levels are counted from the last one up (1: pages of 4 KB).

Everything is a function of `read_physical(address, size) -> bytes`; nothing is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kinst.core.errors import TargetError

Read = Callable[[int, int], bytes]
Above = tuple[int, ...]  # the entries that lead to a table, from the top

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
    """How one ISA writes its entries; levels as above.

    valid: whether an entry of a level means something.  is_leaf: whether a valid one maps memory.
    table: where the table is that an entry points at.  link: the entry for a table.
    leaf: what an entry of a level maps at an address, below the entries that lead to it.
    canonical: the upper half of the top table maps the end of the address space, the lower half
    its start; otherwise all of it maps the end."""

    valid: Callable[[int, int], bool]
    is_leaf: Callable[[int, int], bool]
    table: Callable[[int], int]
    link: Callable[[int], int]
    leaf: Callable[[int, int, int, Above], Leaf]
    canonical: bool = True


def shift(level: int) -> int:
    """Bits of the address below the index of a table at level (1: last)."""
    return 3 + 9 * level


def entry_of(read: Read, table: int, address: int, level: int) -> tuple[int, int]:
    """(physical address of the entry, the entry) for address in a table at level."""
    at = table + 8 * (address >> shift(level) & (ENTRIES - 1))
    return at, int.from_bytes(read(at, 8), "little")


@dataclass(frozen=True, slots=True)
class _Part:
    """What of the tables is looked at: addresses [low, high), down to the level `last`."""

    read: Read
    root: Root
    low: int
    high: int
    last: int


class Tables:
    """The page tables of an ISA."""

    def __init__(self, form: Format) -> None:
        self._form = form

    def walk(self, read: Read, root: Root, address: int) -> Leaf | None:
        """The mapping of one virtual address, with the rights of all levels, or None."""
        form, table, above = self._form, root.physical, Above()
        if address < self._first(root):
            return None
        for level in range(root.levels, 0, -1):
            _, entry = entry_of(read, table, address, level)
            if not form.valid(entry, level):
                return None
            if form.is_leaf(entry, level):
                return form.leaf(address, entry, level, above)
            table, above = form.table(entry), (*above, entry)
        return None

    def leaves(self, read: Read, root: Root, low: int, high: int) -> Iterator[Leaf]:
        """Mappings that touch [low, high), in address order.  Tables that cannot be read (they
        are not in memory) are passed over."""
        form = self._form
        for start, entry, level, above in self._entries(_Part(read, root, low, high, 1)):
            if form.valid(entry, level) and form.is_leaf(entry, level):
                leaf = form.leaf(start, entry, level, above)
                if leaf.address == start:  # where several entries make one mapping: the first
                    yield leaf

    def free_slots(
        self, read: Read, root: Root, low: int, high: int, missing: bool = False
    ) -> list[int]:
        """Virtual addresses in [low, high) of 2 MB slots that are free in tables that exist;
        missing: and in those that make_leaf() would make."""
        found: list[int] = []
        for start, entry, level, _ in self._entries(_Part(read, root, low, high, 2)):
            if entry == 0 and (level == 2 or (missing and level != root.levels)):
                first = max(start, (low + LEAF_SIZE - 1) & -LEAF_SIZE)
                end = min(start + (1 << shift(level)), high)
                found += range(first, end - LEAF_SIZE + 1, LEAF_SIZE)
        return found

    def _first(self, root: Root) -> int:
        """The first address that the tables map."""
        return 0 if self._form.canonical else (1 << 64) - (1 << shift(root.levels + 1))

    def _entries(self, part: _Part) -> Iterator[tuple[int, int, int, Above]]:
        """(first address, entry, level, entries above) where the way down ends."""
        root = part.root
        return self._below(part, root.physical, root.levels, self._first(root), ())

    def _below(
        self, part: _Part, table: int, level: int, base: int, above: Above
    ) -> Iterator[tuple[int, int, int, Above]]:
        form, bits = self._form, shift(level)
        try:
            entries = struct.unpack(f"<{ENTRIES}Q", part.read(table, 8 * ENTRIES))
        except (TargetError, struct.error):
            return
        for index, entry in enumerate(entries):
            start = base + (index << bits)
            if form.canonical and level == part.root.levels and index >= ENTRIES // 2:
                start += (1 << 64) - (ENTRIES << bits)
            if start >= part.high or start + (1 << bits) <= part.low:
                continue
            if level > part.last and form.valid(entry, level) and not form.is_leaf(entry, level):
                below = form.table(entry)
                yield from self._below(part, below, level - 1, start, (*above, entry))
            else:
                yield start, entry, level, above

    def slot_free(self, read: Read, root: Root, address: int) -> bool:
        """Whether make_leaf could map the 2 MB at address: nothing is there, at any level, and no
        top-level entry is needed (each process of the guest may have its own top level)."""
        form, table = self._form, root.physical
        if address < self._first(root):
            return False
        for level in range(root.levels, 1, -1):
            _, entry = entry_of(read, table, address, level)
            if not form.valid(entry, level):
                return entry == 0 and level != root.levels
            if level == 2 or form.is_leaf(entry, level):
                return False
            table = form.table(entry)
        return False

    def make_leaf(
        self, read: Read, root: Root, address: int, entry: int, new_table: Callable[[], int]
    ) -> list[tuple[int, bytes]] | None:
        """The (physical address, bytes) to write, in order, so that address maps a 2 MB leaf.

        new_table gives the physical address of an empty (zeroed) page for each table that is
        missing.  None when the slot is taken, or when a top-level entry would be needed: each
        process of the guest may have its own top level.
        """
        writes: list[tuple[int, bytes]] = []
        form, table = self._form, root.physical
        linked = True  # whether `table` is part of the tables yet
        for level in range(root.levels, 2, -1):
            at = table + 8 * (address >> shift(level) & (ENTRIES - 1))
            value = int.from_bytes(read(at, 8), "little") if linked else 0
            if form.valid(value, level):
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
