"""Original against displaced riscv64 code in an emulator, run from the same state."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from unicorn import UC_ARCH_RISCV, UC_MODE_RISCV64
from unicorn import riscv_const as r

from tests.isa.emulation import MASK, PAGE, Emulator, EmulatorError, Outcome, Uc

__all__ = ["PAGE", "EmulatorError", "Machine", "Outcome", "State"]

GENERAL = tuple(f"x{n}" for n in range(1, 32))
_IDS = [getattr(r, f"UC_RISCV_REG_X{n}") for n in range(1, 32)]
STACK = 0xFFFF_FFC6_0000_0000
SCRATCH = 0xFFFF_FFFF_8400_0000
SUPERVISOR = 1
SIE, SUM = 1 << 1, 1 << 18
# Bits that a trap, and the return from it, may change: SPIE and SPP.
LOST = 1 << 5 | 1 << 8


@dataclass(frozen=True)
class State:
    """State before the code runs; `seed` determines the content of all memory."""

    registers: Mapping[str, int]
    sstatus: int
    seed: int


def random_state(rng: random.Random, *, tame: bool) -> State:
    """Return a random state; if tame, registers hold aligned pointers and small numbers."""
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


class Machine(Emulator):
    """The processor; registers of outcomes include pc, privilege and sstatus (without LOST)."""

    def __init__(self, text_address: int, text: bytes) -> None:
        uc = Uc(UC_ARCH_RISCV, UC_MODE_RISCV64)
        super().__init__(uc, text_address, text, SCRATCH, b"\x01\0")
        self.watch = -1  # an address of code ...
        self.watched: dict[str, int] = {}  # ... and the registers when it was reached

    def now(self) -> dict[str, int]:
        values = dict(zip(GENERAL, self.uc.reg_read_batch(_IDS), strict=True))
        values["sstatus"] = self.uc.reg_read(r.UC_RISCV_REG_SSTATUS)
        return values

    def run(self, state: State, start: int, size: int, *also: tuple[int, int]) -> Outcome:
        """Run from start until control is outside [start, start + size) and outside `also`."""
        self.prepare(state.seed, (start, start + size), *also)
        self.watched = {}
        uc = self.uc
        uc.reg_write(r.UC_RISCV_REG_PRIV, SUPERVISOR)
        uc.reg_write(r.UC_RISCV_REG_SSTATUS, state.sstatus)
        uc.reg_write(r.UC_RISCV_REG_SEPC, 0)
        uc.reg_write_batch([(i, state.registers[n]) for i, n in zip(_IDS, GENERAL, strict=True)])
        self.go(start)
        values = self.now()
        values["sstatus"] &= ~LOST
        values["pc"] = self.next
        values["privilege"] = uc.reg_read(r.UC_RISCV_REG_PRIV)
        return self.outcome(values)

    def reached(self, address: int) -> None:
        if address == self.watch:
            self.watched = self.now()
