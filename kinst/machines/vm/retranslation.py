"""Code that QEMU must translate again, because its translation is older than the code in memory.

Linux changes its own code while other CPUs run it (jump labels, static calls: text_poke_bp in
arch/x86/kernel/alternative.c). It writes a breakpoint over the first byte of an instruction, then
the other new bytes, then the new first byte. QEMU's TCG with a thread for each CPU can miss such a
write: a CPU that translates the code at that moment keeps the translation of the old bytes.

This was seen with QEMU 7.2, in one of some hundred boots. Both CPUs executed a breakpoint in
hrtimer_start_range_ns (timers_migration_enabled) that was no longer in memory. The kernel's handler
found no breakpoint there and returned, so the CPUs executed it again, for ever. In such a case
kinst writes the same bytes through QEMU. QEMU then discards its translations of these bytes, and
the guest continues.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.page_tables import Paging
from kinst.core.words import PAGE
from kinst.machines.stub.memory import GuestMemory, Physical

_STACK = 2048  # bytes of a CPU's stack that are searched for return addresses
_TEXT = 64 << 20  # more than the size of a kernel's text


def code_at_hand(isa: Isa, physical: Physical, registers: Mapping[str, int]) -> set[int]:
    """Return the physical addresses of the pages of kernel code that a stopped CPU executes, or may
    return to by an address on its stack.

    If the stack is not mapped, only the page that the CPU executes is returned. Raises TargetError
    if the CPU's page tables are outside of RAM.

    Args:
        registers: the CPU's registers.
    """
    paging = isa.paging
    root = paging.root_of(registers)
    memory = GuestMemory(paging, physical, (0, 0))
    memory.set_root(root)
    stack = registers[isa.sp] & -8
    try:
        raw = memory.read(stack, min(_STACK, PAGE - stack % PAGE))
    except TargetError:
        raw = b""
    words = [int.from_bytes(raw[k : k + 8], "little") for k in range(0, len(raw), 8)]
    pages = set()
    for word in (registers[isa.pc], *words):
        leaf = paging.walk(physical.read_physical, root, word)
        if leaf is not None and leaf.executable and not leaf.user:
            pages.add((leaf.physical + word - leaf.address) & -PAGE)
    return _in_memory(physical, pages)


def _in_memory(physical: Physical, pages: Iterable[int]) -> set[int]:
    """Return those pages that are in RAM, by their physical addresses.

    Before the kernel has set up its page tables, those of a CPU may lead to any physical address,
    also to one outside of RAM.
    """
    present = set()
    for page in pages:
        with contextlib.suppress(TargetError):
            physical.read_physical(page, PAGE)
            present.add(page)
    return present


def all_code(
    paging: Paging, image: tuple[int, int], physical: Physical, registers: Mapping[str, int]
) -> set[int]:
    """Return the physical address of every page of kernel text; empty if no text is mapped yet.

    Args:
        image: virtual addresses [low, high) where the kernel may be mapped.
        registers: registers of a CPU, by whose page tables text is found.
    """
    read, root = physical.read_physical, paging.root_of(registers)
    try:
        start = paging.find_text(read, root, image)
    except TargetError:
        return set()
    pages = (
        page
        for leaf in paging.leaves(read, root, start, start + _TEXT)
        if leaf.executable
        for page in range(leaf.physical, leaf.physical + leaf.size, PAGE)
    )
    return _in_memory(physical, pages)
