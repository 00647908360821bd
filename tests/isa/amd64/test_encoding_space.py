"""A dense sample of amd64's encodings against LLVM, and their flags bit by bit against capstone.

LLVM shares nothing with iced-x86 or kinst's tables.

    python -m pytest -s tests/isa/amd64/test_encoding_space.py    prints what is left out
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from capstone import CS_ARCH_X86, CS_MODE_64, Cs
from capstone import x86 as cx
from iced_x86 import Instruction

from kinst.core.displaced import Refused
from kinst.isa import _x86, load
from kinst.isa._x86_length import length_at
from kinst.isa.amd64 import flags
from kinst.isa.amd64.control import flow
from kinst.isa.amd64.parse import parse
from tests.isa.amd64.encoding_space import encodings
from tests.isa.llvm import Known, known_to_llvm

pytestmark = pytest.mark.full  # LLVM 19

AT = 1 << 40  # where llvm_instructions.cpp puts each of them
FLAGS = {"CF": flags.CF, "PF": flags.PF, "AF": flags.AF, "ZF": flags.ZF, "SF": flags.SF,
         "OF": flags.OF}  # fmt: skip
SEVENTH = 7
# LLVM takes these for a separate instruction before the next one.
APART = frozenset(b"\xf0\xf2\xf3")
# For each of LLVM's letters: flows that kinst may report.  A branch with an operand size prefix
# may go anywhere, since processors differ on it.
KINDS = {
    "c": {("call", True), ("indirect", True)},
    "r": {("return", False), ("indirect", False), ("indirect", True)},
    "b": {("branch", True), ("indirect", True)},
    "j": {("jump", False), ("indirect", True)},
    "i": {("indirect", False), ("indirect", True)},
}
# LLVM does not describe the control flow of these; SDM volume 2 does.
ELSEWHERE = _x86.codes_of(
    "syscall sysenter sysret sysretq sysexit sysexitq iret iretd iretq uiret eretu erets retf rsm"
    " skinit vmlaunch vmresume enclu getsec seamret xbegin xabort int3 int1 ud0 ud1 ud2"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes whose start is an instruction for LLVM, for kinst (iced-x86), for both or for
    neither."""

    code: bytes
    llvm: Known | None
    known: Instruction | None


@pytest.fixture(scope="module")
def samples(thorough: bool) -> list[Sample]:
    """Return all encodings in the slow run, otherwise each seventh."""
    codes = list(dict.fromkeys(encodings()))
    if not thorough:
        codes = codes[::SEVENTH]
    found = known_to_llvm("x86_64", "", codes)
    apart = [k for k, one in enumerate(found) if one and one.size == 1 and codes[k][0] in APART]
    for k, one in zip(apart, known_to_llvm("x86_64", "", [codes[k][1:] for k in apart]),
                      strict=True):  # fmt: skip
        is_prefix = one is not None and not one.opcode.endswith("_PREFIX")
        target = None if one is None or one.target is None else one.target + 1
        found[k] = replace(one, size=one.size + 1, target=target) if one and is_prefix else None
    return [
        Sample(code, None if one and one.opcode.endswith("_PREFIX") else one, _x86.first(code, AT))
        for code, one in zip(codes, found, strict=True)
    ]


def by_both(samples: list[Sample]) -> Iterator[tuple[bytes, Known, Instruction]]:
    """Return instructions that both know, except branches on whose length processors differ."""
    for one in samples:
        if one.llvm is None or one.known is None or differs(one.llvm):
            continue
        yield one.code[: one.known.len], one.llvm, one.known


def differs(llvm: Known) -> bool:
    """Return whether LLVM has AMD's distance of 2 bytes and iced-x86 Intel's of 4."""
    return llvm.opcode in ("JCC_2", "JMP_2", "CALLpcrel16")


def test_lengths(samples: list[Sample]) -> None:
    """Lengths agree, also those from the opcode maps alone, in which iced-x86 has no part."""
    compared, unknown, left_out = 0, 0, Counter[str]()
    for one in samples:
        sized = length_at(one.code)
        if one.known is not None:
            assert sized == one.known.len, one.code.hex()
        if one.llvm is None:
            left_out["LLVM does not know it"] += one.known is not None
        elif differs(one.llvm):
            left_out["processors differ on a branch with an operand size prefix"] += 1
            assert sized in (0, one.llvm.size, one.llvm.size + 2), one.code.hex()
        elif one.known is not None or sized:
            compared += 1
            unknown += one.known is None
            assert sized == one.llvm.size, (one.code.hex(), one.llvm.opcode)
        else:
            left_out["no opcode map has it"] += 1
    print(f"\n{len(samples)} encodings, {compared} compared, {unknown} not known to iced-x86;"
          f" left out: {dict(left_out)}")  # fmt: skip
    assert compared > 24000 and unknown > 4000


