"""The table of riscv64 encodings against LLVM's.

All encodings of 16 bits, and of 32 bits every opcode and function with random operands.  Sizes,
registers, flow and kinds are compared; encodings that are left out are counted.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from kinst.core.displaced import Refused
from kinst.isa import load
from kinst.isa.riscv64 import encodings
from kinst.isa.riscv64 import parse as p
from tests.isa.llvm import Known, known_to_llvm

ISA = load("riscv64")
AT = 0xFFFF_FFFF_8020_0000
# All ratified extensions that LLVM 19 has, and those of the kernel's processors, but no vendor's.
# Zcmp and Zcmt, which replace Zcd, are not in Linux's processors.
FEATURES = (
    "+m,+a,+f,+d,+c,+v,+h,+zba,+zbb,+zbc,+zbs,+zbkb,+zbkx,+zkn,+zks,+zkr,+zicond,+zimop,+zcmop"
    ",+zcb,+zfa,+zfh,+zfbfmin,+zvfbfmin,+zvfbfwma,+zvfh,+zvbb,+zvbc,+zvkn,+zvknhb,+zvks,+zvkg"
    ",+zicbom,+zicboz,+zicbop,+zawrs,+zabha,+experimental-zacas,+experimental-zalasr"
    ",+experimental-zicfiss,+experimental-zicfilp,+svinval,+zicsr,+zifencei"
)
RANDOM = random.Random(None if os.environ.get("KINST_RANDOM") else 30)

FLOATING = (0x07, 0x27, 0x43, 0x47, 0x4B, 0x4F, 0x53)  # opcodes
VECTOR = 0x57
PAIRS = "AMOCAS_Q"  # LLVM 19 tells only the first register of each pair
MOP = "C_MOP"  # Zcmop says, and LLVM does not, that it may become a read of its register
# Known to LLVM only: numbers that the specifications reserve, in fields for which LLVM accepts any
# number: rounding modes, rounds of AES, a c.lui of zero.
RESERVED = ("FCVTMOD_W_D", "AES64KS1I", "C_LUI", "C_LUI_HINT")


def words() -> Iterator[int]:
    """Return every opcode with every funct3 and funct7, and with every funct3 and twelve-bit
    number."""
    draw = RANDOM.getrandbits
    for opcode in (op for op in range(3, 128, 4) if op & 0x1F != 0x1F):
        for function in range(8):
            base = opcode | function << 12
            for high in range(128):
                for cleared in (0, 31 << 20, 31 << 7, 31 << 15):
                    word = base | high << 25 | draw(5) << 7 | draw(10) << 15
                    yield word & ~cleared
            for high in range(4096):
                yield base | high << 20 | draw(5) << 7 | draw(5) << 15
                yield base | high << 20 | draw(5) << 15


def registers(names: frozenset[str]) -> int:
    """Return general registers as bits."""
    numbers = (int(name[1:]) for name in names if name[0] == "X" and name[1:].isdigit())
    return sum(1 << number for number in numbers) & encodings.ALL


def differences(word: int, size: int, there: Known) -> str:
    """Return what LLVM knows otherwise; "" for nothing."""
    reads, writes = encodings.effect(word, size)
    if (there.size, registers(there.reads), registers(there.writes)) == (size, reads, writes):
        return ""
    less = registers(there.reads) & ~reads or writes & ~registers(there.writes)
    if there.opcode.startswith((PAIRS, MOP)) and there.size == size:
        pairs = there.opcode.startswith(PAIRS)
        if not registers(there.reads) & ~reads and (pairs or not less):
            return ""
    return f"{word:#x} {there}: reads {reads:#x}, writes {writes:#x}"


# Control goes to a trap's handler, or back from it, which LLVM does not describe.
TRAPS = ("EBREAK", "C_EBREAK", "UNIMP", "C_UNIMP")
TRAP_RETURNS = ("SRET", "MRET", "MNRET", "DRET")
UNIMP = 0xC000_1073  # csrrw x0, cycle, x0: traps, as the register cannot be written


def flow_differs(word: int, size: int, there: Known) -> bool:
    """Return whether control goes elsewhere than LLVM says."""
    flow = ISA.flow(word.to_bytes(size, "little"), AT)
    distance = None if flow.target is None else (flow.target - AT + 2**63) % 2**64 - 2**63
    if there.opcode in TRAPS or word == UNIMP:
        return flow.kind != "trap"
    if there.opcode in TRAP_RETURNS:
        return flow.kind != "indirect" or flow.falls_through
    if there.opcode == "JALR" and word >> 15 & 31 == 0:
        distance = there.target  # an absolute address in the instruction
    if distance != there.target:
        return True
    if "c" in there.flags:
        return flow.kind != "call" or not flow.falls_through
    if "r" in there.flags:
        return flow.kind not in ("return", "indirect") or flow.falls_through
    if "i" in there.flags:
        return flow.kind != "indirect" or flow.falls_through
    if "b" in there.flags:
        return flow.kind != "branch" or not flow.falls_through
    if "j" in there.flags:
        return flow.kind != "jump" or flow.falls_through
    return flow.kind != "next"


def compared(size: int, sample: list[int]) -> Counter[str]:
    """Compare words with LLVM; return how many were known to which side."""
    codes = [word.to_bytes(size, "little") for word in sample]
    counted: Counter[str] = Counter()
    wrong = []
    for word, code, there in zip(
        sample, codes, known_to_llvm("riscv64", FEATURES, codes), strict=True
    ):
        here = encodings.find(word, size)
        if here is None:
            flow = ISA.flow(code, AT)
            moved = ISA.displace(code, AT, AT + 0x10000)
            assert isinstance(moved, Refused) and flow.kind == "indirect" and flow.falls_through
            assert encodings.effect(word, size) == (encodings.ALL, 0)
        if here is None or there is None:
            name = "both unknown" if here is there else "LLVM only" if there else "kinst only"
            counted[name] += 1
            if there is not None and there.opcode not in RESERVED:
                wrong.append(f"{word:#x} {there}: unknown here")
            if here is not None and not known_without_llvm(word, size):
                wrong.append(f"{word:#x}: unknown to LLVM")
            continue
        counted["both know"] += 1
        if found := differences(word, size, there):
            wrong.append(found)
        if flow_differs(word, size, there):
            wrong.append(f"{word:#x} {there}: {ISA.flow(code, AT)}")
    assert wrong == [], (len(wrong), wrong[:10])
    return counted


def known_without_llvm(word: int, size: int) -> bool:
    """Return whether kinst alone knows an encoding.

    Such are quad precision, which LLVM does not have, and groups of vector registers that do not
    begin where they must: in both, general registers occur only as addresses or results.  The
    may-be-operations that Zicfiss has redefined for two registers are unknown to LLVM for the
    other registers.
    """
    opcode = word & 0x7F
    if word & 0x7FFF == 0x4073 and word >> 25 == 0x67:  # mop.rr.7 x0, x0, rs2
        return True
    if word & 0xFFF07FFF == 0xCDC04073:  # mop.r.28 x0, rs1
        return True
    return size == 4 and (opcode in FLOATING or (opcode == VECTOR and word >> 12 & 7 == 3))


@pytest.mark.slow
def test_all_compressed_words() -> None:
    counted = compared(2, [word for word in range(1 << 16) if word & 3 != 3])
    assert counted["both know"] > 47_000 and counted["LLVM only"] < 40, counted
    assert counted["kinst only"] == 0


@pytest.mark.slow
def test_full_words() -> None:
    counted = compared(4, list(words()))
    assert counted["both know"] > 500_000 and counted["LLVM only"] < 200, counted


def test_every_row_is_of_one_kind() -> None:
    """A row has no word of an unknown kind, so every opcode has a flow."""
    for size, table in ((4, encodings._full()), (2, encodings._compressed())):
        for row in (one for group in table.values() for one in group):
            parsed = p.parse(row.match.to_bytes(size, "little"))
            assert parsed is not None and parsed.kind != p.UNKNOWN
