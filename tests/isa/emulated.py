"""Original against displaced code in an emulator (unicorn): the same state in, compare out."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import unicorn
from unicorn import (
    UC_ARCH_X86,
    UC_CTL_IO_WRITE,
    UC_CTL_TLB_FLUSH,
    UC_HOOK_CODE,
    UC_HOOK_MEM_READ,
    UC_HOOK_MEM_WRITE,
    UC_HOOK_TLB_FILL,
    UC_MEM_FETCH,
    UC_MEM_WRITE,
    UC_MODE_64,
    UC_PROT_ALL,
    UC_PROT_EXEC,
    UC_TLB_VIRTUAL,
)
from unicorn import x86_const as x

_UNICORN: Any = unicorn  # it comes without types
Uc, UcError = _UNICORN.Uc, _UNICORN.UcError

PAGE = 4096
GENERAL = (
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
)  # fmt: skip
_IDS = [getattr(x, f"UC_X86_REG_{name.upper()}") for name in GENERAL]
_ALL_IDS = [*_IDS, x.UC_X86_REG_RIP, x.UC_X86_REG_EFLAGS]
_VECTOR = [getattr(x, f"UC_X86_REG_XMM{n}") for n in range(16)]
NAMES = (*GENERAL, "rip", "eflags")
ARITHMETIC = 0x8D5
DIRECTION, INTERRUPT, FIXED, TRAP = 0x400, 0x200, 0x2, 0x100
MASK = (1 << 64) - 1
STACK = 0xFFFF_C900_0000_0000
SCRATCH = 0xFFFF_FFFF_9FE0_0000
SCRATCH_SIZE = 2 << 20
MAX_STEPS = 4096
NOWHERE = -1
# The emulator's physical memory.
TEXT_AT, SCRATCH_AT, POOL_AT, POOL = 0x1000_0000, 0x4000_0000, 0x5000_0000, 48
NOPS_AT = POOL_AT + POOL * PAGE


@dataclass(frozen=True)
class State:
    """What an instruction starts from.  seed decides the content of all memory."""

    registers: Mapping[str, int]
    gs_base: int
    fs_base: int
    seed: int


@dataclass(frozen=True)
class Outcome:
    """registers with rip and eflags; memory: page address to content, of pages that changed;
    before: what they held at the start."""

    registers: Mapping[str, int]
    memory: Mapping[int, bytes]
    before: Mapping[int, bytes]
    vectors: tuple[int, ...]
    accesses: tuple[
        tuple[int, int, int], ...
    ]  # (UC_MEM_*, address, size) of what it reads and writes

    def differences(self, other: Outcome, below: tuple[int, int] = (0, 0)) -> list[str]:
        """What differs, as text.  below: [start, end) of stack below the stack
        pointer at the start: it may differ where this outcome's code wrote nothing."""
        found = [
            f"{name}: {value:#x} != {other.registers[name]:#x}"
            for name, value in self.registers.items()
            if value != other.registers[name]
        ]
        for page in sorted({*self.memory, *other.memory}):
            before = self.before.get(page) or other.before[page]
            a, b = self.memory.get(page, before), other.memory.get(page, before)
            if a != b:
                at = [page + i for i in range(PAGE) if a[i] != b[i]]
                at = [i for i in at if not below[0] <= i < below[1]]
                if at:
                    found.append(f"memory at {at[0]:#x} ({len(at)} bytes)")
        if self.vectors != other.vectors:
            found.append("vector registers")
        if below[1]:
            # What this one wrote there itself must be there.
            found += [
                f"stack at {address:#x}"
                for kind, address, size in self.accesses
                if kind == UC_MEM_WRITE
                and below[0] <= address < below[1]
                and self.byte_range(address, size) != other.byte_range(address, size)
            ]
        return found

    def byte_range(self, address: int, size: int) -> bytes:
        """Memory after the run."""
        page, offset = address & -PAGE, address % PAGE
        content = self.memory.get(page) or self.before[page]
        return content[offset : offset + size]


class EmulatorError(Exception):
    """The emulator could not run it: an exception of the processor, or an unknown instruction."""


def random_state(rng: random.Random, *, tame: bool, count: bool) -> State:
    """tame: registers hold aligned pointers and small numbers, so that hardly anything faults.
    count: rcx is a small count (string instructions)."""
    registers = {}
    for name in GENERAL:
        kind = rng.random()
        pointer = 0xFFFF_8880_0000_0000 + rng.randrange(1 << 30)
        if tame:
            registers[name] = pointer & -64 if kind < 0.7 else rng.randrange(64)
        elif kind < 0.4:
            registers[name] = pointer
        elif kind < 0.6:
            registers[name] = rng.choice((0, 1, MASK, 1 << 63, (1 << 31) - 1, 1 << 31, 0x7F, 0x80))
        else:
            registers[name] = rng.getrandbits(64)
    registers["rsp"] = STACK + 0x8000 + 8 * rng.randrange(256)
    if tame:
        registers["rdx"] = rng.randrange(2)
    if count:
        registers["rcx"] = rng.randrange(20)
    flags = FIXED | rng.getrandbits(12) & (ARITHMETIC | DIRECTION | INTERRUPT)
    registers["eflags"] = flags
    base = 0xFFFF_8881_0000_0000
    return State(registers, base + PAGE * rng.randrange(64), base + (1 << 30), rng.getrandbits(32))


