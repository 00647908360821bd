"""Flow of control: branches of every distance as GNU as assembles them, conditions and computed
jumps as unicorn executes them."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import unicorn
from unicorn import riscv_const, x86_const

from kinst.isa import load
from kinst.isa._plain import disassemble
from kinst.isa.amd64.decode import PLAIN
from kinst.isa.riscv64 import liveness
from tests.isa.gnu_assembler import assembled

STRIDE = 32
TEXT = 0xFFFFFFFF_81000000
MIDDLE = 1 << 19  # offset in the assembled code, with room on both sides


def reaches(bits: int, step: int) -> list[int]:
    """Return distances of a signed field: each bit alone, and the ends."""
    ends = [-(1 << bits - 1), (1 << bits - 1) - step]
    powers = [1 << n for n in range(step.bit_length() - 1, bits - 1)]
    return sorted({*ends, *powers, *(-p for p in powers), step * 5, -step * 3})


# For each ISA: (assembler source, with the distance; the kind of flow; distances from the
# instruction's start).
JCC = "jo jno jb jae je jne jbe ja js jns jp jnp jl jge jle jg"
Row = tuple[str, str, list[int]]


def amd64_rows() -> Iterator[Row]:
    for name in (*JCC.split(), "loop", "loope", "loopne", "jrcxz"):
        yield f"{name} .+({{0}})", "branch", [d + 2 for d in reaches(8, 1)]
    yield "jmp .+({0})", "jump", [d + 2 for d in reaches(8, 1)]
    for name in JCC.split():
        yield f"{{{{disp32}}}} {name} .+({{0}})", "branch", [d + 6 for d in reaches(20, 1)]
    yield "{{disp32}} jmp .+({0})", "jump", [d + 5 for d in reaches(20, 1)]
    yield "call .+({0})", "call", [d + 5 for d in reaches(20, 1)]


def arm64_rows() -> Iterator[Row]:
    conditions = "eq ne hs lo mi pl vs vc hi ls ge lt gt le al"
    for name in conditions.split():
        yield f"b.{name} .+({{0}})", "jump" if name == "al" else "branch", reaches(20, 4)
    for name in ("cbz x3,", "cbnz x30,", "cbz w3,", "cbnz w0,"):
        yield f"{name} .+({{0}})", "branch", reaches(20, 4)
    for name in ("tbz x3, #0,", "tbnz x3, #63,", "tbz w7, #31,", "tbnz x9, #32,"):
        yield f"{name} .+({{0}})", "branch", reaches(16, 4)
    yield "b .+({0})", "jump", reaches(20, 4)
    yield "bl .+({0})", "call", reaches(20, 4)


def riscv64_rows() -> Iterator[Row]:
    for name in ("beq", "bne", "blt", "bge", "bltu", "bgeu"):
        yield f"{name} x9, x21, .+({{0}})", "branch", reaches(13, 2)
    for name in ("c.beqz", "c.bnez"):
        for register in (8, 15):
            yield f"{name} x{register}, .+({{0}})", "branch", reaches(9, 2)
    yield "c.j .+({0})", "jump", reaches(12, 2)
    yield "jal x0, .+({0})", "jump", reaches(20, 2)
    yield "jal x1, .+({0})", "call", reaches(20, 2)


ROWS = {"amd64": amd64_rows, "arm64": arm64_rows, "riscv64": riscv64_rows}
HEADS = {"amd64": ".intel_syntax noprefix", "arm64": "", "riscv64": ".option rvc"}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_direct_branches_of_every_distance(name: str, tmp_path: Path) -> None:
    isa = load(name)
    cases = [(text.format(d), kind, d) for text, kind, ds in ROWS[name]() for d in ds]
    lines = [HEADS[name]]
    norvc = name == "riscv64"
    for number, (text, _, _) in enumerate(cases):
        lines.append(f".org {MIDDLE + number * STRIDE}")
        rvc = text.startswith("c.")
        lines += [".option rvc" if rvc else ".option norvc"] * norvc + [text]
    code = assembled(name, "\n".join([*lines, f".org {2 * MIDDLE + 64}"]), tmp_path)
    expected = set()
    for number, (text, kind, distance) in enumerate(cases):
        at = MIDDLE + number * STRIDE
        one = next(iter(isa.decode(code[at : at + 16], TEXT + at)))
        flow = isa.flow(one.code, one.address)
        assert (flow.kind, flow.target) == (kind, TEXT + at + distance), text
        assert flow.falls_through == (kind != "jump"), text
        if 0 <= at + distance < len(code):
            expected.add((TEXT + at, TEXT + at + distance))
    if hasattr(isa, "branches") and name != "arm64":
        places, targets = isa.branches(code, TEXT)
        found = list(zip(places.tolist(), targets.tolist(), strict=True))
        assert expected <= set(found)
        assert targets.tolist() == sorted(targets.tolist())
        assert all(TEXT <= target < TEXT + len(code) for target in targets.tolist())
        starts = {at for at, _ in expected}
        assert {(at, to) for at, to in found if at in starts} == expected


FLOWS = {
    "amd64": {
        "return": "ret; ret 8; repz ret",
        "indirect": "retfq; lret 8; iretq; sysretq; sysexitq; .byte 0xf3, 0x0f, 1, 0xca; "
        ".byte 0xf2, 0x0f, 1, 0xca; jmp rax; jmp r15; jmp [rax]; "
        "jmp [r12 + r13*8]; jmp fword ptr [rax]; jmp fword ptr [rip + 5]",
        "call": "call rax; call r11; call [rbx]; call [rip + 64]",
        "trap": "int3; ud2; .byte 0xf1; ud1 eax, eax; ud1 eax, [eax + 5]; ud0 ecx, [rip + 9]",
        # Linux overwrites them with these (asm/ibt.h, gen_endbr_poison(): early and late
        # versions).
        "landing": "endbr64; endbr32; nop word ptr [rax]; nop dword ptr [rax - 42]",
        "next": "nop; nop dword ptr [rax]; nop dword ptr [rax - 41]; leave; enter 16, 0; int 0x80; "
        "mov rax, [rbx]; push rax; inc dword ptr [rax]; dec rcx; cpuid; vzeroupper; "
        "add rax, rbx; push [rax]; vpaddd xmm0, xmm1, xmm2; pshufb xmm1, xmm2; xend; crc32 eax, bl",
    },
    "arm64": {
        "return": "ret; ret x3",
        "indirect": "br x0; br x30; eret",
        "call": "blr x0; blr x30",
        "trap": "brk #1; brk #0x800",
        "next": "nop; add x0, x1, x2; ldr x0, [x1]; svc #0; msr daifset, #2; adr x0, .; "
        "stxr w0, x1, [x2]; isb",
    },
    "riscv64": {
        "return": "ret; c.jr ra; jalr x0, 0(ra)",
        "indirect": "jr a0; jalr x0, 8(t1); sret; mret; dret; .insn 4, 0x70200073",
        "call": "jalr a0; jalr ra, 4(t1); c.jalr a5",
        "trap": "ebreak; c.ebreak",
        "next": "nop; add a0, a1, a2; ld a0, 0(a1); c.mv a0, a1; ecall; fence; auipc a0, 1; "
        "amoadd.d a0, a1, (a2); fadd.d fa0, fa1, fa2; c.li a0, 3; wfi",
    },
}


@pytest.mark.parametrize("name", sorted(FLOWS))
def test_kinds_of_flow(name: str, tmp_path: Path) -> None:
    """Kinds are by the architectures' manuals; bytes between two instructions do not matter."""
    isa = load(name)
    cases = [(text.strip(), kind) for kind, all_ in FLOWS[name].items() for text in all_.split(";")]
    lines = [HEADS[name]]
    for number, (text, _) in enumerate(cases):
        lines += [f".org {number * STRIDE}", text]
    code = assembled(name, "\n".join([*lines, f".org {len(cases) * STRIDE}"]), tmp_path)
    wrong = []
    for number, (text, kind) in enumerate(cases):
        one = next(iter(isa.decode(code[number * STRIDE :][:16], TEXT)))
        flow = isa.flow(one.code, TEXT)
        if flow.kind != kind or flow.target is not None:
            wrong.append((text, flow.kind, kind))
        falls = kind in ("next", "landing", "call")
        if kind != "trap" and flow.falls_through != falls:
            wrong.append((text, str(flow.falls_through), kind))
    assert wrong == []


