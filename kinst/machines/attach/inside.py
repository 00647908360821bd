"""Whether a thread of the guest will go on in memory that is to be given back.

A probe's code may be left at any moment (an interrupt, a fault of a displaced access to user
memory), for as long as the thread is not scheduled: what it goes on with lies on its stack.  Once
nothing leads there any more, threads only leave; so when no CPU and no stack points inside, in a
machine that stands, nothing will.  Of each stack only the part in use counts: below are left-overs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from kinst.core.errors import TargetError
from kinst.core.system import Threads

Read = Callable[[int, int], bytes]
Ranges = Sequence[tuple[int, int]]
MOST_THREADS = 1 << 16  # a list that is longer is none


def threads_inside(
    read: Read, threads: Threads, ranges: Ranges, places: Sequence[tuple[int, int]]
) -> bool:
    """Whether a thread or a CPU is in one of the ranges [low, high), or will return there.

    read: the kernel's memory; the machine stands.  places: (program counter, stack pointer) of the
    CPUs that are in the kernel.  Raises TargetError where the lists of threads cannot be read."""
    if any(low <= pc < high for pc, _ in places for low, high in ranges):
        return True
    pointers = [pointer for _, pointer in places]
    return any(
        _leads_inside(read, start, end, ranges)
        for thread in all_threads(read, threads)
        for start, end in _used(read, threads, thread, pointers)
    )


def all_threads(read: Read, threads: Threads) -> Iterator[int]:
    """The addresses of all threads.  Raises TargetError where the lists have no end."""
    process, count = threads.first, 0
    while True:
        group = _word(read, process + threads.group)
        head = group + threads.head
        node = _word(read, head)
        alone = True
        while node != head:
            yield node - threads.node
            alone = False
            node = _word(read, node)
            count += 1
            if count > MOST_THREADS:
                raise TargetError("the guest's list of threads has no end")
        if alone:
            yield process
        process = _word(read, process + threads.next) - threads.next
        if process == threads.first:
            return
        count += 1
        if count > MOST_THREADS:
            raise TargetError("the guest's list of processes has no end")


def _used(
    read: Read, threads: Threads, thread: int, pointers: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """[start, end) of the part of a thread's stack that is in use."""
    base = _word(read, thread + threads.stack)
    end = base + threads.size
    own = [pointer for pointer in pointers if base <= pointer < end]
    if own:
        yield own[0], end
        return
    if threads.running >= 0 and any(read(thread + threads.running, 4)):
        # Its CPU is in user mode, and the stack is empty, or on a stack for interrupts.
        if pointers:
            yield base, end
        return
    pointer = _word(read, thread + threads.pointer)
    if base <= pointer < end:
        yield pointer, end


def _leads_inside(read: Read, start: int, end: int, ranges: Ranges) -> bool:
    start &= -8
    data = b""
    with suppress(TargetError):  # a thread that ends may have given its stack back
        data = read(start, end - start)
    words = struct.unpack(f"<{len(data) // 8}Q", data[: len(data) & -8])
    return any(low <= word < high for low, high in ranges for word in words)


def _word(read: Read, address: int) -> int:
    return int.from_bytes(read(address, 8), "little")
