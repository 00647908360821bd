"""Memory that the guest's kernel lends kinst: borrowed, shared between QEMU and kinst, given back.

It comes in pieces of the kernel's largest size, each as good for page tables' leaves of 2 MB.
In QEMU the pieces are replaced, where they are, by memory that kinst maps as well.

Tested by tests/machines/attach/test_journal.py and tests/machines/attach/test_parts.py.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from kinst.core.errors import TargetError
from kinst.core.page_tables import LEAF_SIZE
from kinst.core.system import PageAllocator
from kinst.machines.attach.calls import NotMadeError
from kinst.machines.attach.ram import Ram
from kinst.wire.other_process import Mapping, OtherProcess
from kinst.wire.ptrace import calls_in

Call = Callable[..., int]
_Block = tuple[int, int, int]  # virtual address in the guest, physical address, bytes
_NONE: _Block = (0, 0, 0)

_PIECES = (2 * LEAF_SIZE, LEAF_SIZE)  # bytes, tried in this order
_NAME = "kinst"  # of the memory, as /proc/PID/fd has it
TABLES = 16 * 4096  # bytes for page tables


@dataclass(slots=True)
class GuestAllocation:
    """pieces: of what is shared.  tables: of memory for page tables, which is not.  shared: it is,
    or some of it may be.  was: what QEMU had in the places of pieces, where that is not
    anonymous."""

    pieces: list[_Block]
    tables: _Block
    shared: bool = False
    was: list[tuple[int, int, int, int]] | None = None

    @property
    def size(self) -> int:
        """Bytes of what is shared."""
        return sum(size for _, _, size in self.pieces)

    @property
    def frames(self) -> list[int]:
        """Physical addresses of 2 MB each, in order."""
        return [
            physical + at for _, physical, size in self.pieces for at in range(0, size, LEAF_SIZE)
        ]

    def about_to_share(self, process: OtherProcess, ram: Ram) -> None:
        """What unshare() has to know, whatever becomes of share()."""
        self.was = _files(process, self._places(ram))
        self.shared = True

    def _places(self, ram: Ram) -> list[tuple[int, int]]:
        return [(ram.host(physical, size), size) for _, physical, size in self.pieces]

    def share(self, process: OtherProcess, ram: Ram) -> int:
        """A descriptor of the memory that is in QEMU in place of the pieces, in their order.

        Raises TargetError where QEMU may not be traced."""
        places = self._places(ram)
        with calls_in(process) as calls:
            number = calls.make_memory(_NAME, self.size)
            descriptor = os.open(f"/proc/{process.pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
            offset = 0
            for host, size in places:
                calls.map_file(host, size, number, offset)
                offset += size
            calls.close_file(number)
        return descriptor

    def unshare(self, process: OtherProcess, ram: Ram) -> None:
        """Memory of QEMU's own again, empty: it belongs to nobody in the guest."""
        if not self.shared:
            return
        with calls_in(process) as calls:
            for _, physical, size in self.pieces:
                calls.map_anonymous(ram.host(physical, size), size)
            for host, size, number, offset in self.was or ():
                calls.map_file(host, size, number, offset)
            # Of one who was killed before it could close it.
            for number, link in process.descriptors().items():
                if link.startswith(f"/memfd:{_NAME} "):
                    calls.close_file(number)
        self.shared = False


def _files(process: OtherProcess, places: list[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """(host address, bytes, descriptor, offset) of files that the process has mapped, shared, at
    these places.  Raises TargetError for one that it has closed since."""
    found = []
    mappings = [one for one in process.mappings() if one.shared and one.inode]
    for host, size in places:
        for one in mappings:
            start, end = max(host, one.start), min(host + size, one.end)
            if start < end:
                number = process.descriptor_of(one)
                if number is None:
                    raise TargetError(f"the guest's RAM is a file that is closed: {_named(one)}")
                found.append((start, end - start, number, one.offset + start - one.start))
    return found


def _named(mapping: Mapping) -> str:
    return mapping.path or "without a name"


def borrow(
    call: Call, allocator: PageAllocator, physical: Callable[[int], int], size: int
) -> GuestAllocation:
    """At least `size` bytes in pieces, and room for page tables.

    call: makes a call in the guest.  physical: of a virtual address.  Raises TargetError, with
    everything given back, where the guest has not that much."""
    had: list[tuple[int, int, int]] = []

    def one(wanted: int) -> tuple[int, int, int] | None:
        order = (wanted // allocator.page).bit_length() - 1
        address = call(allocator.allocate, allocator.flags, order)
        return (address, physical(address), wanted) if address else None

    try:
        tables = one(TABLES)
        for wanted in _PIECES:
            while tables and sum(s for _, _, s in had) < size and (piece := one(wanted)):
                had.append(piece)
        if tables and sum(s for _, _, s in had) >= size:
            return GuestAllocation(had, tables)
        had += [tables] if tables else []
    except BaseException:
        _release(call, allocator, had)
        raise
    _release(call, allocator, had)
    raise TargetError(
        f"the guest has not {-(-size // (1 << 20))} MB of free memory in pieces of 2 MB",
        "ask for less with -x bufsize, aggsize or scratch, or give it more",
    )


def _release(call: Call, allocator: PageAllocator, had: list[tuple[int, int, int]]) -> None:
    with contextlib.suppress(TargetError):
        for address, _, size in had:
            call(allocator.release, address, (size // allocator.page).bit_length() - 1)


def give_back(
    call: Call,
    allocator: PageAllocator,
    allocation: GuestAllocation,
    ram: Ram,
    note: Callable[[GuestAllocation], None],
) -> None:
    """All of it, by the thread that makes calls; it is unshared, and nothing runs in it any more.
    Where that fails, the allocation holds what was not given back.  note: is told what will be
    left, each time.

    A page of tables in which the kernel has made entries of its own stays."""

    def gone(pieces: list[_Block], tables: _Block, address: int, size: int) -> None:
        """What is left then is noted first: rather is a piece lost to the guest than given back
        twice, and free while somebody has it."""
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
        gone(allocation.pieces[:-1], allocation.tables, address, size)
    address, physical, size = allocation.tables
    if size and not any(ram.read_physical(physical, size)):
        gone([], _NONE, address, size)
    allocation.tables = _NONE
    note(allocation)