def test_where_control_goes(samples: list[Sample]) -> None:
    compared = 0
    for code, llvm, known in by_both(samples):
        goes = flow(code, AT)
        letters = llvm.flags.replace("p", "")
        if letters:
            assert (goes.kind, goes.falls_through) in KINDS[letters[0]], code.hex()
        elif known.code not in ELSEWHERE:
            assert goes.kind in ("next", "landing"), (code.hex(), llvm.opcode)
        if goes.target is not None:
            assert llvm.target is not None and goes.target == AT + llvm.target, code.hex()
        compared += 1
    assert compared > 20000


def test_memory_relative_to_the_instruction(samples: list[Sample]) -> None:
    compared = relative = 0
    for code, llvm, _ in by_both(samples):
        parsed = parse(code)
        assert parsed is not None, code.hex()
        is_relative = bool(llvm.reads & {"RIP", "EIP"})
        assert parsed.rip_relative == is_relative, (code.hex(), llvm.opcode)
        relative += is_relative
        compared += 1
    assert compared > 20000 and relative > 3000


def test_flags_that_are_dead_are_written_and_not_read(samples: list[Sample]) -> None:
    """LLVM treats all flags as one register; capstone tells them apart if it knows the
    instruction."""
    disassembler = Cs(CS_ARCH_X86, CS_MODE_64)
    disassembler.detail = True
    masks = {
        bit: [
            sum(getattr(cx, f"X86_EFLAGS_{verb}_{name}", 0) for verb in verbs)
            for verbs in (("TEST",), ("MODIFY", "RESET", "SET", "UNDEFINED"))
        ]
        for name, bit in FLAGS.items()
    }
    claims = by_bit = 0
    for code, llvm, _ in by_both(samples):
        dead = [bit for bit in FLAGS.values() if flags.dead(code, b"", AT, bit)]
        if not dead:
            continue
        claims += 1
        assert "EFLAGS" in llvm.writes, (code.hex(), llvm.opcode)
        assert "EFLAGS" not in llvm.reads or flags.CF not in dead, (code.hex(), llvm.opcode)
        one = next(disassembler.disasm(code, AT, 1), None)
        if one is None or one.size != len(code) or not one.eflags:
            continue
        by_bit += 1
        for bit in dead:
            read, written = masks[bit]
            assert not one.eflags & read and one.eflags & written, (code.hex(), one.mnemonic)
    print(f"\n{claims} with dead flags, {by_bit} of them by each flag")
    assert claims > 2500 and by_bit > 2000


def test_what_is_not_known_may_go_anywhere_and_stays_where_it_is(samples: list[Sample]) -> None:
    """Unknown instructions have no marks either: no flag is dead there."""
    isa, refused = load("amd64"), 0
    unknown = [one.code[: length_at(one.code)] for one in samples if one.known is None]
    unknown = [code for code in unknown if code not in (b"", _x86.UDB)][::5]
    for code in unknown:
        goes = isa.flow(code, AT)
        assert (goes.kind, goes.falls_through, goes.destination) == ("indirect", True, "")
        assert isinstance(isa.displace(code, AT, AT + (1 << 20)), Refused), code.hex()
        assert not flags.dead(code, b"\x31\xc0", AT)
        refused += 1
    scanned = isa.scan([(AT, code) for code in unknown])
    assert len(scanned.columns) == refused > 1000 and not scanned.columns.marks.any()


def test_what_is_copied_is_known_to_llvm_as_straight_code(samples: list[Sample]) -> None:
    """Instructions marked as plain: LLVM knows of no branch in them, and the copy has the same
    length."""
    isa = load("amd64")
    chosen = [code for code, _, _ in by_both(samples)]
    letters = [llvm.flags.replace("p", "") for _, llvm, _ in by_both(samples)]
    scanned = isa.scan([(AT, code) for code in chosen])
    leads = isa.leads(scanned.columns)
    straight = 0
    for k, (code, letter) in enumerate(zip(chosen, letters, strict=True)):
        if scanned.columns.marks[k] and leads.kind[k] == 0:
            assert not letter, code.hex()
            straight += 1
    assert straight > 10000