# A trap after which the kernel continues if it is a warning (WARN), and one after which nothing
# runs.
TRAPS = {
    "amd64": {"ud2": True, "int3": False, ".byte 0xf1": False, "ud1 eax, eax": True,
              "ud0 eax, eax": False, ".byte 0xd6": True},
    "arm64": {"brk #0x800": True, "brk #1": False, "udf #0": False, "udf #5": False},
    "riscv64": {"ebreak": True, "c.ebreak": True, "unimp": False},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TRAPS))
def test_where_a_trap_is_a_warning(name: str, tmp_path: Path) -> None:
    """Linux: asm/bug.h of each architecture; `unimp` is a write to a read-only counter, as GNU as
    spells it."""
    for text, warns in TRAPS[name].items():
        rvc = ".option norvc\n" if name == "riscv64" and not text.startswith("c.") else ""
        code = assembled(name, f"{rvc or HEADS[name]}\n{text}", tmp_path)
        flow = load(name).flow(code, TEXT)
        assert (flow.kind, flow.falls_through) == ("trap", warns), text


def value(expression: str, values: dict[str, int]) -> int:
    """Return the value of a D expression over regs[], computed by Python."""
    text = re.sub(r"regs\[(R_\w+)\]", lambda m: str(values[m.group(1)]), expression)
    return int(eval(text.replace("&&", " and ").replace("||", " or ")))