class Machine:
    """Kernel text at its address, scratch for displaced code, all other memory on demand.

    The emulator maps no addresses of the upper half by itself, so its TLB is filled from here:
    text, scratch, and a pool of pages given out as they are touched, are its physical memory.
    """

    def __init__(self, text_address: int, text: bytes) -> None:
        self.uc: Any = Uc(UC_ARCH_X86, UC_MODE_64)
        uc = self.uc
        uc.ctl_set_tlb_mode(UC_TLB_VIRTUAL)
        self._text = (text_address, text_address + ((len(text) + PAGE - 1) & -PAGE))
        uc.mem_map(TEXT_AT, self._text[1] - self._text[0])
        uc.mem_write(TEXT_AT, text)
        uc.mem_map(SCRATCH_AT, SCRATCH_SIZE)
        uc.mem_map(POOL_AT, (POOL + 1) * PAGE)
        uc.mem_write(NOPS_AT, b"\x90" * PAGE)
        self.with_vectors = False
        self._seed = 0
        self._pages: dict[int, tuple[int, bytes]] = {}  # address to physical, content before
        self._range = self._also = (0, 0)
        self._steps = self._next = 0
        self._free = SCRATCH
        self._blocks: dict[int, bytes] = {}
        uc.hook_add(UC_HOOK_CODE, self._on_code)
        self._order: list[int] = []
        self._accesses: list[tuple[int, int, int]] = []
        uc.hook_add(UC_HOOK_TLB_FILL, self._on_fill)
        uc.hook_add(UC_HOOK_MEM_READ | UC_HOOK_MEM_WRITE, self._on_access)

    def reserve(self, size: int) -> int:
        """A place in scratch of this size; from its start again when it is full."""
        if self._free + size + 64 > SCRATCH + SCRATCH_SIZE:
            self._free = SCRATCH
            self.uc.ctl_flush_tb()
        at = self._free
        self._free += (size + 31) & -16
        return at

    def write_code(self, at: int, code: bytes) -> None:
        self.uc.mem_write(at - SCRATCH + SCRATCH_AT, code)

    def content(self, page: int) -> bytes:
        """What a page of demand memory holds before a run."""
        number = page >> 12 & 15
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = random.Random(number).randbytes(PAGE)
        turn = self._seed % PAGE & ~7
        return block[turn:] + block[:turn]

    def run(self, state: State, start: int, size: int, also: tuple[int, int] = (0, 0)) -> Outcome:
        """Run from start until control is outside [start, start + size) and outside `also`."""
        self._seed = state.seed
        self._accesses, self._order = [], []
        self._range, self._also, self._steps = (start, start + size), also, 0
        self._next = NOWHERE
        uc = self.uc
        uc.reg_write(x.UC_X86_REG_GS_BASE, state.gs_base)
        uc.reg_write(x.UC_X86_REG_FS_BASE, state.fs_base)
        if self.with_vectors:
            for n, register in enumerate(_VECTOR):
                uc.reg_write(register, state.seed * 0x9E3779B97F4A7C15 + n)
        uc.reg_write_batch(
            [(i, state.registers[n]) for i, n in zip(_IDS, GENERAL, strict=True)]
            + [(x.UC_X86_REG_EFLAGS, state.registers["eflags"])]
        )
        try:
            uc.emu_start(start, 0)
            values = dict(zip(NAMES, uc.reg_read_batch(_ALL_IDS), strict=True))
            values["rip"] = self._next
            if self._next == NOWHERE:
                raise EmulatorError("an exception of the processor")
            if self._steps > MAX_STEPS:
                raise EmulatorError("it does not end")
            before = {page: was for page, (_, was) in self._pages.items()}
            memory = {
                page: now
                for page, (at, was) in self._pages.items()
                if (now := bytes(uc.mem_read(at, PAGE))) != was
            }
            vectors = tuple(map(uc.reg_read, _VECTOR)) if self.with_vectors else ()
            return Outcome(values, memory, before, vectors, tuple(self._accesses))
        except UcError as error:
            raise EmulatorError(str(error)) from error
        finally:
            self._pages.clear()
            uc.ctl(UC_CTL_TLB_FLUSH, UC_CTL_IO_WRITE)

    def _on_code(self, uc: Any, address: int, _size: int, _data: Any) -> None:
        self._steps += 1
        inside = self._range[0] <= address < self._range[1]
        inside |= self._also[0] <= address < self._also[1]
        if not inside or self._steps > MAX_STEPS:
            self._next = address  # the emulator's own rip is stale here
            uc.emu_stop()

    def _on_access(
        self, _uc: Any, kind: int, address: int, size: int, _value: int, _data: Any
    ) -> None:
        # Physical, not virtual: the pool's pages are in the order in which they were given out.
        number, offset = divmod(address - POOL_AT, PAGE)
        if 0 <= number < len(self._order):
            self._accesses.append((kind, self._order[number] + offset, size))

    def _on_fill(self, uc: Any, address: int, access: int, entry: Any, _data: Any) -> bool:
        page = address & MASK & -PAGE
        entry.perms = UC_PROT_ALL
        if self._text[0] <= page < self._text[1]:
            entry.paddr = page - self._text[0] + TEXT_AT
        elif SCRATCH <= page < SCRATCH + SCRATCH_SIZE:
            entry.paddr = page - SCRATCH + SCRATCH_AT
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
        return True
