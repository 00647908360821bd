"""All riscv64 instructions of two bytes, and words that are cut short or undefined.

Sizes and kinds are compared with objdump's names, and whether instructions can run with interrupts
off with unicorn.
"""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest
import unicorn
from unicorn import riscv_const

from kinst.core.displaced import Refused
from kinst.isa import load
from kinst.isa.riscv64 import parse as p
from kinst.isa.riscv64 import relocate
from kinst.isa.riscv64.decode import sizes as sizes_in
from tests.isa.gnu_assembler import assembled

ISA = load("riscv64")
TEXT = 0xFFFFFFFF_80200000
HALVES = [half for half in range(1, 1 << 16) if half & 3 != 3]

KINDS = {
    "j": p.JAL, "beqz": p.BRANCH, "bnez": p.BRANCH, "jr": p.JALR, "jalr": p.JALR, "ret": p.JALR,
    "ebreak": p.EBREAK,
}  # fmt: skip


def disassembled(halves: list[int], folder: Path) -> list[str]:
    """Return objdump's mnemonics."""
    (folder / "a.bin").write_bytes(b"".join(half.to_bytes(2, "little") for half in halves))
    command = ["riscv64-linux-gnu-objdump", "-D", "-z", "-b", "binary", "-m", "riscv:rv64", "a.bin"]
    text = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^ +[0-9a-f]+:\t[0-9a-f]{4} +\t(\S+)", text, re.MULTILINE)
    assert len(found) == len(halves)
    return found


def test_kinds_of_all_compressed_instructions(tmp_path: Path) -> None:
    wrong = []
    for half, name in zip(HALVES, disassembled(HALVES, tmp_path), strict=True):
        parsed = p.parse(half.to_bytes(2, "little"))
        assert parsed is not None and (parsed.size, parsed.word) == (2, half)
        if name.startswith(".") or parsed.kind == p.UNKNOWN or half == 0:
            continue  # reserved, or of an extension that this objdump does not know
        if parsed.kind != KINDS.get(name, p.COPY):
            wrong.append((hex(half), name, parsed.kind))
    assert wrong == []


