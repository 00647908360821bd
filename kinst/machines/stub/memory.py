"""Virtual memory of a kernel, read and mapped through its page tables in physical memory.

The ISA's Paging (core/page_tables.py) knows the format of the page tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Protocol

from kinst.core.errors import TargetError, UnmappedError
from kinst.core.page_tables import LEAF_SIZE, Leaf, Paging, Root
from kinst.core.system import VirtualLayout
from kinst.core.words import PAGE

_JOIN = 64  # bytes between writes that become one: a packet costs QEMU as much as so many bytes


class Physical(Protocol):
    """Guest RAM by physical address."""

    def read_physical(self, address: int, size: int) -> bytes: ...

    def write_physical(self, address: int, data: bytes) -> None: ...


class GuestMemory:
    """Virtual memory of a guest's kernel, accessed by physical address through its page tables."""

    def __init__(self, paging: Paging, physical: Physical, tables: tuple[int, int]) -> None:
        """Begin without page tables; set_root() gives them.

        Args:
            physical: the guest's RAM.
            tables: (physical address, bytes) of free RAM for new page tables.
        """
        self._paging = paging
        self._physical = physical
        self.give_tables(tables)
        self._root: Root | None = None
        self._top = b""  # a copy of the top-level table, which is read in its place
        # The mapping used last, cached while many near addresses are looked up.
        self._keep = False
        self._last: Leaf | None = None

    def give_tables(self, tables: tuple[int, int]) -> None:
        """Use free RAM at (physical address, bytes) for new page tables."""
        self._tables, self._tables_end = tables[0], tables[0] + tables[1]

    @property
    def has_root(self) -> bool:
        return self._root is not None

    @property
    def root(self) -> Root:
        """Top-level page table in use.  Raises TargetError if it is not known yet."""
        if self._root is None:
            raise TargetError("the guest's page tables are not known yet")
        return self._root

    def set_root(self, root: Root, top: bytes = b"") -> None:
        """Use this top-level page table from now on.

        Args:
            top: a copy of the table, which is read instead of the table; b"" to read the table
                itself. A copy is needed if the table belongs to a process that may end. The
                kernel's part of the copy stays right, since it is the same in the tables of all
                processes.
        """
        self._root, self._top = root, top

    def set_tables(self, address: int) -> None:
        """Use the page tables whose top-level table is at this virtual address from now on.

        They must have as many levels as the tables in use.
        """
        physical, _ = next(self.pieces(address, 8))
        self._root, self._top = replace(self.root, physical=physical), b""

    def _read_table(self, address: int, size: int) -> bytes:
        """Read entries of page tables, by physical address. If set_root() was given a copy of the
        top-level table, entries of that table are read from the copy."""
        at = address - self.root.physical
        if 0 <= at <= len(self._top) - size:
            return self._top[at : at + size]
        return self._physical.read_physical(address, size)

    def _new_table(self) -> int:
        size = self.root.page
        at = self._tables + size - 1 & -size
        if at + size > self._tables_end:
            raise TargetError("no room for another page table in the guest")
        self._tables = at + size
        self._physical.write_physical(at, bytes(size))
        return at

    def pieces(self, address: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield (physical address, bytes) of the contiguous parts of a virtual range, in order.

        Raises UnmappedError if any of the range is not mapped.
        """
        root = self.root
        end = address + size
        while address < end:
            leaf = self._last
            if leaf is None or not leaf.address <= address < leaf.address + leaf.size:
                leaf = self._paging.walk(self._read_table, root, address)
            if leaf is None:
                raise UnmappedError(f"{address:#x} cannot be read: nothing is mapped there")
            if self._keep:
                self._last = leaf
            inside = address - leaf.address
            length = min(end - address, leaf.size - inside)
            yield leaf.physical + inside, length
            address += length

    def is_code(self, address: int) -> bool:
        """Return whether the memory at a virtual address is executable."""
        leaf = self._paging.walk(self._read_table, self.root, address)
        return leaf is not None and leaf.executable

    def reader(self) -> Callable[[int, int], bytes]:
        """Return a function that reads virtual memory and caches the mappings that it has looked
        up.

        It is for many reads during which the page tables do not change.
        """
        leaves: dict[int, Leaf] = {}

        def leaf_of(address: int) -> Leaf:
            page = address // PAGE
            leaf = leaves.get(address // LEAF_SIZE) or leaves.get(-page)
            if leaf is None:
                leaf = self._paging.walk(self._read_table, self.root, address)
                if leaf is None:
                    raise TargetError(f"{address:#x} cannot be read: nothing is mapped there")
                leaves[-page if leaf.size < LEAF_SIZE else address // LEAF_SIZE] = leaf
            return leaf

        def read(address: int, size: int) -> bytes:
            out = b""
            while len(out) < size:
                at = address + len(out)
                leaf = leaf_of(at)
                length = min(size - len(out), leaf.address + leaf.size - at)
                out += self._physical.read_physical(leaf.physical + at - leaf.address, length)
            return out

        return read

    def read(self, address: int, size: int) -> bytes:
        return b"".join(
            self._physical.read_physical(at, length) for at, length in self.pieces(address, size)
        )

    def write(self, address: int, data: bytes) -> None:
        """Write virtual memory, where the kernel itself may write.

        Raises UnmappedError if any of the range is not mapped, and TargetError if any of it is
        read-only or executable.
        """
        at, end = address, address + len(data)
        while at < end:
            leaf = self._paging.walk(self._read_table, self.root, at)
            if leaf is None:
                raise UnmappedError(f"{at:#x} cannot be written: nothing is mapped there")
            if not leaf.writable or leaf.executable:
                raise TargetError(f"{at:#x} cannot be written: it is read-only, or code")
            at = leaf.address + leaf.size
        done = 0
        for physical, length in self.pieces(address, len(data)):
            self._physical.write_physical(physical, data[done : done + length])
            done += length

    def physical_writes(self, writes: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Convert writes to virtual addresses into few, large writes to physical addresses.

        Bytes between near writes are written with their present values. If writes overlap, the
        later write wins.
        """
        self._keep = True
        try:
            return self._joined(writes)
        finally:
            self._keep, self._last = False, None

    def _joined(self, writes: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        parts: list[tuple[int, bytes]] = []
        for address, data in sorted(writes, key=itemgetter(0)):
            leaf = self._last
            if leaf is not None and 0 <= address - leaf.address <= leaf.size - len(data):
                parts.append((leaf.physical + address - leaf.address, data))
                continue
            done = 0
            for at, length in self.pieces(address, len(data)):
                parts.append((at, data[done : done + length]))
                done += length
        out: list[tuple[int, bytes]] = []
        group: list[tuple[int, bytes]] = []
        start = end = 0
        for at, part in parts:
            if group and not start <= at <= end + _JOIN:
                out.append(group[0] if len(group) == 1 else self._one_write(start, end, group))
                group = []
            if not group:
                start = end = at
            group.append((at, part))
            end = max(end, at + len(part))
        if group:
            out.append(group[0] if len(group) == 1 else self._one_write(start, end, group))
        return out

    def _one_write(
        self, start: int, end: int, group: Sequence[tuple[int, bytes]]
    ) -> tuple[int, bytes]:
        """Combine some writes into one write of [start, end). Bytes of the range that no write
        covers keep their present values."""
        whole = bytearray(self._physical.read_physical(start, end - start))
        for at, part in group:
            whole[at - start : at - start + len(part)] = part
        return start, bytes(whole)

    def map_near(
        self,
        frames: Sequence[int],
        near: tuple[int, int],
        virtual_layout: VirtualLayout,
        reach: tuple[int, int],
        data: int = 0,
    ) -> int:
        """Map physical memory close to the kernel's code, and return its virtual address.

        Args:
            frames: physical addresses of LEAF_SIZE bytes each, which are mapped one after another.
            near: addresses [low, high) of the code.
            virtual_layout: the system's virtual layout, which tells where memory may be mapped.
            reach: addresses [low, high) that branches from all code in the mapped memory must
                reach.
            data: bytes at the start of the mapped memory that hold no code.

        Raises TargetError if there is no room.
        """
        address = self.place_near(len(frames) * LEAF_SIZE, near, virtual_layout, reach, data)
        if not self.map_at(frames, address, near[0]):
            raise TargetError(f"the page tables changed while {address:#x} was being mapped")
        return address

    def place_near(
        self,
        size: int,
        near: tuple[int, int],
        virtual_layout: VirtualLayout,
        reach: tuple[int, int],
        data: int,
    ) -> int:
        """Return the virtual address at which map_near() would map `size` bytes, without mapping
        them.

        Args:
            near: addresses [low, high) of the kernel's code.
            virtual_layout: the system's virtual layout, which tells where memory may be mapped.
            reach: addresses [low, high) that branches from all code in the mapped memory must
                reach.
            data: bytes at the start of the mapped memory that hold no code.

        Raises TargetError if there is no room.
        """
        read = self._read_table
        if self._paging.walk(read, self.root, near[0]) is None:
            raise TargetError(f"no kernel text is mapped at {near[0]:#x}")
        far, within = self._paging.REACH, virtual_layout.scratch
        low = max(within[0], reach[1] - far - data)
        high = min(within[1], reach[0] + far)
        free = [
            slot
            for slot in self._paging.free_slots(read, self.root, low, high)
            if not any(start <= slot < end for start, end in virtual_layout.reserved)
        ]
        runs = _runs(free, LEAF_SIZE)
        fits = [
            at
            for run in runs
            for at in run
            if at + size <= run.stop and max(reach[1] - (at + data), at + size - reach[0]) < far
        ]
        if not fits:
            largest = max(map(len, runs), default=0) * LEAF_SIZE
            raise TargetError(
                f"there is no room for {size >> 20} MB in reach of the kernel's text"
                f" (the most in one piece there are {largest >> 20} MB)",
                "ask for less with -x bufsize, aggsize, dynvarsize or scratch, or boot again:"
                " the kernel is elsewhere then, unless --append nokaslr is given",
            )

        def worse(at: int) -> tuple[bool, int]:
            return virtual_layout.grows_after_text and at > near[0], abs(at - near[1])

        return min(fits, key=worse)

    def map_at(self, frames: Sequence[int], address: int, like_text: int) -> bool:
        """Map physical memory at a virtual address; return False if the addresses are not free.

        Args:
            frames: physical addresses of LEAF_SIZE bytes each, which are mapped one after another.
            address: virtual address for the first frame.
            like_text: address in the kernel's text, whose page attributes are copied.
        """
        like = self._paging.walk(self._read_table, self.root, like_text)
        return like is not None and self._map(frames, address, like)

    def _map(self, frames: Sequence[int], address: int, like: Leaf) -> bool:
        """Map all frames at a virtual address, or none if one of the addresses is not free.

        Args:
            frames: physical addresses of LEAF_SIZE bytes each.
            like: the mapping whose page attributes are copied.
        """
        paging, read = self._paging, self._read_table
        if any(at % LEAF_SIZE for at in (address, *frames)):
            return False
        slots = range(address, address + len(frames) * LEAF_SIZE, LEAF_SIZE)
        if not all(paging.slot_free(read, self.root, at) for at in slots):
            return False
        for at, physical in zip(slots, frames, strict=True):
            entry = paging.leaf_entry(physical, like)
            writes = paging.make_leaf(read, self.root, at, entry, self._new_table)
            if writes is None:
                return False
            for where, data in writes:
                self._physical.write_physical(where, data)
        return True


def read_process(
    paging: Paging, physical: Physical, registers: Mapping[str, int], address: int, size: int
) -> bytes:
    """Read memory of the process that runs on a CPU, by the page tables that the CPU uses now.

    Args:
        registers: the CPU's registers.

    Raises TargetError if any address is in the kernel's half or not mapped.
    """
    need_process(address, size)
    memory = GuestMemory(paging, physical, (0, 0))
    memory.set_root(paging.root_of(registers))
    return memory.read(address, size)


def need_process(address: int, size: int) -> None:
    """Raise TargetError if any of these addresses is in the kernel's half of the address space."""
    if (address | address + size) >> 63:
        raise TargetError(f"{address:#x} is an address of the kernel, not of a process")


def _runs(free: Sequence[int], slot: int) -> list[range]:
    """Join free areas of virtual memory that are adjacent. All areas have the same size.

    Returns each joined area as range(start, end, slot).

    Args:
        free: addresses of the free areas.
        slot: size in bytes of each free area.
    """
    runs: list[range] = []
    for at in sorted(free):
        if runs and runs[-1].stop == at:
            runs[-1] = range(runs[-1].start, at + slot, slot)
        else:
            runs.append(range(at, at + slot, slot))
    return runs
