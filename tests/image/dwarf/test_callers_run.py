"""Values that only a caller has, on all ISAs: a program runs in an emulator, and at each
instruction of the functions that it calls kinst's value is the one that was passed, or none."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from unicorn import (
    UC_ARCH_ARM64,
    UC_ARCH_RISCV,
    UC_ARCH_X86,
    UC_HOOK_CODE,
    UC_MODE_64,
    UC_MODE_ARM,
    UC_MODE_RISCV64,
    Uc,
    arm64_const,
    riscv_const,
    x86_const,
)

from kinst.core.locals import Local
from kinst.image.debug_info import DebugInfo
from kinst.image.dwarf.cfi import InspectedFrame
from kinst.isa import load
from kinst.session.expand import call_convention

SOURCE = """
#ifdef __clang__
#define ALONE __attribute__((noinline))
#else
#define ALONE __attribute__((noipa))
#endif
static volatile long sum;
ALONE static void sink(long n) { sum += n; __asm__ volatile("" ::: "memory"); }
#define LOST(name) \\
    ALONE long name(long number, const char *text, int small) \\
    { sink(number + *text + small); sink(1); sink(sum & 3); return sum; }
#define LARGE(name) \\
    ALONE long name(long number, const char *text, int small) \\
    { long room[60]; for (int k = 0; k < 60; k++) room[k] = sum + k; \\
      sink(number + *text + small + room[sum & 31]); sink(1); return room[sum & 15]; }
