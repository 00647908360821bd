"""Flag liveness: kinst's tables against executions in the emulator, and against capstone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from capstone import CS_ARCH_X86, CS_MODE_64, Cs
from capstone import x86 as cx

from kinst.isa.amd64.flags import AF, CF, OF, PF, SF, ZF, dead
from kinst.isa.amd64.flags import ARITHMETIC as ALL
from tests.isa.emulated import ARITHMETIC, EmulatorError, Machine, random_state
from tests.isa.kernel_text import Form

BITS = {"CF": CF, "PF": PF, "AF": AF, "ZF": ZF, "SF": SF, "OF": OF}


def killed(code: bytes, flag: int) -> bool:
    """Return whether one instruction alone makes a flag dead."""
    return dead(code, b"", 0xFFFFFFFF81000000, flag)


def capstone_masks(verbs: tuple[str, ...]) -> dict[int, int]:
    return {
        bit: sum(getattr(cx, f"X86_EFLAGS_{verb}_{name}", 0) for verb in verbs)
        for name, bit in BITS.items()
    }


def test_what_is_dead_is_written_and_not_read_says_capstone(kernel_forms: list[Form]) -> None:
    written = capstone_masks(("MODIFY", "RESET", "SET", "UNDEFINED"))
    read = capstone_masks(("TEST",))
    disassembler = Cs(CS_ARCH_X86, CS_MODE_64)
    disassembler.detail = True
    claims = unknown_to_capstone = 0
    for form in kernel_forms:
        flags = [bit for bit in BITS.values() if killed(form.code, bit)]
        if not flags:
            continue
        decoded = next(disassembler.disasm(form.code, form.address, 1))
        if not decoded.eflags:  # capstone does not know `test mem, reg` either
            unknown_to_capstone += 1
            continue
        for bit in flags:
            claims += 1
            assert not decoded.eflags & read[bit], f"{form.text} reads {bit:#x}"
            assert decoded.eflags & written[bit], f"{form.text} does not write {bit:#x}"
    assert claims > 5000
    assert unknown_to_capstone < 200


def test_dead_flags_make_no_difference(
    machine: Machine, kernel_forms: list[Form], thorough: bool
) -> None:
    """Run code with a flag set and clear: if the flag is dead, nothing afterwards differs."""
    rng = random.Random(8)
    machine.with_vectors = False
    compared = 0
    for n, form in enumerate(kernel_forms):
        if not thorough and n % 6:
            continue
        flags = [bit for bit in BITS.values() if killed(form.code, bit)]
        if not flags:
            continue
        state = random_state(rng, tame=True, count=False)
        mask = sum(flags) & ARITHMETIC
        other = replace(
            state, registers={**state.registers, "eflags": state.registers["eflags"] ^ mask}
        )
        try:
            one = machine.run(state, form.address, len(form.code))
            two = machine.run(other, form.address, len(form.code))
        except EmulatorError:
            continue
        if "div" in form.text:  # undefined flags, and the emulator keeps the old ones
            one = replace(one, registers={**one.registers, "eflags": 0})
            two = replace(two, registers={**two.registers, "eflags": 0})
        assert not one.differences(two), form.text
        compared += 1
    assert compared > 500


@pytest.mark.parametrize(
    ("run", "flags", "expected"),
    [
        ("4885c0", ALL, True),  # test rax, rax
        ("488b07 4889c3 31c0", ALL, True),  # mov, mov, xor
        ("488b07 7402 31c0", ALL, False),  # a branch in between
        ("488b07 e800000000 31c0", ALL, False),  # a call
        ("c3 31c0", ALL, False),  # a return
        ("0f94c0 31c0", ALL, False),  # sete reads ZF
        ("480f44c3 31c0", ALL, False),  # cmove reads ZF
        ("4811d8", ALL, False),  # adc reads CF
        ("4811d8", ALL & ~CF, True),
        ("48ffc0", ALL, False),  # inc leaves CF
        ("48ffc0", ALL & ~CF, True),
        ("48ffc0 488b07 4889c3", ALL, False),  # nor do mov and mov write it
        ("48ffc0 480fa3d8", ALL, True),  # then bt writes it
        ("48d3e0", ALL, False),  # shl by cl: perhaps by 0
        *(("90" * count + "31c0", ALL, True) for count in range(1, 15)),  # at any distance
        ("48c1e005", ALL, True),
        ("48c1e020", ALL, False),  # masked to 0 in one operand size: not examined closer
        ("48d1e0", ALL, True),  # the short form, by 1
        ("9c 31c0", ALL, False),  # pushf
        ("9f 31c0", ALL, False),  # lahf
        ("f3a6 31c0", ALL, False),  # repe cmpsb writes none when rcx is 0
        ("0f0b", ALL, False),
        ("", ALL, False),
        ("488b07", ALL, False),  # the next instructions are unknown
        ("4885", ALL, False),  # cut short
    ],
)
def test_liveness(run: str, flags: int, expected: bool) -> None:
    code = bytes.fromhex(run)
    for cut in (1, 3, len(code)):
        assert dead(code[:cut], code[cut:], 0xFFFFFFFF81000000, flags) == expected
