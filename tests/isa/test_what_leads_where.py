"""Branches and addresses in code, whichever of its bytes instructions begin at.

The code is random bytes: capstone decodes at each offset, and pieces have any size.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import capstone
import pytest

from kinst.isa import load
from kinst.isa.amd64 import targets as amd64
from kinst.isa.riscv64 import targets as riscv64

PLACES = (0x1000, 0xFFFFFFFF_81000000, 0x7FFF_F000)  # the last: the code is near the middle
PREFIXES = b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3"
LONGEST = 16  # bytes that an instruction at an offset may have
Pair = tuple[int, int]


def amd64_code(rng: random.Random, size: int, address: int) -> bytes:
    """Return code with branches of all lengths, leas and addresses, many of which lead into it."""
    found = b""
    while len(found) < size:
        here = len(found)
        near = rng.randrange(-here - 8, size - here + 8)
        distance = near.to_bytes(4, "little", signed=True)
        short = rng.randrange(256).to_bytes(1)
        op = rng.randrange(256)
        place = (address + rng.randrange(-8, size + 8)) & 0xFFFF_FFFF
        found += rng.choice(
            (
                bytes([0xE8 | op & 1]) + distance,
                bytes([0x0F, 0x80 | op & 15]) + distance,
                bytes([0x48, 0x8D, 5 | op & 0x38]) + distance,
                bytes([0x70 | op & 15]) + short,
                bytes([0xE0 | op & 3]) + short,
                b"\xeb" + short,
                place.to_bytes(4, "little"),
                rng.randbytes(rng.randrange(1, 6)),
            )
        )
    return found[:size]


def amd64_pairs(code: bytes, address: int) -> Iterator[Pair]:
    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    disassembler.detail = True
    for at in range(len(code)):
        value = int.from_bytes(code[at : at + 4], "little", signed=True)
        if at + 4 <= len(code):
            yield at, value % (1 << 64) - address  # extended with its sign, as displacements are
        one = next(disassembler.disasm(code[at : at + 15], address + at, 1), None)
        # An offset stands for the instruction there, without prefixes (SDM volume 2, 2.1.1 and
        # 2.2.1).
        if one is None or code[at] in PREFIXES or code[at] & 0xF0 == 0x40:
            continue
        if one.group(capstone.CS_GRP_BRANCH_RELATIVE) and one.bytes[:2] != b"\xc7\xf8":  # xbegin
            yield at, one.operands[0].imm % (1 << 64) - address
        if one.mnemonic == "lea" and one.reg_name(one.operands[1].mem.base) == "rip":
            yield at, one.size + at + one.operands[1].mem.disp


def riscv64_code(rng: random.Random, size: int, _address: int) -> bytes:
    found = b""
    while len(found) < size:
        register, other = rng.randrange(32), rng.randrange(32)
        high = rng.choice((0, 0xFFFFF, rng.getrandbits(20)))
        low = rng.getrandbits(12) << 20 | register << 15 | other << 7
        jal = rng.choice((rng.getrandbits(32), rng.getrandbits(10) << 21, 0xFFDFF000))
        found += rng.choice(
            (
                (rng.getrandbits(16) & ~0xE003 | rng.choice((0xA001, 0xC001, 0xE001))).to_bytes(
                    2, "little"
                ),
                (jal & ~0xFFF | other << 7 | 0x6F).to_bytes(4, "little"),
                (rng.getrandbits(32) & ~0x7F | 0x63).to_bytes(4, "little"),
                (high << 12 | register << 7 | 0x17).to_bytes(4, "little")
                + (low | rng.choice((0x13, 0x67, 0x1013, 0x1B))).to_bytes(4, "little"),
                rng.randbytes(2),
            )
        )
    return found[:size]


def riscv64_pairs(code: bytes, address: int) -> Iterator[Pair]:
    mode = capstone.CS_MODE_RISCV64 | capstone.CS_MODE_RISCVC
    disassembler = capstone.Cs(capstone.CS_ARCH_RISCV, mode)
    disassembler.detail = True

    def decoded(at: int) -> Any:
        return next(disassembler.disasm(code[at : at + 4], address + at, 1), None)

    jumps = ("jal", "j", "c.j", "beq", "bne", "blt", "bge", "bltu", "bgeu", "c.beqz", "c.bnez",
             "beqz", "bnez", "bltz", "bgez", "blez", "bgtz")  # fmt: skip
    for at in range(0, len(code), 2):
        one = decoded(at)
        if one is None:
            continue
        if one.mnemonic in jumps:
            yield at, at + one.operands[-1].imm
        if one.mnemonic != "auipc":
            continue
        then = decoded(at + 4)
        if then is None or then.size != 4:
            continue
        word = int.from_bytes(then.bytes, "little")
        register = int.from_bytes(one.bytes, "little") >> 7 & 31
        names = ("addi", "mv", "nop", "li", "jalr", "jr", "ret")
        if then.mnemonic in names and word >> 15 & 31 == register:
            high = one.operands[1].imm & 0xFFFFF
            low = word >> 20
            signed = (high - (high >> 19 << 20) << 12) + low - (low >> 11 << 12)
            yield at, at + signed


MAKERS = {"amd64": (amd64_code, amd64_pairs), "riscv64": (riscv64_code, riscv64_pairs)}


@pytest.mark.parametrize("address", PLACES)
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_all_that_capstone_sees(name: str, address: int, monkeypatch: pytest.MonkeyPatch) -> None:
    isa, rng = load(name), random.Random(address)
    make, pairs = MAKERS[name]
    for size in (0, 1, 2, 5, 40, 63, 64, 65, 1000, 3001):
        code = make(rng, size, address)
        expected = {(at, to) for at, to in pairs(code, address) if 0 <= to < size}
        assert expected or size < 200
        for chunk in (1 << 20, 64, 16):
            monkeypatch.setattr(amd64, "_CHUNK", chunk)
            monkeypatch.setattr(riscv64, "_CHUNK", chunk)
            places, targets = isa.branches(code, address)
            found = [(p - address, t - address)
                     for p, t in zip(places.tolist(), targets.tolist(), strict=True)]  # fmt: skip
            assert len(found) == len(set(found))
            assert [to for _, to in found] == sorted(to for _, to in found)
            # Instructions that the end cuts short are unknown; other bytes are no instructions.
            more = {(at, to) for at, to in set(found) - expected if at <= size - LONGEST
                    and (one := next(isa.decode(code[at:], address + at), None))
                    and not one.text.startswith(".insn")}  # fmt: skip
            assert expected <= set(found) and not more, (size, chunk)
            assert all(0 <= to < size for _, to in found)
