"""Search of threads' stacks for program counters and return addresses in code of an ended trace, so
that its memory can be freed.

A thread may be interrupted in a trampoline or a clause at any moment, and then sleep for long. The
address at which it will continue is on its stack. Once no patch leads into the code, no thread
enters it. So if no CPU's registers and no stack have an address in the code, no thread will execute
the code. Only the used part of each stack counts, because old values remain in the unused part.

Tested by tests/machines/attach/test_parts.py."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

import numpy as np

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.machine import Target
from kinst.core.return_addresses import EndedCode, is_entered
from kinst.core.system import Threads

Read = Callable[[int, int], bytes]
Ranges = Sequence[tuple[int, int]]
OnCpu = tuple[Collection[int], int]  # values of a CPU's registers, and its stack pointer
MOST_THREADS = 1 << 16  # a longer list of threads is taken to be damaged


def threads_inside(read: Read, threads: Threads, ranges: Ranges, cpus: Sequence[OnCpu]) -> bool:
    """Whether a thread or a CPU executes in one of the ranges [low, high), or will return there.
    The machine must be stopped.

    Raises TargetError if the kernel's lists of threads cannot be read.

    Args:
        read: reads the kernel's memory.
        cpus: register values and stack pointer of each CPU that is in the kernel.
    """
    used = _values_in_use(read, threads, cpus)
    return any(low <= value < high for value in used for low, high in ranges)


def _values_in_use(read: Read, threads: Threads, cpus: Sequence[OnCpu]) -> Iterator[int]:
    """Yield the registers of these CPUs, then the words of the used parts of all threads'
    stacks."""
    for values, _ in cpus:
        yield from values
    pointers = [pointer for _, pointer in cpus]
    for thread in all_threads(read, threads):
        for start, end in _used(threads, thread, pointers):
            yield from _words(read, start, end)


def unused_by_stacks(
    target: Target, isa: Isa, threads: Threads, ended: Sequence[EndedCode]
) -> tuple[EndedCode, ...]:
    """Return those pieces of ended code that no thread executes, or will return to; () if the
    threads cannot be read. The machine must be stopped.

    Unlike unused() of return_addresses.py, this needs the system to know where threads and stacks
    are, and ignores old values in memory."""
    every = [target.registers(cpu) for cpu in range(target.cpus)]
    in_kernel = [each for each in every if not isa.paging.in_user_mode(each)]
    cpus = [(each.values(), each[isa.sp]) for each in in_kernel]
    try:
        used = set(_values_in_use(target.read, threads, cpus))
    except TargetError:
        return ()
    live = np.array(sorted(value for value in used if 0 <= value < 1 << 64), np.uint64)
    return tuple(one for one in ended if not is_entered(one, live))


class _Fields:
    """Reader of the fields of a thread's structure: one read of memory gets them all."""

    def __init__(self, read: Read, threads: Threads, address: int) -> None:
        offsets = (
            threads.next, threads.group, threads.node, threads.stack, threads.pointer,
            max(threads.running, threads.next),
        )  # fmt: skip
        self.address = address
        self._first = min(offsets)
        self._data = read(address + self._first, max(offsets) + 8 - self._first)

    def word(self, offset: int, size: int = 8) -> int:
        at = offset - self._first
        return int.from_bytes(self._data[at : at + size], "little")


def all_threads(read: Read, threads: Threads) -> Iterator[_Fields]:
    """Yield all threads of the kernel. Raises TargetError if a list of threads has no end."""
    process, count = _Fields(read, threads, threads.first), 0
    while True:
        head = process.word(threads.group) + threads.head
        node = int.from_bytes(read(head, 8), "little")
        if node == head:
            yield process
        while node != head:
            thread = _Fields(read, threads, node - threads.node)
            yield thread
            node = thread.word(threads.node)
            count += 1
            if count > MOST_THREADS:
                raise TargetError("the guest's list of threads is damaged: it has no end")
        following = process.word(threads.next) - threads.next
        if following == threads.first:
            return
        process = _Fields(read, threads, following)
        count += 1
        if count > MOST_THREADS:
            raise TargetError("the guest's list of processes is damaged: it has no end")


def _used(threads: Threads, thread: _Fields, pointers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the range [start, end) of addresses of the used part of a thread's stack; nothing if
    no part is in use.

    Args:
        pointers: stack pointers of the CPUs that are in the kernel.
    """
    base = thread.word(threads.stack)
    end = base + threads.size
    running_at = [pointer for pointer in pointers if base <= pointer < end]
    if running_at:
        yield running_at[0], end
        return
    if threads.running >= 0 and thread.word(threads.running, 1):
        # Its CPU is in user mode and the stack is empty, or the CPU is on a stack for interrupts.
        if pointers:
            yield base, end
        return
    pointer = thread.word(threads.pointer)
    if base <= pointer < end:
        yield pointer, end


def _words(read: Read, start: int, end: int) -> Sequence[int]:
    start &= -8
    data = b""
    with suppress(TargetError):  # the stack of a thread that ends may be freed
        data = read(start, end - start)
    return struct.unpack(f"<{len(data) // 8}Q", data[: len(data) & -8])
