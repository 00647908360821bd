"""Exclusive sequences with probes in them, against the same sequences without, in an emulator.

The sequences are those of the kernel's own text, each form of them.  The probe's work clears the
exclusive monitor (clrex), as an exception does; the store's status is one of the compared
registers.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kinst.core.bodies import Body, CallBody, CountBody
from kinst.core.displaced import Refused, Relocated
from kinst.core.instruction import Instruction
from kinst.core.probe import Function, Site
from kinst.isa.arm64 import rerun
from tests.isa.arm64.rerun_rig import (
    CLAUSE,
    CLAUSE_CODE,
    COUNTER,
    DATA,
    FIRED,
    ISA,
    STATES,
    TEXT,
    Held,
    Traced,
    compare,
    content,
    fired,
    states_of,
)
from tests.isa.emulated_arm64 import NAMES, SCRATCH, TEXT_AT, Machine, random_state
from tests.isa.gnu_assembler import assembled
from tests.isa.kernel_text import Text, find_vmlinux, read_text

pytestmark = pytest.mark.full  # the arm64 kernel

EACH = 2  # sequences of one form


def sequences_of(instructions: Sequence[Instruction], function: Function) -> Iterator[Held]:
    again = ISA.rerun_starts(instructions)
    by_load = defaultdict(list)
    for address, start in again.items():
        by_load[start].append(address)
    for start, sites in by_load.items():
        inside = [i for i in instructions if start <= i.address <= max(sites)]
        assert [i.address for i in inside[1:]] == sorted(sites)
        yield Held(function, tuple(inside))


@pytest.fixture(scope="module")
def text() -> Text:
    return read_text(find_vmlinux("arm64"))


@pytest.fixture(scope="module")
def forms(text: Text) -> dict[str, list[Held]]:
    """Return some sequences of each form, by mnemonics."""
    found: dict[str, list[Held]] = defaultdict(list)
    for address, size, symbol in text.functions:
        start = address - text.address
        code = text.code[start : start + size]
        if not any(byte & 0x3F == 8 for byte in code[3::4]):
            continue
        function = Function("vmlinux", symbol, address, size)
        for one in sequences_of(list(ISA.decode(code, address)), function):
            key = " ".join(i.text.split()[0] for i in one.instructions)
            if len(found[key]) < EACH:
                found[key].append(one)
    return found


@pytest.fixture
def clause(tmp_path: Path) -> bytes:
    return assembled("arm64", CLAUSE_CODE, tmp_path)


def selections(one: Held) -> list[tuple[Instruction, ...]]:
    """Yield selections: each instruction, each pair, and all; the load-exclusive too."""
    inside = one.instructions
    return [*((i,) for i in inside), *itertools.combinations(inside, 2), inside]


@pytest.mark.parametrize("kind", ["call", pytest.param("count", marks=pytest.mark.slow)])
def test_every_sequence_of_the_kernel(
    kind: str, text: Text, forms: Mapping[str, list[Held]], clause: bytes, report: list[str]
) -> None:
    assert sum(map(len, forms.values())) > 40 and len(forms) > 25
    machine = Machine(text.address, text.code)
    traced = Traced(machine, text.address, clause)
    rng = random.Random(kind)
    body: Body = CallBody(CLAUSE, 0, frozenset((20,))) if kind == "call" else CountBody((COUNTER,))
    runs, ends = 0, set[bool]()
    for form, examples in forms.items():
        for one in examples:
            if "wfe" in form:  # the emulator would wait
                one = replace(one, instructions=one.instructions[:-1])
            for state in states_of(machine, one, rng):
                plain = machine.run(state, one.start, (one.start, one.end))
                ends.add(plain.registers["pc"] == one.end)
                for sites in selections(one):
                    traced.plant(one, sites, [body])
                    found = traced.run(one, state)
                    traced.restore(one)
                    where = f"{form} at {one.start:#x}, {[hex(s.address) for s in sites]}"
                    assert not compare(plain, found, state), where
                    count = fired(found, FIRED if kind == "call" else COUNTER)
                    if plain.registers["pc"] == one.end:
                        assert count == len(sites), where
                    runs += 1
    assert ends == {True, False}
    report.append(f"arm64: {len(forms)} forms of exclusive sequences equal in {runs} runs ({kind})")


ADD = """
    ldxr w2, [x1]
    add w2, w2, w0
    stlxr w3, w2, [x1]
"""
EXCHANGE = """
    ldaxr x2, [x1]
    eor x3, x2, x0
    cbnz x3, .+0x40
    stxr w3, x4, [x1]
