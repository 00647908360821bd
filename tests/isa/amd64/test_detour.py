"""Detours of C functions in the emulator, at the starts of the kernel's own functions."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kinst.core.displaced import Refused
from kinst.core.isa import Isa
from tests.isa.emulated import EmulatorError, Machine, Outcome, State, random_state
from tests.isa.kernel_text import Text
from tests.tiers import draws

HOOK_AT, RECORD = 512, 0xFFFF_8887_0000_0000
DEAD = 4096
# System V: registers that a called function may change, except arguments.
SCRATCH_REGISTERS = ("rax", "r10", "r11")


def hook(result: int) -> bytes:
    """Return a C function that notes its argument and stack pointer, spoils what it may, and
    returns."""
    spoil = "48c7c1ff000000 4889ca 4889ce 4989c8 4989c9 4989ca 4989cb 4889cf"
    return (
        b"\x48\xb8" + struct.pack("<Q", RECORD)  # movabs rax, RECORD
        + bytes.fromhex("488938 48896008")  # mov [rax], rdi; mov [rax + 8], rsp
        + bytes.fromhex(spoil)
        + b"\x48\xb8" + struct.pack("<Q", result)
        + b"\xf9\xc3"  # stc; ret
    )  # fmt: skip


def starts(text: Text, count: int) -> Iterator[tuple[int, bytes]]:
    """Return functions spread over the kernel; a call of __fentry__ is a nop, as in a live
    kernel."""
    step = len(text.functions) // count
    for address, size, _ in text.functions[::step]:
        code = text.code[address - text.address :][: min(size, 64)]
        if code[:1] == b"\xe8":
            code = bytes.fromhex("0f1f440000") + code[5:]
        if len(code) >= 24:
            yield address, code


def at_entry(rng: random.Random) -> State:
    state = random_state(rng, tame=True, count=False)
    registers = {**state.registers, "rsp": state.registers["rsp"] & -16 | 8}
    registers["eflags"] &= ~0x400
    return replace(state, registers=registers)


def size_of(isa: Isa, code: bytes, address: int) -> int:
    size = 0
    for instruction in isa.decode(code, address):
        if size >= 5:
            break
        size += instruction.size
    return size


def ignoring(outcome: Outcome) -> Outcome:
    """Return an outcome without the hook's notes, registers that a function may change, and
    flags."""
    registers = dict(outcome.registers)
    for name in ("r10", "r11", "eflags"):
        registers[name] = 0
    memory = {page: data for page, data in outcome.memory.items() if page != RECORD}
    return replace(outcome, registers=registers, memory=memory)


@pytest.mark.drawn
@pytest.mark.parametrize("result", [0, 1, 0xFFFF_8881_2345_6789])
@pytest.mark.parametrize("translate", [False, True])
def test_hooks_of_kernel_functions(
    isa: Isa, machine: Machine, text: Text, translate: bool, result: int
) -> None:
    rng = random.Random(result)
    machine.with_vectors = False
    make = isa.translate_detour if translate else isa.detour
    compared = refused = 0
    for address, code in starts(text, draws(150, 400)):
        to = machine.reserve(1024)
        made = make(code, address, to, to + HOOK_AT)
        if isinstance(made, Refused):
            refused += 1
            continue
        patch, stub = made
        size = size_of(isa, code, address)
        assert len(patch) == size
        target = address + 5 + struct.unpack("<i", patch[1:5])[0]
        assert patch[0] == 0xE9 and target == to and set(patch[5:]) <= {0xCC}
        machine.write_code(to, stub)
        machine.write_code(to + HOOK_AT, hook(result))
        state = at_entry(rng)
        original = code_in_scratch(machine, code, size)
        called = (to + HOOK_AT, to + HOOK_AT + 128)
        now = machine.run(state, to, len(stub), called)
        noted = struct.unpack_from("<QQ", now.memory[RECORD])
        assert noted[0] == state.registers["rdi"]
        assert noted[1] % 16 == 8, "the stack at a C function's entry"
        rsp = state.registers["rsp"]
        if result & 0xFFFFFFFF and not translate:
            returned = dict(now.registers)
            assert returned["rsp"] == rsp + 8
            assert returned["rip"] not in range(address, address + 64)
            continue
        start = replace(state, registers={**state.registers, "rdi": result}) if translate else state
        if original is None:
            continue
        try:
            expected = machine.run(start, original, size)
        except EmulatorError:
            continue
        moved_rip = replace(expected, registers={**expected.registers, "rip": address + size})
        found = ignoring(moved_rip).differences(ignoring(now), (rsp - DEAD, rsp))
        assert not found, f"{address:#x}: {found}"
        compared += 1
    assert refused < 40
    assert compared > draws(40, 100) or (result and not translate)


def code_in_scratch(machine: Machine, code: bytes, size: int) -> int | None:
    """Return a function's start that can run with its __fentry__ call removed; None if it uses its
    own address."""
    at = machine.reserve(64)
    machine.write_code(at, code[:size] + b"\x90" * 8)
    displaced = any(
        b in code[:size] for b in (b"\x05", b"\x0d", b"\x15", b"\x1d", b"\x25", b"\x3d")
    )
    # A function may not read the flags it is called with.
    return None if displaced or 0xE8 in code[:size] or 0x9C in code[:size] else at


def test_first_instructions_that_leave_are_refused(isa: Isa) -> None:
    at, to = 0xFFFFFFFF81000000, 0xFFFFFFFF9FE00000
    for code in ("85ff 7402 4889c3", "c3 9090909090", "ffe0 90909090", "ff10 90909090 90"):
        made = isa.detour(bytes.fromhex(code), at, to, to + 512)
        assert isinstance(made, Refused), code
    assert isinstance(isa.detour(b"\x53", at, to, to + 512), Refused)
    assert isinstance(isa.detour(b"\x90" * 8, at, to, to + (4 << 30)), Refused)


def test_a_call_may_be_the_last(isa: Isa) -> None:
    """exc_int3 of Linux 6.1 begins so: the call returns to the address after the patch."""
    at, to = 0xFFFFFFFF81000000, 0xFFFFFFFF9FE00000
    made = isa.detour(bytes.fromhex("55 53 4889fb e800100000 85c0"), at, to, to + 512)
    assert not isinstance(made, Refused)
    assert len(made[0]) == 5  # push, push, mov: 5 bytes, the call is not displaced
    made = isa.detour(bytes.fromhex("53 4889fb e800100000 85c0"), at, to, to + 512)
    assert not isinstance(made, Refused)
    patch, stub = made
    assert len(patch) == 9
    # push rbx; mov rbx, rdi; push imm32 (the address after the call); jmp
    tail = bytes.fromhex("53 4889fb 68") + ((at + 9) & 0xFFFFFFFF).to_bytes(4, "little") + b"\xe9"
    assert stub[:-4].endswith(tail)
