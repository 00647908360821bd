"""riscv64 instructions that depend on their own address, each beside its trampoline in an
emulator: with work and without, alone and in chains, whether or not kernels have them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinst.core.bodies import CountBody
from kinst.core.displaced import Onward, Relocated
from kinst.core.probe import Function, Site
from kinst.isa import load
from kinst.isa.riscv64.encode import SRET
from tests.isa.emulated_riscv64 import SCRATCH, EmulatorError, Machine, random_state
from tests.isa.gnu_assembler import assembled
from tests.isa.unreached import unreached
from tests.tiers import draws

ISA = load("riscv64")
TEXT = 0xFFFFFFFF_80200000
STRIDE, FIRST = 64, 64  # distance between assembled instructions; bytes before the first
COUNTER = SCRATCH + 0x10_0000
BEHIND, TARGET = SCRATCH + 0x1000, SCRATCH + 0x2000  # trampolines: of the next one, of the target
DEAD, SPARE = 1024, 28

BRANCHES = [
    *(f"{name} x9, x21, .+({d})" for name in ("beq", "bne", "blt", "bge", "bltu", "bgeu")
      for d in (256, -256)),
    "c.beqz x8, .+128", "c.bnez x15, .-128",
]  # fmt: skip
JUMPS = ["c.j .+256", "jal x0, .+256", "jal ra, .-256", "jal t0, .+256"]
INDIRECT = [
    "jr a0", "jalr x0, 8(a0)", "c.jr a5", "ret", "jalr ra, 0(a0)", "c.jalr a5", "jalr t0, -4(a0)",
    *(f"jalr {r}, {d}({r})" for r in ("ra", "t0", "t1", "a0") for d in (0, 2047, -7)),
]  # fmt: skip
ADDRESSES = ["auipc a0, 0x80000", "auipc t0, 0xfffff", "auipc t1, 1", "auipc ra, 0", "auipc x0, 3"]
COPIES = ["add a0, a1, a2", "c.mv a0, a1", "addi sp, sp, -32", "ld a0, 8(sp)", "sd a0, 8(a1)"]
EVERY = [*BRANCHES, *JUMPS, *INDIRECT, *ADDRESSES, *COPIES]


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    lines = []
    for number, text in enumerate(EVERY):
        rvc = ".option rvc" if text.startswith("c.") else ".option norvc"
        lines += [f".org {FIRST + number * STRIDE}", rvc, text]
    source = "\n".join([*lines, f".org {FIRST + len(EVERY) * STRIDE}"])
    return assembled("riscv64", source, tmp_path_factory.mktemp("code"))


@pytest.fixture(scope="module")
def machine(code: bytes) -> Machine:
    return Machine(TEXT, code)


def sites(code: bytes) -> Iterator[tuple[str, Site]]:
    function = Function("vmlinux", "f", TEXT, len(code))
    for number, text in enumerate(EVERY):
        at = FIRST + number * STRIDE
        one = next(iter(ISA.decode(code[at : at + 4], TEXT + at)))
        yield text, Site(function, at, one.code)


def onward_of(chain: str, site: Site) -> Onward:
    """Return the trampolines that a case has besides its own.

    Args:
        chain: "alone": none; "next": the following instruction is planted, directly after;
            "target": the branch target is planted; "both"; or "spare": none, and a register is dead
            at all of these instructions.
    """
    after = site.address + len(site.code)
    target = ISA.flow(site.code, site.address).target or 0
    spare = dict.fromkeys((site.address, after, target), 1 << SPARE)
    return {
        "alone": Onward(),
        "next": Onward({after: BEHIND}, after),
        "target": Onward({target: TARGET}),
        "both": Onward({after: BEHIND, target: TARGET}, after),
        "spare": Onward(dead=spare),
    }[chain]


@pytest.mark.drawn
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("chain", ["alone", "next", "target", "both", "spare"])
def test_trampolines_do_what_the_original_does(
    machine: Machine, code: bytes, chain: str, counts: bool
) -> None:
    rng, work = random.Random(3), (CountBody((COUNTER,)),) if counts else ()
    wrong, compared, ways = [], 0, set[tuple[str, int]]()
    for text, site in sites(code):
        onward = onward_of(chain, site)
        made = ISA.trampoline(site, b"", SCRATCH, work, onward=onward)
        assert isinstance(made, Relocated), text
        at = machine.reserve(len(made.code))
        made = ISA.trampoline(site, b"", at, work, onward=onward)
        assert isinstance(made, Relocated), text
        machine.write_code(at, made.code)
        if unreached(ISA, made.code, at):
            wrong.append((text, "has code that nothing leads to"))
        for attempt in range(draws(6, 12)):
            state = random_state(rng, tame=attempt % 2 == 0)
            if attempt % 3 == 0:
                state.registers["x21"] = state.registers["x9"]  # type: ignore[index]
                state.registers["x8"] = state.registers["x15"] = 0  # type: ignore[index]
            try:
                expected = machine.run(state, site.address, len(site.code))
            except EmulatorError:
                continue
            now = machine.run(state, at, len(made.code))
            goes, there = expected.registers["pc"], now.registers["pc"]
            wanted = onward.of(goes)
            if goes == onward.falls_into:
                wanted = at + len(made.code)
            stack = expected.registers["x2"], state.registers["x2"]
            leave_out = ("pc", f"x{SPARE}") if chain == "spare" else ("pc",)
            for outcome in (expected, now):
                for name in leave_out:
                    outcome.registers.pop(name)  # type: ignore[attr-defined]
            different = expected.differences(now, (min(stack) - DEAD, max(stack)))
            if there != wanted or different:
                wrong.append((text, f"{there:#x}, not {wanted:#x}: {different}"))
            ways.add((text, goes))
            compared += 1
    assert wrong == []
    assert compared > draws(3, 6) * len(EVERY)
    assert all(len([to for text, to in ways if text == one]) == 2 for one in BRANCHES)


def test_the_short_way_back(code: bytes) -> None:
    """After work, an instruction that cannot see that interrupts are off is a copy and sret
    alone."""
    quiet = {"add a0, a1, a2", "c.mv a0, a1", "addi sp, sp, -32", "ld a0, 8(sp)"}
    for text, site in sites(code):
        if text not in COPIES:
            continue
        for work in ([CountBody((COUNTER,))], [CountBody((COUNTER, COUNTER + 8))]):
            made = ISA.trampoline(site, b"", SCRATCH, work)
            assert isinstance(made, Relocated)
            assert made.code.endswith(site.code + SRET) == (text in quiet), text
            assert made.code[made.original_at :].startswith(site.code)


def test_where_a_copy_is_that_can_fault(code: bytes) -> None:
    for text, site in sites(code):
        made = ISA.displace(site.code, site.address, SCRATCH)
        assert isinstance(made, Relocated)
        assert made.original_at == (0 if text in COPIES else -1), text


@pytest.mark.parametrize("last", ["c.j .+64", "jal x0, .+64", "ret", "jr a0"])
@pytest.mark.parametrize("first", ["nop", "nop\n.option rvc\nc.nop", "nop\nnop"])
def test_a_hook_where_the_last_instruction_leaves(first: str, last: str, tmp_path: Path) -> None:
    """The last instruction may leave the function if the jump to the stub fits with it; nothing
    follows it."""
    source = f".option norvc\n{first}\n.option rvc\n{last}"
    start = assembled("riscv64", source, tmp_path)
    made = ISA.detour(start + bytes(12), TEXT, SCRATCH, SCRATCH + 0x8000)
    if len(start) < 8:
        assert not isinstance(made, tuple)
        return
    assert isinstance(made, tuple)
    patch, stub = made
    assert len(patch) == (8 if first == "nop\nnop" else len(start))
    assert unreached(ISA, stub, SCRATCH) == []
