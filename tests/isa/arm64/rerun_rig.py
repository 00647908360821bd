"""An exclusive sequence with a probe in it, and without, in an emulator."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kinst.core.bodies import Body
from kinst.core.displaced import Relocated
from kinst.core.instruction import Instruction
from kinst.core.probe import Function, Site
from kinst.isa import load
from tests.isa.emulated_arm64 import NAMES, SCRATCH, TEXT_AT, Machine, Outcome, State, random_state

ISA = load("arm64")


TEXT = 0xFFFF_8000_0801_0000


CLAUSE = SCRATCH + 0x10_0000


FIRED = 0xFFFF_0000_4000_0000  # memory in which the clause counts


COUNTER = FIRED + 0x2000


ROOM = 1024  # bytes for one trampoline


STATES = 8


DATA = 0xFFFF_0000_0123_4000


# Counts, clears the exclusive monitor and spoils what a clause may.
CLAUSE_CODE = f"""
movz x8, #{FIRED >> 48}, lsl #48
movk x8, #{FIRED >> 32 & 0xFFFF}, lsl #32
movk x8, #{FIRED >> 16 & 0xFFFF}, lsl #16
ldr x16, [x8]
add x16, x16, #1
str x16, [x8]
clrex
{"; ".join(f"movn x{n}, #{n}" for n in (*range(9), 16, 17))}
cmp x0, #1
ret
"""


@dataclass(frozen=True)
class Held:
    """The instructions from the load-exclusive at `start` to the last one that can be planted by
    running them again."""

    function: Function
    instructions: tuple[Instruction, ...]

    @property
    def start(self) -> int:
        return self.instructions[0].address

    @property
    def end(self) -> int:
        return self.instructions[-1].end

    @property
    def base(self) -> str:
        """Return the register that holds the address."""
        return name(int.from_bytes(self.instructions[0].code, "little") >> 5 & 31)


def name(number: int) -> str:
    return NAMES[number] if number < 31 else "sp"


class Traced:
    """A machine whose text is patched for one run."""

    def __init__(self, machine: Machine, text_address: int, clause: bytes) -> None:
        self.machine, self.text_address = machine, text_address
        machine.write_code(CLAUSE, clause)

    def plant(self, one: Held, sites: Sequence[Instruction], bodies: Sequence[Body]) -> None:
        before = b"".join(i.code for i in one.instructions)
        for number, at in enumerate(sites):
            to = SCRATCH + ROOM * number
            site = Site(one.function, at.address - one.function.address, at.code)
            again = before[: at.address - one.start] if at.address != one.start else b""
            made = ISA.trampoline(site, b"", to, bodies, again)
            assert isinstance(made, Relocated) and len(made.code) <= ROOM
            self.machine.write_code(to, made.code)
            patch = ISA.jump_patch(4, at.address, to)
            assert patch is not None
            self._write(at.address, patch)

    def restore(self, one: Held) -> None:
        for at in one.instructions:
            self._write(at.address, at.code)

    def _write(self, address: int, code: bytes) -> None:
        self.machine.uc.mem_write(address - self.text_address + TEXT_AT, code)
        self.machine.uc.ctl_flush_tb()

    def run(self, one: Held, state: State) -> Outcome:
        own = (SCRATCH, CLAUSE + 4096)
        return self.machine.run(state, one.start, (one.start, one.end), own)


def content(machine: Machine, state: State, address: int, size: int) -> int:
    """Return the content of the machine's memory before a run from this state."""
    machine._seed = state.seed
    page = machine.content(address & -4096)
    return int.from_bytes(page[address % 4096 :][:size], "little")


def states_of(machine: Machine, one: Held, rng: random.Random) -> Iterator[State]:
    """Yield states with a good address.

    In half of them the other registers, or half of these, hold the same values as memory, so that
    comparisons with it succeed too.
    """
    for turn in range(STATES):
        state = random_state(rng)
        registers = dict(state.registers)
        if one.base != "sp":
            registers[one.base] = DATA + 16 * rng.randrange(64)
        state = replace(state, registers=registers)
        here = [content(machine, state, registers[one.base] + at, 8) for at in (0, 8)]
        for number, register in enumerate(NAMES):
            if register != one.base and turn % 2:
                # A pair's first and second word, and either word in the other's width.
                registers[register] = here[number % 2 if turn % 4 == 1 else 0]
                if turn % 8 == 7:
                    registers[register] = rng.getrandbits(64)
        yield replace(state, registers=registers)


def fired(outcome: Outcome, address: int) -> int:
    if address & -4096 not in outcome.before:
        return 0
    return outcome.word(address) - outcome.word_before(address)


def compare(plain: Outcome, traced: Outcome, state: State) -> list[str]:
    sp = state.registers["sp"]
    own = {FIRED + n for n in range(8)} | {COUNTER + n for n in range(8)}
    found = [f"{n}: {v:#x} != {plain.registers[n]:#x}"
             for n, v in traced.registers.items() if v != plain.registers[n]]  # fmt: skip
    changed = {at: byte for at, byte in traced.changed(sp - 1024, sp).items() if at not in own}
    if changed != plain.changed(sp - 1024, sp):
        found.append("memory")
    return found
