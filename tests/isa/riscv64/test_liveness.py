"""Registers that a jump may spoil, against an emulator.

Registers that kinst takes for dead are filled with random values, and the function must do the
same.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from unicorn import UC_ARCH_RISCV, UC_MODE_RISCV64, Uc, riscv_const

from kinst.core.displaced import Onward, Relocated
from kinst.isa import load
from kinst.isa.riscv64.liveness import choose
from kinst.patch.plan import plan_sites
from tests.isa.gnu_assembler import assembled
from tests.patch.small_functions import (
    DATA_BYTES,
    PAGE,
    SOURCES,
    STOP,
    TEXT,
    Cpu,
    Planned,
    first_visits,
    original,
)

ISA = load("riscv64")
TRACED = ".word 0x13, 0x13\n"
TRACED_WITH_AUIPC = "auipc t0, 0xffba0\n.word 0x13\n"
FREE = {f"t{n}" for n in range(7)} | {f"a{n}" for n in range(2, 8)}


def spare_of(source: str, folder: Path, address: int = TEXT) -> list[set[str]]:
    """Return the dead registers of each instruction of a source."""
    code = assembled("riscv64", source, folder)
    instructions = list(ISA.decode(code, address))
    flows = [ISA.flow(one.code, one.address) for one in instructions]
    names = {r.slot: r.gdb_name for r in ISA.registers}
    return [
        {names[n] for n in range(32) if bits >> n & 1}
        for bits in ISA.dead_registers(instructions, flows)
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("li t1, 1\nret", [{"t1"}, {"t1"}]),  # written before it is read, or never read again
        ("mv a0, t1\nli t1, 0\nret", [{"a0"}, {"t1"}, {"t1"}]),
        ("li t1, 1\n1: beqz a0, 1b\nmv a0, t1\nret", [{"t1"}, set(), {"a0"}, {"t1"}]),
        ("mv a0, a1\nret", [{"a0"}, set()]),  # it has no temporary of its own to spoil
        ("li a5, 1\nret", [{"a5"}, {"a5"}]),
        # Room for a tracer's call: the compiler did not look into the function.
        (f"{TRACED}mv a1, a0\nret", [FREE | {"a1"}] * 3 + [FREE]),
        (f"{TRACED}mv a1, t1\nret", [FREE - {"t1"} | {"a1"}] * 3 + [FREE]),
        # The nop may become a jalr by t0.
        (
            f"{TRACED_WITH_AUIPC}mv a1, t1\nret",
            [FREE - {"t1"} | {"a1"}, FREE - {"t0", "t1"} | {"a1"}, FREE - {"t1"} | {"a1"}, FREE],
        ),
        # Not at the start: no room for a call.
        ("auipc t0, 1\nauipc t1, 1\n.word 0x13\nret", [{"t0", "t1"}] * 4),
        # A call at the very end does not return, in a compiler's function.
        (
            f"{TRACED}beqz a0, 1f\nret\n1: jal ra, . - 64",
            [FREE - {f"a{n}" for n in range(2, 8)}] * 3
            + [FREE]
            + [FREE - {f"a{n}" for n in range(2, 8)}],
        ),
        ("li t1, 1\njal ra, . - 64", [{"t1"}, set()]),
        ("li a0, 1\nret", [{"a0"}, set()]),  # the result
        ("li a5, 1\nj 1f + 64\n1:", [{"a5"}, set()]),  # out of the function: unknown
        ("li a5, 1\njr a5", [{"a5"}, set()]),
        ("lui a5, 0x12345\nj 1f + 64\n1:", [{"a5"}, set()]),
        ("li t1, 1\njal ra, . - 64\nadd a0, a0, t1\nret", [{"t1"}, set(), set(), {"t1"}]),
        ("li t1, 1\njal ra, . - 64\nret", [{"t1"}, {"t1"}, {"t1"}]),
        ("li a1, 1\njal ra, . - 64\nret", [{"a1"}, set(), set()]),  # an argument, a result
        (
            "li t1, 1\njal t0, . - 64\nret",
            [{"t0", "t1"}, {"t0"}, {"t0", "t1"}],
        ),  # another convention
        ("li t1, 1\n.word 0x0000000b\nret", [{"t1"}, set(), {"t1"}]),  # a vendor's own
    ],
)
def test_by_hand(source: str, expected: list[set[str]], tmp_path: Path) -> None:
    assert spare_of(source, tmp_path) == expected


def test_a_branch_to_address_0_is_like_any_other(tmp_path: Path) -> None:
    source = "1: li t1, 1\nmv a0, t1\nbnez a0, 1b\nret"
    for address in (TEXT, 0):
        assert spare_of(source, tmp_path, address) == [{"a0", "t1"}, {"a0"}, {"t1"}, {"t1"}]


def test_a_fault_leads_on(tmp_path: Path) -> None:
    """Registers that the fix-up code reads are live at instructions that may fault."""
    code = assembled("riscv64", "li t1, 1\nld a0, 0(a0)\nli t1, 0\nret\nmv a0, t1\nret", tmp_path)
    instructions = list(ISA.decode(code, TEXT))
    flows = [ISA.flow(one.code, one.address) for one in instructions]
    assert ISA.dead_registers(instructions, flows)[1] >> 6 & 1
    flows[1] = replace(flows[1], fault=instructions[4].address)
    assert not ISA.dead_registers(instructions, flows)[1] >> 6 & 1


def test_rubbish_in_what_is_dead(tmp_path: Path) -> None:
    code = assembled("riscv64", SOURCES["riscv64"], tmp_path)
    length = len(code) - DATA_BYTES
    while code[:length].endswith(b"\x01\0"):
        length -= 2
    instructions = list(ISA.decode(code[:length], TEXT))
    flows = [ISA.flow(one.code, one.address) for one in instructions]
    free = dict(
        zip([i.address for i in instructions], ISA.dead_registers(instructions, flows), strict=True)
    )
    made = Planned(ISA, code, [], [], plan_sites([], ISA, PAGE, 2 * PAGE))
    plain, spoiled = original(made), 0
    for _, address, values, data, stack in first_visits(plain):
        cpu = Cpu(ISA, code)
        dead = {f"x{n}" for n in range(1, 32) if free[address] >> n & 1}
        cpu.run(address, {n: 0xBAD0BAD if n in dead else v for n, v in values.items()}, data, stack)
        spoiled += len(dead)
        alive = {f"x{n}" for n in (2, 3, 4, 8, 9, 10, 11, *range(18, 28))}
        results, memory = cpu.result()
        expected, wanted = plain.result()
        assert memory == wanted and cpu.uc.reg_read(cpu.pc) == STOP
        assert {n: results[n] for n in alive} == {n: expected[n] for n in alive}
    assert spoiled > 20


def test_t0_is_the_last_choice() -> None:
    assert choose(1 << 5 | 1 << 28) == 28 and choose(1 << 5) == 5 and choose(0) == 0
    assert choose(1 << 15) == 15


@pytest.mark.parametrize(("imm", "spare"), [(0x212, 1 << 28), (-7, 1 << 28 | 1 << 6), (0x7FF, 0)])
def test_a_call_by_its_own_link_register(imm: int, spare: int) -> None:
    """jalr ra, imm(ra) is made through a dead register, if there is one."""
    code = struct.pack("<I", (imm & 0xFFF) << 20 | 1 << 15 | 1 << 7 | 0x67)
    site, scratch, base = TEXT + 0x24, TEXT + 0x10000, TEXT + 0x4000
    made = ISA.displace(code, site, scratch, Onward({}, -1, False, {site: spare}))
    assert isinstance(made, Relocated)
    texts = [one.text for one in ISA.decode(made.code, scratch)]
    assert ("sret" in texts) == (not spare)
    if not spare:  # emulated tests of relocation show its behavior
        return
    emulator = Uc(UC_ARCH_RISCV, UC_MODE_RISCV64)
    emulator.mem_map(TEXT, 0x20000)
    emulator.mem_write(scratch, made.code)
    names = [getattr(riscv_const, f"UC_RISCV_REG_X{n}") for n in range(1, 32)]
    before = {one: TEXT + 0x8000 + 64 * k for k, one in enumerate(names)}
    before[names[0]] = base
    for one, value in before.items():
        emulator.reg_write(one, value)
    emulator.emu_start(scratch, base + imm & -2, count=10)
    after = {one: emulator.reg_read(one) for one in names}
    assert emulator.reg_read(riscv_const.UC_RISCV_REG_PC) == base + imm & -2
    assert after.pop(names[0]) == site + 4
    changed = {1 + names.index(one) for one, value in after.items() if value != before[one]}
    assert len(changed) == 1 and all(spare >> register & 1 for register in changed)
