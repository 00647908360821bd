"""Arguments of guarded calls: what the expressions say before the code, against the registers and
the stack that an emulator has at the call (tests/isa/symbolic_rig.py).
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kinst.core.layout import ARGUMENT_NONE
from kinst.isa.amd64.call_arguments import guarded_call
from kinst.kernels.fetch import Prepared
from tests.isa.gnu_assembler import assembled
from tests.isa.symbolic_rig import CODE, GUARD, PROCESSORS, Run, compared
from tests.systems.linux.kernel_file import KernelFile

AMD64 = PROCESSORS["amd64"]
SITES = 150


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
            run = Run(AMD64, code, call, funcs + down)
            there = run.arguments(start, {call + down}, count)
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
        run = Run(AMD64, code, seed, guard)
        there = run.arguments(start, {call}, 7)
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
