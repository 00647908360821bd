"""Page tables of riscv64, read and extended through physical memory.

Source: RISC-V privileged specification, 4.1.11 (satp), 4.3 to 4.6 (Sv39, Sv48, Sv57), Svnapot.
Everything is a function of `read_physical(address, size) -> bytes`; nothing is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kinst.core.errors import TargetError

Read = Callable[[int, int], bytes]

VALID = 1 << 0
READABLE = 1 << 1
WRITABLE = 1 << 2
EXECUTABLE = 1 << 3
USER = 1 << 4
GLOBAL = 1 << 5
ACCESSED = 1 << 6
DIRTY = 1 << 7
NAPOT = 1 << 63

LEAF_SIZE = 2 << 20  # what make_leaf maps
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
_ENTRIES = 512
_NAPOT_SIZE = 1 << 16
_LEAF = READABLE | WRITABLE | EXECUTABLE  # an entry with any of them is a leaf
_MODES = {8: 3, 9: 4, 10: 5}  # of satp, to levels: Sv39, Sv48, Sv57


@dataclass(frozen=True, slots=True)
class Root:
    """A top-level table: its physical address, and 3 to 5 levels (Sv39, Sv48, Sv57)."""

    physical: int
    levels: int = 4


@dataclass(frozen=True, slots=True)
class Leaf:
    """A mapping of `size` bytes at `address`; entry: the raw entry."""

    address: int
    physical: int
    size: int
    entry: int
    writable: bool
    executable: bool
    user: bool


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


def _shift(level: int) -> int:
    """Bits of the address below the index of a table at level (1: last, up to 5: top)."""
    return 3 + 9 * level


def _physical(entry: int) -> int:
    return (entry & _PPN) << 2


def _entry(read: Read, table: int, address: int, level: int) -> tuple[int, int]:
    """(physical address of the entry, the entry) for address in a table at level."""
    at = table + 8 * (address >> _shift(level) & (_ENTRIES - 1))
    return at, int.from_bytes(read(at, 8), "little")


def _leaf(address: int, entry: int, level: int) -> Leaf:
    size = _NAPOT_SIZE if level == 1 and entry & NAPOT else 1 << _shift(level)
    return Leaf(
        address & -size,
        _physical(entry) & -size,
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
        _, entry = _entry(read, table, address, level)
        if not entry & VALID:
            return None
        if entry & _LEAF:
            return _leaf(address, entry, level)
        table = _physical(entry)
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
    shift = _shift(level)
    try:
        entries = struct.unpack(f"<{_ENTRIES}Q", within.read(table, 8 * _ENTRIES))
    except (TargetError, struct.error):
        return
    for index, entry in enumerate(entries):
        if not entry & VALID:
            continue
        start = base + (index << shift)
        if level == within.top and index >= _ENTRIES // 2:
            start += (1 << 64) - (_ENTRIES << shift)  # sign-extended: the upper half is at the end
        if start >= within.high or start + (1 << shift) <= within.low:
            continue
        if not entry & _LEAF:
            yield from _leaves(within, _physical(entry), level - 1, start)
            continue
        leaf = _leaf(start, entry, level)
        if leaf.address == start:  # the other entries of a larger page say the same
            yield leaf


def free_slots(read: Read, root: Root, low: int, high: int) -> list[int]:
    """Virtual addresses in [low, high) of 2 MB slots that are free in tables that exist."""
    free: list[int] = []
    gigabyte = 1 << _shift(3)
    for base in range(low & -gigabyte, high, gigabyte):
        table = _table_of(read, root, base, 2)
        if table is None:
            continue
        entries = struct.unpack(f"<{_ENTRIES}Q", read(table, 8 * _ENTRIES))
        slots = (base + i * LEAF_SIZE for i, entry in enumerate(entries) if entry == 0)
        free += [
            at
            for at in slots
            if low <= at and at + LEAF_SIZE <= high and not _BPF[0] <= at < _BPF[1]
        ]
    return free


def slot_free(read: Read, root: Root, address: int) -> bool:
    """Whether make_leaf could map the 2 MB at address: nothing is there, at any level, and no
    top-level entry is needed (each process of the guest has its own top level)."""
    table = root.physical
    for level in range(root.levels, 1, -1):
        _, entry = _entry(read, table, address, level)
        if not entry & VALID:
            return entry == 0 and level != root.levels
        if level == 2 or entry & _LEAF:
            return False
        table = _physical(entry)
    return False


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
        _, entry = _entry(read, table, address, above)
        if not entry & VALID or entry & _LEAF:
            return None
        table = _physical(entry)
    return table


def leaf_entry(physical: int, like: Leaf) -> int:
    """An entry that maps 2 MB at physical readable, writable and executable for the kernel,
    global as the mapping `like` is."""
    flags = VALID | _LEAF | ACCESSED | DIRTY | (like.entry & GLOBAL)
    return physical >> 2 | flags


def make_leaf(
    read: Read, root: Root, address: int, entry: int, new_table: Callable[[], int]
) -> list[tuple[int, bytes]] | None:
    """The (physical address, bytes) to write, in order, so that address maps a 2 MB leaf.

    new_table gives the physical address of an empty (zeroed) page for each table that is
    missing.  None when the slot is taken, or when a top-level entry would be needed: each
    process of the guest has its own top level.
    """
    writes: list[tuple[int, bytes]] = []
    table = root.physical
    linked = True  # whether `table` is part of the tables yet
    for level in range(root.levels, 2, -1):
        at = table + 8 * (address >> _shift(level) & (_ENTRIES - 1))
        value = int.from_bytes(read(at, 8), "little") if linked else 0
        if value & VALID:
            if value & _LEAF:
                return None
            table = _physical(value)
            continue
        if value or level == root.levels:
            return None
        table = new_table()
        writes.append((at, (table >> 2 | VALID).to_bytes(8, "little")))
        linked = False
    at = table + 8 * (address >> _shift(2) & (_ENTRIES - 1))
    if linked and int.from_bytes(read(at, 8), "little"):
        return None
    writes.append((at, entry.to_bytes(8, "little")))
    # The deepest first: a table is complete before anything points at it.
    return writes[::-1]