@pytest.mark.parametrize("code", ["", "13", "1300", "130000", "9f00", "7f000000", "00000000"])
def test_what_is_no_instruction(code: str) -> None:
    """Empty bytes, a part of an instruction, more than 32 bits, and two instructions."""
    made = ISA.displace(bytes.fromhex(code), TEXT, TEXT + 4096)
    assert isinstance(made, Refused) and "one known instruction" in made.reason
    assert p.parse(bytes.fromhex(code)) is None
    assert p.size_at(bytes.fromhex(code), 0) in (0, len(code) // 2, 2)


def test_sizes_are_those_of_the_lowest_bits() -> None:
    """The unprivileged specification, "Expanded Instruction-Length Encoding"."""
    word = b"\x13\0\0\0"
    assert [p.size_at(word[:n], 0) for n in range(5)] == [0, 0, 0, 0, 4]
    assert [p.size_at(b"\x01\0"[:n], 0) for n in range(3)] == [0, 0, 2]
    assert p.size_at(b"\x01\0" + word, 2) == 4 and p.size_at(b"\x01\0" + word[:3], 2) == 0
    assert p.size_at(b"\x1f" + bytes(7), 0) == 0 == p.size_at(b"\x9f" + bytes(7), 0)
    assert p.size_at(b"\x01\0", 2) == 0


def test_sizes_end_where_no_instruction_is() -> None:
    """An instruction with the lowest five bits set is longer than 32 bits, and incomplete bytes
    are none."""
    nop, word = b"\x01\0", b"\x13\0\0\0"
    assert sizes_in(b"\x1f\0").tolist() == []
    for none in (b"\x1f\0", b"\x3f\0", b"\xff\xff"):
        for known, sizes in ((b"", []), (nop, [2]), (word, [4]), (nop + word + nop, [2, 4, 2])):
            assert sizes_in(known + none + 3 * nop).tolist() == sizes
    assert sizes_in(nop + word[:2]).tolist() == [2] and sizes_in(word + nop[:1]).tolist() == [4]


@pytest.mark.parametrize("unit", ["0100 13051500", "0100 0b000000", "0100 13051500 0b000000"])
def test_decode_of_more_than_one_piece(unit: str) -> None:
    """The code is longer than the pieces that decode() passes to the disassembler, whose ends cut
    some instructions in two.

    Only there an instruction that it does not know (a vendor's own, 0b) is shown as its bits.
    """
    parts = [bytes.fromhex(part) for part in unit.split()]
    texts = {"0100": "c.nop", "13051500": "addi a0, a0, 1", "0b000000": ".insn 4, 0xb"}
    for start in ([], parts[:1]):
        expected = [*start, *parts * 20_000]
        found = ISA.decode(b"".join(expected), TEXT)
        for one, part in zip(found, expected, strict=True):
            assert (one.code, one.text) == (part, texts[part.hex()])


CODE, STACK, ROOM = 0x10000, 0x40000, 0x4000


def machine() -> unicorn.Uc:
    """Return a machine with code and a stack, and nothing below the stack pointer."""
    made = unicorn.Uc(unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64)
    made.mem_map(CODE - 0x1000, 0x3000)  # as far as branches lead
    made.mem_map(STACK, ROOM)
    return made


def runs(uc: unicorn.Uc, code: bytes, draw: random.Random) -> str:
    """Return "" if the code runs to its end or branches, otherwise why it does not."""
    uc.mem_write(CODE, code)
    uc.ctl_flush_tb()
    for number in range(1, 32):
        uc.reg_write(riscv_const.UC_RISCV_REG_X0 + number, 1 << 40 | draw.getrandbits(32) & -8)
    uc.reg_write(riscv_const.UC_RISCV_REG_SP, STACK)
    try:
        uc.emu_start(CODE, 0, count=1)
    except unicorn.UcError as error:
        return str(error)
    return ""


def test_what_runs_quietly_can_touch_nothing_but_the_stack() -> None:
    """Every compressed instruction, without memory except at the stack pointer and above.

    Instructions that are quiet by kinst run through, and none of those that do not run is quiet.
    """
    uc, draw = machine(), random.Random(1)
    loud = quiet = 0
    for half in HALVES[::4]:
        code = half.to_bytes(2, "little")
        sepc = relocate.quiet_sepc(code, CODE)
        parsed = p.parse(code)
        assert parsed is not None
        if sepc is None:
            loud += 1
            continue
        reserved = "exception" in (why := runs(uc, code, draw))
        assert not why or reserved, (code.hex(), why)
        quiet += not reserved
        # The destination of a branch that is not taken.
        at = uc.reg_read(riscv_const.UC_RISCV_REG_PC)
        assert reserved or at == sepc or parsed.kind == p.BRANCH, code.hex()
    assert loud > 2000 and quiet > 6000, (loud, quiet)


QUIET = """
addi a0, a1, 5; lui a0, 9; add a0, a1, a2; addw a0, a1, a2; slliw a0, a1, 3;
mul a0, a1, a2; ld a0, 8(sp); sd a0, 8(sp); lw a5, 0(sp); sb a5, 2047(sp); auipc a0, 5;
beq a0, a1, .+8; jal ra, .+64; jal x0, .+64;
c.addi a0, 1; c.li a0, 1; c.lui a0, 1; c.srli a0, 3; c.sub a0, a1; c.j .+64; c.beqz a0, .+8;
c.bnez a0, .+8; c.slli a0, 3; c.mv a0, a1; c.add a0, a1; c.addi4spn a0, sp, 8; c.ldsp a0, 8(sp);
c.sdsp a0, 8(sp); c.lwsp a0, 8(sp); c.swsp a0, 8(sp); c.addi16sp sp, 32; c.addiw a0, 1
"""
LOUD = """
ld a0, 0(a1); sd a0, 0(a1); ld a0, -8(sp); sd a0, -8(sp); lb a0, 0(s0); jalr a0; jr a0; ret;
ecall; ebreak; fence; csrr a0, sstatus; amoadd.d a0, a1, (a2); lr.d a0, (a1); wfi; sret;
fld fa0, 8(sp); fsd fa0, 8(sp); fadd.d fa0, fa1, fa2; c.ld a0, 0(a1); c.sd a0, 0(a1);
c.lw a0, 0(a1); c.sw a0, 0(a1); c.fld fa0, 0(a1); c.fldsp fa0, 8(sp); c.fsdsp fa0, 8(sp); c.jr a0;
c.jalr a0; c.ebreak; .insn 4, 0x0000000b; .half 0x9002
"""


@pytest.mark.parametrize(("source", "quiet"), [(QUIET, True), (LOUD, False)])
def test_what_may_run_with_interrupts_off(source: str, quiet: bool, tmp_path: Path) -> None:
    """Arithmetic, direct branches, and memory at the stack pointer or above."""
    for text in source.replace("\n", " ").split(";"):
        kind = ".option rvc" if text.strip().startswith("c.") else ".option norvc"
        code = assembled("riscv64", f"{kind}\n{text}", tmp_path)
        sepc = relocate.quiet_sepc(code, TEXT)
        assert (sepc is not None) == quiet, text
        if quiet:
            jump = "+64" in text
            assert sepc == TEXT + (64 if jump else len(code)), text


# The upper part of an address, and instructions that add the lower part to it.
ADDRESSES = [
    ("auipc a0, 1\naddi a1, a0, -8", TEXT + 4096 - 8),
    ("auipc a0, 1\nc.addi a0, -8", TEXT + 4096 - 8),
    ("auipc a0, 1\nc.addi a0, 31", TEXT + 4096 + 31),
    ("auipc a0, 0xfffff\nc.addi a0, -32", TEXT - 4096 - 32),
    ("lui a5, 0x80000\naddi a5, a5, 2047", 0xFFFFFFFF_80000000 + 2047),
    ("c.lui a5, 31\nc.addi a5, 1", (31 << 12) + 1),
    ("c.lui a5, 0xfffe0\nc.addi a5, 1", 2**64 - (32 << 12) + 1),
    ("auipc a0, 1\nnop\nnop\nnop\nnop\nnop\nnop\nnop\naddi a0, a0, 4", TEXT + 4096 + 4),
    ("auipc a0, 1\nnop\nnop\nnop\nnop\nnop\nnop\nnop\nnop\naddi a0, a0, 4", None),
    ("auipc a0, 1\naddi a0, a1, 4", None),
    ("auipc a0, 1\nc.addi a1, 4", None),
    ("auipc a0, 1\naddiw a0, a0, 4", None),
    ("auipc a0, 1\nc.addiw a0, 4", None),
    ("auipc a0, 1\nxori a0, a0, 4", None),
    ("auipc a0, 1\nc.li a0, 4", None),
    ("c.li a0, 1\nc.addi a0, 4", None),
    # The nearest that adds to it: later additions are not part of it.
    ("auipc a0, 1\naddi a0, a0, -8\naddi a0, a0, 16", TEXT + 4096 - 8),
    ("auipc a0, 1\nnop\nc.addi a0, -8\naddi a1, a0, 16", TEXT + 4096 - 8),
]  # fmt: skip


@pytest.mark.parametrize(("source", "address"), ADDRESSES)
def test_addresses_that_may_be_of_jump_tables(
    source: str, address: int | None, tmp_path: Path
) -> None:
    code = assembled("riscv64", f".option rvc\n{source}", tmp_path)
    found = ISA.jump_tables(list(ISA.decode(code, TEXT)))
    if address is None:
        assert found == []
        return
    wanted = {(address, 4, address), (address, 8, 0)}
    if address < 1 << 31:  # of whole addresses, in a program's small half
        wanted.add((address, 4, 0))
    assert {(table.address, table.size, table.base) for table in found} == wanted
    assert all(table.scale == 1 and table.count == 0 for table in found)


# Reads and writes of instructions that compilers do not put into a function: (source; for each
# instruction, its dead registers).
RARE = [
    ("li t1, 1\nli t2, 1\nsfence.vma t2, t1\nret", [{6, 7}, {7}, set(), {6, 7}]),
    ("li t1, 1\nli a7, 0\necall\nmv a1, t1\nret", [{6, 17}, {17}, set(), {11, 17}, {6, 17}]),
    ("li t1, 1\ncsrw sscratch, t1\nret", [{6}, set(), {6}]),
    ("li t1, 1\ncsrrwi x0, sscratch, 6\nret", [{6}, {6}, {6}]),  # a number, not t1
    ("li t1, 1\ncsrr t1, sscratch\nret", [{6}, {6}, {6}]),
    # Only the registers that they name.
    *((f"li t1, 1\n{text}\nret", [{6}, {6}, {6}]) for text in (
        "fsd fa0, 0(a0)", "fld fa0, 0(a0)", "fsw fa0, 4(a0)", "beq a0, a1, .+4",
        "bgeu a0, a1, .+4", "sd a1, 0(a0)", "fence", "sw a1, 4(s0)", "c.beqz a0, .+2",
        "c.sdsp s0, 8(sp)", "lui t1, 5")),
    *((f"li t1, 1\n{text}\nret", [{6}, set(), {6}]) for text in (
        "fsd fa0, 0(t1)", "fld fa0, 0(t1)", "beq a0, t1, .+4", "bltu t1, a1, .+4", "sd t1, 0(a0)",
        "sd a0, 0(t1)", "amoadd.d s2, t1, (a1)", "amoadd.d s2, a1, (t1)", "addw a0, a0, t1",
        "addiw s2, t1, 3", "mul a0, t1, a0", "c.sdsp t1, 8(sp)", "jalr x0, 0(t1)")),
    # Registers that each of them writes.
    *((f"{text}\nret", [{6}, {6}]) for text in (
        "ld t1, 0(a0)", "addi t1, a0, 1", "auipc t1, 5", "addiw t1, a0, 1", "lui t1, 9",
        "amoadd.d t1, a2, (a0)", "mul t1, a0, a1", "addw t1, a0, a1", "csrr t1, sscratch",
        "c.li t1, 1", "c.mv t1, a0", "c.lwsp t1, 8(sp)")),
    *((f"{text}\nret", [set(), set()]) for text in (
        "sd a1, 24(a0)", "fld ft6, 0(a0)", "beq a0, a1, .+4", "fence", "csrw sscratch, a0")),
    # A call that returns to ra may reach any C function, which expects no temporary.
    ("li t1, 1\nc.jalr a5\nret", [{6}, {6}, {6}]),
    ("li t1, 1\nc.jalr t1\nret", [{6}, set(), {6}]),
    # Reserved: all registers may be read.
    *((f"li t1, 1\n.half {half:#x}\nret", [{6}, set(), {6}])
      for half in (0x9C79, 0x9C7D, 0x8C40, 0x6201, 0x2001, 0x8002)),
    # Of Zcb, which is newer than this assembler: c.zext.b to c.not, c.mul.
    *((f"li t1, 1\n.half {half:#x}\nret", [{6}, {6}, {6}])
      for half in (0x9C61, 0x9C65, 0x9C69, 0x9C6D, 0x9C71, 0x9C75, 0x9C41, 0x9C45)),
    # Operands that do not follow the usual format of their opcode: t1 is read.
    *((f"li t1, 1\n.word {word:#x}\nret", [{6}, set(), {6}]) for word in (
        0x2875A32F,  # amocas.w t1, t2, (a1): it compares with t1
        0x2875B32F,  # amocas.d t1, t2, (a1)
        0x2865C42F,  # amocas.q s0, t1, (a1)
        0x0A657007,  # vlse64.v v0, (a0), t1: the stride
        0x0A657027,  # vsse64.v v0, (a0), t1
        0x2A657007,  # vlsseg2e64.v v0, (a0), t1
        0x66654073,  # hsv.w t1, (a0)
        0x6E654073,  # hsv.d t1, (a0)
        0x60034973,  # hlv.b s2, (t1)
        0x81C34973,  # mop.r.0 s2, t1
        0x82654573,  # mop.rr.0 a0, a0, t1
        0x4865A92F,  # ssamoswap.w s2, t1, (a1)
        0x0E655533,  # czero.eqz a0, a0, t1
    )),
    # And written, if it is known.
    *((f".word {word:#x}\nret", [{6}, {6}]) for word in (
        0x600 << 20 | 0x54373,  # hlv.b t1, (a0)
        0x81C54373,  # mop.r.0 t1, a0
        0x82A54373,  # mop.rr.0 t1, a0, a0
        0x42A02357,  # vmv.x.s t1, v10
        0x0E655333 & ~(31 << 20) | 11 << 20,  # czero.eqz t1, a0, a1
    )),
    # A pair of registers, t1 and t2, both ways.
    ("li t1, 1\n.word 0x2805C32F\nret", [{6}, set(), {6, 7}]),  # amocas.q t1, zero, (a1)
    # c.sspopchk t0 reads its register and writes none.
    ("li t0, 1\n.half 0x6281\nret", [{5}, set(), {5}]),
    ("li t1, 1\n.half 0x6381\nret", [{6}, {6}, {6}]),  # c.mop.7, of t2
    # c.subw and c.addw are not.
    ("li t1, 1\nc.subw a0, a1\nret", [{6}, {6}, {6}]),
    ("li t1, 1\nc.addw a0, a1\nret", [{6}, {6}, {6}]),
    ("li t1, 1\nc.and a0, a1\nret", [{6}, {6}, {6}]),
    # Nor are others that have a number in the register's field.
    *((f"li t1, 1\n{text}\nret", [{6}, {6}, {6}])
      for text in ("c.srli a0, 48", "c.srai a0, 63", "c.andi a0, -16")),
]  # fmt: skip


@pytest.mark.parametrize(("source", "spare"), RARE)
def test_registers_of_rare_instructions(source: str, spare: list[set[int]], tmp_path: Path) -> None:
    code = assembled("riscv64", f".option rvc\n{source}", tmp_path)
    instructions = list(ISA.decode(code, TEXT))
    flows = [ISA.flow(one.code, one.address) for one in instructions]
    found = ISA.dead_registers(instructions, flows)
    assert [{n for n in range(32) if bits >> n & 1} for bits in found] == spare


def test_a_branch_at_the_very_end_is_found(tmp_path: Path) -> None:
    """A branch is also found if the code's length is odd, and at the end of a chunk of
    decoding."""
    back = assembled("riscv64", ".option rvc\nc.nop\nc.j .-2", tmp_path)[2:]
    for size in (2, 4, 6, 64, 1 << 20, (1 << 20) + 2, (1 << 20) + 4, 2 << 20):
        code = b"\x01\0" * (size // 2 - 1) + back
        for tail in (b"", b"\x82"):
            places, targets = ISA.branches(code + tail, TEXT)
            there = list(zip(places.tolist(), targets.tolist(), strict=True))
            assert there == ([(TEXT + size - 2, TEXT + size - 4)] if size > 2 else [])
