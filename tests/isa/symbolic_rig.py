"""Values that symbolic execution predicts, against those that an emulator has at a call.

The predicted D expressions are C as well, so a C compiler computes their values.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import unicorn
from unicorn import arm64_const, riscv_const, x86_const

from kinst.core.layout import ARGUMENT_CONSTANT, ARGUMENT_NONE, ARGUMENT_SLOT
from kinst.core.probe import Argument
from kinst.core.symbolic_run import SymbolicValue
from kinst.isa import load

CODE, DATA, GUARD = 0x1000_0000, 0x4000_0000, 0x2000_0000
MASK, PAGE = (1 << 64) - 1, 4096
MOST_STEPS = 500
_UNICORN: Any = unicorn


@dataclass(frozen=True)
class Processor:
    """An emulated processor.

    Attributes:
        isa: name of the instruction set.
        engine: unicorn's architecture and mode.
        registers: unicorn's numbers of the general registers, by their D names.
        bases: the same for registers that hold the base of per-CPU data.
        passed: D names of the registers of a C call's arguments.
        stack: D name of the stack pointer.
        pc: unicorn's number of the program counter.
    """

    isa: str
    engine: tuple[int, int]
    registers: Mapping[str, int]
    bases: Mapping[str, int]
    passed: tuple[str, ...]
    stack: str
    pc: int


def _numbers(module: Any, prefix: str, names: Mapping[str, str]) -> dict[str, int]:
    return {d_name: getattr(module, f"{prefix}{name}") for d_name, name in names.items()}


_GENERAL = (
    "RAX",
    "RCX",
    "RDX",
    "RBX",
    "RSP",
    "RBP",
    "RSI",
    "RDI",
    *(f"R{n}" for n in range(8, 16)),
)
_RISCV = [
    r for r in load("riscv64").registers if r.d_name not in ("R_PC", "R_SSTATUS", "R_PS", "R_FP")
]
PROCESSORS = {
    "amd64": Processor(
        "amd64", (unicorn.UC_ARCH_X86, unicorn.UC_MODE_64),
        _numbers(x86_const, "UC_X86_REG_", {f"R_{name}": name for name in _GENERAL}),
        _numbers(x86_const, "UC_X86_REG_", {"R_GSBASE": "GS_BASE"}),
        ("R_RDI", "R_RSI", "R_RDX", "R_RCX", "R_R8", "R_R9"), "R_RSP",
        x86_const.UC_X86_REG_RIP,
    ),
    "arm64": Processor(
        "arm64", (unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM),
        _numbers(arm64_const, "UC_ARM64_REG_",
                 {f"R_X{n}": f"X{n}" for n in range(31)} | {"R_SP": "SP"}),
        {}, tuple(f"R_X{n}" for n in range(8)), "R_SP", arm64_const.UC_ARM64_REG_PC,
    ),
    "riscv64": Processor(
        "riscv64", (unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV64),
        _numbers(riscv_const, "UC_RISCV_REG_", {r.d_name: f"X{r.slot}" for r in _RISCV}),
        {}, tuple(f"R_A{n}" for n in range(8)), "R_SP", riscv_const.UC_RISCV_REG_PC,
    ),
}  # fmt: skip


class Run:
    """A run of code from random registers; memory is random, and appears when it is touched."""

    def __init__(
        self, processor: Processor, code: bytes, seed: int, guard: int = 0, at: int = CODE
    ) -> None:
        """Prepare a run of code that lies at the address `at`.

        Args:
            guard: address of a pointer that is not null; 0 for none.
        """
        self.processor = processor
        self._rng = random.Random(seed)
        names = processor.registers
        self.before = {name: DATA + self._rng.randrange(0, 1 << 20, 8) for name in names}
        self.before |= dict.fromkeys(processor.bases, DATA + (1 << 24))
        self.pages: dict[int, bytes] = {}
        self._engine = engine = _UNICORN.Uc(*processor.engine)
        engine.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED, self._touched)
        engine.mem_map(at & -PAGE, (len(code) // PAGE + 3) * PAGE)
        engine.mem_write(at, code)
        if guard:
            self.point(guard)
        for name, number in (*names.items(), *processor.bases.items()):
            engine.reg_write(number, self.before[name])

    def point(self, guard: int) -> None:
        """Make the word at an address a pointer to data."""
        for page in range(guard & -PAGE, guard + 8, PAGE):
            self._page(page)
        self._engine.mem_write(guard, DATA.to_bytes(8, "little"))
        for page in range(guard & -PAGE, guard + 8, PAGE):
            self.pages[page] = bytes(self._engine.mem_read(page, PAGE))

    def place(self, value: SymbolicValue) -> int:
        """Return the address that a sum of a register and a number is."""
        named = re.fullmatch(r"regs\[(\w+)\]", value.term)
        assert named or not value.term, value
        return (self.before[named[1]] if named else 0) + value.number & MASK

    def _page(self, page: int) -> None:
        if page not in self.pages:
            self.pages[page] = self._rng.randbytes(PAGE)
            self._engine.mem_map(page, PAGE)
            self._engine.mem_write(page, self.pages[page])

    def _touched(self, _e: object, _k: int, address: int, size: int, *_: object) -> bool:
        for page in range(address & -PAGE, address + size, PAGE):
            self._page(page)
        return True

    def arguments(self, start: int, calls: Collection[int], count: int) -> list[int]:
        """Run from start to the first of some calls, and return its arguments."""

        def reached(engine: Any, address: int, *_: object) -> None:
            if address in calls:
                engine.emu_stop()

        self._engine.hook_add(unicorn.UC_HOOK_CODE, reached)
        self._engine.emu_start(start, next(iter(calls)), 0, MOST_STEPS)
        stopped = self._engine.reg_read(self.processor.pc)
        assert stopped in calls, f"{stopped:#x}"
        passed = self.processor.passed
        read = [self._register(name) for name in passed[:count]]
        stack = self._register(self.processor.stack)
        self._touched(None, 0, stack, 8 * 8)
        more = range(max(0, count - len(passed)))
        words = [self._engine.mem_read(stack + 8 * k, 8) for k in more]
        return read + [int.from_bytes(word, "little") for word in words]

    def _register(self, name: str) -> int:
        value: int = self._engine.reg_read(self.processor.registers[name])
        return value


def values(cases: Sequence[tuple[Run, str]], folder: Path) -> list[int]:
    """Return the value of each expression before its run, as a C program computes it."""
    places = {name: n for n, name in enumerate(cases[0][0].before)} if cases else {}
    lines = ["#include <stdint.h>", "#include <stdio.h>", "#include <string.h>",
             "#include <sys/mman.h>", "static uint64_t regs[64];"]  # fmt: skip
    lines += [f"enum {{ {name} = {n} }};" for name, n in places.items()]
    lines.append("static void page(uint64_t at, FILE *f) { void *p = (void *)at;")
    lines.append(" mmap(p, 4096, 3, MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED, -1, 0);")
    lines.append(' if (fread(p, 1, 4096, f) != 4096) printf("short\\n"); }')
    lines.append('int main(int n, char **a) { FILE *f = fopen(a[1], "r");')
    data = b""
    for run, text in cases:
        lines += [f"regs[{places[name]}] = {value}ull;" for name, value in run.before.items()]
        for page, content in run.pages.items():
            lines.append(f"page({page}ull, f);")
            data += content
        lines.append(f'printf("%llu\\n", (unsigned long long)(uint64_t)({text}));')
    (folder / "data").write_bytes(data)
    (folder / "v.c").write_text("\n".join([*lines, "return 0; }"]))
    subprocess.run(["cc", "-w", "-O0", "-o", folder / "v", folder / "v.c"], check=True)
    done = subprocess.run([folder / "v", folder / "data"], capture_output=True, check=True)
    return [int(line) for line in done.stdout.split()]


def compared(
    runs: Sequence[tuple[str, Run, Sequence[Argument], Sequence[int]]], folder: Path
) -> int:
    """Compare all arguments; return how many have an expression."""
    told: list[tuple[str, int, int]] = []
    cases, wanted = [], []
    for name, run, arguments, there in runs:
        slots = {r.slot: r.d_name for r in load(run.processor.isa).registers
                 if r.d_name in run.before}  # fmt: skip
        for n, (argument, value) in enumerate(zip(arguments, there, strict=True)):
            where = f"{name} arg{n}: {argument}"
            if argument.kind == ARGUMENT_SLOT:
                told.append((where, run.before[slots[argument.value]], value))
            elif argument.kind == ARGUMENT_CONSTANT:
                told.append((where, argument.value & MASK, value))
            elif argument.expression:
                cases.append((run, argument.expression))
                wanted.append((where, value))
            else:
                assert argument.kind == ARGUMENT_NONE
    computed = zip(wanted, values(cases, folder), strict=True)
    told += [(where, found, value) for (where, value), found in computed]
    wrong = [one for one in told if one[1] != one[2]]
    assert not wrong, wrong[:5]
    return len(cases)