LOST(by_constant) LOST(by_register) LOST(by_frame) LOST(by_several) LARGE(by_large)
ALONE long by_saved(long number, const char *text, int small)
{
    long a = sum + 1, b = sum * 3, c = sum * 5;
    sink(number + *text + small); sink(a); sink(b); sink(c); sink(a + b + c);
    return sum;
}
ALONE static void keeps(long first, const char *text, long count)
{
    for (long i = 0; i < count; i++) { sum += by_register(first + i, text + i, 5); sink(first); }
    for (long i = 0; i < count; i++) { sum += by_saved(first + i, text + i, 5); sink(first); }
}
ALONE static void has_frame(void)
{
    char room[40];
    for (unsigned i = 0; i < sizeof room; i++) room[i] = (char)(i + 1);
    sum += by_frame(77, room + 8, room[3]);
    sink(room[9]);
}
ALONE static void several(long n, const char *text)
{
    sum += by_several(1, text, 2); sink(n);
    sum += by_several(n, text + 1, 2); sink(n);
    sum += by_several(-n, text + 2, 3) + by_large(n + 5, text, 9) + 1; sink(*text);
}
ALONE void finished(void) { __asm__ volatile(""); }
ALONE long run(long n)
{
    sum += by_constant(11, "constant", -3);
    sum += by_large(-12, "large", 4);
    keeps(n, "register", 3);
    has_frame();
    several(n + 6, "several");
    finished();
    return sum;
}
"""
FUNCTIONS = ("by_constant", "by_register", "by_frame", "by_several", "by_large", "by_saved")
FLAGS = ["-O2", "-g", "-nostdlib", "-static", "-ffreestanding", "-fno-stack-protector", "-no-pie",
         "-fno-pie", "-fno-asynchronous-unwind-tables", "-fno-builtin", "-Wl,-e,run"]  # fmt: skip
STACK, SIZE = 0x7000_0000, 0x10_0000


@dataclass(frozen=True)
class Processor:
    """An ISA.

    Attributes:
        compiler: for it.
        emulator: unicorn's.
        taken: DWARF numbers of the registers of parameters.
        number: unicorn's number of a register, by its DWARF number.
    """

    compiler: list[str]
    emulator: tuple[int, int]
    taken: tuple[int, int, int]
    number: Callable[[int], int]


X86 = ("RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP", *(f"R{n}" for n in range(8, 16)),
       "RIP")  # fmt: skip
ARM64 = (*(f"X{n}" for n in range(31)), "SP")
PROCESSORS = {
    "amd64": Processor(["gcc", "-fcf-protection=none", "-mno-red-zone"],
                       (UC_ARCH_X86, UC_MODE_64), (5, 4, 1),
                       lambda n: int(getattr(x86_const, f"UC_X86_REG_{X86[n]}"))),
    "arm64": Processor(["aarch64-linux-gnu-gcc"], (UC_ARCH_ARM64, UC_MODE_ARM), (0, 1, 2),
                       lambda n: int(getattr(arm64_const, f"UC_ARM64_REG_{ARM64[n]}"))),
    "riscv64": Processor(["riscv64-linux-gnu-gcc"], (UC_ARCH_RISCV, UC_MODE_RISCV64), (10, 11, 12),
                         lambda n: int(getattr(riscv_const, f"UC_RISCV_REG_X{n}"))),
}  # fmt: skip


class UnknownValueError(Exception):
    """Memory at address 0 is read: the value is not known."""


class Value:
    """The value of a D expression over registers and memory, by C's rules for uint64_t."""

    def __init__(self, text: str, register: Callable[[str], int], memory: Callable[[int], int]):
        self._tokens = re.findall(r"\(uint64_t \*\)|\|\||==|<=|regs\[\w+\]|\w+|[-+|?:()*]", text)
        self._register, self._memory = register, memory
        assert "".join(self._tokens).replace(" ", "") == text.replace(" ", "")

    def get(self) -> int:
        made = self._whole()
        assert not self._tokens
        return made()

    def _next(self, wanted: str) -> bool:
        if self._tokens and self._tokens[0] == wanted:
            del self._tokens[0]
            return True
        return False

    def _whole(self) -> Callable[[], int]:
        condition = self._operated(0)
        if not self._next("?"):
            return condition
        yes = self._whole()
        assert self._next(":")
        no = self._whole()
        return lambda: yes() if condition() else no()

    def _operated(self, level: int) -> Callable[[], int]:
        """Evaluate by precedence, the weakest first: || | == <= + and -."""
        levels = (("||",), ("|",), ("==",), ("<=",), ("+", "-"))
        if level == len(levels):
            return self._plain()
        left = self._operated(level + 1)
        while self._tokens and self._tokens[0] in levels[level]:
            left = self._both(self._tokens.pop(0), left, self._operated(level + 1))
        return left

    def _both(
        self, operator: str, left: Callable[[], int], right: Callable[[], int]
    ) -> Callable[[], int]:
        made: dict[str, Callable[[], int]] = {
            "||": lambda: int(bool(left()) or bool(right())), "|": lambda: left() | right(),
            "==": lambda: int(left() == right()), "<=": lambda: int(left() <= right()),
            "+": lambda: left() + right() & (1 << 64) - 1,
            "-": lambda: left() - right() & (1 << 64) - 1,
        }  # fmt: skip
        return made[operator]

    def _plain(self) -> Callable[[], int]:
        token = self._tokens.pop(0)
        if token == "(":
            inner = self._whole()
            assert self._next(")")
            return inner
        if token == "*":
            assert self._next("(uint64_t *)")
            where = self._plain()
            return lambda: self._memory(where())
        if token == "-":
            negated = self._plain()
            return lambda: -negated() & (1 << 64) - 1
        if token.startswith("regs"):
            return lambda: self._register(token[5:-1])
        number = int(token.rstrip("ul"), 0)
        return lambda: number