def test_amd64_conditions() -> None:
    """Conditions on every flag, and counts that end a loop."""
    isa = load("amd64")
    machine = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    machine.mem_map(0x10000, 0x1000)
    codes = [bytes((0x70 | n, 0x10)) for n in range(16)]
    codes += [bytes((0x0F, 0x80 | n, 0x10, 0, 0, 0)) for n in range(16)]
    codes += [bytes((0xE0 | n, 0x10)) for n in range(4)]
    codes += [bytes((0x67, 0xE0 | n, 0x10)) for n in range(4)]
    bits = (0x001, 0x004, 0x040, 0x080, 0x800)  # CF, PF, ZF, SF, OF: SDM volume 1, 3.4.3
    for at, code in zip(range(0x10000, 0x11000, 32), codes, strict=False):
        machine.mem_write(at, code)
        flow = isa.flow(code, at)
        for number in range(1 << len(bits)):
            flags = 2 | sum(bit for n, bit in enumerate(bits) if number >> n & 1)
            counts = (0, 1, 2, 1 << 32, 1 << 32 | 1) if code[0] & 0x8F != 0x0F else (5,)
            for count in counts:
                machine.reg_write(x86_const.UC_X86_REG_EFLAGS, flags)
                machine.reg_write(x86_const.UC_X86_REG_RCX, count)
                machine.emu_start(at, 0, count=1)
                taken = machine.reg_read(x86_const.UC_X86_REG_RIP) == flow.target
                values = {"R_RFL": flags, "R_RCX": count}
                assert value(flow.condition, values) == taken, (code.hex(), flags, count)
                assert value(flow.otherwise, values) != taken, (code.hex(), flags, count)


