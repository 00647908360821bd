"""AArch64 code in an emulator, from a state to an outcome."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unicorn import UC_ARCH_ARM64, UC_HOOK_INTR, UC_MODE_ARM
from unicorn import arm64_const as a

from tests.isa.emulation import MASK, PAGE, TEXT_AT, Emulator, EmulatorError, Outcome, Uc

__all__ = ["TEXT_AT", "EmulatorError", "Machine", "Outcome", "State"]

STACK = 0xFFFF_8000_0D00_0000
SCRATCH = 0xFFFF_8000_0400_0000
NAMES = tuple(f"x{n}" for n in range(31))
_IDS = [getattr(a, f"UC_ARM64_REG_X{n}") for n in range(31)]
_VECTORS = [getattr(a, f"UC_ARM64_REG_Q{n}") for n in range(32)]
_PSTATE_KEPT = 0xF000_03C0  # NZCV and DAIF
NOP = bytes.fromhex("1f2003d5")


@dataclass(frozen=True)
class State:
    """State before the code runs; `seed` determines the content of all memory and vector
    registers."""

    registers: Mapping[str, int]
    per_cpu: int
    seed: int


def random_state(rng: random.Random, *, tame: bool = False) -> State:
    """Return a random state; if tame, registers hold aligned pointers and small numbers, so that
    hardly any code faults."""
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


class Machine(Emulator):
    """The processor; registers of outcomes include sp, pc and pstate (NZCV, DAIF)."""

    smallest_page = 1024  # granularity in which the emulator asks for pages

    def __init__(self, text_address: int, text: bytes) -> None:
        super().__init__(Uc(UC_ARCH_ARM64, UC_MODE_ARM), text_address, text, SCRATCH, NOP)
        self.uc.reg_write(a.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # enable vector registers
        self.uc.hook_add(UC_HOOK_INTR, self._on_exception)

    def run(self, state: State, start: int, *ranges: tuple[int, int]) -> Outcome:
        """Run from start until control is outside every [start, end) of ranges."""
        uc = self.uc
        self.prepare(state.seed, *ranges)
        rng = random.Random(state.seed)
        for register in _VECTORS:
            uc.reg_write(register, rng.getrandbits(128))
        for name, register in zip(NAMES, _IDS, strict=True):
            uc.reg_write(register, state.registers[name])
        uc.reg_write(a.UC_ARM64_REG_TPIDR_EL1, state.per_cpu)
        uc.reg_write(a.UC_ARM64_REG_PSTATE, state.registers["pstate"] | 5)  # EL1, SP_EL1
        uc.reg_write(a.UC_ARM64_REG_SP, state.registers["sp"])
        self.go(start)
        values = {n: uc.reg_read(i) for n, i in zip(NAMES, _IDS, strict=True)}
        values["sp"] = uc.reg_read(a.UC_ARM64_REG_SP)
        values["pstate"] = uc.reg_read(a.UC_ARM64_REG_PSTATE) & _PSTATE_KEPT
        values["pc"] = self.next
        return self.outcome(values, tuple(map(uc.reg_read, _VECTORS)))

    def _on_exception(self, uc: Any, _number: int, _data: Any) -> None:
        self.trapped = True
        uc.emu_stop()
