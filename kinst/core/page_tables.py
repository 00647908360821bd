"""Page tables: trees of 8-byte entries, which kinst walks and to which it adds mappings of 2 MB.

Level 1 is the last level: its entries map pages. A table fills one page. With pages of 4 KB, a
mapping of 2 MB is one entry of level 2; with larger pages, it is many entries of level 1.

Every method reads the tables by its argument `read`, a function (physical address, size) -> bytes,
and caches nothing. Registers have the GDB stub's names. An image is the range [low, high) of
virtual addresses in which a system maps its kernel (VirtualLayout.image).

Tested by tests/machines/stub/test_memory.py and tests/isa/amd64/test_paging.py.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping

from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError

Read = Callable[[int, int], bytes]
Above = tuple[int, ...]  # the entries that lead to a table, top level first

LEAF_SIZE = 2 << 20  # bytes that make_leaf() maps
PAGE_BITS = 12  # address bits within a page of 4 KB
ENTRIES = 512  # entries of a table in a page of 4 KB


@dataclass(frozen=True, slots=True)
class Root:
    """A top-level page table.

    Attributes:
        physical: physical address of the table.
        levels: number of levels, 3 to 5.
        page_bits: number of address bits within a page.
        bits: number of address bits that the tables translate. 0 if the top-level table fills a
            page; then `levels` and `page_bits` determine the number.
    """

    physical: int
    levels: int = 4
    page_bits: int = PAGE_BITS
    bits: int = 0

    @property
    def page(self) -> int:
        """Size of a page in bytes."""
        return 1 << self.page_bits


@dataclass(frozen=True, slots=True)
class Leaf:
    """A mapping in page tables: `size` bytes of virtual memory at `address`.

    Attributes:
        physical: physical address of the memory.
        entry: the page table entry, unparsed.
        executable: whether the kernel may execute the memory.
    """

    address: int
    physical: int
    size: int
    entry: int
    writable: bool
    executable: bool
    user: bool


def _no_tables(_table: int) -> int:
    raise TargetError("kinst cannot map memory in page tables of this kind")


@dataclass(frozen=True, slots=True)
class Format:
    """How an instruction set encodes entries of page tables, for one page size.

    Attributes:
        valid: (entry, level) -> whether the entry maps memory or points to a table.
        is_leaf: (entry, level) -> whether a valid entry maps memory.
        table: (entry) -> physical address of the table that the entry points to.
        leaf: (address, entry, level, entries of the levels above) -> the mapping.
        link: (physical address of a table) -> the entry that points to the table. Only make_leaf()
            needs it, to add tables.
        canonical: which addresses the top-level table maps. True: its lower half maps the start of
            the address space, and its upper half the end. False: all of it maps the end.
        page_bits: number of address bits within a page.
        page: (level-2 entry of a mapping of 2 MB) -> the level-1 entry of the mapping's first page.
            Used with pages larger than 4 KB.
    """

    valid: Callable[[int, int], bool]
    is_leaf: Callable[[int, int], bool]
    table: Callable[[int], int]
    leaf: Callable[[int, int, int, Above], Leaf]
    link: Callable[[int], int] = _no_tables
    canonical: bool = True
    page_bits: int = PAGE_BITS
    page: Callable[[int], int] = lambda entry: entry


def shift(level: int, page_bits: int = PAGE_BITS) -> int:
    """Return the number of the lowest address bit among those that select an entry of a table at
    `level`. Level 1 is the last level."""
    return page_bits + (page_bits - 3) * (level - 1)


class Paging(ABC):
    """Page tables of an instruction set: how to find them by a CPU's registers, walk them, and add
    mappings."""

    # Reach of a direct branch in bytes, less a margin: the largest distance between a kernel's text
    # and its scratch.
    REACH: int = 0
    # End of the addresses that user programs have on every CPU of the instruction set; 0 if kinst
    # does not know it.
    USER_END: int = 0
    # Whether free_slots() includes slots whose tables make_leaf() would have to add.
    FREE_IN_NEW_TABLES: bool = False

    def __init__(self, *formats: Format) -> None:
        """Set the formats of page table entries.

        Args:
            formats: one for each page size.
        """
        self._tables = {form.page_bits: _Tables(form) for form in formats}

    @abstractmethod
    def root_of(self, registers: Mapping[str, int]) -> Root:
        """Return the top-level table that a CPU uses for the kernel's half of the address space.

        Raises TargetError if the CPU does not translate addresses, or kinst cannot read tables of
        this kind."""

    @abstractmethod
    def in_user_mode(self, registers: Mapping[str, int]) -> bool:
        """Whether the CPU with these registers is in user mode."""

    def roots_of(self, registers: Mapping[str, int]) -> tuple[Root, ...]:
        """Return the top-level tables among which the kernel's is: one table, or two.

        The first is the table that the CPU uses now. With page table isolation, this may be the
        process's table for user mode; then the second is the process's table for the kernel. Of two
        tables, the kernel's is the one that maps more of the kernel.

        Raises TargetError as root_of() does.
        """
        return (self.root_of(registers),)

    def translates(self, registers: Mapping[str, int]) -> bool:
        """Whether the CPU with these registers translates addresses yet. Raises TargetError if
        kinst cannot tell."""
        return True

    def leaf_entry(self, physical: int, like: Leaf) -> int:
        """Return a page table entry that maps LEAF_SIZE bytes at a physical address, writable and
        executable for the kernel. The other attributes are those of `like`, an existing mapping.

        Raises TargetError if code could not run in such a mapping."""
        return _no_tables(physical)

    def find_text(self, read: Read, root: Root, image: tuple[int, int]) -> int:
        """Return the start address of the kernel's text: the lowest mapping in the range `image`
        that the kernel may execute. Raises TargetError if there is no such mapping, since the
        kernel is not up yet."""
        for leaf in self.leaves(read, root, *image):
            if leaf.executable and not leaf.user:
                return leaf.address
        raise no_text()

    def executable_ranges(
        self, read: Read, root: Root, image: tuple[int, int]
    ) -> Iterator[tuple[int, int]]:
        """Yield the ranges [start, end) within `image` that the kernel may execute, in address
        order. Adjacent mappings are one range."""
        start = end = -1
        for leaf in self.leaves(read, root, *image):
            if not leaf.executable or leaf.user:
                continue
            if leaf.address != end:
                if start >= 0:
                    yield start, end
                start = leaf.address
            end = leaf.address + leaf.size
        if start >= 0:
            yield start, end

    def walk(self, read: Read, root: Root, address: int) -> Leaf | None:
        """Return the mapping of a virtual address, with the access rights of all levels combined;
        None if nothing is mapped."""
        return self._tables[root.page_bits].walk(read, root, address)

    def leaves(self, read: Read, root: Root, low: int, high: int) -> Iterator[Leaf]:
        """Yield the mappings that touch the virtual addresses [low, high), in address order. Skip
        tables that cannot be read (they are not in memory)."""
        return self._tables[root.page_bits].leaves(read, root, low, high)

    def free_slots(self, read: Read, root: Root, low: int, high: int) -> list[int]:
        """Return the virtual addresses in [low, high) at which make_leaf() can map LEAF_SIZE
        bytes."""
        missing = self.FREE_IN_NEW_TABLES
        return self._tables[root.page_bits].free_slots(read, root, low, high, missing=missing)

    def slot_free(self, read: Read, root: Root, address: int) -> bool:
        """Whether make_leaf() can map LEAF_SIZE bytes at this address: nothing is mapped there, and
        the top-level table needs no new entry. The tables of other processes would lack such an
        entry."""
        return self._tables[root.page_bits].slot_free(read, root, address)

    def make_leaf(
        self, read: Read, root: Root, address: int, entry: int, new_table: Callable[[], int]
    ) -> list[tuple[int, bytes]] | None:
        """Return the writes (physical address, bytes), in order, that map LEAF_SIZE bytes at a
        virtual address.

        Return None if something is mapped there, or if the top-level table would need a new entry:
        the tables of other processes would lack this entry.

        Args:
            address: virtual address, a multiple of LEAF_SIZE.
            entry: entry for the mapping, from leaf_entry().
            new_table: returns the physical address of a zeroed page; called for each table that is
                missing.
        """
        return self._tables[root.page_bits].make_leaf(read, root, address, entry, new_table)


def no_text() -> TargetError:
    """Return the error for page tables in which no kernel text is mapped."""
    return TargetError("no kernel text found in the guest's page tables")


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of the page tables to walk: virtual addresses [low, high), down to the level
    `last`."""

    read: Read
    root: Root
    low: int
    high: int
    last: int


