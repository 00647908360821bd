"""Original against displaced riscv64 code in an emulator: the same state in, compare out."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import unicorn
from unicorn import (
    UC_ARCH_RISCV,
    UC_CTL_IO_WRITE,
    UC_CTL_TLB_FLUSH,
    UC_HOOK_CODE,
    UC_HOOK_MEM_READ,
    UC_HOOK_TLB_FILL,
    UC_MEM_FETCH,
    UC_MODE_RISCV64,
    UC_PROT_ALL,
    UC_TLB_VIRTUAL,
)
from unicorn import riscv_const as r

_UNICORN: Any = unicorn  # it comes without types
Uc, UcError = _UNICORN.Uc, _UNICORN.UcError

PAGE = 4096
MASK = (1 << 64) - 1
GENERAL = tuple(f"x{n}" for n in range(1, 32))
_IDS = [getattr(r, f"UC_RISCV_REG_X{n}") for n in range(1, 32)]
STACK = 0xFFFF_FFC6_0000_0000
SCRATCH = 0xFFFF_FFFF_8400_0000
SCRATCH_SIZE = 2 << 20
TEXT_AT, SCRATCH_AT, POOL_AT, POOL = 0x1000_0000, 0x4000_0000, 0x5000_0000, 48
NOWHERE = -1
SUPERVISOR = 1
SIE, SUM = 1 << 1, 1 << 18
# What a trap, and the way back, may change: SPIE and SPP.
LOST = 1 << 5 | 1 << 8
MAX_STEPS = 4096


@dataclass(frozen=True)
class State:
    """What code starts from.  seed decides the content of all memory."""

    registers: Mapping[str, int]
    sstatus: int
    seed: int


@dataclass(frozen=True)
class Outcome:
    """registers with pc and sstatus (without LOST); memory: page address to content, of pages
    that changed; reads: (address, size)."""

    registers: Mapping[str, int]
    memory: Mapping[int, bytes]
    before: Mapping[int, bytes]
    reads: tuple[tuple[int, int], ...]

    def differences(self, other: Outcome, *dead: tuple[int, int]) -> list[str]:
        """What differs, as text; dead: [start, end) of memory that may differ."""
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
        return found

    def word(self, address: int) -> int:
        """The u64 in memory after the run."""
        page, offset = address & -PAGE, address % PAGE
        content = self.memory.get(page) or self.before[page]
        return int.from_bytes(content[offset : offset + 8], "little")


class EmulatorError(Exception):
    """The emulator could not run it."""


def random_state(rng: random.Random, *, tame: bool) -> State:
    """tame: registers hold aligned pointers and small numbers."""
    registers = {}
    for name in GENERAL:
        kind = rng.random()
        pointer = 0xFFFF_FFD6_0000_0000 + rng.randrange(1 << 30)
        if tame:
            registers[name] = pointer & -64 if kind < 0.7 else rng.randrange(64)
        elif kind < 0.4:
            registers[name] = pointer & -2
        elif kind < 0.6:
            registers[name] = rng.choice((0, 1, MASK, 1 << 63, (1 << 31) - 1, 1 << 31, 0x7F))
        else:
            registers[name] = rng.getrandbits(64)
    registers["x2"] = STACK + 0x8000 + 16 * rng.randrange(128)
    return State(registers, rng.choice((0, SIE)) | rng.choice((0, SUM)), rng.getrandbits(32))


class Machine:
    """Kernel text at its address, scratch for displaced code, all other memory on demand."""

    def __init__(self, text_address: int, text: bytes) -> None:
        self.uc: Any = Uc(UC_ARCH_RISCV, UC_MODE_RISCV64)
        uc = self.uc
        uc.ctl_set_tlb_mode(UC_TLB_VIRTUAL)
        start = text_address & -PAGE
        self._text = (start, start + ((len(text) + text_address - start + PAGE - 1) & -PAGE))
        uc.mem_map(TEXT_AT, self._text[1] - start)
        uc.mem_write(TEXT_AT + text_address - start, text)
        uc.mem_map(SCRATCH_AT, SCRATCH_SIZE)
        uc.mem_map(POOL_AT, (POOL + 1) * PAGE)
        uc.mem_write(POOL_AT + POOL * PAGE, b"\x01\0" * (PAGE // 2))
        self._pages: dict[int, tuple[int, bytes]] = {}
        self._order: list[int] = []
        self._reads: list[tuple[int, int]] = []
        self._ranges: tuple[tuple[int, int], ...] = ()
        self._steps, self._next, self._free, self._seed = 0, NOWHERE, SCRATCH, 0
        self.watch = -1  # an address of code ...
        self.watched: dict[str, int] = {}  # ... and the registers when it was reached
        self._blocks = [random.Random(n).randbytes(PAGE) for n in range(16)]
        uc.hook_add(UC_HOOK_CODE, self._on_code)
        uc.hook_add(UC_HOOK_TLB_FILL, self._on_fill)
        uc.hook_add(UC_HOOK_MEM_READ, self._on_read)

    def place(self, code: bytes, at: int) -> None:
        self.uc.mem_write(at - SCRATCH + SCRATCH_AT, code)

    def reserve(self, size: int) -> int:
        """A place in scratch of this size; from its start again when it is full."""
        if self._free + size + 64 > SCRATCH + SCRATCH_SIZE - PAGE:
            self._free = SCRATCH
            self.uc.ctl_flush_tb()
        at = self._free
        self._free += (size + 31) & -16
        return at

    def content(self, page: int) -> bytes:
        """What a page of demand memory holds before a run."""
        block, turn = self._blocks[page >> 12 & 15], self._seed % PAGE & ~7
        return block[turn:] + block[:turn]

    def now(self) -> dict[str, int]:
        values = dict(zip(GENERAL, self.uc.reg_read_batch(_IDS), strict=True))
        values["sstatus"] = self.uc.reg_read(r.UC_RISCV_REG_SSTATUS)
        return values

    def run(self, state: State, start: int, size: int, *also: tuple[int, int]) -> Outcome:
        """Run from start until control is outside [start, start + size) and outside `also`."""
        self._seed = state.seed
        self._reads, self._order, self._steps, self._next = [], [], 0, NOWHERE
        self._ranges = ((start, start + size), *also)
        self.watched = {}
        uc = self.uc
        uc.reg_write(r.UC_RISCV_REG_PRIV, SUPERVISOR)
        uc.reg_write(r.UC_RISCV_REG_SSTATUS, state.sstatus)
        uc.reg_write(r.UC_RISCV_REG_SEPC, 0)
        uc.reg_write_batch([(i, state.registers[n]) for i, n in zip(_IDS, GENERAL, strict=True)])
        try:
            uc.emu_start(start, 0)
            values = self.now()
            values["sstatus"] &= ~LOST
            values["pc"] = self._next
            values["privilege"] = uc.reg_read(r.UC_RISCV_REG_PRIV)
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
            return Outcome(values, memory, before, tuple(self._reads))
        except UcError as error:
            raise EmulatorError(str(error)) from error
        finally:
            self._pages.clear()
            uc.ctl(UC_CTL_TLB_FLUSH, UC_CTL_IO_WRITE)

    def _on_code(self, uc: Any, address: int, _size: int, _data: Any) -> None:
        address &= MASK
        self._steps += 1
        if address == self.watch:
            self.watched = self.now()
        inside = any(low <= address < high for low, high in self._ranges)
        if not inside or self._steps > MAX_STEPS:
            self._next = address
            uc.emu_stop()

    def _on_read(self, _uc: Any, _k: int, address: int, size: int, _v: int, _data: Any) -> None:
        number, offset = divmod((address & MASK) - POOL_AT, PAGE)
        if 0 <= number < len(self._order):
            self._reads.append((self._order[number] + offset, size))

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
            entry.paddr = POOL_AT + POOL * PAGE
        elif len(self._pages) == POOL:
            return False
        else:
            content = self.content(page)
            entry.paddr = POOL_AT + len(self._pages) * PAGE
            uc.mem_write(entry.paddr, content)
            self._pages[page] = (entry.paddr, content)
            self._order.append(page)
        return True
