"""Code that QEMU has translated wrong, and how it is made to translate it again.

Linux changes its own code while other CPUs run it (jump labels, static calls: text_poke_bp in
arch/x86/kernel/alternative.c): a breakpoint over the first byte, the bytes behind it, the first
byte.  QEMU's TCG with a thread for each CPU can lose such a write: a CPU that translates the code
just then keeps what it has read.  Seen with QEMU 7.2, in one of some hundred boots: both CPUs ran
into a breakpoint in hrtimer_start_range_ns (timers_migration_enabled) for ever, which was in no
byte of memory; the kernel's handler found it gone and went back to it.  Writing the same bytes
through QEMU, which then forgets its translations of them, sets the guest going.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from kinst.core.errors import TargetError
from kinst.core.isa import Isa
from kinst.core.page_tables import Paging
from kinst.core.words import PAGE
from kinst.machines.stub.memory import GuestMemory, Physical

_STACK = 2048  # bytes of a CPU's stack in which return addresses are looked for
_TEXT = 64 << 20  # behind its start a kernel's text has ended


def code_at_hand(isa: Isa, physical: Physical, registers: Mapping[str, int]) -> set[int]:
    """Pages (physical addresses) of kernel code where a CPU with these registers is, and of all
    that its stack may return to; none where its page tables or stack cannot be read."""
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
    found = set()
    for word in (registers[isa.pc], *words):
        leaf = paging.walk(physical.read_physical, root, word)
        if leaf is not None and leaf.executable and not leaf.user:
            found.add((leaf.physical + word - leaf.address) & -PAGE)
    return _in_memory(physical, found)


def _in_memory(physical: Physical, pages: Iterable[int]) -> set[int]:
    """Those of the pages that are there: what a CPU has for page tables that is not in the kernel
    yet may lead anywhere."""
    found = set()
    for page in pages:
        with contextlib.suppress(TargetError):
            physical.read_physical(page, PAGE)
            found.add(page)
    return found


def all_code(
    paging: Paging, image: tuple[int, int], physical: Physical, registers: Mapping[str, int]
) -> set[int]:
    """All pages of kernel text, by the page tables of a CPU with these registers; none where
    there is none yet.  image: where the kernel may be mapped."""
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