"""
PAIR = """
    ldxp x2, x3, [x1]
    eor x2, x2, x4
    eor x3, x3, x5
    orr x2, x3, x2
    cbnz x2, .+0x40
    stlxp w2, x6, x7, [x1]
"""


def whole(source: str, folder: Path) -> tuple[list[Instruction], Function, bytes]:
    code = assembled("arm64", source, folder)
    function = Function("vmlinux", "f", TEXT, len(code))
    return list(ISA.decode(code, TEXT)), function, code


def only(source: str, folder: Path) -> tuple[Held, bytes]:
    instructions, function, code = whole(source, folder)
    (one,) = sequences_of(instructions, function)
    return one, code


@pytest.mark.parametrize("source", [ADD, EXCHANGE, PAIR])
def test_without_running_it_again_the_store_fails(
    source: str, clause: bytes, tmp_path: Path
) -> None:
    """The store fails without a rerun, and the comparison sees it."""
    one, code = only(source, tmp_path)
    machine = Machine(TEXT, code + bytes(4096 - len(code)))
    traced = Traced(machine, TEXT, clause)
    rng = random.Random(source)
    stored = [
        s for s in states_of(machine, one, rng)
        if machine.run(s, one.start, (one.start, one.end)).registers["pc"] == one.end
    ]  # fmt: skip
    assert stored
    for at in one.instructions[1:]:
        site = Site(one.function, at.address - TEXT, at.code)
        made = ISA.trampoline(site, b"", SCRATCH, [CallBody(CLAUSE, 0, frozenset())])
        patch = ISA.jump_patch(4, at.address, SCRATCH)
        assert isinstance(made, Relocated) and patch is not None
        machine.write_code(SCRATCH, made.code)
        traced._write(at.address, patch)
        for state in stored:
            traced.restore(one)
            plain = machine.run(state, one.start, (one.start, one.end))
            traced._write(at.address, patch)
            assert compare(plain, traced.run(one, state), state)
        traced.restore(one)


# The clause does this if another CPU writes to the memory meanwhile.
MEDDLING = CLAUSE_CODE.replace("clrex", f"""
movz x16, #{DATA >> 48}, lsl #48
movk x16, #{DATA >> 32 & 0xFFFF}, lsl #32
movk x16, #{DATA >> 16 & 0xFFFF}, lsl #16
movk x16, #{DATA & 0xFFFF}
mov x17, #77
str x17, [x16]
str x17, [x16, #8]
""")  # fmt: skip
WRITE_FIRST = """
mov x17, #77
str x17, [x1]
str x17, [x1, #8]
"""


@pytest.mark.parametrize("source", [ADD, EXCHANGE, PAIR])
@pytest.mark.parametrize("meets", [False, True])
def test_memory_that_changes_meanwhile(
    source: str, meets: bool, clause: bytes, tmp_path: Path
) -> None:
    """Memory changes meanwhile: the outcome is that of the sequence without a probe, run on the
    new memory.

    If the sequence compares, it may also compare with the previous value (the second run leaves
    early).
    """
    one, code = only(source, tmp_path)
    rest = bytes(4096 - len(code))
    plain_machine = Machine(TEXT, assembled("arm64", WRITE_FIRST + source, tmp_path) + rest)
    machine = Machine(TEXT, code + rest)
    traced = Traced(machine, TEXT, assembled("arm64", MEDDLING, tmp_path))
    shift = 12  # bytes of WRITE_FIRST
    rng = random.Random(source)
    interrupted = 0
    for _ in range(STATES):
        state = random_state(rng)
        registers = {**state.registers, "x1": DATA, "x17": 77}
        before = [content(machine, state, DATA + at, 8) for at in (0, 8)]
        compared = [77, 77] if meets else before
        # EXCHANGE compares with x0, PAIR with x4 and x5.
        registers |= {"x0": compared[0], "x4": compared[0], "x5": compared[1]}
        state = replace(state, registers=registers)
        size = len(code) + shift
        plain = plain_machine.run(state, TEXT, (TEXT, TEXT + size))
        pc = plain.registers["pc"] - shift
        expected = {**plain.registers, "pc": pc}
        for at in one.instructions[1:]:
            traced.plant(one, [at], [CallBody(CLAUSE, 0, frozenset())])
            found = traced.run(one, state)
            traced.restore(one)
            if not fired(found, FIRED):
                continue  # the first run left before this instruction
            interrupted += pc != one.end
            assert found.registers == expected, at.text
            for address in (DATA, DATA + 8):
                assert found.word(address) == plain.word(address)
    assert bool(interrupted) == (not meets and source != ADD)


# One line each: N instructions, with facts about those that are in a sequence.
REFUSED = [
    ("no straight way", "1: wfe; ldxr w2, [x1]; cbnz w2, 1b; ret", {0: "no straight way"}),
    ("by a jump", "ldxr w2, [x1]; b 1f; nop; 1: stxr w3, w2, [x1]; ret",
     {3: "a branch goes in"}),
    ("entered", "cbz x0, 1f; ldxr w2, [x1]; 1: add w2, w2, #1; stxr w3, w2, [x1]; ret",
     {2: "a branch goes in", 3: "a branch goes in"}),
    ("entered by a condition", "b.eq 1f; ldxr w2, [x1]; 1: add w2, w2, #1; stxr w3, w2, [x1]; ret",
     {2: "a branch goes in", 3: "a branch goes in"}),
    ("entered by a bit", "tbz x0, #5, 1f; ldxr w2, [x1]; 1: add w2, w2, #1; stxr w3, w2, [x1]; ret",
     {2: "a branch goes in", 3: "a branch goes in"}),
    ("pairs in one go",
     "casp x2, x3, x4, x5, [x1]; nop; caspal w2, w3, w4, w5, [x1]; ldr x9, [x8]; clrex", {}),
    ("entered at the store", "ldxr w2, [x1]; add w2, w2, #1; 1: stxr w3, w2, [x1]; cbnz w3, 1b",
     {2: "a branch goes in"}),
    ("its address", "ldxr x1, [x1]; stxr w3, x1, [x2]; ret", {1: "changes what it reads"}),
    ("an input", "ldxr x2, [x1]; add x0, x0, x2; stxr w3, x0, [x1]; ret",
     {2: "changes what it reads"}),
    ("movk", "ldxr x2, [x1]; movk x4, #1; stxr w3, x4, [x1]; ret", {2: "changes what it reads"}),
    ("the stack", "ldxr x2, [sp]; sub sp, sp, #16; stxr w3, x2, [x1]; ret",
     {2: "changes what it reads"}),
    ("flags", "ldxr x2, [x1]; b.eq 1f; subs x2, x2, #1; stxr w3, x2, [x1]; 1: ret",
     {3: "may already have left"}),
    ("a load", "ldxr x2, [x1]; ldr x4, [x5]; stxr w3, x4, [x1]; ret", {2: "more than arithmetic"}),
    ("a store", "ldxr x2, [x1]; str x4, [x5]; stxr w3, x4, [x1]; ret", {2: "more than arithmetic"}),
    ("the system", "ldxr x2, [x1]; mrs x4, nzcv; stxr w3, x4, [x1]; ret",
     {2: "more than arithmetic"}),
    ("adc", "ldxr x2, [x1]; adc x4, x5, x2; stxr w3, x4, [x1]; ret", {2: "more than arithmetic"}),
    ("clrex", "ldxr x2, [x1]; clrex; ret", {}),
    ("behind a branch", "ldxr x2, [x1]; cbz x2, 1f; add x2, x2, #1; stxr w3, x2, [x1]; 1: ret",
     {3: "may already have left"}),
]  # fmt: skip


@pytest.mark.parametrize(("source", "reasons"), [row[1:] for row in REFUSED])
def test_what_stays_refused(source: str, reasons: dict[int, str], tmp_path: Path) -> None:
    instructions, _, _ = whole(source.replace(";", "\n"), tmp_path)
    found = {(at - TEXT) // 4: why for at, why in ISA.unsafe(instructions).items()}
    assert found.keys() == reasons.keys()
    for number, reason in reasons.items():
        assert reason in found[number]
    assert not ISA.rerun_starts(instructions).keys() & ISA.unsafe(instructions).keys()


# Arithmetic of each form, the stack pointer and the zero register among the operands.
ARITHMETIC = """
add x7, x8, w9, uxtw #2; add sp, x8, w9, sxtw; add x7, sp, x9, lsl #3; adds x7, sp, w9, uxth
sub w7, w8, w9, sxtb; subs w7, wsp, w9, uxtb #1; cmp sp, x9; cmn x8, w9, sxth
add x7, x8, #9; add sp, sp, #32; mov x7, sp; adds x7, x8, #9; subs w7, w8, #9; cmp w8, #9
sub x7, x8, #1, lsl #12; cmn sp, #5; add x7, x8, x9; adds x7, x8, x9, lsl #3; subs w7, w8, w9
sub x7, x8, x9, asr #5; neg x7, x9; cmp x8, x9; cmn w8, w9, lsr #2
and x7, x8, x9; ands x7, x8, x9; bic w7, w8, w9; bics w7, w8, w9, lsl #1; orr x7, x8, x9, ror #9
orn x7, x8, x9; eor x7, x8, x9; eon w7, w8, w9; tst x8, x9; mov x7, x9; mvn w7, w9
and x7, x8, #0xff; ands x7, x8, #0xff; orr w7, w8, #0xf0; eor x7, x8, #1; tst w8, #2
and sp, x8, #0xfffffffffffffff0; movz x7, #9; movn w7, #9; movk x7, #9, lsl #16; mov w30, #1
"""


def touched(
    machine: Machine, code: bytes, rng: random.Random, among: Sequence[str]
) -> tuple[set[str], set[str]]:
    """Return (reads, writes) of an instruction, among these registers.

    A register is read if changing it alone changes other results, or a written value.  It is
    written if it differs afterwards.
    """
    effect = rerun._step(int.from_bytes(code, "little"), TEXT)
    assert effect is not None
    machine.uc.mem_write(TEXT_AT, code)
    machine.uc.ctl_flush_tb()
    reads, writes = set[str](), set[str]()
    for _ in range(3):
        state = random_state(rng)
        plain = machine.run(state, TEXT, (TEXT, TEXT + 4)).registers
        writes |= {n for n, v in plain.items() if v != state.registers.get(n) and n != "pc"}
        for changed in among:
            mask = 0xF000_0000 if changed == "pstate" else 0x1234_5678_9ABC_DEF0
            registers = {**state.registers, changed: state.registers[changed] ^ mask}
            other = machine.run(replace(state, registers=registers), TEXT, (TEXT, TEXT + 4))
            differ = {n for n, v in other.registers.items() if v != plain[n]}
            if differ - {changed} or differ & named(effect.writes):
                reads.add(changed)
    assert writes <= named(effect.writes), code.hex()
    assert reads <= named(effect.reads), code.hex()
    return reads, writes


def test_what_an_instruction_reads_and_writes(text: Text) -> None:
    """Some of the kernel's arithmetic, and every register."""
    rng = random.Random(9)
    words = {
        text.code[at : at + 4] for at in range(0, len(text.code) - 3, 4)
        if rng.random() < 0.0003
    }  # fmt: skip
    machine = Machine(TEXT, bytes(4096))
    checked = 0
    for code in sorted(words):
        known = rerun._step(int.from_bytes(code, "little"), TEXT) is not None
        if known and list(ISA.decode(code, TEXT)) and ISA.flow(code, TEXT).kind == "next":
            touched(machine, code, rng, (*NAMES, "sp", "pstate"))
            checked += 1
    assert checked > 50


def test_what_arithmetic_of_every_form_touches(tmp_path: Path) -> None:
    made = assembled("arm64", ARITHMETIC.replace(";", "\n"), tmp_path)
    forms = [made[at : at + 4] for at in range(0, len(made), 4)]
    assert len(forms) == ARITHMETIC.count(";") + ARITHMETIC.count("\n") - 1
    machine, rng = Machine(TEXT, bytes(4096)), random.Random(1)
    flags = 0
    for code in forms:
        flags += "pstate" in touched(machine, code, rng, ("x7", "x8", "x9", "sp", "pstate"))[1]
    assert flags > 10


def named(registers: frozenset[int]) -> set[str]:
    return {NAMES[n] if n < 31 else {32: "sp", 33: "pstate"}[n] for n in registers}


def test_the_original_is_behind_what_is_run_again(tmp_path: Path) -> None:
    """The copy, for a fault there, is the only place with the instruction's own bytes."""
    one, _ = only("ldaxr w2, [x1]\nadd w3, w2, w5\nstxr w4, w3, [x1]", tmp_path)
    for number in (1, 2):
        inside = one.instructions[number]
        prefix = b"".join(i.code for i in one.instructions[:number])
        made = rerun.displace(prefix, inside.code, inside.address, SCRATCH)
        assert isinstance(made, Relocated)
        assert made.code.count(inside.code) == 1
        assert made.original_at == made.code.index(inside.code) == len(prefix)


def test_what_cannot_be_decoded_is_not_run_again() -> None:
    """An `and` of 32 bits with a mask of 64 is reserved (DDI 0487, C6.2, "AND (immediate)")."""
    load, reserved, store = (
        word.to_bytes(4, "little") for word in (0xC85F7C22, 0x12400442, 0xC8037C22)
    )
    made = rerun.displace(load + reserved, store, TEXT + 8, SCRATCH)
    assert isinstance(made, Refused) and "one known instruction" in made.reason