class _Tables:
    """Page tables with one page size. Methods with the names of Paging's methods do the same."""

    def __init__(self, form: Format) -> None:
        self._form = form
        # The level of the entries that make_leaf() writes, and their number.
        self._last = 2 if form.page_bits == PAGE_BITS else 1
        self._count = LEAF_SIZE >> self._shift(self._last)

    def _shift(self, level: int) -> int:
        return shift(level, self._form.page_bits)

    def _entries_of(self, root: Root, level: int) -> int:
        """Return how many entries a table at `level` has."""
        if root.bits and level == root.levels:
            return 1 << root.bits - self._shift(level)
        return 1 << self._form.page_bits - 3

    def _at(self, root: Root, table: int, address: int, level: int) -> int:
        """Return the physical address of the entry for a virtual address in the table at physical
        address `table`."""
        return table + 8 * (address >> self._shift(level) & (self._entries_of(root, level) - 1))

    def walk(self, read: Read, root: Root, address: int) -> Leaf | None:
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
        form = self._form
        for start, entry, level, above in self._entries(_Part(read, root, low, high, 1)):
            if form.valid(entry, level) and form.is_leaf(entry, level):
                leaf = form.leaf(start, entry, level, above)
                if leaf.address == start:  # the first of several entries for one mapping
                    yield leaf

    def free_slots(self, read: Read, root: Root, low: int, high: int, missing: bool) -> list[int]:
        """Return the virtual addresses in [low, high) at which make_leaf() can map LEAF_SIZE bytes.

        Args:
            missing: include addresses whose tables make_leaf() would have to add. With pages larger
                than 4 KB, they are always included.
        """
        if self._last == 1:
            slots = range(low + LEAF_SIZE - 1 & -LEAF_SIZE, high - LEAF_SIZE + 1, LEAF_SIZE)
            return [slot for slot in slots if self.slot_free(read, root, slot)]
        free: list[int] = []
        for start, entry, level, _ in self._entries(_Part(read, root, low, high, 2)):
            if entry == 0 and (level == 2 or (missing and level != root.levels)):
                first = max(start, (low + LEAF_SIZE - 1) & -LEAF_SIZE)
                end = min(start + (1 << self._shift(level)), high)
                free += range(first, end - LEAF_SIZE + 1, LEAF_SIZE)
        return free

    def _first(self, root: Root) -> int:
        """Return the lowest virtual address that the tables can map."""
        if self._form.canonical:
            return 0
        return (1 << 64) - (1 << (root.bits or self._shift(root.levels + 1)))

    def _entries(self, part: _Part) -> Iterator[tuple[int, int, int, Above]]:
        """Walk a part of the page tables down to leaves, invalid entries and entries of the level
        `last`. For each of these yield (first virtual address, entry, level, entries above it)."""
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
        writes: list[tuple[int, bytes]] = []
        form, table = self._form, root.physical
        linked = True  # whether `table` exists already
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
        # The lowest level first: a table is complete before an entry points to it.
        return writes[::-1]


def _number(read: Read, at: int) -> int:
    return int.from_bytes(read(at, 8), "little")
