"""Disassembly for people: starts of instructions among bytes that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinst.isa._plain import PlainDisassembly, disassemble
from kinst.isa.amd64.decode import PLAIN as AMD64
from kinst.isa.arm64.decode import PLAIN as ARM64
from kinst.isa.riscv64.decode import PLAIN as RISCV64
from tests.isa.gnu_assembler import assembled

TEXT = 0xFFFF_FFFF_8020_0000


# For each: a source, and the offsets of what can be shown.  Custom opcodes have four bytes if the
# lowest two bits are set, reserved compressed ones have two.
@pytest.mark.parametrize(
    ("isa", "rules", "source", "kept"),
    [
        ("riscv64", RISCV64, "nop; .insn 4, 0x0000000b; ret; ld a0, 8(sp)", [0, 8, 12]),
        ("riscv64", RISCV64, "nop; .insn 4, 0xffff000b; addi a0, a0, 1; ret", [0, 8, 12]),
        ("riscv64", RISCV64, ".half 0x9000; ret; .half 0x8002; nop", [2, 8]),
        ("riscv64", RISCV64, ".half 0x9000; .half 0x9c00; addi a0, a0, 1", [4]),
        ("arm64", ARM64, "nop; .inst 0xffffffff; ret", [0, 8]),
        ("arm64", ARM64, "nop; .inst 0xffffffff", [0]),
        ("amd64", AMD64, "nop; push rbp; .byte 6, 7; ret", [0, 1]),
    ],
)
def test_what_is_none_is_stepped_over(
    isa: str, rules: PlainDisassembly, source: str, kept: list[int], tmp_path: Path
) -> None:
    head = {"amd64": ".intel_syntax noprefix", "riscv64": ".option norvc", "arm64": ""}[isa]
    code = assembled(isa, "\n".join([head, *source.split("; ")]), tmp_path)
    assert [at for at, _ in disassemble(rules, code, TEXT)] == kept


@pytest.mark.parametrize(("isa", "rules"), [("riscv64", RISCV64), ("amd64", AMD64)])
def test_what_is_cut_short_is_not_shown(isa: str, rules: PlainDisassembly, tmp_path: Path) -> None:
    """The end of the bytes is no error either."""
    sources = {"riscv64": ".option norvc\nnop\nld a0, 8(sp)", "amd64": "nop\nud1 8(%rax), %eax"}
    code = assembled(isa, sources[isa], tmp_path)
    whole = [at for at, _ in disassemble(rules, code, TEXT)]
    assert len(whole) == 2
    for size in range(len(code)):
        assert [at for at, _ in disassemble(rules, code[:size], TEXT)] == whole[:1][
            : size >= whole[1]
        ]


def test_operands_are_shown_relative_to_the_address(tmp_path: Path) -> None:
    code = assembled("amd64", "nop\njmp .+0x1000", tmp_path)
    (_, nop), (at, jump) = disassemble(AMD64, code, TEXT)
    assert (nop, at, jump) == ("nop", 1, f"jmp {TEXT + 1 + 0x1000:#x}")
