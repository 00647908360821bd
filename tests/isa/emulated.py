"""Original against displaced code in an emulator, run from the same state."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from unicorn import UC_ARCH_X86, UC_MEM_WRITE, UC_MODE_64
from unicorn import x86_const as x

from tests.isa import emulation
from tests.isa.emulation import MASK, PAGE, Emulator, EmulatorError, Uc

__all__ = ["PAGE", "EmulatorError", "Machine", "Outcome", "State"]

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
STACK = 0xFFFF_C900_0000_0000
SCRATCH = 0xFFFF_FFFF_9FE0_0000


@dataclass(frozen=True)
class State:
    """State before the code runs; `seed` determines the content of all memory."""

    registers: Mapping[str, int]
    gs_base: int
    fs_base: int
    seed: int


@dataclass(frozen=True)
class Outcome(emulation.Outcome):
    """Outcome of a run; registers include rip and eflags."""

    def differences(self, other: emulation.Outcome, *dead: tuple[int, int]) -> list[str]:
        """Return differences as emulation.Outcome does.

        Args:
            dead: stack below the initial stack pointer, which may differ where this outcome's code
                wrote nothing.
        """
        return super().differences(other, *dead) + [
            # Bytes that this outcome's code wrote there must be the same.
            f"stack at {address:#x}"
            for kind, address, size in self.accesses
            if kind == UC_MEM_WRITE
            and any(low <= address < high for low, high in dead)
            and self.byte_range(address, size) != other.byte_range(address, size)
        ]


def random_state(rng: random.Random, *, tame: bool, count: bool) -> State:
    """Return a random state.

    Args:
        tame: registers hold aligned pointers and small numbers, so that hardly any code faults.
        count: rcx is a small count (string instructions).
    """
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


class Machine(Emulator):
    def __init__(self, text_address: int, text: bytes) -> None:
        super().__init__(Uc(UC_ARCH_X86, UC_MODE_64), text_address, text, SCRATCH, b"\x90")
        self.with_vectors = False

    def run(self, state: State, start: int, size: int, also: tuple[int, int] = (0, 0)) -> Outcome:
        """Run from start until control is outside [start, start + size) and outside `also`."""
        self.prepare(state.seed, (start, start + size), also)
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
        self.go(start)
        values = dict(zip(NAMES, uc.reg_read_batch(_ALL_IDS), strict=True))
        values["rip"] = self.next
        vectors = tuple(map(uc.reg_read, _VECTOR)) if self.with_vectors else ()
        found = self.outcome(values, vectors)
        return Outcome(values, found.memory, found.before, found.accesses, vectors)
