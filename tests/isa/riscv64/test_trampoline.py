"""Whole riscv64 trampolines and detours in the emulator: the original instruction must not
notice the probe, and the clause sees the registers as they were."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from kinst.core.bodies import Body, CallBody, CountBody
from kinst.core.displaced import Refused, Relocated
from kinst.core.isa import Isa
from kinst.core.probe import Function, Site
from kinst.isa import load
from tests.isa.emulated_riscv64 import SCRATCH, SIE, EmulatorError, Machine, State, random_state
from tests.isa.gnu_assembler import assembled
from tests.isa.kernel_text import Text, extents, find_vmlinux, read_text

pytestmark = pytest.mark.full  # the riscv64 kernel

RECORD = 0xFFFF_FFD5_0000_0000
COUNTER = SCRATCH + 0x10_0000
CALLEE = SCRATCH + 0x18_0000
HOOK = SCRATCH + 0x18_1000
DEAD = 1024
SPOILED = ("ra", *(f"t{n}" for n in range(7)), *(f"a{n}" for n in range(8)))


@pytest.fixture(scope="module")
def isa() -> Isa:
    return load("riscv64")


@pytest.fixture(scope="module")
def text() -> Text:
    return read_text(find_vmlinux("riscv64"))


@pytest.fixture(scope="module")
def machine(text: Text) -> Machine:
    return Machine(text.address, text.code)


@pytest.fixture(scope="module")
def callee(machine: Machine, isa: Isa, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Return code that notes argument, stack pointer and frame at RECORD, sums the calls up, and
    spoils all that a C function may."""
    copy = "\n".join(f"ld t0, {8 * n}(a1)\nsd t0, {8 * n + 32}(t1)" for n in range(isa.frame_slots))
    spoil = "\n".join(f"li {name}, {-77 - n}" for n, name in enumerate(SPOILED) if name != "ra")
    source = f"""
        li t1, {RECORD - (1 << 64)}
        sd a0, 0(t1)
        sd sp, 8(t1)
        csrr t0, sstatus
        sd t0, 16(t1)
        ld t0, 24(t1)
        addi t0, t0, 1
        sd t0, 24(t1)
        {copy}
        {spoil}
        ret
    """
    machine.write_code(CALLEE, assembled("riscv64", source, tmp_path_factory.mktemp("callee")))


