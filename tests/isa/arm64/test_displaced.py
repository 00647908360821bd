"""arm64 instructions that depend on their own address, each beside its displaced code in an
emulator: all conditions, alone and in chains, whether or not kernels have them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from unicorn import UC_ARCH_ARM64, UC_HOOK_CODE, UC_MODE_ARM, Uc, arm64_const

from kinst.core.bodies import CountBody
from kinst.core.displaced import UNCHAINED, Onward, Relocated
from kinst.core.probe import Function, Site
from kinst.isa import load
from tests.isa.gnu_assembler import assembled
from tests.isa.unreached import unreached

ISA = load("arm64")
AT, SCRATCH, SIZE = 0x40010000, 0x40100000, 4
STRIDE = 64  # distance between assembled instructions
BEHIND, TARGET = 0x40108000, 0x4010C000  # trampolines of the next instruction, and of the target
STACK, COUNTER = 0x40204000, 0x40208000
REGISTERS = [getattr(arm64_const, f"UC_ARM64_REG_X{n}") for n in range(31)]
VECTORS = [getattr(arm64_const, f"UC_ARM64_REG_V{n}") for n in range(4)]
SP, PC = arm64_const.UC_ARM64_REG_SP, arm64_const.UC_ARM64_REG_PC
NZCV = arm64_const.UC_ARM64_REG_NZCV

CONDITIONS = [f".inst 0x5400{0x0800:04x} | {n}" for n in range(16)]  # b.eq to b.nv, 256 bytes on
BRANCHES = [
    *CONDITIONS,
    *(f"{name} {r}, .+256" for name in ("cbz", "cbnz") for r in ("w14", "x14", "x15", "x30")),
    *(f"{name} x{r}, #{b}, .-256" for name in ("tbz", "tbnz") for r in (14, 15) for b in (0, 40)),
    "b .+256", "bl .+256",
]  # fmt: skip
# Instructions that compute an address or load from one near their own: these loads cannot fault,
# because kernel text is there.
ADDRESSES = [
    "adr x4, .+1021", "adr x30, .-5", "adrp x4, .", "adr xzr, .+8", "ldr w4, .+512", "ldr x30, .+8",
    "ldrsw x4, .-8", "ldr s2, .+512", "ldr d2, .+8", "ldr q2, .-16", "prfm pldl1keep, .+8",
    "prfm #31, .+8", "prfm pstl2strm, .+16", "ldr xzr, .+8", "ldr w16, .+8",
]  # fmt: skip
# Others have a copy with its address.  A call became a jump.
COPIES = {
    "nop": "nop", "add x3, x4, x5": "add x3, x4, x5", "ldr x3, [sp, 8]": "ldr x3, [sp, #8]",
    "br x17": "br x17", "ret": "ret", "ret x17": "ret x17", "blr x17": "br x17",
}  # fmt: skip


class Cpu:
    """A processor with random memory, the same for each run."""

    def __init__(self) -> None:
        self.uc = Uc(UC_ARCH_ARM64, UC_MODE_ARM)
        self.uc.mem_map(0, 0x1000)
        self.uc.mem_map(0x40000000, 0x300000)
        self.uc.reg_write(arm64_const.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # enable vectors
        self.uc.mem_write(0x40000000, random.Random(5).randbytes(0x300000))

    def run(self, code: bytes, at: int, seed: int) -> tuple[int, list[int], bytes]:
        """Run code at an address, from a state that the seed makes.

        Returns (destination, registers, stack from its pointer on).
        """
        draw = random.Random(seed)
        kept = self.uc.mem_read(at, len(code))
        self.uc.mem_write(at, code)
        self.uc.ctl_flush_tb()
        for one in REGISTERS:
            self.uc.reg_write(one, draw.choice((0, draw.getrandbits(64))))
        self.uc.reg_write(REGISTERS[17], AT + 0x4000)
        self.uc.reg_write(REGISTERS[30], draw.choice((0, AT + 0x8000)))
        self.uc.reg_write(NZCV, draw.getrandbits(4) << 28)
        for one in VECTORS:
            self.uc.reg_write(one, draw.getrandbits(128))
        self.uc.reg_write(SP, STACK)
        pc = at
        for _ in range(40):
            self.uc.emu_start(pc, 0, count=1)
            pc = self.uc.reg_read(PC)
            if not at <= pc < at + len(code):
                break
        self.uc.mem_write(at, bytes(kept))
        found = [self.uc.reg_read(one) for one in (*REGISTERS, SP, NZCV, *VECTORS)]
        return pc, found, bytes(self.uc.mem_read(STACK, 256))


def instructions(texts: list[str], folder: Path) -> Iterator[tuple[str, bytes]]:
    """Return the bytes of each text."""
    source = "\n".join(f".org {STRIDE * n}\n{text}" for n, text in enumerate(texts, 8))
    code = assembled("arm64", source, folder)
    for n, text in enumerate(texts, 8):
        yield text, code[STRIDE * n :][:SIZE]


CHAINS = {
    "alone": UNCHAINED,
    "next is behind": Onward({AT + SIZE: BEHIND}, AT + SIZE),
    "both planted": Onward({AT + SIZE: BEHIND, AT + 256: TARGET, AT - 256: TARGET}),
}


@pytest.mark.parametrize("chain", sorted(CHAINS))
def test_displaced_and_original_do_the_same(chain: str, tmp_path: Path) -> None:
    cpu, onward = Cpu(), CHAINS[chain]
    wrong, ways = [], set[tuple[str, int]]()
    for text, code in instructions([*BRANCHES, *ADDRESSES, *COPIES], tmp_path):
        made = ISA.displace(code, AT, SCRATCH, onward)
        assert isinstance(made, Relocated), text
        assert unreached(ISA, made.code, SCRATCH) == [], text
        falls_off = SCRATCH + len(made.code)
        for seed in range(12):
            pc, registers, stack = cpu.run(code, AT, seed)
            there, now, after = cpu.run(made.code, SCRATCH, seed)
            expected = onward.of(pc)
            if onward.falls_into == pc:
                expected = falls_off
            ways.add((text, pc))
            if (there, now, after) != (expected, registers, stack):
                wrong.append((text, seed, hex(there), hex(expected)))
    assert wrong == []
    both = [text for text, pc in ways if pc == AT + SIZE and text in BRANCHES]
    assert len(both) == len(BRANCHES) - 4  # b, bl, and the conditions that always hold


def test_addresses_that_are_farther_than_adrp_reaches(tmp_path: Path) -> None:
    """8 GB away, for instructions that need no branch back to near their address."""
    cpu, far = Cpu(), SCRATCH + (8 << 30)
    cpu.uc.mem_map(far, 0x1000)
    for text, code in instructions([*ADDRESSES, "blr x17"], tmp_path):
        made = ISA.displace(code, AT, far, CHAINS["next is behind"])
        assert isinstance(made, Relocated), text
        for seed in range(6):
            pc, *original = cpu.run(code, AT, seed)
            there, *displaced = cpu.run(made.code, far, seed)
            assert displaced == original, text
            assert there == (far + len(made.code) if pc == AT + SIZE else pc), text


def test_where_a_copy_is_that_can_fault(tmp_path: Path) -> None:
    """Code that is made anew has no copy; with a probe's work the copy comes after the work."""
    function = Function("vmlinux", "f", AT, 64)
    for text, code in instructions([*BRANCHES, *ADDRESSES, *COPIES], tmp_path):
        for work in ((), (CountBody((COUNTER,)),)):
            made = ISA.trampoline(Site(function, 0, code), b"", SCRATCH, work)
            assert isinstance(made, Relocated), text
            at = made.original_at
            if text not in COPIES:
                assert at == -1, text
                continue
            copy = made.code[at : at + SIZE]
            assert [one.text for one in ISA.decode(copy, AT)] == [COPIES[text]]
            assert made.code.count(copy) == 1


