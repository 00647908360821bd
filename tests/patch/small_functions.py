"""Functions of a few instructions in an emulator (unicorn), unplanted and planted.

Counters of probes are compared with the emulator's own count of the original's instructions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import unicorn
from unicorn import arm64_const, riscv_const, x86_const

from kinst.core.bodies import CountBody
from kinst.core.isa import Isa
from kinst.core.probe import Function, Site
from kinst.isa import load
from kinst.patch.plan import Plan, plan_sites
from kinst.patch.wanted import WantedSite
from tests.isa.gnu_assembler import assembled

TEXT, SCRATCH, DATA, STACK, STOP = 0x100_0000, 0x140_0000, 0x180_0000, 0x1C0_0000, 0x200_0000
COUNTERS = DATA + 0x1000
PAGE = 0x1000
ROUNDS = 37
_UNICORN: Any = unicorn  # it has no types

SOURCES = {
    "amd64": """
        .intel_syntax noprefix
        f:  push rbp
            mov rbp, rsp
            xor eax, eax
            mov ecx, edi
        1:  test ecx, ecx
            je 3f
            test cl, 1
            jne 2f
            add rax, rcx
            dec ecx
            jmp 1b
        2:  lea rax, [rax + rcx*2 + 1000]
            cmp ecx, 5
            sbb rdx, rdx
            add rdx, [rip + value]
            dec ecx
            jmp 1b
        3:  mov [rsi], rax
            call sub
            mov ecx, 3
        4:  loop 4b
            pop rbp
            ret
        sub: inc qword ptr [rsi]
            ret
        value: .quad 7
    """,
    "arm64": """
        f:  stp x29, x30, [sp, -16]!
            mov x4, 0
            mov w5, w0
        1:  cbz w5, 3f
            tbnz w5, 0, 2f
            add x4, x4, x5
            sub w5, w5, 1
            b 1b
        2:  add x4, x4, x5, lsl 1
            cmp w5, 5
            b.lt 5f
            ldr x6, value
        5:  csel x7, x4, x6, lo
            subs w5, w5, 1
            b 1b
        3:  str x4, [x1]
            bl sub
            mov w8, 3
        4:  sub w8, w8, 1
            cbnz w8, 4b
            ldp x29, x30, [sp], 16
            ret
        sub: ldr x9, [x1]
            add x9, x9, 1
            str x9, [x1]
            ret
        value: .quad 7
    """,
    "riscv64": """
        f:  addi sp, sp, -16
            sd ra, 8(sp)
            li a5, 0
            mv a4, a0
        1:  beqz a4, 3f
            andi a3, a4, 1
            bnez a3, 2f
            add a5, a5, a4
            addi a4, a4, -1
            j 1b
        2:  slli a3, a4, 1
            add a5, a5, a3
            li a2, 5
            blt a4, a2, 5f
            auipc a6, 0
        5:  sltu a7, a5, a6
            addi a4, a4, -1
            j 1b
        3:  sd a5, 0(a1)
            jal sub
            li t3, 3
        4:  addi t3, t3, -1
            bnez t3, 4b
            ld ra, 8(sp)
            addi sp, sp, 16
            ret
        sub: ld t4, 0(a1)
            addi t4, t4, 1
            sd t4, 0(a1)
            ret
            .balign 8
        value: .dword 7
    """,
}
DATA_BYTES = 8  # of `value`, after the code


_PROCESSORS: Mapping[str, tuple[int, int, Any, str, Sequence[str]]] = {
    "amd64": (
        unicorn.UC_ARCH_X86, unicorn.UC_MODE_64, x86_const, "UC_X86_REG_",
        ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "rflags"),
    ),
    "arm64": (
        unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM, arm64_const, "UC_ARM64_REG_",
        (*(f"x{n}" for n in range(31)), "sp", "nzcv"),
    ),
    "riscv64": (
        unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64, riscv_const, "UC_RISCV_REG_",
        tuple(f"x{n}" for n in range(1, 32)),
    ),
}  # fmt: skip


class Cpu:
    """A function's code, its data and one processor."""

    def __init__(self, isa: Isa, code: bytes) -> None:
        self.isa = isa
        arch, mode, const, prefix, names = _PROCESSORS[isa.name]
        self.uc = _UNICORN.Uc(arch, mode)
        for at, size in ((TEXT, PAGE), (SCRATCH, 16 * PAGE), (DATA, 2 * PAGE), (STACK, PAGE)):
            self.uc.mem_map(at, size)
        self.uc.mem_map(STOP, PAGE)
        self.write(TEXT, code)
        self.numbers = {name: getattr(const, prefix + name.upper()) for name in names}
        self.pc = getattr(const, prefix + ("RIP" if isa.name == "amd64" else "PC"))
        self.traps: Mapping[int, int] = {}
        self.trapped = 0
        self.ran: Counter[int] = Counter()
        self.seen: list[tuple[int, Mapping[str, int], bytes, bytes]] = []
        self.keep = False
        self.uc.hook_add(unicorn.UC_HOOK_CODE, self._on_code)
        self.uc.hook_add(unicorn.UC_HOOK_INTR, self._on_trap)
        if isa.name == "riscv64":
            self.uc.reg_write(riscv_const.UC_RISCV_REG_PRIV, 1)  # supervisor
        if isa.name == "amd64":
            self.uc.reg_write(x86_const.UC_X86_REG_GS_BASE, COUNTERS)

    def write(self, at: int, data: bytes) -> None:
        """Write memory, even code that has run."""
        self.uc.mem_write(at, data)
        self.uc.ctl_remove_cache(at, at + len(data))

    def registers(self) -> dict[str, int]:
        return {name: self.uc.reg_read(number) for name, number in self.numbers.items()}

    def _on_code(self, uc: Any, address: int, size: int, data: Any) -> None:
        self.ran[address] += 1
        if self.isa.name == "riscv64" and self.traps.get(address) and self._breaks(address):
            # The emulator has no exception for breakpoints here.
            self.trapped += 1
            uc.reg_write(self.pc, self.traps[address])
            return
        if self.keep:
            memory = bytes(uc.mem_read(DATA, PAGE)), bytes(uc.mem_read(STACK, PAGE))
            self.seen.append((address, self.registers(), *memory))

    def _on_trap(self, uc: Any, number: int, data: Any) -> None:
        behind = len(self.isa.breakpoint) if self.isa.name == "amd64" else 0
        self.trapped += 1
        uc.reg_write(self.pc, self.traps[uc.reg_read(self.pc) - behind])

    def _breaks(self, address: int) -> bool:
        there = bytes(self.uc.mem_read(address, 4))
        return any(there.startswith(self.isa.trap_patch(size)) for size in (2, 4))

    def start_state(self) -> tuple[dict[str, int], bytes, bytes]:
        """Return the state at the function's first instruction."""
        stack = bytearray(PAGE)
        values = dict.fromkeys(self.numbers, 0)
        if self.isa.name == "amd64":
            stack[0x800:0x808] = STOP.to_bytes(8, "little")
            values |= {"rsp": STACK + 0x800, "rdi": ROUNDS, "rsi": DATA, "rflags": 2}
        elif self.isa.name == "arm64":
            values |= {"sp": STACK + 0x800, "x0": ROUNDS, "x1": DATA, "x30": STOP}
        else:
            values |= {"x2": STACK + 0x800, "x10": ROUNDS, "x11": DATA, "x1": STOP}
        return values, bytes(PAGE), bytes(stack)

    def run(self, at: int, values: Mapping[str, int], data: bytes, stack: bytes) -> None:
        """Run from an instruction, with this state, to the function's end."""
        self.ran.clear()
        self.trapped = 0
        self.write(DATA, data)
        self.write(COUNTERS, bytes(PAGE))
        self.write(STACK, stack)
        for name, value in values.items():
            self.uc.reg_write(self.numbers[name], value)
        self.uc.emu_start(at, STOP, count=20_000)
        assert self.uc.reg_read(self.pc) == STOP, "the function did not come to its end"

    def result(self) -> tuple[dict[str, int], bytes]:
        """Return the registers and the data at the end; memory below the stack pointer is dead."""
        return self.registers(), bytes(self.uc.mem_read(DATA, PAGE))

    def counted(self, sites: list[Site]) -> dict[int, int]:
        """Return the probes' counts, by site."""
        raw = bytes(self.uc.mem_read(COUNTERS, PAGE))
        words = [int.from_bytes(raw[8 * k : 8 * k + 8], "little") for k in range(len(sites))]
        return {site.address: count for site, count in zip(sites, words, strict=True) if count}


