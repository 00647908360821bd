"""amd64 instructions that may make the address of a jump table: operands of every form, as GNU as
writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinst.core.instruction import JumpTable
from kinst.isa import load
from tests.isa.gnu_assembler import assembled

ISA = load("amd64")
TEXT = 0xFFFFFFFF_81000000
REGISTERS = (
    "rax",
    "rcx",
    "rdx",
    "rbx",
    "rsp",
    "rbp",
    "rsi",
    "rdi",
    *(f"r{n}" for n in range(8, 16)),
)
INDICES = [register for register in REGISTERS if register != "rsp"]

# By lea, relative to rip: 32-bit distances from the table, or whole addresses.
LEAS = [f"lea {register}, [rip + {distance}]" for register in REGISTERS
        for distance in (0, 0x1234, -0x1234, 0x7FFFFFFF)]  # fmt: skip
# An index times 8 and no base: whole addresses, at a sign-extended displacement.
SCALED = [
    *(f"jmp qword ptr [{register}*8 + {at}]" for register in INDICES
      for at in (0x1000, -0x7F000000)),
    *(f"mov {to}, [{register}*8 - 64]" for to, register in zip(REGISTERS, INDICES, strict=False)),
    "call qword ptr [rcx*8 + 0x2000]", "notrack jmp qword ptr [r9*8 + 0x3000]",
]  # fmt: skip
NEITHER = [
    "mov rax, [rip + 64]", "lea rax, [rbx + 64]", "lea rax, [rbx + rcx*8 + 64]",
    "jmp qword ptr [rbx + rcx*8 + 0x1000]", "jmp qword ptr [rbp + rcx*8 + 0x1000]",
    "jmp qword ptr [r13 + rcx*8 + 64]", "jmp qword ptr [rcx*4 + 0x1000]",
    "jmp qword ptr [rcx*2 + 0x1000]", "mov rax, [rsp]", "mov rax, [rsp + 64]",
    "jmp qword ptr ds:[0x1000]", "mov rax, rsp", "mov esp, 0xc5c5c5c5", "in eax, 4", "in al, 4",
    "nop", "ret", "jmp rax", "push rbp", "add al, 4", "bsf rax, [rip + 64]", "xor eax, eax",
]  # fmt: skip


def decoded(text: str, folder: Path) -> bytes:
    return assembled("amd64", f".intel_syntax noprefix\n{text}", folder)


@pytest.mark.parametrize(("texts", "base"), [(LEAS, True), (SCALED, False)])
def test_what_makes_the_address_of_a_table(texts: list[str], base: bool, tmp_path: Path) -> None:
    code = decoded("\n".join(texts), tmp_path)
    instructions = list(ISA.decode(code, TEXT))
    assert len(instructions) == len(texts)
    for text, one in zip(texts, instructions, strict=True):
        inside = text.partition("[")[2].rstrip("]").split(" ")
        distance = int(inside[-1], 0) * (-1 if inside[-2] == "-" else 1)
        place = (one.end if base else 0) + distance & 2**64 - 1
        wanted = (
            [JumpTable(place, 4, place), JumpTable(place, 8)] if base else [JumpTable(place, 8)]
        )
        assert ISA.jump_tables([one]) == wanted, text


def test_each_is_found_once(tmp_path: Path) -> None:
    code = decoded("jmp qword ptr [rcx*8 + 64]\nmov rax, [rdx*8 + 64]", tmp_path)
    assert ISA.jump_tables(list(ISA.decode(code, TEXT))) == [JumpTable(64, 8)]


def test_what_makes_none(tmp_path: Path) -> None:
    code = decoded("\n".join(NEITHER), tmp_path)
    instructions = list(ISA.decode(code, TEXT))
    assert len(instructions) == len(NEITHER)
    found = [t for t, one in zip(NEITHER, instructions, strict=True) if ISA.jump_tables([one])]
    assert found == []


def test_what_may_is_marked(tmp_path: Path) -> None:
    """All instructions that may are marked, and few others: those whose bytes contain such bytes
    by chance."""
    texts = [*LEAS, *SCALED, *NEITHER]
    code = decoded("\n".join(texts), tmp_path)
    columns = ISA.scan([(TEXT, code)]).columns
    marked = dict(zip(texts, ISA.may_make_tables(columns).tolist(), strict=True))
    assert all(marked[text] for text in (*LEAS, *SCALED))
    assert not any(marked[text] for text in NEITHER)
    # The bytes that follow an instruction are not part of it.
    cut = ISA.scan([(TEXT, decoded(".byte 0x90, 0x8d, 0x05\n.long 5", tmp_path))]).columns
    assert ISA.may_make_tables(cut).tolist() == [False, True]
