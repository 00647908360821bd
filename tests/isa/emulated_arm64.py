"""AArch64 code in an emulator (unicorn): a state in, an outcome out."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import unicorn
from unicorn import (
    UC_ARCH_ARM64,
    UC_CTL_IO_WRITE,
    UC_CTL_TLB_FLUSH,
    UC_HOOK_CODE,
    UC_HOOK_INTR,
    UC_HOOK_TLB_FILL,
    UC_MEM_FETCH,
    UC_MODE_ARM,
    UC_PROT_ALL,
    UC_PROT_EXEC,
    UC_TLB_VIRTUAL,
)
from unicorn import arm64_const as a

_UNICORN: Any = unicorn  # it comes without types
Uc, UcError = _UNICORN.Uc, _UNICORN.UcError

PAGE = 4096
MASK = (1 << 64) - 1
STACK = 0xFFFF_8000_0D00_0000
SCRATCH = 0xFFFF_8000_0400_0000
SCRATCH_SIZE = 2 << 20
SMALLEST_PAGE = 1024  # what the emulator asks for at a time
MAX_STEPS = 2000
TEXT_AT, SCRATCH_AT, POOL_AT, POOL = 0x1000_0000, 0x4000_0000, 0x5000_0000, 48
NOPS_AT = POOL_AT + POOL * PAGE
NAMES = tuple(f"x{n}" for n in range(31))
_IDS = [getattr(a, f"UC_ARM64_REG_X{n}") for n in range(31)]
_VECTORS = [getattr(a, f"UC_ARM64_REG_Q{n}") for n in range(32)]
_PSTATE_KEPT = 0xF000_03C0  # NZCV and DAIF
NOP = bytes.fromhex("1f2003d5")


@dataclass(frozen=True)
class State:
    """What code starts from.  seed decides the content of all memory and vector registers."""

    registers: Mapping[str, int]
    per_cpu: int
    seed: int


@dataclass(frozen=True)
class Outcome:
    """registers with sp, pc and pstate (NZCV, DAIF); memory: page address to (before, after)."""

    registers: Mapping[str, int]
    memory: Mapping[int, tuple[bytes, bytes]]
    vectors: tuple[int, ...]

    def changed(self, low: int = 0, high: int = 0) -> dict[int, int]:
        """Address to new value of every byte that changed, but for [low, high)."""
        return {
            page + i: after[i]
            for page, (before, after) in self.memory.items()
            if before != after
            for i in range(PAGE)
            if before[i] != after[i] and not low <= page + i < high
        }

    def differences(self, other: Outcome, below: tuple[int, int] = (0, 0)) -> list[str]:
        """What differs, as text.  below: [start, end) of stack that does not count."""
        found = [
            f"{name}: {value:#x} != {other.registers[name]:#x}"
            for name, value in self.registers.items()
            if value != other.registers[name]
        ]
        if self.changed(*below) != other.changed(*below):
            found.append("memory")
        if self.vectors != other.vectors:
            found.append("vector registers")
        return found

    def word(self, address: int) -> int:
        """The 8 bytes at an address after the run."""
        page, offset = address & -PAGE, address % PAGE
        return int.from_bytes(self.memory[page][1][offset : offset + 8], "little")

    def word_before(self, address: int) -> int:
        page, offset = address & -PAGE, address % PAGE
        return int.from_bytes(self.memory[page][0][offset : offset + 8], "little")


class EmulatorError(Exception):
    """The emulator could not run it: an exception of the processor, or an unknown instruction."""


def random_state(rng: random.Random, *, tame: bool = False) -> State:
    """tame: registers hold aligned pointers and small numbers, so that hardly anything faults."""
    registers = {}
    for name in NAMES:
        kind = rng.random()
        pointer = 0xFFFF_0000_0000_0000 + rng.randrange(1 << 30)
        if tame:
            registers[name] = pointer & -64 if kind < 0.7 else rng.randrange(64)
        elif kind < 0.4:
            registers[name] = pointer
        elif kind < 0.6:
            registers[name] = rng.choice((0, 0, 1, MASK, 1 << 63, (1 << 31) - 1, 1 << 31))
        else:
            registers[name] = rng.getrandbits(64)
    registers["sp"] = STACK + 0x8000 + 16 * rng.randrange(256)
    registers["pstate"] = rng.getrandbits(4) << 28 | rng.getrandbits(4) << 6
    per_cpu = 0xFFFF_0000_8000_0000 + PAGE * rng.randrange(64)
    return State(registers, per_cpu, rng.getrandbits(32))


class Machine:
    """Text at its address, scratch for displaced code, all other memory on demand."""

    def __init__(self, text_address: int, text: bytes) -> None:
        self.uc: Any = Uc(UC_ARCH_ARM64, UC_MODE_ARM)
        uc = self.uc
        uc.ctl_set_tlb_mode(UC_TLB_VIRTUAL)
        self._text = (text_address, text_address + ((len(text) + PAGE - 1) & -PAGE))
        uc.mem_map(TEXT_AT, self._text[1] - self._text[0])
        uc.mem_write(TEXT_AT, text)
        uc.mem_map(SCRATCH_AT, SCRATCH_SIZE)
        uc.mem_map(POOL_AT, (POOL + 1) * PAGE)
        uc.mem_write(NOPS_AT, NOP * (PAGE // 4))
        uc.reg_write(a.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # vector registers may be used
        self._seed = 0
        self._pages: dict[int, tuple[int, bytes]] = {}
        self._ranges: tuple[tuple[int, int], ...] = ()
        self._steps = 0
        self._next = -1
        self._trapped = False
        self._free = SCRATCH
        self._blocks: dict[int, bytes] = {}
        uc.hook_add(UC_HOOK_CODE, self._on_code)
        uc.hook_add(UC_HOOK_INTR, self._on_exception)
        uc.hook_add(UC_HOOK_TLB_FILL, self._on_fill)

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

    def run(self, state: State, start: int, *ranges: tuple[int, int]) -> Outcome:
        """Run from start until control is outside every [start, end) of ranges."""
        uc = self.uc
        self._seed, self._ranges, self._steps = state.seed, ranges, 0
        self._next, self._trapped = -1, False
        rng = random.Random(state.seed)
        for register in _VECTORS:
            uc.reg_write(register, rng.getrandbits(128))
        for name, register in zip(NAMES, _IDS, strict=True):
            uc.reg_write(register, state.registers[name])
        uc.reg_write(a.UC_ARM64_REG_TPIDR_EL1, state.per_cpu)
        uc.reg_write(a.UC_ARM64_REG_PSTATE, state.registers["pstate"] | 5)  # EL1, SP_EL1
        uc.reg_write(a.UC_ARM64_REG_SP, state.registers["sp"])
        try:
            uc.emu_start(start, 0)
            if self._trapped or self._next < 0:
                raise EmulatorError("an exception of the processor")
            if self._steps > MAX_STEPS:
                raise EmulatorError("it does not end")
            values = {n: uc.reg_read(i) for n, i in zip(NAMES, _IDS, strict=True)}
            values["sp"] = uc.reg_read(a.UC_ARM64_REG_SP)
            values["pstate"] = uc.reg_read(a.UC_ARM64_REG_PSTATE) & _PSTATE_KEPT
            values["pc"] = self._next
            memory = {
                page: (was, bytes(uc.mem_read(at, PAGE))) for page, (at, was) in self._pages.items()
            }
            return Outcome(values, memory, tuple(map(uc.reg_read, _VECTORS)))
        except UcError as error:
            raise EmulatorError(str(error)) from error
        finally:
            self._pages.clear()
            uc.ctl(UC_CTL_TLB_FLUSH, UC_CTL_IO_WRITE)

    def _on_code(self, uc: Any, address: int, _size: int, _data: Any) -> None:
        self._steps += 1
        inside = any(low <= address < high for low, high in self._ranges)
        if not inside or self._steps > MAX_STEPS:
            self._next = address
            uc.emu_stop()

    def _on_exception(self, uc: Any, _number: int, _data: Any) -> None:
        self._trapped = True
        uc.emu_stop()

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
        entry.paddr += address % PAGE & -SMALLEST_PAGE
        return True