@dataclass(frozen=True)
class Planned:
    """A function with a plan for every instruction."""

    isa: Isa
    code: bytes
    sites: list[Site]
    wanted: list[WantedSite]
    plan: Plan


@cache
def planned(name: str, folder: Path, chained: bool) -> Planned:
    isa = load(name)
    code = assembled(name, SOURCES[name], folder)
    length = len(code) - DATA_BYTES
    while isa.name == "riscv64" and code[:length].endswith(b"\x01\0"):  # c.nop, of .balign
        length -= 2
    function = Function("vmlinux", "f", TEXT, length)
    decoded = list(isa.decode(code[:length], TEXT))
    assert sum(i.size for i in decoded) == length
    sites = [Site(function, i.address - TEXT, i.code) for i in decoded]
    wanted = []
    for k, site in enumerate(sites):
        at = 8 * k if not isa.shared_counters else COUNTERS + 8 * k
        way = "jump" if isa.jump_patch(len(site.code), site.address, SCRATCH) else "trap"
        following = code[site.offset + len(site.code) : length]
        wanted.append(WantedSite(site, way, (CountBody((at,)),), following))
    plan = plan_sites(wanted, isa, SCRATCH, SCRATCH + 8 * PAGE, chained=chained)
    assert not plan.refused and len(plan.patches) == len(sites)
    return Planned(isa, code, sites, wanted, plan)


def planted(made: Planned) -> Cpu:
    cpu = Cpu(made.isa, made.code)
    for at, code in made.plan.text:
        cpu.write(at, code)
    for patch in made.plan.patches:
        cpu.write(patch.address, patch.new)
    cpu.traps = dict(made.plan.traps)
    return cpu


def original(made: Planned) -> Cpu:
    """Run the original function once from its start, and return the state at each step."""
    cpu = Cpu(made.isa, made.code)
    cpu.keep = True
    cpu.run(TEXT, *cpu.start_state())
    return cpu


def entered_everywhere(plain: Cpu, cpu: Cpu) -> Iterator[tuple[int, Counter[int]]]:
    """Run a planted function from each instruction, and compare its results.

    Each run begins in the state that the original first had there.  Yields the instruction's
    address, and how often each instruction must be counted.
    """
    expected = plain.result()
    for step, address, values, data, stack in first_visits(plain):
        cpu.run(address, values, data, stack)
        assert cpu.result() == expected, f"entered at {address:#x}"
        yield address, Counter(where for where, *_ in plain.seen[step:])


def first_visits(cpu: Cpu) -> Iterator[tuple[int, int, Mapping[str, int], bytes, bytes]]:
    """Return (step, address, state) at the first visit of each instruction."""
    known = set[int]()
    for step, (address, values, data, stack) in enumerate(cpu.seen):
        if address not in known:
            known.add(address)
            yield step, address, values, data, stack