def test_amd64_jumps_to_what_a_register_or_memory_has(tmp_path: Path) -> None:
    registers = ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi"]
    registers += [f"r{n}" for n in range(8, 16)]
    places = [f"[{r}]" for r in registers]
    places += [f"[{r} + {d}]" for r in registers for d in (8, -8, 127, -128, 4096, -4096)]
    places += [f"[{b} + {i}*{s}]" for b in ("rax", "rbp", "r12", "r13", "rsp")
               for i in ("rcx", "r9", "r12", "rbp") for s in (1, 2, 4, 8)]  # fmt: skip
    places += ["[rcx*8 + 64]", "[r12*4 + 4096]", "[rip + 4096]", "[rip - 64]", "[rax + rcx*2 - 9]"]
    lines = [HEADS["amd64"]]
    for number, text in enumerate([*registers, *places]):
        operand = text if text in registers else f"qword ptr {text}"
        lines += [f".org {number * STRIDE}", f"jmp {operand}"]
    count = len(registers) + len(places)
    code = assembled("amd64", "\n".join([*lines, f".org {count * STRIDE}"]), tmp_path)
    machine = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    base, room = 0x100000, 1 << 21
    machine.mem_map(0, room)
    machine.mem_write(base, code)
    isa, draw = load("amd64"), random.Random(1)
    numbers = [getattr(x86_const, f"UC_X86_REG_{r.upper()}") for r in registers]
    read: list[int] = []
    machine.hook_add(
        unicorn.UC_HOOK_MEM_READ, lambda u, kind, at, size, value, data: read.append(at)
    )
    for number, text in enumerate([*registers, *places]):
        one = next(iter(isa.decode(code[number * STRIDE :][:16], base + number * STRIDE)))
        flow = isa.flow(one.code, one.address)
        values = {f"R_{r.upper()}": draw.randrange(0x8000, 0x10000) for r in registers}
        for r, constant in zip(registers, numbers, strict=True):
            machine.reg_write(constant, values[f"R_{r.upper()}"])
        read.clear()
        machine.emu_start(one.address, 0, count=1)
        destination = flow.destination
        if text in registers:
            to = machine.reg_read(x86_const.UC_X86_REG_RIP)
            assert destination == f"regs[R_{text.upper()}]" and to == values[destination[5:-1]]
            continue
        inner = re.fullmatch(r"\*\(uint64_t \*\)\((.*)\)", destination)
        assert inner is not None, (text, destination)
        assert [value(inner[1], values) & 2**64 - 1] == read, text
    for far in (0x12345678, -0x12345678):
        code = assembled("amd64", f"{HEADS['amd64']}\njmp [rip + {far}]", tmp_path)
        flow = isa.flow(code, 1 << 40)
        assert flow.destination == f"*(uint64_t *)({(1 << 40) + len(code) + far:#x})"
    for text in ("jmp fs:[rax]", "jmp gs:[8]", "jmp [eax]"):
        one = next(
            iter(isa.decode(assembled("amd64", f"{HEADS['amd64']}\n{text}", tmp_path), base))
        )
        assert isa.flow(one.code, base).destination == "", text


def test_riscv64_conditions() -> None:
    isa = load("riscv64")
    machine = unicorn.Uc(unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64)
    machine.mem_map(0x10000, 0x1000)
    ends = (0, 1, 2**63 - 1, 2**63, 2**64 - 1, 5)
    words = [0x01548863 | n << 12 for n in (0, 1, 4, 5, 6, 7)]  # x9, x21, 16 bytes on
    codes = [(word.to_bytes(4, "little"), 9, 21) for word in words]
    codes += [((0xC801 | n << 13).to_bytes(2, "little"), 8, 0) for n in (0, 1)]  # c.beqz, c.bnez x8
    named = {r.d_name: r.d_name for r in isa.registers}
    for at, (code, left, right) in zip(range(0x10000, 0x11000, 32), codes, strict=False):
        machine.mem_write(at, code)
        flow = isa.flow(code, at)
        for a, b in itertools.product(ends, ends):
            machine.reg_write(riscv_const.UC_RISCV_REG_X0 + left, a)
            if right:
                machine.reg_write(riscv_const.UC_RISCV_REG_X0 + right, b)
            machine.emu_start(at, 0, count=1)
            taken = machine.reg_read(riscv_const.UC_RISCV_REG_PC) == flow.target
            values = {"R_S1": a, "R_S5": b, "R_S0": a, "R_FP": a}
            assert named.keys() >= set(re.findall(r"R_\w+", flow.condition))
            assert _signed_holds(flow.condition, values) == taken, (code.hex(), a, b)
            assert _signed_holds(flow.otherwise, values) != taken, (code.hex(), a, b)


