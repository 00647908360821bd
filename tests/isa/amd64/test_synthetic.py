"""Instructions that a kernel's file hardly has but its live text may, made systematically.

Examples are code with retpolines patched out, and any operand.  The original is compared with the
displaced instruction in the emulator.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from capstone import CS_ARCH_X86, CS_MODE_64, Cs
from unicorn import UC_MEM_READ

from kinst.core.displaced import Refused, Relocated
from kinst.core.isa import Isa
from tests.isa.emulated import SCRATCH, TRAP, EmulatorError, Machine, Outcome, random_state
from tests.tiers import EVERYTHING, draws

# Instructions that only look special: stack instructions, prefixes, flags, strings.
PLAIN = """
    54 5c 55 5d 50 58 4154 415c 9c 9d 6a80 6812345678 ff3424 8f0424 ff742408 8f442408 6650
    c9 c8100000 0fa0 f34801d8 6690 90 f390 0f1f4000 66662e0f1f840000000000 f30f1efa
    a4 aa ac f3a4 f3ab f348a5 f3a6 f2ae fc fd f8 f9 f5 9e 9f 65488b042528000000
    65ff0425a0fc0100 64488b0425f0ffffff 0fa2 d7 fa fb 0f01ca 0f01cb 98 4899
"""
BASE = 0xFFFFFFFF81000000
SLOT = 32


def memory_operands(rng: random.Random, operation: int) -> Iterator[tuple[int, bytes]]:
    """Return (REX bits, ModRM and following bytes) of every shape of operand, with random
    displacements."""
    for rex in (0, 0x41, 0x42, 0x43, 0x48):
        for mod in range(4):
            for rm in range(8):
                modrm = bytes((mod << 6 | operation << 3 | rm,))
                sibs: list[bytes] = [b""]
                if mod != 3 and rm == 4:
                    sibs = [
                        bytes(((i & 3) << 6 | i << 3 | base,))
                        for i in (0, 4, 5)
                        for base in range(8)
                    ]
                for sib in sibs:
                    size = (0, 1, 4, 0)[mod]
                    if mod == 0 and (rm == 5 or (sib and sib[0] & 7 == 5)):
                        size = 4
                    # 4 bytes: far enough that rip-relative means data, not this test's own text.
                    far = rng.choice((1, -1)) * rng.randrange(1 << 27, 1 << 28)
                    value = rng.randrange(-100, 120) if size == 1 else far
                    disp = value.to_bytes(size, "little", signed=True) if size else b""
                    yield rex, modrm + sib + disp


def indirect_branches(rng: random.Random) -> Iterator[bytes]:
    for operation in (2, 4):
        for prefix in (b"", b"\x3e", b"\x65", b"\x2e", b"\x64"):
            for rex, operand in memory_operands(rng, operation):
                yield prefix + (bytes((rex,)) if rex else b"") + b"\xff" + operand


def other_branches(rng: random.Random) -> Iterator[bytes]:
    for short in [*range(0x70, 0x80), 0xE0, 0xE1, 0xE2, 0xE3, 0xEB]:
        for distance in (0, 5, 127, -128, -60, -2 - 30):
            tail = bytes((short,)) + distance.to_bytes(1, "little", signed=True)
            yield tail
            yield b"\x2e" + tail
            if 0xE0 <= short <= 0xE3:
                yield b"\x67" + tail
    for near in [*(bytes((0x0F, 0x80 + c)) for c in range(16)), b"\xe8", b"\xe9", b"\x2e\xe8"]:
        for distance in (0, -40, 4096, -70000, 1 << 20):
            yield near + distance.to_bytes(4, "little", signed=True)
    yield from (b"\xc3", b"\xf3\xc3", b"\xc2\x10\x00", b"\x3e\xc3")


def plain(rng: random.Random) -> Iterator[bytes]:
    """Return all other instructions, with every operand."""
    yield from map(bytes.fromhex, PLAIN.split())
    for _, operand in memory_operands(rng, 3):
        for opcode in (b"\x48\x8b", b"\x8d", b"\x01", b"\x0f\xb6", b"\xf0\x01", b"\x66\x89"):
            yield opcode + operand
        yield b"\x48\x81" + operand + b"\x78\x56\x34\x12"
        yield b"\x65\x48\x03" + operand


def whole(codes: Iterator[bytes]) -> list[bytes]:
    """Return the encodings that are exactly one instruction: in make test, a third of them."""
    disassembler = Cs(CS_ARCH_X86, CS_MODE_64)
    found = []
    every = list(codes)
    some = every if EVERYTHING else random.Random(7).sample(every, len(every) // 3)
    for code in some:
        sizes = [size for _, size, _, _ in disassembler.disasm_lite(code, BASE, 1)]
        if sizes == [len(code)]:
            found.append(code)
    return found


def reads_pushed_word(outcome: Outcome, rsp: int) -> bool:
    """Return whether it reads just below the stack pointer, where a kernel has no data."""
    return any(
        kind == UC_MEM_READ and rsp - 16 < address < rsp for kind, address, _ in outcome.accesses
    )


def run_all(isa: Isa, codes: list[bytes], states: int) -> tuple[int, list[str], dict[str, int]]:
    rng = random.Random(5)
    text = bytearray(b"\x90" * (SLOT * (len(codes) + 4200)))
    places = [BASE + SLOT * (2100 + n) for n in range(len(codes))]
    for place, code in zip(places, codes, strict=True):
        text[place - BASE : place - BASE + len(code)] = code
    machine = Machine(BASE, bytes(text))
    compared, wrong = 0, []
    refused: dict[str, int] = {}
    for place, code in zip(places, codes, strict=True):
        first = isa.displace(code, place, SCRATCH)
        if isinstance(first, Refused):
            refused[first.reason] = refused.get(first.reason, 0) + 1
            continue
        at = machine.reserve(len(first.code))
        moved = isa.displace(code, place, at)
        assert isinstance(moved, Relocated)
        machine.write_code(at, moved.code)
        for n in range(states):
            state = random_state(rng, tame=n % 2 == 1, count=True)
            try:
                outcome = machine.run(state, place, len(code))
            except EmulatorError:
                continue
            below = reads_pushed_word(outcome, state.registers["rsp"])
            if outcome.registers["eflags"] & TRAP or below:
                continue
            found = outcome.differences(machine.run(state, at, len(moved.code)))
            compared += 1
            if found:
                wrong.append(f"{code.hex()} -> {moved.code.hex()}: {'; '.join(found)}")
                break
    return compared, wrong, refused


@pytest.mark.drawn
def test_indirect_calls_and_jumps_of_every_operand(isa: Isa) -> None:
    codes = whole(indirect_branches(random.Random(1)))
    compared, wrong, refused = run_all(isa, codes, draws(1, 2))
    assert not wrong, "\n".join(wrong[:10])
    assert compared > len(codes) * draws(1, 2) / 2
    # call rsp, and calls through the word that the call itself writes.
    assert set(refused) == {
        "a call to the address in the stack pointer",
        "a call through memory that the call itself writes",
    }
    assert sum(refused.values()) < len(codes) / 50


def test_direct_branches_and_returns(isa: Isa) -> None:
    codes = whole(other_branches(random.Random(1)))
    compared, wrong, refused = run_all(isa, codes, 12)
    assert not wrong, "\n".join(wrong[:10])
    assert compared >= len(codes) * 10
    assert not refused


@pytest.mark.drawn
def test_stack_string_and_prefixed_instructions(isa: Isa) -> None:
    codes = whole(plain(random.Random(1)))[:: draws(2, 1)]
    compared, wrong, _ = run_all(isa, codes, 2)
    assert not wrong, "\n".join(wrong[:10])
    assert compared > draws(500, 1000)


def test_far_return_addresses_are_pushed_whole(isa: Isa) -> None:
    """Outside the top and bottom 2 GB a push of 32 bits is not enough."""
    base = 0x0000_7FAB_1234_5000
    for code in (b"\xe8\x10\x00\x00\x00", b"\xff\xd0"):
        moved = isa.displace(code, base, base + 4096)
        assert isinstance(moved, Relocated)
        after = base + len(code)
        assert moved.code[:5] == b"\x68" + (after & 0xFFFFFFFF).to_bytes(4, "little")
        # mov dword ptr [rsp + 4], high half
        assert moved.code[5:13] == b"\xc7\x44\x24\x04" + (after >> 32).to_bytes(4, "little")
