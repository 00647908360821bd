"""Isa.returns_of() finds the calls of a function among all spellings of GNU as."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinst.isa import load
from tests.isa.gnu_assembler import assembled

AT = 0xFFFF_8000_0810_0000
# Forward and backward, then no calls of it: a jump, a call of something else, an indirect call;
# for riscv64 also an instruction with jalr's opcode and a reserved funct3.
SOURCES = {
    "amd64": """
        .intel_syntax noprefix
        nop
        call wanted
        jmp wanted
        call other
        call rax
        mov eax, 0xe8e8e8e8
    wanted: ret
        .byte 0xe8
    other: call wanted
        call .+5
    """,
    "arm64": "nop\nbl wanted\nb wanted\nbl other\nblr x3\nwanted: ret\nother: bl wanted\nbl .+4",
    "riscv64": """
        c.nop
        .option norvc
        jal ra, wanted
        j wanted
        jal ra, other
        jalr ra, 0(a3)
        jal t0, wanted
    wanted: ret
    other: jal ra, wanted
        nop
    far: auipc t1, 0
        jalr ra, -12(t1)
        auipc ra, 0x7ffff
        jalr ra, -8(ra)
        auipc ra, 0
        jalr ra, 0(t1)
    lost: auipc t1, 0
        jalr ra, -36(t2)
        auipc t1, 0
        .insn i 0x67, 4, ra, -44(t1)
    """,
}
# (address of the called function, return addresses of the calls), from the start of the code.
CALLS = {
    "amd64": [(20, (6, 27)), (22, (13,)), (32, (32,))],
    "arm64": [(20, (8, 28)), (24, (16,)), (32, (32,))],
    "riscv64": [(22, (6, 30, 42)), (26, (14,)), (42 + 0x7FFFF000 - 8, (50,))],
}


@pytest.mark.parametrize("isa", sorted(SOURCES))
def test_returns_of_calls(isa: str, tmp_path: Path) -> None:
    code = assembled(isa, SOURCES[isa], tmp_path)
    known = load(isa)
    for target, places in CALLS[isa]:
        assert list(known.returns_of(code, AT, AT + target)) == [AT + place for place in places]
    for cut in range(5):
        assert list(known.returns_of(code[:cut], AT, AT)) == []


@pytest.mark.parametrize(("isa", "reach", "step"), [("arm64", 1 << 27, 4), ("riscv64", 1 << 20, 2)])
def test_the_ends_of_the_reach(isa: str, reach: int, step: int, tmp_path: Path) -> None:
    for distance in (-reach, step - reach, reach - step):
        call = "bl" if isa == "arm64" else "jal ra,"
        code = assembled(isa, f"{call} .{distance:+d}", tmp_path)
        assert list(load(isa).returns_of(code, AT, AT + distance)) == [AT + 4]
        assert not list(load(isa).returns_of(code, AT, AT + distance + step))
