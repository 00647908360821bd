"""What the page tables of every ISA of kinst have in common: trees of entries of 8 bytes, in
which kinst maps leaves of 2 MB.  Levels are counted from the last one up (1: pages).  A table fills
a page, of 4 KB (2 MB are an entry of level 2) or more (2 MB are many entries of level 1).

Everything is a function of `read_physical(address, size) -> bytes`; nothing is kept.

Tested by tests/machines/stub/test_memory.py and tests/isa/amd64/test_paging.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kinst.core.errors import TargetError

Read = Callable[[int, int], bytes]
Above = tuple[int, ...]  # the entries that lead to a table, from the top

LEAF_SIZE = 2 << 20  # what make_leaf maps
PAGE_BITS = 12  # of an address within a page of 4 KB
ENTRIES = 512  # of a table in such a page


@dataclass(frozen=True, slots=True)
class Root:
    """A top-level table: its physical address, and 3 to 5 levels.  page_bits: of an address within
    a page.  bits: of the addresses that are mapped, 0 where the top-level table is a whole one."""

    physical: int
    levels: int = 4
    page_bits: int = PAGE_BITS
    bits: int = 0

    @property
    def page(self) -> int:
        """Bytes of a page."""
        return 1 << self.page_bits


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
    its start; otherwise all of it maps the end.  page_bits: as in Root.  page: the entry of level 1
    for what would be this leaf's entry above."""

    valid: Callable[[int, int], bool]
    is_leaf: Callable[[int, int], bool]
    table: Callable[[int], int]
    link: Callable[[int], int]
    leaf: Callable[[int, int, int, Above], Leaf]
    canonical: bool = True
    page_bits: int = PAGE_BITS
    page: Callable[[int], int] = lambda entry: entry


def shift(level: int, page_bits: int = PAGE_BITS) -> int:
    """Bits of the address below the index of a table at level (1: last)."""
    return page_bits + (page_bits - 3) * (level - 1)


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
        # Of the entries that make_leaf writes, and how many they are.
        self._last = 2 if form.page_bits == PAGE_BITS else 1
        self._count = LEAF_SIZE >> self._shift(self._last)

    def _shift(self, level: int) -> int:
        return shift(level, self._form.page_bits)

    def _entries_of(self, root: Root, level: int) -> int:
        """How many entries a table of a level has."""
        if root.bits and level == root.levels:
            return 1 << root.bits - self._shift(level)
        return 1 << self._form.page_bits - 3

    def _at(self, root: Root, table: int, address: int, level: int) -> int:
        """The physical address of the entry for address in a table at level."""
        return table + 8 * (address >> self._shift(level) & (self._entries_of(root, level) - 1))

    def walk(self, read: Read, root: Root, address: int) -> Leaf | None:
        """The mapping of one virtual address, with the rights of all levels, or None."""
        form, table, above = self._form, root.physical, Above()
        if address < self._first(root):
            return None
        for level in range(root.levels, 0, -1):
            entry = _number(read, self._at(root, table, address, level))
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
        missing: and in those that make_leaf() would make (larger pages: always)."""
        if self._last == 1:
            slots = range(low + LEAF_SIZE - 1 & -LEAF_SIZE, high - LEAF_SIZE + 1, LEAF_SIZE)
            return [slot for slot in slots if self.slot_free(read, root, slot)]
        found: list[int] = []
        for start, entry, level, _ in self._entries(_Part(read, root, low, high, 2)):
            if entry == 0 and (level == 2 or (missing and level != root.levels)):
                first = max(start, (low + LEAF_SIZE - 1) & -LEAF_SIZE)
                end = min(start + (1 << self._shift(level)), high)
                found += range(first, end - LEAF_SIZE + 1, LEAF_SIZE)
        return found

    def _first(self, root: Root) -> int:
        """The first address that the tables map."""
        if self._form.canonical:
            return 0
        return (1 << 64) - (1 << (root.bits or self._shift(root.levels + 1)))

    def _entries(self, part: _Part) -> Iterator[tuple[int, int, int, Above]]:
        """(first address, entry, level, entries above) where the way down ends."""
        root = part.root
        return self._below(part, root.physical, root.levels, self._first(root), ())

    def _below(
        self, part: _Part, table: int, level: int, base: int, above: Above
    ) -> Iterator[tuple[int, int, int, Above]]:
        form, bits, count = self._form, self._shift(level), self._entries_of(part.root, level)
        try:
            entries = struct.unpack(f"<{count}Q", part.read(table, 8 * count))
        except (TargetError, struct.error):
            return
        signed = form.canonical and level == part.root.levels  # its upper half maps the top
        first = 0 if signed else max(part.low - base >> bits, 0)
        for index, entry in enumerate(entries[first:], first):
            start = base + (index << bits)
            if signed and index >= count // 2:
                start += (1 << 64) - (count << bits)
            if start >= part.high and not signed:
                break
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
        for level in range(root.levels, self._last, -1):
            entry = _number(read, self._at(root, table, address, level))
            if not form.valid(entry, level):
                return entry == 0 and level != root.levels
            if form.is_leaf(entry, level):
                return False
            table = form.table(entry)
        return not any(read(self._at(root, table, address, self._last), 8 * self._count))

    def make_leaf(
        self, read: Read, root: Root, address: int, entry: int, new_table: Callable[[], int]
    ) -> list[tuple[int, bytes]] | None:
        """The (physical address, bytes) to write, in order, so that address maps a 2 MB leaf.

        entry: of a leaf of 2 MB.  new_table gives the physical address of an empty (zeroed) page
        for each table that is missing.  None when the slot is taken, or when a top-level entry
        would be needed: each process of the guest may have its own top level.
        """
        writes: list[tuple[int, bytes]] = []
        form, table = self._form, root.physical
        linked = True  # whether `table` is part of the tables yet
        for level in range(root.levels, self._last, -1):
            at = self._at(root, table, address, level)
            value = _number(read, at) if linked else 0
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
        at = self._at(root, table, address, self._last)
        if linked and any(read(at, 8 * self._count)):
            return None
        step, first = 1 << self._shift(self._last), form.page(entry) if self._last == 1 else entry
        entries = (first + step * index for index in range(self._count))
        writes.append((at, b"".join(one.to_bytes(8, "little") for one in entries)))
        # The deepest first: a table is complete before anything points at it.
        return writes[::-1]


def _number(read: Read, at: int) -> int:
    return int.from_bytes(read(at, 8), "little")
