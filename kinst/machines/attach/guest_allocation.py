"""Memory that kinst allocates in the guest's kernel, shares with QEMU, and frees.

The memory consists of the largest blocks that the kernel allocates, of 4 or 2 MB. So page-table
entries for 2 MB can map it. To share the memory, kinst replaces the blocks in QEMU's address space
by shared memory, which kinst maps as well.

Tested by tests/machines/attach/test_journal.py and tests/machines/attach/test_parts.py.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from kinst.core.dataclass import dataclass
from kinst.core.errors import TargetError
from kinst.core.page_tables import LEAF_SIZE
from kinst.core.system import PageAllocator
from kinst.machines.attach.calls import NotMadeError
from kinst.machines.attach.ram import Ram
from kinst.wire.other_process import Mapping, OtherProcess
from kinst.wire.ptrace import calls_in

Call = Callable[..., int]  # makes a call in the guest
_Block = tuple[int, int, int]  # virtual address in the guest, physical address, bytes
_NONE: _Block = (0, 0, 0)

_PIECES = (2 * LEAF_SIZE, LEAF_SIZE)  # sizes of blocks in bytes, tried in this order
_NAME = "kinst"  # name of the shared memory in /proc/PID/fd
TABLES = 16 * 4096  # bytes for page tables


@dataclass(slots=True)
class GuestAllocation:
    """Memory that kinst has allocated in the guest.

    Attributes:
        pieces: the blocks for scratch, which share() shares between QEMU and kinst.
        tables: the block for page tables, which is never shared.
        shared: whether unshare() has work to do: `pieces` are shared, or share() has failed midway.
        was: (host address, bytes, file descriptor, offset) of each file that QEMU had mapped at the
            blocks before share(); None if this is not known yet.
    """

    pieces: list[_Block]
    tables: _Block
    shared: bool = False
    was: list[tuple[int, int, int, int]] | None = None

    @property
    def size(self) -> int:
        """Bytes of all blocks in `pieces`."""
        return sum(size for _, _, size in self.pieces)

    @property
    def frames(self) -> list[int]:
        """Physical address of each 2 MB of the blocks in `pieces`, in order."""
        return [
            physical + at for _, physical, size in self.pieces for at in range(0, size, LEAF_SIZE)
        ]

    def about_to_share(self, process: OtherProcess, ram: Ram) -> None:
        """Record what unshare() needs to undo share(), even if share() fails midway."""
        self.was = _files(process, self._host_ranges(ram))
        self.shared = True

    def _host_ranges(self, ram: Ram) -> list[tuple[int, int]]:
        return [(ram.host(physical, size), size) for _, physical, size in self.pieces]

    def share(self, process: OtherProcess, ram: Ram) -> int:
        """Replace the blocks in QEMU's address space by one shared memory, in their order.

        Returns the file descriptor of that memory. Raises TargetError if QEMU cannot be traced
        (ptrace).
        """
        ranges = self._host_ranges(ram)
        with calls_in(process) as calls:
            number = calls.make_memory(_NAME, self.size)
            descriptor = os.open(f"/proc/{process.pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
            offset = 0
            for host, size in ranges:
                calls.map_file(host, size, number, offset)
                offset += size
            calls.close_file(number)
        return descriptor

    def unshare(self, process: OtherProcess, ram: Ram) -> None:
        """Replace the shared memory in QEMU's address space by memory of QEMU alone.

        The contents are lost, so the guest must not use them any more.
        """
        if not self.shared:
            return
        with calls_in(process) as calls:
            for _, physical, size in self.pieces:
                calls.map_anonymous(ram.host(physical, size), size)
            for host, size, number, offset in self.was or ():
                calls.map_file(host, size, number, offset)
            # Left open by a guardian that was killed.
            for number, link in process.descriptors().items():
                if link.startswith(f"/memfd:{_NAME} "):
                    calls.close_file(number)
        self.shared = False


def _files(process: OtherProcess, ranges: list[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """Return (host address, bytes, file descriptor, offset) of shared files that a process has
    mapped.

    Args:
        ranges: (host address, bytes) of the ranges in which mappings are looked for.

    Raises TargetError if the process has closed one of the files.
    """
    files = []
    mappings = [mapping for mapping in process.mappings() if mapping.shared and mapping.inode]
    for host, size in ranges:
        for mapping in mappings:
            start, end = max(host, mapping.start), min(host + size, mapping.end)
            if start < end:
                number = process.descriptor_of(mapping)
                if number is None:
                    raise TargetError(
                        f"the guest's RAM is a file that QEMU has closed: {_named(mapping)}"
                    )
                files.append((start, end - start, number, mapping.offset + start - mapping.start))
    return files


def _named(mapping: Mapping) -> str:
    return mapping.path or "without a name"


def allocate(
    call: Call, allocator: PageAllocator, physical: Callable[[int], int], size: int
) -> GuestAllocation:
    """Allocate at least `size` bytes in the guest, and a block for page tables.

    Args:
        call: makes a call in the guest.
        physical: returns the physical address of a virtual address.

    Raises TargetError if the guest lacks the memory; in that case nothing is allocated.
    """
    blocks: list[_Block] = []

    def block(wanted: int) -> _Block | None:
        order = (wanted // allocator.page).bit_length() - 1
        address = call(allocator.allocate, allocator.flags, order)
        return (address, physical(address), wanted) if address else None

    try:
        tables = block(TABLES)
        for wanted in _PIECES:
            while tables and sum(s for _, _, s in blocks) < size and (piece := block(wanted)):
                blocks.append(piece)
        if tables and sum(s for _, _, s in blocks) >= size:
            return GuestAllocation(blocks, tables)
        blocks += [tables] if tables else []
    except BaseException:
        _release(call, allocator, blocks)
        raise
    _release(call, allocator, blocks)
    raise TargetError(
        f"the guest has not {-(-size // (1 << 20))} MB of free memory in pieces of 2 MB",
        "ask for less with -x bufsize, aggsize or scratch, or give the guest more memory",
    )


def _release(call: Call, allocator: PageAllocator, blocks: list[_Block]) -> None:
    with contextlib.suppress(TargetError):
        for address, _, size in blocks:
            call(allocator.release, address, (size // allocator.page).bit_length() - 1)


def free(
    call: Call,
    allocator: PageAllocator,
    allocation: GuestAllocation,
    ram: Ram,
    note: Callable[[GuestAllocation], None],
) -> None:
    """Free all blocks of an allocation.

    Before this, call unshare(), and make sure that no thread executes in the blocks. If freeing
    fails, the blocks that were not freed stay in the allocation. If the kernel has made entries of
    its own in the block for page tables, that block is not freed.

    Args:
        call: makes a call in the guest.
        note: called before each block is freed, with the allocation as it will be afterwards.
    """

    def release(pieces: list[_Block], tables: _Block, address: int, size: int) -> None:
        """Record what will be left of the allocation, then free a block.

        If kinst is killed in between, the guest loses the block, which is better than freeing it
        twice.

        Args:
            pieces: the shared blocks that will be left.
            tables: the block for page tables that will be left.
            address: virtual address of the block to free.
            size: bytes of the block to free.
        """
        before = allocation.pieces, allocation.tables
        allocation.pieces, allocation.tables = pieces, tables
        note(allocation)
        try:
            call(allocator.release, address, (size // allocator.page).bit_length() - 1)
        except NotMadeError:
            allocation.pieces, allocation.tables = before
            note(allocation)
            raise

    while allocation.pieces:
        address, _, size = allocation.pieces[-1]
        release(allocation.pieces[:-1], allocation.tables, address, size)
    address, physical, size = allocation.tables
    if size and not any(ram.read_physical(physical, size)):
        release([], _NONE, address, size)
    allocation.tables = _NONE
    note(allocation)