class Run:
    """The program in an emulator, with kinst's answers at each instruction of the functions."""

    def __init__(self, isa: str, folder: Path, compiler: list[str]) -> None:
        self.isa, self.processor = load(isa), PROCESSORS[isa]
        (folder / "run.c").write_text(SOURCE)
        program = folder / "run"
        command = [*compiler, *FLAGS, "-o", str(program), str(folder / "run.c")]
        subprocess.run(command, check=True, timeout=120)
        self.debug = DebugInfo(program)
        self.names = self.isa.dwarf_registers
        found = self.debug.locals(self.names, call_convention(self.isa))
        assert found is not None
        self.locals = found
        self.signature = call_convention(self.isa).signature
        self.spans = {}
        for name in (*FUNCTIONS, "run", "finished"):
            (row,) = self.debug.elf.symbols.indexes(name)
            low = int(self.debug.elf.symbols.address[row])
            self.spans[name] = (low, low + int(self.debug.elf.symbols.size[row]))
        self.passed: dict[str, tuple[int, ...]] = {}
        self.outcomes: Counter[tuple[str, str, str]] = Counter()

    def go(self) -> None:
        machine: Any = Uc(*self.processor.emulator)
        for section in self.debug.elf.sections:
            if section.flags & 2 and section.size:  # SHF_ALLOC
                low, high = section.address & -0x1000, section.end + 0xFFF & -0x1000
                for page in range(low, high, 0x1000):
                    if not any(a <= page <= b for a, b, _ in machine.mem_regions()):
                        machine.mem_map(page, 0x1000)
                machine.mem_write(
                    section.address, self.debug.elf.data(section).ljust(section.size, b"\0")
                )
        machine.mem_map(STACK, SIZE)
        self.machine = machine
        machine.reg_write(
            self.processor.number(call_convention(self.isa).stack), STACK + SIZE - 0x1000
        )
        machine.reg_write(self.processor.number(self.processor.taken[0]), 20)
        machine.hook_add(UC_HOOK_CODE, self.step)
        machine.emu_start(self.spans["run"][0], self.spans["finished"][0])

    def register(self, name: str) -> int:
        return int(self.machine.reg_read(self.processor.number(self.names.index(name))))

    def memory(self, address: int) -> int:
        if address == 0:
            raise UnknownValueError
        return int.from_bytes(self.machine.mem_read(address, 8), "little")

    def step(self, machine: Any, address: int, size: int, data: Any) -> None:
        # An interrupt may have overwritten it.
        stack = machine.reg_read(self.processor.number(call_convention(self.isa).stack))
        machine.mem_write(stack - 512, b"\xa5" * 512)
        for name in FUNCTIONS:
            low, high = self.spans[name]
            if low <= address < high:
                if address == low:
                    taken = map(self.processor.number, self.processor.taken)
                    self.passed[name] = tuple(machine.reg_read(number) for number in taken)
                self.compare(name, address, address == low)

    def find(self, function: str, address: int, at_entry: bool, variable: str) -> Local | None:
        rule = self.debug.cfi.rule(address) if self.debug.cfi else None
        cfa = f"(regs[{self.names[rule.register]}] + {rule.offset})" if rule else None
        frame = InspectedFrame(address, at_entry, cfa, lambda at: at | self.signature)
        return self.locals.find(function, frame, variable)

    def compare(self, function: str, address: int, at_entry: bool) -> None:
        for variable, value in zip(("number", "text", "small"), self.passed[function], strict=True):
            found = self.find(function, address, at_entry, variable)
            assert found is not None
            if not found.pieces:
                self.outcomes[function, variable, found.reason] += 1
                continue
            (piece,) = found.pieces
            mask = (1 << 32) - 1 if variable == "small" else (1 << 64) - 1
            by_caller = "?" in piece.text
            try:
                told = Value(piece.text, self.register, self.memory).get()
            except UnknownValueError:
                self.outcomes[function, variable, "unknown"] += 1
                continue
            # Memory is never read by a caller's address of it.
            told = self.memory(told) if piece.kind == "memory" else told
            # A linked address that a caller passes is one of the running program.
            told = told & ~self.signature if self.signature and variable == "text" else told
            assert told & mask == value & mask, (function, hex(address), variable, piece.text)
            self.outcomes[function, variable, "caller" if by_caller else "known"] += 1


@pytest.mark.parametrize("isa", list(PROCESSORS))
@pytest.mark.parametrize("frame", ["omit", "no-omit"])
def test_what_was_passed(isa: str, frame: str, tmp_path: Path) -> None:
    run = Run(isa, tmp_path, [*PROCESSORS[isa].compiler, f"-f{frame}-frame-pointer"])
    run.go()
    for function in FUNCTIONS:
        for variable in ("number", "text", "small"):
            kinds = {
                kind: n
                for (f, v, kind), n in run.outcomes.items()
                if (f, v) == (function, variable)
            }
            assert kinds.get("known", 0) > 0, (function, variable, kinds)
            assert kinds.get("unknown", 0) == 0, (function, variable, kinds)
    by_caller = sum(n for (_, _, kind), n in run.outcomes.items() if kind == "caller")
    assert by_caller > 100, run.outcomes


@pytest.mark.full
def test_registers_that_clang_has_restored(tmp_path: Path) -> None:
    """Its call frame information has them in memory until the function's end: at the last pops that
    memory is below the stack pointer, and its content is not known."""
    run = Run("amd64", tmp_path, ["clang", "-mno-red-zone", "-fno-omit-frame-pointer"])
    run.go()
    for kind in ("known", "caller", "unknown"):
        assert run.outcomes["by_saved", "number", kind] > 0, run.outcomes