def sites(text: Text, isa: Isa, count: int) -> list[Site]:
    """Return instructions spread over the kernel, and one of every kind of control transfer."""
    found: list[Site] = []
    functions = list(extents(text))
    kinds: set[str] = set()
    for start, end in functions[:: len(functions) // count]:
        code = text.code[start - text.address : end - text.address]
        known = list(isa.decode(code, start))
        unsafe = isa.unsafe(known)
        known = [i for i in known if i.address not in unsafe]
        new = [i for i in known if i.text.split()[0] not in kinds]
        kinds.update(i.text.split()[0] for i in new)
        for i in {i.address: i for i in [*known[3:9:3], *new]}.values():
            function = Function("vmlinux", "f", start, end - start)
            found.append(Site(function, i.address - start, i.code))
    return found


BODIES: tuple[tuple[Body, ...], ...] = (
    (),
    (CountBody((COUNTER, COUNTER + 8)),),
    (CallBody(CALLEE, 0xFFFF_FFFF_8401_2340, frozenset(range(33))),),
    (CallBody(CALLEE, 0x7000_0000_1234_5678, frozenset((10, 8))), CountBody((COUNTER,)),
     CallBody(CALLEE, 5, frozenset())),
)  # fmt: skip


@pytest.mark.usefixtures("callee")
@pytest.mark.parametrize("bodies", BODIES, ids=("nothing", "count", "call", "all"))
def test_the_instruction_does_not_notice(
    isa: Isa, machine: Machine, text: Text, bodies: tuple[Body, ...]
) -> None:
    rng = random.Random(8)
    compared = 0
    for site in sites(text, isa, 120):
        first = isa.trampoline(site, b"", SCRATCH, bodies)
        if isinstance(first, Refused):
            assert isinstance(isa.displace(site.code, site.address, SCRATCH), Refused)
            continue
        at = machine.reserve(len(first.code))
        made = isa.trampoline(site, b"", at, bodies)
        assert isinstance(made, Relocated)
        if made.original_at >= 0:
            assert made.code[made.original_at :].startswith(site.code)
        machine.write_code(at, made.code)
        compared += check(machine, isa, rng, site, (at, len(made.code)), bodies)
    assert compared > 200


def check(
    machine: Machine,
    isa: Isa,
    rng: random.Random,
    site: Site,
    code: tuple[int, int],
    bodies: tuple[Body, ...],
) -> bool:
    """Compare if the original could be run; return whether it could."""
    state = random_state(rng, tame=True)
    try:
        expected = machine.run(state, site.address, len(site.code))
    except EmulatorError:
        return False
    sp = state.registers["x2"]
    if any(sp - DEAD <= at < sp for at, _ in expected.reads):
        return False
    counts = struct.unpack("<2Q", machine.uc.mem_read(0x4010_0000, 16))
    outcome = machine.run(state, *code, (CALLEE, CALLEE + 4096))
    own = {page: data for page, data in outcome.memory.items() if page != RECORD}
    end = expected.registers["x2"]
    # Memory below the stack pointer is dead, before and after the instruction.
    dead = [(sp - DEAD, sp), (end - DEAD, end)] + [(sp, end)] * (0 < end - sp < DEAD)
    clean = replace(outcome, memory=own)
    assert not expected.differences(clean, *dead), site
    after = struct.unpack("<2Q", machine.uc.mem_read(0x4010_0000, 16))
    added = [b - a for a, b in zip(counts, after, strict=True)]
    for n, counter in enumerate((COUNTER, COUNTER + 8)):
        assert added[n] == sum(
            body.offsets.count(counter) for body in bodies if isinstance(body, CountBody)
        )
    calls = [body for body in bodies if isinstance(body, CallBody)]
    if calls:
        check_call(isa, state, site, outcome.word, calls, machine.content(RECORD))
    return True


def check_call(isa: Isa, state: State, site: Site, word, calls, before: bytes) -> None:  # type: ignore[no-untyped-def]
    """Check the last call's record.

    Interrupts are off, the stack is aligned to 16 bytes, and the argument and the requested slots
    have the values at the site.
    """
    assert word(RECORD) == calls[-1].argument
    assert word(RECORD + 8) % 16 == 0
    assert not word(RECORD + 16) & SIE
    started = int.from_bytes(before[24:32], "little")
    assert word(RECORD + 24) == (started + len(calls)) & (1 << 64) - 1
    for register in isa.registers:
        if register.slot not in calls[-1].slots:
            continue
        value = word(RECORD + 32 + 8 * register.slot)
        if register.d_name in ("R_SSTATUS", "R_PS"):
            assert value & SIE == state.sstatus & SIE
        elif register.d_name == "R_PC":
            assert value == site.address
        else:
            assert value == state.registers[f"x{register.index}"], register.d_name


def hook(result: int, folder: Path) -> bytes:
    """Return a C function that notes its argument and stack pointer, spoils what it may, and
    returns."""
    spoil = "\n".join(f"li {n}, -1" for n in SPOILED if n not in ("ra", "a0"))
    return assembled(
        "riscv64",
        f"li t0, {RECORD - (1 << 64)}\nsd a0, 0(t0)\nsd sp, 8(t0)\n{spoil}\nli a0, {result}\nret\n",
        folder,
    )


def starts(text: Text, count: int) -> list[tuple[int, bytes]]:
    """Return starts of functions, with the nops that ftrace leaves in those that it can trace."""
    found = []
    for address, size, _ in text.functions[:: len(text.functions) // count]:
        code = text.code[address - text.address :][: min(size, 64)]
        if len(code) >= 24:
            found.append((address, code))
    return found


@pytest.mark.parametrize("translate", [False, True])
def test_detours(isa: Isa, machine: Machine, text: Text, tmp_path: Path, translate: bool) -> None:
    rng = random.Random(12)
    done = 0
    make = isa.translate_detour if translate else isa.detour
    machine.write_code(HOOK, hook(4711 if translate else 0, tmp_path))
    machine.uc.ctl_flush_tb()
    for address, code in starts(text, 400):
        made = make(code, address, SCRATCH, HOOK)
        if isinstance(made, Refused):
            continue
        at = machine.reserve(len(made[1]))
        made = make(code, address, at, HOOK)
        assert not isinstance(made, Refused)
        patch, stub = made
        assert 8 <= len(patch) <= 12
        state = random_state(rng, tame=True)
        given = {**state.registers, "x10": 4711} if translate else dict(state.registers)
        # Temporaries hold nothing at a function's start.
        try:
            expected = machine.run(replace(state, registers=given), address, len(patch))
        except EmulatorError:
            continue
        machine.write_code(at, stub)
        outcome = machine.run(state, at, len(stub), (HOOK, HOOK + 4096))
        assert outcome.word(RECORD) == state.registers["x10"]
        assert outcome.word(RECORD + 8) % 16 == 0
        own = {page: data for page, data in outcome.memory.items() if page != RECORD}
        sp = state.registers["x2"]
        keep = {k: v for k, v in expected.registers.items() if not temporary(k)}
        now = {k: v for k, v in outcome.registers.items() if not temporary(k)}
        differences = replace(expected, registers=keep).differences(
            replace(outcome, registers=now, memory=own), (sp - DEAD, sp)
        )
        assert not differences, (hex(address), differences)
        done += 1
    assert done > 200


def temporary(name: str) -> bool:
    return name in {f"x{n}" for n in (5, 6, 7, 28, 29, 30, 31)}


def test_a_detour_that_returns_at_once(
    isa: Isa, machine: Machine, text: Text, tmp_path: Path
) -> None:
    machine.write_code(HOOK, hook(1, tmp_path))
    rng = random.Random(2)
    done = 0
    for address, code in starts(text, 50):
        made = isa.detour(code, address, SCRATCH, HOOK)
        if isinstance(made, Refused):
            continue
        machine.write_code(SCRATCH, made[1])
        machine.uc.ctl_flush_tb()
        state = random_state(rng, tame=True)
        outcome = machine.run(state, SCRATCH, len(made[1]), (HOOK, HOOK + 4096))
        assert outcome.registers["pc"] == state.registers["x1"] & ~1
        assert outcome.registers["x2"] == state.registers["x2"]
        assert outcome.registers["x10"] == state.registers["x10"]
        done += 1
    assert done > 20


def test_the_patch_of_a_detour_reaches_the_stub(isa: Isa, machine: Machine, text: Text) -> None:
    address, code = starts(text, 50)[7]
    made = isa.detour(code, address, SCRATCH + 0x2340, HOOK)
    assert not isinstance(made, Refused)
    here = SCRATCH + 0x1F_0000
    # At another address it goes as much further: the distance is in it.
    machine.write_code(here, made[0])
    state = random_state(random.Random(4), tame=True)
    outcome = machine.run(state, here, len(made[0]))
    assert outcome.registers["pc"] == (SCRATCH + 0x2340 - address + here) & (1 << 64) - 1


def test_patches(isa: Isa) -> None:
    """Breakpoints are as long as the code they replace; jumps reach 1 MB with four bytes and 2 KB
    with two."""
    assert isa.trap_patch(2) == bytes.fromhex("0290")  # c.ebreak
    assert isa.trap_patch(4) == bytes.fromhex("73001000")  # ebreak
    assert isa.jump_patch(4, 0x80200000, 0x802FFFFE) == bytes.fromhex("6ff0ff7f")
    assert isa.jump_patch(4, 0x80200000, 0x80300000) is None
    assert isa.jump_patch(4, 0x80200000, 0x80100000) == bytes.fromhex("6f000080")
    assert isa.jump_patch(2, 0x80200000, 0x802007FE) == bytes.fromhex("fdaf")
    assert isa.jump_patch(2, 0x80200000, 0x80200800) is None


# Two registers in each field that an instruction has for one.
STARTS = [
    "lui {0}, 1; lui {1}, 1", "addi {0}, {1}, 1; nop", "add a0, {0}, {1}; nop",
    "sd {0}, 8({1}); nop",
    "add {0}, a0, {1}; nop", "c.mv {0}, {1}; c.mv a0, a1; nop", "c.li {0}, 1; c.li {1}, 1; nop",
    "c.add {0}, {1}; c.nop; nop", "lui a0, 0x40000; c.slli {0}, 3; c.li {1}, 3",
    "ld {0}, 8({1}); nop",
]  # fmt: skip


@pytest.mark.parametrize("source", STARTS)
def test_the_way_back_spoils_none_that_is_used(isa: Isa, source: str, tmp_path: Path) -> None:
    """A function's start may compute values that the code after it needs: the jump back uses
    another temporary register."""
    at, temporaries = SCRATCH + 0x1000, [f"t{n}" for n in range(7)]
    numbers = dict(zip(temporaries, (5, 6, 7, 28, 29, 30, 31), strict=True))
    for first in temporaries[:4]:
        for second in temporaries[:4]:
            text = source.format(first, second).replace("; ", "\n")
            code = assembled("riscv64", f"{'.option rvc' if 'c.' in text else '.option norvc'}\n"
                             + text.replace("\nnop", "\n.option norvc\nnop"), tmp_path)  # fmt: skip
            assert len(code) == 8
            made = isa.detour(code + bytes(8), at, SCRATCH, HOOK)
            assert not isinstance(made, Refused)
            upper, jump = (int.from_bytes(made[1][n:][:4], "little") for n in (-8, -4))
            # The unprivileged specification: auipc writes the register that jalr jumps by, and
            # does not link.
            assert (upper & 0x7F, jump & 0xFFF) == (0x17, 0x67)
            through = upper >> 7 & 31
            assert through == jump >> 15 & 31 and through in numbers.values()
            assert through not in (numbers[first], numbers[second]), text