def _signed_holds(condition: str, values: dict[str, int]) -> bool:
    """Compute a comparison in D, whose casts to signed types mean the same as C's."""

    def number(match: re.Match[str]) -> str:
        value = values[match.group(2)]
        if match.group(1) and not match.group(1).startswith("(u"):
            value -= (value >> 63) << 64
        return str(value)

    return bool(eval(re.sub(r"(\(u?int64_t\))?\s*regs\[(R_\w+)\]", number, condition)))


def riscv64_words(draw: random.Random) -> Iterator[bytes]:
    """Return instructions that calculate, load and store, also compressed ones, which every
    processor runs."""
    for funct3, more in itertools.product(range(8), (0, 1 << 30, 1 << 25)):
        if more == 1 << 30 and funct3 not in (0, 5):
            continue
        for opcode in (0x33, 0x3B):
            if opcode == 0x3B and funct3 not in ((0, 5) if more != 1 << 25 else (0, 4, 5, 6, 7)):
                continue
            for _ in range(3):
                one, two, three = draw.sample(range(1, 32), 3)
                word = more | three << 20 | two << 15 | funct3 << 12 | one << 7 | opcode
                yield word.to_bytes(4, "little")
    for opcode, allowed in ((0x13, range(8)), (0x1B, (0,)), (0x03, range(7)), (0x23, range(4))):
        for funct3 in allowed:
            if opcode == 0x13 and funct3 in (1, 5):
                imm = draw.randrange(1, 32)
            else:
                imm = draw.randrange(0, 512) & -8
            for _ in range(3):
                one, two = draw.sample(range(1, 32), 2)
                if opcode == 0x23:
                    word = imm >> 5 << 25 | one << 20 | two << 15 | funct3 << 12 | opcode
                    word |= (imm & 31) << 7
                else:
                    word = imm << 20 | two << 15 | funct3 << 12 | one << 7 | opcode
                yield word.to_bytes(4, "little")
    for opcode in (0x17, 0x37):
        yield (0x12345000 | draw.randrange(1, 32) << 7 | opcode).to_bytes(4, "little")
    for _ in range(400):
        half = draw.getrandbits(16)
        quadrant, funct3 = half & 3, half >> 13
        if quadrant == 3 or (quadrant, funct3) in ((0, 1), (0, 4), (0, 5), (2, 1), (2, 5)):
            continue  # of floating-point registers, or of an extension
        jumps = (quadrant == 1 and funct3 in (5, 6, 7)) or (
            quadrant == 2 and funct3 == 4 and not half >> 2 & 31
        )
        extension = quadrant == 1 and funct3 == 4 and half >> 10 & 7 == 7 and half >> 6 & 1
        if jumps or extension:
            continue
        yield half.to_bytes(2, "little")


LEADING = {
    "amd64": ("jmp .+16", "jmp .+4096", "call .+16", "je .+16", "je .+4096", "loop .+16"),
    "arm64": ("b .+16", "bl .+16", "b.eq .+16", "cbz x0, .+16", "tbz x0, 1, .+16"),
    "riscv64": ("j .+16", "c.j .+16", "beq a0, a1, .+16", "c.beqz a0, .+16"),
}


@pytest.mark.parametrize("name", sorted(LEADING))
def test_addresses_go_round(name: str, tmp_path: Path) -> None:
    """Branch targets wrap around at 64 bits (the RISC-V ISA manual, 1.4, and the other
    architectures)."""
    isa, top = load(name), 1 << 64
    for text in LEADING[name]:
        distance = int(text.partition(".+")[2])
        for sign, address, target in (("+", top - 16, distance - 16), ("-", 0, top - distance)):
            source = f"{HEADS[name]}\n{text.replace('.+', f'.{sign}')}"
            one = next(iter(isa.decode(assembled(name, source, tmp_path), address)))
            assert isa.flow(one.code, address).target == target, text


