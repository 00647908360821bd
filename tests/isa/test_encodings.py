"""Every instruction that kinst writes is as GNU as assembles it, or as unicorn runs it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
import unicorn
from unicorn import arm64_const, riscv_const, x86_const

from kinst.core.displaced import OutOfReach
from kinst.isa.amd64 import encode as amd64
from kinst.isa.arm64 import encode as arm64
from kinst.isa.riscv64 import encode as riscv64
from tests.isa.gnu_assembler import assembled

STRIDE = 64  # distance between assembled instructions

AMD64 = (
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
)  # fmt: skip
LOW32 = (*(f"e{name[1:]}" for name in AMD64[:8]), *(f"{name}d" for name in AMD64[8:]))
OFFSETS = (0, 8, 120, 127, 128, -8, -128, -129, 4096, -4096, 2**31 - 1, -(2**31))
CONDITIONS = (
    "jo", "jno", "jb", "jae", "je", "jne", "jbe", "ja",
    "js", "jns", "jp", "jnp", "jl", "jge", "jle", "jg",
)  # fmt: skip

X = [f"x{n}" for n in range(31)]
RISCV = [f"x{n}" for n in range(32)]

Case = tuple[str, bytes]


def differences(isa: str, head: str, cases: Sequence[Case], folder: Path) -> list[str]:
    """Return the cases whose bytes are not those of the assembler."""
    lines = [head]
    for number, (text, _) in enumerate(cases):
        lines += [f".org {number * STRIDE}", text]
    made = assembled(isa, "\n".join([*lines, f".org {len(cases) * STRIDE}"]), folder)
    assert len(made) == len(cases) * STRIDE
    return [
        f"{text}: {mine.hex()}, not {there.hex()}"
        for number, (text, mine) in enumerate(cases)
        if (there := made[number * STRIDE : (number + 1) * STRIDE]) != mine.ljust(STRIDE, b"\0")
    ]


def amd64_cases() -> Iterable[Case]:
    yield "int3", amd64.INT3
    yield "{disp8} nop dword ptr [rax + rax]", amd64.NOP5
    yield from zip(
        ("pushfq", "popfq", "cli", "cld", "ret"),
        (amd64.PUSHFQ, amd64.POPFQ, amd64.CLI, amd64.CLD, amd64.RET),
        strict=True,
    )
    for number, name in enumerate(AMD64):
        yield f"push {name}", amd64.push(number)
        yield f"pop {name}", amd64.pop(number)
        for offset in OFFSETS:
            yield f"mov [rsp + {offset}], {name}", amd64.store(offset, number)
            yield f"mov {name}, [rsp + {offset}]", amd64.load(number, offset)
            yield f"lea {name}, [rsp + {offset}]", amd64.lea(number, offset)
            if number < 8:
                yield f"mov [rsp + {offset}], {LOW32[number]}", amd64.store32(offset, number)
        for other, source in enumerate(AMD64):
            yield f"mov {name}, {source}", amd64.move(number, other)
        for value in (0, 1, 2**31 - 1, 2**31, 2**32 - 1):
            yield f"mov {LOW32[number]}, {value}", amd64.load_value(number, value)
        for value in (-1, -(2**31)):
            yield f"mov {name}, {value}", amd64.load_value(number, value)
        for value in (2**32, -(2**31) - 1, 0x123456789ABCDEF0, -(2**63)):
            yield f"movabs {name}, {value}", amd64.load_value(number, value)
        if number < 8 and name not in ("rsp", "rbp"):
            yield f"inc qword ptr gs:[{name}]", amd64.increment_gs_at(number)
    for number, name in enumerate(("es", "cs", "ss", "ds", "fs", "gs")):
        for to in range(8):
            yield f"mov {LOW32[to]}, {name}", amd64.read_segment(to, number)
    for offset in (0, 8, 2**31 - 1, -(2**31)):
        yield f"inc qword ptr gs:[{offset}]", amd64.increment_gs(offset)
        for value in (0, -1, 2**31 - 1, -(2**31)):
            stored = amd64.store_value(offset, value, amd64.RAX)
            yield f"mov qword ptr [rsp + {offset}], {value}", stored
    yield f"mov r9d, {2**31}\nmov [rsp + 8], r9", amd64.store_value(8, 2**31, amd64.R9)
    for value in (-(2**31) - 1, 2**63):
        stored = amd64.store_value(8, value, amd64.R9)
        yield f"movabs r9, {value}\nmov [rsp + 8], r9", stored
    for value in (0, 1, -1, 2**31 - 1, -(2**31)):
        # The assembler would write a short number in one byte.
        yield f".byte 0x68\n.long {value}", amd64.push_value(value)
    for distance in (0, 1, 127, -128):
        yield f"jmp .+2+{distance}", amd64.hop(distance)
    for distance in (128, -129, 2**31 - 1):
        yield f"{{disp32}} jmp .+5+{distance}", amd64.hop(distance)
    for distance in (0, 1, 127):
        yield f"jrcxz .+2+{distance}", amd64.hop_if_rcx_zero(distance)
    at = 0xFFFFFFFF_81000000
    for distance in (5, 1000, -1000, 2**31 + 4, -(2**31) + 5):
        yield f"{{disp32}} jmp .+({distance})", amd64.jump(at, at + distance)
        yield f"call .+({distance})", amd64.call(at, at + distance)
    for number, name in enumerate(CONDITIONS):
        for distance in (6, -1000, 2**31 + 5, -(2**31) + 6):
            text = f"{{disp32}} {name} .+({distance})"
            yield text, amd64.branch(number, at, at + distance)


def test_amd64(tmp_path: Path) -> None:
    head = ".intel_syntax noprefix"
    assert differences("amd64", head, list(amd64_cases()), tmp_path) == []


def test_amd64_reach() -> None:
    at = 0xFFFFFFFF_81000000
    for make, size in ((amd64.jump, 5), (amd64.call, 5)):
        for distance in (size + 2**31, size - 2**31 - 1):
            with pytest.raises(OutOfReach):
                make(at, at + distance)
    for distance in (6 + 2**31, 6 - 2**31 - 1):
        with pytest.raises(OutOfReach):
            amd64.branch(4, at, at + distance)
    # Across the end of the address space it is near.
    assert amd64.jump(2**64 - 5, 16) == b"\xe9\x10\0\0\0"


@pytest.mark.parametrize("value", [2**31, 2**32 - 1, 2**63, 0x123456789ABCDEF0, -(2**31) - 1])
def test_amd64_pushes_any_value(value: int) -> None:
    machine = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    machine.mem_map(0x10000, 0x10000)
    code = amd64.push_value(value)
    machine.mem_write(0x10000, code)
    machine.reg_write(x86_const.UC_X86_REG_RSP, 0x18000)
    machine.mem_write(0x17FF0, b"\x55" * 32)
    machine.emu_start(0x10000, 0x10000 + len(code))
    assert machine.reg_read(x86_const.UC_X86_REG_RSP) == 0x17FF8
    left = (value & 2**64 - 1).to_bytes(8, "little")
    assert machine.mem_read(0x17FF0, 32) == b"\x55" * 8 + left + b"\x55" * 16


def arm64_cases() -> Iterable[Case]:
    yield from (("nop", arm64.NOP), ("ret", arm64.RET), ("brk 0x6b69", arm64.BREAKPOINT))
    yield "msr daifset, 3", arm64.mask_interrupts()
    names = (("nzcv", arm64.NZCV), ("daif", arm64.DAIF), ("CurrentEL", arm64.CURRENT_EL))
    for name, number in (*names, ("spsel", arm64.SP_SEL)):
        for register in (0, 1, 15, 30):
            yield f"mrs x{register}, {name}", arm64.read_system(register, number)
            if name != "CurrentEL":
                yield f"msr {name}, x{register}", arm64.write_system(number, register)
    drawn = random.Random(1)
    for _ in range(60):
        one, two, three = drawn.sample(range(31), 3)
        yield f"orr x{one}, x{two}, x{three}", arm64.or_registers(one, two, three)
        yield f"ldxr x{one}, [x{two}]", arm64.load_exclusive(one, two)
        yield f"stxr w{one}, x{two}, [x{three}]", arm64.store_exclusive(one, two, three)
        for value in (0, 1, 4095):
            yield f"add x{one}, x{two}, #{value}", arm64.add(one, two, value)
            yield f"sub x{one}, x{two}, #{value}", arm64.sub(one, two, value)
        for offset in (0, 8, 16, 32760):
            yield f"str x{one}, [x{two}, #{offset}]", arm64.store(one, two, offset)
            yield f"ldr x{one}, [x{two}, #{offset}]", arm64.load(one, two, offset)
        for offset in (0, 8, -8, 504, -512):
            operands = f"x{one}, x{two}, [x{three}, #{offset}]"
            yield f"stp {operands}", arm64.store_pair(one, two, three, offset)
            yield f"ldp {operands}", arm64.load_pair(one, two, three, offset)
        for size in (16, 32, 496):
            yield f"stp x{one}, x{two}, [sp, #-{size}]!", arm64.push_pair(one, two, size)
            yield f"ldp x{one}, x{two}, [sp], #{size}", arm64.pop_pair(one, two, size)
        for distance in (4, -4, 2**20 - 4, -(2**20)):
            yield f"cbnz w{one}, .+({distance})", arm64.branch_not_zero(one, distance)
            yield f"cbnz x{one}, .+({distance})", arm64.branch_not_zero_x(one, distance)
            yield f"cbz x{one}, .+({distance})", arm64.branch_zero(one, distance)
    yield "add sp, sp, #16", arm64.add(arm64.SP, arm64.SP, 16)
    yield "mov x0, xzr", arm64.or_registers(0, arm64.ZR, arm64.ZR)
    yield "str x30, [sp]", arm64.store(arm64.LR, arm64.SP, 0)
    at = 0xFFFF8000_08000000
    for distance in (4, -4, arm64.BRANCH_REACH - 4, -arm64.BRANCH_REACH):
        yield f"b .+({distance})", arm64.branch(at, at + distance)
        yield f"bl .+({distance})", arm64.call(at, at + distance)


def test_arm64(tmp_path: Path) -> None:
    assert differences("arm64", "", list(arm64_cases()), tmp_path) == []


def test_arm64_reach() -> None:
    at = 0xFFFF8000_08000000
    for distance in (2**27, -(2**27) - 4, 2, 1):
        with pytest.raises(OutOfReach):
            arm64.branch(at, at + distance)
        with pytest.raises(OutOfReach):
            arm64.call(at, at + distance)
    for distance in (2**32, -(2**32) - 4096):
        with pytest.raises(OutOfReach):
            arm64.page_of(0, at, at + distance)


def interesting(draw: random.Random) -> list[int]:
    """Return 64-bit values: powers of two and their neighbours, halves of zeros and ones, random
    ones."""
    near = [sign * (1 << n) + d for n in range(64) for d in (-1, 0, 1) for sign in (1, -1)]
    halves = [
        sum(draw.choice((0, 0xFFFF, 1, 0x8000, 0x1234)) << 16 * n for n in range(4))
        for _ in range(200)
    ]
    return [*near, *halves, *(draw.getrandbits(64) for _ in range(200))]


def ran(machine: unicorn.Uc, at: int, code: bytes) -> None:
    machine.mem_write(at, code)
    machine.emu_start(at, at + len(code), count=20)


def loads_values(
    machine: unicorn.Uc,
    load: Callable[[int, int], bytes],
    numbers: Sequence[int],
    registers: Sequence[int],
    most: int,
    draw: random.Random,
) -> None:
    """Code that loads a value into one of these registers does so, in at most so many bytes.

    Args:
        registers: of the emulator, by number.
    """
    for value in interesting(draw):
        number = draw.choice(numbers)
        code = load(number, value)
        assert len(code) <= most
        ran(machine, 0x40000100, code)
        assert machine.reg_read(registers[number]) == value & 2**64 - 1, hex(value)


def test_arm64_values_and_addresses() -> None:
    machine = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    machine.mem_map(0x40000000, 0x10000)
    registers = [getattr(arm64_const, f"UC_ARM64_REG_X{n}") for n in range(31)]
    draw = random.Random(1)
    loads_values(machine, arm64.load_value, range(29), registers, 16, draw)
    for distance in (0, 1, 4095, 4096, -1, -0x101, 2**32 - 4096, -(2**30), 2**31 + 12345):
        number = draw.randrange(29)
        ran(machine, 0x40000100, arm64.address_of(number, 0x40000100, 0x40000100 + distance))
        assert machine.reg_read(registers[number]) == 0x40000100 + distance


def test_arm64_values_are_short() -> None:
    lengths = [len(arm64.load_value(0, value)) // 4 for value in (0, -1, 0x1234 << 48, -2)]
    assert lengths == [1, 1, 1, 1]
    assert len(arm64.load_value(0, 0xFFFF_FFFF_1234_5678)) == 8
    assert len(arm64.load_value(0, 0x1234_0000_5678)) == 8
    # The first instruction sets the other three quarters to zeros or ones, each of the others sets
    # one.
    for value in interesting(random.Random(2)):
        quarters = [value >> 16 * n & 0xFFFF for n in range(4)]
        given = max(quarters.count(0), quarters.count(0xFFFF))
        assert len(arm64.load_value(0, value)) == 4 * max(1, 4 - given), hex(value)


def riscv64_cases() -> Iterable[Case]:
    yield "c.ebreak", riscv64.C_EBREAK
    yield "c.nop", riscv64.C_NOP
    yield "nop", riscv64.NOP
    yield "ebreak", riscv64.EBREAK
    yield "sret", riscv64.SRET
    yield "c.jr ra", riscv64.RET
    draw = random.Random(1)
    for _ in range(60):
        one, two, three = draw.sample(range(1, 32), 3)
        a, b, c = RISCV[one], RISCV[two], RISCV[three]
        for value in (0, 1, 2047, -2048, -1):
            yield f"addi {a}, {b}, {value}", riscv64.addi(one, two, value)
            yield f"andi {a}, {b}, {value}", riscv64.andi(one, two, value)
            yield f"ori {a}, {b}, {value}", riscv64.ori(one, two, value)
            yield f"jalr {a}, {value}({b})", riscv64.jalr(one, two, value)
        for by in (1, 31, 63):
            yield f"slli {a}, {b}, {by}", riscv64.slli(one, two, by)
        yield f"or {a}, {b}, {c}", riscv64.or_(one, two, three)
        yield f"c.mv {a}, {b}", riscv64.move(one, two)
        yield f"amoadd.d zero, {a}, ({b})", riscv64.add_atomic(one, two)
        bits = draw.randrange(32)
        for csr, name in ((riscv64.SSTATUS, "sstatus"), (riscv64.SEPC, "sepc")):
            yield f"csrrci {a}, {name}, {bits}", riscv64.csr_read_clear_bits(one, csr, bits)
            yield f"csrs {name}, {a}", riscv64.csr_set(csr, one)
            yield f"csrw {name}, {a}", riscv64.csr_write(csr, one)
        for offset in (0, 8, 64, 128, 256, 504, draw.randrange(64) * 8):
            yield f"c.sdsp {a}, {offset}(sp)", riscv64.c_sdsp(one, offset)
            yield f"c.ldsp {a}, {offset}(sp)", riscv64.c_ldsp(one, offset)
        for upper in (0, 1, 0x80000, 0xFFFFF):
            yield f"auipc {a}, {upper}", riscv64.auipc(one, upper)
    for bit in range(1, 20):
        for distance in {1 << bit, -(1 << bit), (1 << bit) + 2}:
            yield f"jal x1, .+({distance})", riscv64.jal(1, distance)
    for distance in (2**20 - 2, -(2**20)):
        yield f"jal x5, .+({distance})", riscv64.jal(5, distance)
    for bit in range(1, 11):
        for distance in {1 << bit, -(1 << bit), (1 << bit) - 2}:
            yield f"c.j .+({distance})", riscv64.c_j(distance)
    branches = {"beq": 0, "bne": 1, "blt": 4, "bge": 5, "bltu": 6, "bgeu": 7}
    for name, number in branches.items():
        for bit in range(1, 12):
            for distance in (1 << bit, -(1 << bit), 4094, -4096):
                text = f"{name} x9, x21, .+({distance})"
                yield text, riscv64.branch(number, 9, 21, distance)


def test_riscv64(tmp_path: Path) -> None:
    # Otherwise instructions with a compressed form are assembled as that.
    assert differences("riscv64", ".option norvc", list(_norvc(riscv64_cases())), tmp_path) == []


def _norvc(cases: Iterable[Case]) -> Iterable[Case]:
    for text, code in cases:
        compressed = text.startswith("c.")
        yield (f".option rvc\n{text}\n.option norvc" if compressed else text), code


def test_riscv64_reach() -> None:
    calls: list[Callable[[], bytes]] = [
        lambda: riscv64.jal(1, 2**20),
        lambda: riscv64.jal(1, -(2**20) - 2),
        lambda: riscv64.c_j(2048),
        lambda: riscv64.c_j(-2050),
        lambda: riscv64.call(0, 2**31 - 2048),
        lambda: riscv64.jump(0, -(2**31) - 2049, 5),
        lambda: riscv64.load_address(5, 0, 2**31),
    ]
    for make in calls:
        with pytest.raises(OutOfReach):
            make()


def test_riscv64_values_and_addresses() -> None:
    machine = unicorn.Uc(unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64)
    machine.mem_map(0x40000000, 0x10000)
    registers = [getattr(riscv_const, f"UC_RISCV_REG_X{n}") for n in range(32)]
    draw = random.Random(1)
    loads_values(machine, riscv64.load_value, range(1, 32), registers, 8 * 4, draw)
    at = 0x40000100
    far = (2**31 - 2049, -(2**31) - 2048)
    for distance in (0, 4, 2046, 2048, -2048, -2050, 4096, 0x12345678, *far):
        number = draw.randrange(1, 32)
        ran(machine, at, riscv64.load_address(number, at, at + distance))
        assert machine.reg_read(registers[number]) == at + distance & 2**64 - 1
    for distance in (4, 2046, 2048, -2048, -2050, 4096, 0x12345678, *far):
        for code, link, through in (
            (riscv64.call(at, at + distance), 1, 1),
            (riscv64.jump(at, at + distance, 6), 0, 6),
        ):
            upper, lower = (int.from_bytes(code[n : n + 4], "little") for n in (0, 4))
            # The unprivileged specification: rd is bits 7 to 11, rs1 15 to 19, of auipc and jalr.
            assert (upper & 0x7F, lower & 0x707F) == (0x17, 0x67)
            assert upper >> 7 & 31 == through == lower >> 15 & 31
            assert lower >> 7 & 31 == link
            high = (upper >> 12 << 12) - (upper >> 31 << 32)
            assert high + (lower >> 20) - (lower >> 31 << 12) == distance


def test_numbers() -> None:
    assert [riscv64.signed(v, 12) for v in (0, 2047, 2048, 4095, 4096)] == [0, 2047, -2048, -1, 0]
    assert [riscv64.fits(v, 12) for v in (-2049, -2048, 2047, 2048)] == [False, True, True, False]
    assert riscv64.signed(2**64 - 1) == -1 == amd64.signed64(2**64 - 1)
    assert amd64.signed64(2**63) == -(2**63) and amd64.signed64(2**63 - 1) == 2**63 - 1
    assert [amd64.fits8(v) for v in (-129, -128, 127, 128)] == [False, True, True, False]
    ends = (-(2**31) - 1, -(2**31), 2**31 - 1, 2**31)
    assert [amd64.fits32(v) for v in ends] == [False, True, True, False]
