"""The guest's virtual memory through the shared mapping: no round trip to the stub.

Page tables are read by the ISA's Paging (core/page_tables.py); nothing of one ISA is known here.
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

_JOIN = 64  # writes so close become one: to QEMU a packet costs what so many bytes do


class Physical(Protocol):
    """Guest RAM by physical address."""

    def read_physical(self, address: int, size: int) -> bytes: ...

    def write_physical(self, address: int, data: bytes) -> None: ...


class GuestMemory:
    """Virtual memory of the guest's kernel.

    tables: (physical address, bytes) of RAM that the guest leaves alone, for page tables.
    """

    def __init__(self, paging: Paging, physical: Physical, tables: tuple[int, int]) -> None:
        self._paging = paging
        self._physical = physical
        self.give_tables(tables)
        self._root: Root | None = None
        self._top = b""  # what is read in place of the top-level table
        # The mapping used last, kept while many near addresses are looked up at once.
        self._keep = False
        self._last: Leaf | None = None

    def give_tables(self, tables: tuple[int, int]) -> None:
        """(physical address, bytes) of RAM for page tables from now on."""
        self._tables, self._tables_end = tables[0], tables[0] + tables[1]

    @property
    def has_root(self) -> bool:
        return self._root is not None

    @property
    def root(self) -> Root:
        """The top-level table in use.  Raises TargetError before there is one."""
        if self._root is None:
            raise TargetError("the guest's page tables are not known yet")
        return self._root

    def set_root(self, root: Root, top: bytes = b"") -> None:
        """Use this top-level table from now on.

        top: what was in it, to be read in its place, where it belongs to a process that may end:
        the kernel's part is the same in all of them."""
        self._root, self._top = root, top

    def set_tables(self, address: int) -> None:
        """Use the tables whose top level is at this virtual address, of as many levels as the
        tables in use."""
        physical, _ = next(self.pieces(address, 8))
        self._root, self._top = replace(self.root, physical=physical), b""

    def _read_table(self, address: int, size: int) -> bytes:
        """Entries of page tables, by their physical address."""
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
        """(physical address, bytes) of the parts of a virtual range, in order.

        Raises UnmappedError where nothing is mapped.
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
        """Whether the kernel can run what is there."""
        leaf = self._paging.walk(self._read_table, self.root, address)
        return leaf is not None and leaf.executable

    def reader(self) -> Callable[[int, int], bytes]:
        """read(), for many reads while nothing is mapped anew: mappings are looked up once."""
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

    def physical_writes(self, writes: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Virtual writes as physical ones, few and large: what lies between near ones is
        written back as it is.  Where writes overlap, the later one counts."""
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
        """All of a group of near writes, and what is between them."""
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
        """Map physical memory near the code [near), where branches to and from [reach) reach all of
        it but its first `data` bytes.

        frames: physical addresses of LEAF_SIZE bytes each, in the order in which they are mapped
        one behind the other.  virtual_layout: of the system, which says where free slots may be
        taken. Returns the virtual address. Raises TargetError when there is no such place.
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
        """Where map_near() maps as much; nothing is written.  Raises TargetError."""
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
                " the kernel is elsewhere then, but for --append nokaslr",
            )

        def worse(at: int) -> tuple[bool, int]:
            return virtual_layout.grows_after_text and at > near[0], abs(at - near[1])

        return min(fits, key=worse)

    def map_at(self, frames: Sequence[int], address: int, like_text: int) -> bool:
        """Map frames (as of map_near) at a chosen address; False if it is not free."""
        like = self._paging.walk(self._read_table, self.root, like_text)
        return like is not None and self._map(frames, address, like)

    def _map(self, frames: Sequence[int], address: int, like: Leaf) -> bool:
        """All or nothing: entries are made only once every slot is known to be free."""
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
    """Memory of the process that runs on a CPU, by the page tables that it has now.

    registers: the CPU's.  Raises TargetError for an address of the kernel's half."""
    need_process(address, size)
    memory = GuestMemory(paging, physical, (0, 0))
    memory.set_root(paging.root_of(registers))
    return memory.read(address, size)


def need_process(address: int, size: int) -> None:
    """Raises TargetError where these are not addresses of a process."""
    if (address | address + size) >> 63:
        raise TargetError(f"{address:#x} is not an address of a process")


def _runs(free: Sequence[int], slot: int) -> list[range]:
    """Free slots of `slot` bytes as runs of neighbours, each from its first to behind its last."""
    runs: list[range] = []
    for at in sorted(free):
        if runs and runs[-1].stop == at:
            runs[-1] = range(runs[-1].start, at + slot, slot)
        else:
            runs.append(range(at, at + slot, slot))
    return runs