def test_what_leads_to_the_start_of_code_and_just_before_it() -> None:
    """Addresses within the code count, including the first one."""
    for name, code, place in (
        ("amd64", "9090ebfcebf990", 2),  # two nops; jmp .-2; jmp .-5
        ("riscv64", "130000006ff0dfff6ff05fff", 4),  # nop; j .-4; j .-12
    ):
        places, targets = load(name).branches(bytes.fromhex(code), TEXT)
        found = list(zip(places.tolist(), targets.tolist(), strict=True))
        assert (TEXT + place, TEXT) in found
        assert all(TEXT <= target < TEXT + len(code) // 2 for _, target in found)


def test_riscv64_addresses_of_two_instructions(tmp_path: Path) -> None:
    """auipc directly followed by an addition to the same register; an addition to another one does
    not count."""
    pairs = [(5, 5, True), (5, 4, False), (5, 21, False), (4, 5, False), (1, 1, True)]
    lines = [".option norvc"]
    for number, (made, used, _) in enumerate(pairs):
        lines += [f".org {number * 32}", f"auipc x{made}, 1", f"addi x6, x{used}, -3"]
        lines += [f".org {number * 32 + 16}", f"auipc x{made}, 1", f"jalr x0, 8(x{used})"]
    code = assembled("riscv64", "\n".join([*lines, ".org 8192"]), tmp_path)
    places, targets = load("riscv64").branches(code, TEXT)
    found = set(zip(places.tolist(), targets.tolist(), strict=True))
    expected = set()
    for number, (_, _, same) in enumerate(pairs):
        if same:
            at = TEXT + number * 32
            expected |= {(at, at + 4096 - 3), (at + 16, at + 16 + 4096 + 8)}
    assert found == expected


def test_riscv64_registers_read_and_written() -> None:
    """A register that is read changes the result, a written one changes: checked by unicorn.

    Each register is tested, with random values and memory.
    """
    draw = random.Random(1)
    machine = unicorn.Uc(unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64)
    codes = list(riscv64_words(draw))
    code_at, data_at, room = 0x10000, 0x100000, 0x4000
    machine.mem_map(code_at, 0x10000)
    machine.mem_map(data_at, room)
    memory = draw.randbytes(room)
    machine.mem_write(data_at, memory)
    stored: list[tuple[int, int]] = []
    machine.hook_add(
        unicorn.UC_HOOK_MEM_WRITE,
        lambda u, kind, at, size, value, data: stored.append((at, value & (1 << 8 * size) - 1)),
    )
    numbers = [riscv_const.UC_RISCV_REG_X0 + n for n in range(32)]

    def ran(at: int, values: list[int]) -> tuple[list[int], list[tuple[int, int]]]:
        for number, value in zip(numbers[1:], values[1:], strict=True):
            machine.reg_write(number, value)
        stored.clear()
        machine.emu_start(at, 0, count=1)
        for place, _ in stored:
            place &= -8
            machine.mem_write(place, memory[place - data_at :][:16])
        return [machine.reg_read(number) for number in numbers], list(stored)

    def address() -> int:
        return data_at + 0x1000 + 8 * draw.randrange(0x200)

    seen, unseen = 0, 0
    for at, code in zip(range(code_at, code_at + 0x10000, 16), codes, strict=False):
        reads, writes = liveness._effect(code)
        machine.mem_write(at, code)
        values = [0, *(address() for _ in range(31))]
        found_reads = found_writes = 0
        try:
            after, kept = ran(at, values)
            found_writes = sum(1 << n for n in range(1, 32) if after[n] != values[n])
            for n in range(1, 32):
                other = [*values[:n], address() ^ 0x38, *values[n + 1 :]]
                again, kept_again = ran(at, other)
                if again[n] == other[n] and after[n] == values[n]:
                    again[n] = after[n]  # it did not change
                if (again, kept_again) != (after, kept):
                    found_reads |= 1 << n
        except unicorn.UcError:
            continue  # reserved: no processor runs it
        # A register that is not written but differs was read; a written register stays the same
        # only if the written value does.
        found_reads &= ~(writes & ~reads) | reads
        seen += 1
        assert reads != liveness.ALL, code.hex()
        assert found_reads & ~reads == 0, (code.hex(), hex(reads), hex(found_reads))
        assert found_writes & ~writes == 0, (code.hex(), hex(writes), hex(found_writes))
        unseen += (reads, writes) != (found_reads, found_writes)
    # Some results do not depend on every register that is read (and with 0), or equal the old
    # value.
    assert seen > 300 and unseen < seen / 4, (seen, unseen)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_does_not_decode_is_told_as_its_bits(count: int) -> None:
    """Instructions after such words on arm64 and riscv64 are in step; each word or parcel is shown
    once."""
    for name, good, bad in (("arm64", "1f2003d5", "ffffffff"), ("riscv64", "13000000", "0b000000")):
        code = bytes.fromhex(good + bad * count + good + bad + good * count)
        found = list(load(name).decode(code, TEXT))
        assert [one.address - TEXT for one in found] == list(range(0, len(code), 4))
        assert b"".join(one.code for one in found) == code
        known = [not one.text.startswith((".inst", ".insn")) for one in found]
        assert known == [True, *[False] * count, True, False, *[True] * count]


def test_amd64_undefined_instructions_have_operands(tmp_path: Path) -> None:
    """The next instruction after ud0 and ud1 is where the assembler put it, for every decoder.

    Linux tells by a ud1's operand which check has failed.
    """
    operands = ["ecx", "[rax]", "[eax + 5]", "[rsp]", "[rbp + 4096]", "[r12 + rcx*8 + 3]"]
    operands += ["[rip + 64]", "[rbx*2 + 7]", "[r13]"]
    texts = [f"{name} eax, {text}" for name in ("ud0", "ud1") for text in operands]
    source = "\n".join([HEADS["amd64"], *(f"{text}\nnop\ncld" for text in texts)])
    code = assembled("amd64", source, tmp_path)
    expected = [word for text in texts for word in (text.split()[0], "nop", "cld")]
    found = list(load("amd64").decode(code, TEXT))
    assert [one.text.split()[0] for one in found] == expected
    assert b"".join(one.code for one in found) == code
    plain = list(disassemble(PLAIN, code, TEXT))
    assert [TEXT + at for at, _ in plain] == [one.address for one in found]
    assert [text.split()[0] for _, text in plain] == expected
    # Code cut short anywhere shows its whole instructions, and nothing else.
    ends = [one.end - TEXT for one in found]
    for end in range(len(code)):
        whole = sum(at <= end for at in ends)
        assert len(list(load("amd64").decode(code[:end], TEXT))) == whole


def test_amd64_branches_that_processors_read_differently() -> None:
    """66 before a near branch: two bytes of distance or four (SDM volume 2, Jcc; APM volume 3)."""
    isa = load("amd64")
    for code in ("660f80f275", "f2660f80f275", "660f8ff275"):
        flow = isa.flow(bytes.fromhex(code), TEXT)
        assert (flow.kind, flow.falls_through, flow.target) == ("indirect", True, None)
    assert isa.flow(bytes.fromhex("0f80f2750000"), TEXT).target == TEXT + 6 + 0x75F2


def test_amd64_padding_is_what_assemblers_fill_room_with(tmp_path: Path) -> None:
    """Padding has every length for which GNU as has no-operations, with breakpoints after it or
    not.

    After a return, breakpoints are no instructions, for every decoder.
    """
    isa = load("amd64")
    for count in range(24):
        nops = assembled("amd64", f".nops {count}", tmp_path) if count else b""
        for breakpoints in (b"", b"\xcc" * 3):
            filled = nops + breakpoints
            assert isa.padding(filled) == len(filled)
            assert isa.padding(filled + b"\x55\x90") == len(filled)  # push rbp
            assert isa.padding(b"\x55" + filled) == 0
    code = bytes.fromhex("c3 cc cc 90 cc 55 eb00 cc 90 0f0b cc cc 90")
    kept = [0, 3, 4, 5, 6, 9, 10, 14]
    assert [one.address - TEXT for one in isa.decode(code, TEXT)] == kept
    assert [at for at, _ in disassemble(PLAIN, code, TEXT)] == kept
