"""Arguments of guarded calls: what the expressions say before the code, against the registers and
the stack that an emulator has at the call.

The expressions are C as well as D, so a C compiler computes their values.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import unicorn
from unicorn import x86_const as x

from kinst.core.layout import ARGUMENT_CONSTANT, ARGUMENT_NONE, ARGUMENT_SLOT
from kinst.core.probe import Argument
from kinst.isa import load
from kinst.isa.amd64.call_arguments import guarded_call
from kinst.kernels.fetch import Prepared
from tests.isa.gnu_assembler import assembled
from tests.systems.linux.kernel_file import KernelFile

GENERAL = (
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
)  # fmt: skip
PASSED = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
SLOTS = {r.slot: r.gdb_name for r in load("amd64").registers}
CODE, DATA, GUARD = 0x1000_0000, 0x4000_0000, 0x2000_0000
MASK, PAGE = (1 << 64) - 1, 4096
SITES = 150
_UNICORN: Any = unicorn


class Run:
    """A run of code from random registers; memory is random, and appears when it is touched."""

    def __init__(self, code: bytes, seed: int, guard: int) -> None:
        self._rng = random.Random(seed)
        self.before = {n: DATA + self._rng.randrange(0, 1 << 20, 8) for n in GENERAL}
        self.gs_base = DATA + (1 << 24)
        self.pages: dict[int, bytes] = {}
        self._engine = engine = _UNICORN.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
        engine.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED, self._touched)
        engine.mem_map(CODE & -PAGE, (len(code) // PAGE + 3) * PAGE)
        engine.mem_write(CODE, code)
        for page in range(guard & -PAGE, guard + 8, PAGE):
            self._page(page)
        engine.mem_write(guard, DATA.to_bytes(8, "little"))
        for page in range(guard & -PAGE, guard + 8, PAGE):
            self.pages[page] = bytes(engine.mem_read(page, PAGE))
        for name, value in self.before.items():
            engine.reg_write(getattr(x, f"UC_X86_REG_{name.upper()}"), value)
        engine.reg_write(x.UC_X86_REG_GS_BASE, self.gs_base)

    def _page(self, page: int) -> None:
        if page not in self.pages:
            self.pages[page] = self._rng.randbytes(PAGE)
            self._engine.mem_map(page, PAGE)
            self._engine.mem_write(page, self.pages[page])

    def _touched(self, _e: object, _k: int, address: int, size: int, *_: object) -> bool:
        for page in range(address & -PAGE, address + size, PAGE):
            self._page(page)
        return True

    def arguments(self, start: int, call: int, count: int) -> list[int]:
        """Run from start to the call, and return its arguments."""
        self._engine.emu_start(start, call)
        read = [self._register(name) for name in PASSED[:count]]
        stack = self._register("rsp")
        self._touched(None, 0, stack, 8 * 8)
        words = [self._engine.mem_read(stack + 8 * k, 8) for k in range(max(0, count - 6))]
        return read + [int.from_bytes(word, "little") for word in words]

    def _register(self, name: str) -> int:
        value: int = self._engine.reg_read(getattr(x, f"UC_X86_REG_{name.upper()}"))
        return value


def values(cases: Sequence[tuple[Run, str]], folder: Path) -> list[int]:
    """Return the value of each expression before its run, as a C program computes it."""
    places = {name: n for n, name in enumerate((*GENERAL, "gsbase"))}
    lines = ["#include <stdint.h>", "#include <stdio.h>", "#include <string.h>",
             "#include <sys/mman.h>", "static uint64_t regs[32];"]  # fmt: skip
    lines += [f"enum {{ R_{name.upper()} = {n} }};" for name, n in places.items()]
    lines.append("static void page(uint64_t at, FILE *f) { void *p = (void *)at;")
    lines.append(" mmap(p, 4096, 3, MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED, -1, 0);")
    lines.append(' if (fread(p, 1, 4096, f) != 4096) printf("short\\n"); }')
    lines.append('int main(int n, char **a) { FILE *f = fopen(a[1], "r");')
    data = b""
    for run, text in cases:
        lines += [f"regs[{places[name]}] = {value}ull;" for name, value in run.before.items()]
        lines.append(f"regs[{places['gsbase']}] = {run.gs_base}ull;")
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
        for n, (argument, value) in enumerate(zip(arguments, there, strict=True)):
            where = f"{name} arg{n}: {argument}"
            if argument.kind == ARGUMENT_SLOT:
                told.append((where, run.before[SLOTS[argument.value]], value))
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


def test_calls_of_the_kernels_tracepoints(prepared: Prepared, tmp_path: Path) -> None:
    file = KernelFile("amd64", prepared.debug)
    elf, tracepoints = file.elf, file.tracepoints
    rng = random.Random(1)
    runs, unknown, every = [], 0, 0
    names = [one.name for one in tracepoints.named("*")]
    for name in rng.sample(names, len(names)):
        static, at = elf.address(f"__SCK__tp_func_{name}"), elf.address(f"__tracepoint_{name}")
        assert static is not None and at is not None
        funcs = at + file.btf.offset("tracepoint", "funcs")
        for call in tracepoints._calls(static)[:2]:
            function = file.functions.at(call)
            if function is None or len(runs) >= SITES:
                continue
            code = elf.read(function.address, function.size)
            down = CODE - function.address
            count = tracepoints._count(name)
            found = guarded_call([(CODE, code)], call + down, funcs + down, count)
            assert found is not None, name
            start, _, arguments = found
            run = Run(code, call, funcs + down)
            there = run.arguments(start, call + down, count)
            # The first argument is the tracer's, which it gets from the list.
            runs.append((f"{name} in {function.name}", run, arguments[1:], there[1:]))
            unknown += sum(a.kind == ARGUMENT_NONE and not a.expression for a in arguments[1:])
            every += count - 1
    assert len(runs) == SITES
    assert compared(runs, tmp_path) > SITES // 3
    assert unknown <= every // 50


# Code between the load and the call, and how many of 7 arguments are not known there.
FORMS = {
    "moves": ("mov %rbx, %rsi; mov %r12d, %edx; movzbl %cl, %ecx; movslq %ebp, %r8", 0),
    "memory": ("mov 8(%rbx), %rsi; movzwl -4(%rsp), %edx; movsbq 3(%rbp,%r12,4), %rcx", 0),
    "numbers": ("mov $-1, %esi; mov $-1, %rdx; xor %ecx, %ecx; mov $0x123456789abcdef, %r8", 0),
    "arithmetic": ("lea 5(%rbx,%rcx,8), %rsi; mov %rbx, %rdx; sub %rcx, %rdx; imul $7, %ebp, %ecx;"
                   "mov %r9, %r8; and $-16, %r8; or %r10, %r8; xor $3, %r8d", 0),
    "shifts": ("mov %rbx, %rsi; shr $12, %rsi; mov %ebp, %edx; sar $3, %edx; mov %r9d, %ecx;"
               "mov %r10, %r8; shl %cl, %r8", 0),
    "conditions": ("xor %esi, %esi; test %ebx, %ebx; setne %sil; mov %r8, %rdx; cmp %rcx, %rbp;"
                   "cmovl %r9, %rdx; mov $4, %ecx", 0),
    "stack": ("mov %rbp, 8(%rsp); push %rbx; mov 16(%rsp), %rsi; push 8(%rsp); push $-3", 0),
    "this CPU": ("mov %gs:0x40, %rsi; mov %gs:0x48(%rbx), %rdx", 0),
    # The store may have changed any word: the one that is loaded, and the one on the stack.
    "other store": ("mov %rcx, (%rbx); mov 8(%rbp), %rsi", 2),
    "part of a store": ("mov %rcx, 8(%rsp); mov 12(%rsp), %esi", 1),
    "division": ("mov %rbx, %rax; cqo; idiv %r12; mov %rax, %rsi", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str, tmp_path: Path) -> None:
    body, unknown = FORMS[name]
    source = f"""
    .text
    nop
    start: mov guard(%rip), %rax
    test %rax, %rax
    je out
    mov 8(%rax), %rdi
    {body}
    call: call out
    out: ret
    .set guard, start + {GUARD - CODE}
    """
    code = assembled("amd64", source, tmp_path)
    call = CODE + code.index(b"\xe8")
    guard = GUARD + 1
    found = guarded_call([(CODE, code)], call, guard, 7)
    assert found is not None
    start, load_, arguments = found
    assert start == CODE + 1 and load_ == code[1:8]
    assert sum(a.kind == ARGUMENT_NONE and not a.expression for a in arguments[1:]) == unknown
    runs = []
    for seed in range(4):
        run = Run(code, seed, guard)
        there = run.arguments(start, call, 7)
        runs.append((name, run, arguments[1:], there[1:]))
    compared(runs, tmp_path)


REFUSED = {
    "no load": "mov %rbx, %rax; test %rax, %rax; je out; mov %rbx, %rsi",
    "no test": "mov guard(%rip), %rax; mov 8(%rax), %rdi; mov %rbx, %rsi",
    "another test": "mov guard(%rip), %rax; test %rbx, %rbx; je out; mov 8(%rax), %rdi",
    "another condition": "mov guard(%rip), %rax; test %rax, %rax; jne out; mov 8(%rax), %rdi",
    "a call between": "mov guard(%rip), %rax; test %rax, %rax; je out; call far; mov %rax, %rsi",
    "entered": "jmp in; mov guard(%rip), %rax; test %rax, %rax; je out; in: mov %rbx, %rsi",
    "entered at the call": "jc last; mov guard(%rip), %rax; test %rax, %rax; je out",
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_forms_are_refused(name: str, tmp_path: Path) -> None:
    source = f"""
    .text
    {REFUSED[name]}
    last: .byte 0xe8, 0, 0, 0, 0
    out: ret
    far: ret
    .set guard, {GUARD}
    """
    code = assembled("amd64", source, tmp_path)
    call = CODE + code.rindex(b"\xe8")
    guards = [int.from_bytes(code[k : k + 4], "little", signed=True) for k in range(len(code) - 3)]
    assert guards
    loads = code.find(b"\x48\x8b\x05")
    guard = CODE + loads + 7 + guards[loads + 3] if loads >= 0 else GUARD
    assert guarded_call([(CODE, code)], call, guard, 3) is None
