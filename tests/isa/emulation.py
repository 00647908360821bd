"""Code in an emulator (unicorn), from a state to an outcome: the part that all instruction sets
share.

Each instruction set's registers are in emulated_ISA.py.  The emulator does not map addresses of
the upper half by itself, so its TLB is filled from here.  Its physical memory has text, scratch,
and a pool of pages that are allocated when they are touched.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import unicorn
from unicorn import (
    UC_CTL_IO_WRITE,
    UC_CTL_TLB_FLUSH,
    UC_HOOK_CODE,
    UC_HOOK_MEM_READ,
    UC_HOOK_MEM_WRITE,
    UC_HOOK_TLB_FILL,
    UC_MEM_FETCH,
    UC_MEM_READ,
    UC_PROT_ALL,
    UC_PROT_EXEC,
    UC_TLB_VIRTUAL,
)

_UNICORN: Any = unicorn  # it has no types
Uc, UcError = _UNICORN.Uc, _UNICORN.UcError

PAGE = 4096
MASK = (1 << 64) - 1
SCRATCH_SIZE = 2 << 20
MAX_STEPS = 4096
NOWHERE = -1
# The emulator's physical memory.
TEXT_AT, SCRATCH_AT, POOL_AT, POOL = 0x1000_0000, 0x4000_0000, 0x5000_0000, 48
NOPS_AT = POOL_AT + POOL * PAGE


class EmulatorError(Exception):
    """The emulator could not run the code: an exception of the processor, or an unknown
    instruction."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run.

    Attributes:
        registers: by name, as the ISA's Machine reads them.
        memory: content of the pages that changed, by address.
        before: content at the start of all pages that were touched.
        accesses: (UC_MEM_*, address, size) of reads and writes.
        vectors: values of vector registers, if they are compared.
    """

    registers: Mapping[str, int]
    memory: Mapping[int, bytes]
    before: Mapping[int, bytes]
    accesses: tuple[tuple[int, int, int], ...] = ()
    vectors: tuple[int, ...] = ()

    def differences(self, other: Outcome, *dead: tuple[int, int]) -> list[str]:
        """Return the differences as text.

        Args:
            dead: [start, end) of memory that may differ.
        """
        found = [
            f"{name}: {value:#x} != {other.registers[name]:#x}"
            for name, value in self.registers.items()
            if value != other.registers[name]
        ]
        for page in sorted({*self.memory, *other.memory}):
            was = self.before.get(page) or other.before[page]
            a, b = self.memory.get(page, was), other.memory.get(page, was)
            at = [page + i for i in range(PAGE) if a[i] != b[i]] if a != b else []
            at = [i for i in at if not any(low <= i < high for low, high in dead)]
            if at:
                found.append(f"memory at {at[0]:#x} ({len(at)} bytes)")
        if self.vectors != other.vectors:
            found.append("vector registers")
        return found

    def changed(self, low: int = 0, high: int = 0) -> dict[int, int]:
        """Return the new value of every byte that changed, by address, except in [low, high)."""
        return {
            page + i: after[i]
            for page, after in self.memory.items()
            for i in range(PAGE)
            if self.before[page][i] != after[i] and not low <= page + i < high
        }

    @property
    def reads(self) -> tuple[tuple[int, int], ...]:
        """Return (address, size) of reads."""
        return tuple(
            (address, size) for kind, address, size in self.accesses if kind == UC_MEM_READ
        )

    def byte_range(self, address: int, size: int) -> bytes:
        """Return memory after the run."""
        page, offset = address & -PAGE, address % PAGE
        content = self.memory.get(page) or self.before[page]
        return content[offset : offset + size]

    def word(self, address: int) -> int:
        """Return the 8 bytes at an address after the run."""
        return int.from_bytes(self.byte_range(address, 8), "little")

    def word_before(self, address: int) -> int:
        offset = address % PAGE
        return int.from_bytes(self.before[address & -PAGE][offset : offset + 8], "little")


class Emulator:
    """An emulator with kernel text at its address, scratch for displaced code, and other memory on
    demand.

    An ISA's Machine calls prepare(), sets registers, calls go(), reads them, and calls outcome().
    """

    smallest_page = PAGE  # bytes that one fill of the TLB maps

    def __init__(self, uc: Any, text_address: int, text: bytes, scratch: int, nop: bytes) -> None:
        self.uc = uc
        uc.ctl_set_tlb_mode(UC_TLB_VIRTUAL)
        start = text_address & -PAGE
        self._text = (start, start + ((len(text) + text_address - start + PAGE - 1) & -PAGE))
        uc.mem_map(TEXT_AT, self._text[1] - start)
        uc.mem_write(TEXT_AT + text_address - start, text)
        uc.mem_map(SCRATCH_AT, SCRATCH_SIZE)
        uc.mem_map(POOL_AT, (POOL + 1) * PAGE)
        uc.mem_write(NOPS_AT, nop * (PAGE // len(nop)))
        self._scratch = self._free = scratch
        self._pages: dict[int, tuple[int, bytes]] = {}  # by address: physical, content before
        self._order: list[int] = []
        self._accesses: list[tuple[int, int, int]] = []
        self._ranges: tuple[tuple[int, int], ...] = ()
        self._steps, self._seed = 0, 0
        self.next = NOWHERE  # where control left
        self.trapped = False
        self._blocks = [random.Random(n).randbytes(PAGE) for n in range(16)]
        uc.hook_add(UC_HOOK_CODE, self._on_code)
        uc.hook_add(UC_HOOK_TLB_FILL, self._on_fill)
        uc.hook_add(UC_HOOK_MEM_READ | UC_HOOK_MEM_WRITE, self._on_access)

    def reserve(self, size: int) -> int:
        """Return the address of so many bytes of scratch, from its start again if it is full.

        The last page of scratch is for the tests themselves.
        """
        if self._free + size + 64 > self._scratch + SCRATCH_SIZE - PAGE:
            self._free = self._scratch
            self.uc.ctl_flush_tb()
        at = self._free
        self._free += (size + 31) & -16
        return at

    def write_code(self, at: int, code: bytes) -> None:
        self.uc.mem_write(at - self._scratch + SCRATCH_AT, code)

    def content(self, page: int) -> bytes:
        """Return the content of a page of demand memory before a run."""
        block, turn = self._blocks[page >> 12 & 15], self._seed % PAGE & ~7
        return block[turn:] + block[:turn]

    def prepare(self, seed: int, *ranges: tuple[int, int]) -> None:
        """Prepare a run, before the registers are set: memory by seed, and the ranges in which
        go() stays."""
        self._seed, self._ranges = seed, ranges
        self._accesses, self._order, self._steps, self.next = [], [], 0, NOWHERE
        self.trapped = False

    def go(self, start: int) -> None:
        """Run from start until control is outside every [start, end) of ranges.

        Afterwards the registers are read, then outcome() is called.

        Raises:
            EmulatorError: the processor raised an exception, or the code does not end; the machine
                is then as new.
        """
        try:
            self.uc.emu_start(start, 0)
            if self.trapped or self.next == NOWHERE:
                raise EmulatorError("an exception of the processor")
            if self._steps > MAX_STEPS:
                raise EmulatorError("it does not end")
        except (UcError, EmulatorError) as error:
            self._forget()
            raise EmulatorError(str(error)) from error

    def outcome(self, registers: Mapping[str, int], vectors: tuple[int, ...] = ()) -> Outcome:
        before = {page: was for page, (_, was) in self._pages.items()}
        memory = {
            page: now
            for page, (at, was) in self._pages.items()
            if (now := bytes(self.uc.mem_read(at, PAGE))) != was
        }
        self._forget()
        return Outcome(registers, memory, before, tuple(self._accesses), vectors)

    def _forget(self) -> None:
        self._pages.clear()
        self.uc.ctl(UC_CTL_TLB_FLUSH, UC_CTL_IO_WRITE)

    def reached(self, address: int) -> None:
        """Do nothing; called before each instruction runs."""

    def _on_code(self, uc: Any, address: int, _size: int, _data: Any) -> None:
        address &= MASK
        self._steps += 1
        self.reached(address)
        inside = any(low <= address < high for low, high in self._ranges)
        if not inside or self._steps > MAX_STEPS:
            self.next = address  # the emulator's own program counter may be stale here
            uc.emu_stop()

    def _on_access(
        self, _uc: Any, kind: int, address: int, size: int, _value: int, _data: Any
    ) -> None:
        # Physical, not virtual: the pages of the pool are in order of allocation.
        number, offset = divmod((address & MASK) - POOL_AT, PAGE)
        if 0 <= number < len(self._order):
            self._accesses.append((kind, self._order[number] + offset, size))

    def _on_fill(self, uc: Any, address: int, access: int, entry: Any, _data: Any) -> bool:
        page = address & MASK & -PAGE
        entry.perms = UC_PROT_ALL
        if self._text[0] <= page < self._text[1]:
            entry.paddr = page - self._text[0] + TEXT_AT
        elif self._scratch <= page < self._scratch + SCRATCH_SIZE:
            entry.paddr = page - self._scratch + SCRATCH_AT
        elif page in self._pages:
            entry.paddr = self._pages[page][0]
        elif access == UC_MEM_FETCH:
            entry.paddr, entry.perms = NOPS_AT, UC_PROT_EXEC
        elif len(self._pages) == POOL:
            return False
        else:
            content = self.content(page)
            entry.paddr = POOL_AT + len(self._pages) * PAGE
            uc.mem_write(entry.paddr, content)
            self._pages[page] = (entry.paddr, content)
            self._order.append(page)
        entry.paddr += address % PAGE & -self.smallest_page
        return True
