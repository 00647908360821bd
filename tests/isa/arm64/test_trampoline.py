"""arm64 trampolines and hooks run in an emulator, every register compared.

The clause changes what LLVM's preserve_mostcc lets it change on AArch64 (checked against
llvmlite's own output in test_code.py).
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kinst.core.bodies import CallBody, CountBody
from kinst.core.displaced import Refused, Relocated
from kinst.core.probe import Function, Site
from kinst.isa import load
from kinst.isa.arm64 import sequences
from tests.isa.emulated_arm64 import NAMES, SCRATCH, Machine, Outcome, State, random_state
from tests.isa.gnu_assembler import assembled

ISA = load("arm64")
TEXT = 0xFFFF_8000_0801_0000
FUNCTION = Function("vmlinux", "f", TEXT, 4096)
CLAUSE = SCRATCH + 0x1000
NOTES = 0xFFFF_0000_4000_0000  # memory in which the clause notes its arguments
SLOT = {r.d_name: r.slot for r in ISA.registers}
ARGUMENT = 0x1234_5678_9ABC_DEF0


# Notes its arguments, DAIF and the stack pointer, then spoils all that it may.
SPOIL = "\n".join(f"movn x{n}, #{n}" for n in (*range(9), 16, 17)) + "\ncmp x0, #1\nret\n"
NOTE = f"""
movz x8, #{NOTES >> 48}, lsl #48
movk x8, #{NOTES >> 32 & 0xFFFF}, lsl #32
movk x8, #{NOTES >> 16 & 0xFFFF}, lsl #16
str x0, [x8]
str x1, [x8, #8]
mrs x16, daif
str x16, [x8, #16]
mov x17, sp
str x17, [x8, #24]
ldr x16, [x8, #32]
add x16, x16, #1
str x16, [x8, #32]
"""
FLAGS = "adc x10, x11, x12"  # reads the carry


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(FUNCTION, 0, assembled("arm64", FLAGS, tmp_path))


@pytest.fixture
def machine(site: Site, tmp_path: Path) -> Machine:
    made = Machine(TEXT, site.code + bytes(60))
    made.write_code(CLAUSE, assembled("arm64", NOTE + SPOIL, tmp_path))
    return made


def run(machine: Machine, made: Relocated, state: State) -> Outcome:
    machine.write_code(SCRATCH, made.code)
    return machine.run(state, SCRATCH, (SCRATCH, SCRATCH + len(made.code)), (CLAUSE, CLAUSE + 4096))


def states() -> list[State]:
    rng = random.Random(7)
    return [random_state(rng) for _ in range(40)]


def test_a_call_leaves_no_trace_and_sees_every_register(machine: Machine, site: Site) -> None:
    slots = frozenset(range(ISA.frame_slots))
    made = ISA.trampoline(site, b"", SCRATCH, [CallBody(CLAUSE, ARGUMENT, slots)])
    assert isinstance(made, Relocated)
    for state in states():
        sp = state.registers["sp"]
        plain = machine.run(state, TEXT, (TEXT, TEXT + 4))
        traced = run(machine, made, state)
        assert traced.registers == plain.registers
        assert traced.vectors == plain.vectors
        # Only the stack below and the notes were written.
        outside = traced.changed(sp - 4096, sp)
        assert all(NOTES <= at < NOTES + 40 for at in outside)
        argument, frame, daif, clause_sp = (traced.word(NOTES + 8 * n) for n in range(4))
        assert argument == ARGUMENT
        assert daif & 0xC0 == 0xC0 and daif | 0xC0 == state.registers["pstate"] & 0x3C0 | 0xC0
        assert clause_sp % 16 == 0 and clause_sp <= frame < sp
        for number, name in enumerate(NAMES):
            assert traced.word(frame + 8 * number) == state.registers[name], name
        assert traced.word(frame + 8 * SLOT["R_SP"]) == sp
        assert traced.word(frame + 8 * SLOT["R_PC"]) == TEXT
        state_word = traced.word(frame + 8 * SLOT["R_PSTATE"])
        assert state_word == state.registers["pstate"] | 5  # EL1, with its own stack pointer


def test_a_call_stores_only_what_is_read(machine: Machine, site: Site) -> None:
    few = ISA.trampoline(site, b"", SCRATCH, [CallBody(CLAUSE, ARGUMENT, frozenset((20,)))])
    none = ISA.trampoline(site, b"", SCRATCH, [CallBody(CLAUSE, ARGUMENT, frozenset())])
    assert isinstance(few, Relocated) and isinstance(none, Relocated)
    assert len(few.code) == len(none.code) + 4
    state = states()[0]
    traced = run(machine, few, state)
    frame = traced.word(NOTES + 8)
    assert traced.word(frame + 8 * 20) == state.registers["x20"]
    assert traced.registers == machine.run(state, TEXT, (TEXT, TEXT + 4)).registers


COUNTERS = (0xFFFF_8000_07E0_0040, 0xFFFF_0000_0000_1008, 0x7FFF_FFF8, 0xFFFF_FFFF_FFFF_0000)


@pytest.mark.parametrize("number", [1, 2, 4])
def test_counting(machine: Machine, site: Site, number: int) -> None:
    counters = COUNTERS[:number]
    made = ISA.trampoline(site, b"", SCRATCH, [CountBody(counters)])
    assert isinstance(made, Relocated)
    stores = [one.text for one in ISA.decode(made.code, SCRATCH) if one.text.startswith("stxr")]
    for text in stores:
        # DDI 0487, C6.2, STXR, does not define it with one register in two operands.
        assert len(set(re.findall(r"\d+", text))) == 3, text
    assert len(stores) == number
    for state in states():
        sp = state.registers["sp"]
        traced = run(machine, made, state)
        assert traced.registers == machine.run(state, TEXT, (TEXT, TEXT + 4)).registers
        for at in counters:
            assert traced.word(at) == (traced.word_before(at) + 1) % (1 << 64)
        outside = traced.changed(sp - 32, sp)
        assert all(any(at <= byte < at + 8 for at in counters) for byte in outside)


def test_counting_beside_a_call(machine: Machine, site: Site) -> None:
    one, two = COUNTERS[:2]
    bodies = [CountBody((one,)), CallBody(CLAUSE, ARGUMENT, frozenset()), CountBody((one, two))]
    made = ISA.trampoline(site, b"", SCRATCH, bodies)
    assert isinstance(made, Relocated)
    state = states()[1]
    traced = run(machine, made, state)
    assert traced.registers == machine.run(state, TEXT, (TEXT, TEXT + 4)).registers
    assert traced.word(one) == traced.word_before(one) + 2
    assert traced.word(two) == traced.word_before(two) + 1
    assert traced.word(NOTES + 32) == traced.word_before(NOTES + 32) + 1


def test_a_trampoline_out_of_reach_is_refused(site: Site) -> None:
    for away in (-(128 << 20) - 4096, (128 << 20) + 4096):
        made = ISA.trampoline(site, b"", TEXT + away, ())
        assert isinstance(made, Refused) and "128 MB" in made.reason
        assert ISA.jump_patch(4, TEXT, TEXT + away) is None
    far = ISA.trampoline(site, b"", SCRATCH, [CallBody(SCRATCH + (1 << 30), 0, frozenset())])
    assert isinstance(far, Refused) and "clause" in far.reason


def hooked(
    machine: Machine, folder: Path, source: str, hook: str, translate: bool
) -> tuple[bytes, bytes]:
    """Return (first instruction, its patch and stub) of a function, with a hook in place of the
    clause."""
    code = assembled("arm64", source, folder)
    machine.write_code(
        CLAUSE, assembled("arm64", hook + SPOIL.replace("movn x0, #0\n", ""), folder)
    )
    make = ISA.translate_detour if translate else ISA.detour
    made = make(code, TEXT, SCRATCH, CLAUSE)
    assert not isinstance(made, Refused)
    patch, stub = made
    assert len(patch) == 4
    machine.write_code(SCRATCH, stub)
    return patch, stub


# x9 to x17 hold nothing at a function's start.
KEPT = [name for name in (*NAMES, "sp") if name not in {f"x{n}" for n in range(9, 18)}]
STARTS = ("paciasp", "mov x9, x30", "stp x29, x30, [sp, #-32]!", "nop", "adrp x3, .+0x200000")


@pytest.mark.parametrize("start", STARTS)
def test_a_hook_that_lets_the_function_go_on(machine: Machine, tmp_path: Path, start: str) -> None:
    code = assembled("arm64", start, tmp_path)
    _, stub = hooked(machine, tmp_path, start, "mov x0, #0\n", False)
    plain_machine = Machine(TEXT, code + bytes(60))
    for state in states():
        plain = plain_machine.run(state, TEXT, (TEXT, TEXT + 4))
        found = machine.run(state, SCRATCH, (SCRATCH, SCRATCH + len(stub)), (CLAUSE, CLAUSE + 4096))
        assert found.registers["pc"] == TEXT + 4
        for name in (*KEPT, "x9") if start == "mov x9, x30" else KEPT:
            assert found.registers[name] == plain.registers[name], name


def test_a_hook_that_ends_the_function(machine: Machine, tmp_path: Path) -> None:
    _, stub = hooked(machine, tmp_path, "paciasp", "mov x0, #1\n", False)
    for state in states():
        state = replace(state, registers={**state.registers, "x30": TEXT + 0x1000})
        found = machine.run(state, SCRATCH, (SCRATCH, SCRATCH + len(stub)), (CLAUSE, CLAUSE + 4096))
        assert found.registers["pc"] == TEXT + 0x1000
        assert found.registers["x0"] == 0
        for name in KEPT:
            if name != "x0":
                assert found.registers[name] == state.registers[name], name


def test_a_hook_that_translates_its_argument(machine: Machine, tmp_path: Path) -> None:
    _, stub = hooked(machine, tmp_path, "nop", "eor x0, x0, #0xff\n", True)
    for state in states():
        found = machine.run(state, SCRATCH, (SCRATCH, SCRATCH + len(stub)), (CLAUSE, CLAUSE + 4096))
        assert found.registers["pc"] == TEXT + 4
        assert found.registers["x0"] == state.registers["x0"] ^ 0xFF
        for name in KEPT:
            if name != "x0":
                assert found.registers[name] == state.registers[name], name


SEQUENCES = """
    prfm pstl1strm, [x1]
1:  ldxr x2, [x1]       // 1
    add x2, x2, x0      // 2: again
    stxr w3, x2, [x1]   // 3: again
    cbnz w3, 1b         // 4
    ldr x5, [x1]        // 5
2:  ldaxr w2, [x1]      // 6
    eor w4, w2, w5      // 7: again
    cbnz w4, 3f         // 8: again
    stlxr w4, w0, [x1]  // 9: again
    cbnz w4, 2b         // 10
3:  sevl                // 11
    wfe                 // 12: alone
    ldxrb w2, [x1]      // 13
    cbz w2, 4f          // 14: again
    wfe                 // 15: again
4:  ldadd x1, x2, [x3]  // 16
    ldr x1, 5f          // 17
    ldar x1, [x2]       // 18
    stlr x1, [x2]       // 19
    ret                 // 20
5:  .quad 0x1234        // 21, 22: data
"""


def test_exclusive_sequences_and_data(tmp_path: Path) -> None:
    code = assembled("arm64", SEQUENCES, tmp_path)
    instructions = list(ISA.decode(code, TEXT))
    numbers = {(at - TEXT) // 4: why for at, why in sequences.unsafe(instructions).items()}
    assert sorted(numbers) == [21, 22]
    assert "data" in numbers[21]
    again = {
        (a - TEXT) // 4: (b - TEXT) // 4 for a, b in sequences.rerun_starts(instructions).items()
    }
    assert again == {2: 1, 3: 1, 7: 6, 8: 6, 9: 6, 14: 13, 15: 13}
    stepped = {n for n in range(21) if ISA.unsteppable(code[4 * n : 4 * n + 4])}
    assert stepped == {1, 6, 13}


@pytest.mark.parametrize("translate", [False, True])
def test_a_hook_has_a_stack_of_its_own(machine: Machine, tmp_path: Path, translate: bool) -> None:
    """The stack is aligned as the processor requires (DDI 0487, D1.8.2), and the caller's is not
    written."""
    _, stub = hooked(machine, tmp_path, "nop", f"{NOTE}mov x0, #0\n", translate)
    for state in states():
        found = machine.run(state, SCRATCH, (SCRATCH, SCRATCH + len(stub)), (CLAUSE, CLAUSE + 4096))
        sp = state.registers["sp"]
        assert found.word(NOTES) == state.registers["x0"]
        assert found.word(NOTES + 24) % 16 == 0 and found.word(NOTES + 24) < sp
        assert all(NOTES <= at < NOTES + 40 for at in found.changed(sp - 4096, sp))