def test_a_counter_that_another_cpu_changes_meanwhile(tmp_path: Path) -> None:
    """The store-exclusive fails, and the update is done again."""
    site = Site(Function("vmlinux", "f", AT, 64), 0, assembled("arm64", "nop", tmp_path))
    made = ISA.trampoline(site, b"", SCRATCH, [CountBody((COUNTER,))])
    assert isinstance(made, Relocated)
    cpu, others = Cpu().uc, [5, 7]
    cpu.mem_write(SCRATCH, made.code)
    cpu.mem_write(COUNTER, bytes(8))
    cpu.reg_write(SP, STACK)

    def meanwhile(_uc: Uc, address: int, _size: int, _data: object) -> None:
        (one,) = ISA.decode(bytes(cpu.mem_read(address, SIZE)), address)
        if one.text.startswith("stxr") and others:
            count = int.from_bytes(cpu.mem_read(COUNTER, 8), "little")
            cpu.mem_write(COUNTER, (count + others.pop()).to_bytes(8, "little"))

    cpu.hook_add(UC_HOOK_CODE, meanwhile)
    cpu.emu_start(SCRATCH, AT + SIZE, count=100)
    assert cpu.reg_read(PC) == AT + SIZE and not others
    assert int.from_bytes(cpu.mem_read(COUNTER, 8), "little") == 5 + 7 + 1
