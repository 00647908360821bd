"""arm64's encodings beside LLVM's: every opcode of the upper and middle bits with drawn registers.

LLVM must know whatever kinst displaces, with the same flow, target and dependence on its address,
and with the same registers where it is run again.  What kinst refuses is only counted.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from kinst.core.displaced import Relocated
from kinst.isa import load
from kinst.isa.arm64 import parse as p
from kinst.isa.arm64 import rerun, sequences
from tests.isa.llvm import Known, known_to_llvm

ISA = load("arm64")
AT = 0xFFFF_8000_0801_0000
RANDOM = random.Random(None if os.environ.get("KINST_RANDOM") else 30)
# In every opcode and function; of two registers equal numbers, x0 and the stack pointer or zero.
DRAWS = 4
RELATIVE = (p.ADR, p.ADRP, p.LITERAL, p.B, p.BL, p.B_COND, p.CB, p.TB)
# They trap, or leave the kernel: LLVM does not describe that.
TRAPS = ("BRK", "UDF")
LEAVES = ("ERET", "ERETAA", "ERETAB", "DRPS")
LANDINGS = range(0xD503245F, 0xD50324E0, 0x40)  # bti c, j, jc
SIGNING_RETURNS = ("RETAASPPC", "RETABSPPC")  # the address that they name is no target
# Signed with their own address, which is no operand.
SIGNS = ("PACIASPPC", "PACIBSPPC", "PACNBIASPPC", "PACNBIBSPPC")


def words() -> Iterator[int]:
    """Return all values of bits 31 to 21 and 15 to 10, which are A64's opcodes."""
    draw = RANDOM.getrandbits
    for high in range(1 << 11):
        for middle in range(1 << 6):
            base = high << 21 | middle << 10
            yield base | 31 << 16 | draw(5) << 5 | 31
            yield base | 31 << 16 | draw(10)
            for _ in range(DRAWS - 2):
                yield base | draw(5) << 16 | draw(10)
    # Hints, barriers and PSTATE, system registers, exceptions: their numbers are lower.
    for low in range(1 << 12):
        yield 0xD5030000 | low << 5 | 31
        yield 0xD5030000 | low << 5 | draw(5)
    for _ in range(20_000):
        yield draw(11) << 21 | draw(21)


def flow_differs(word: int, there: Known) -> bool:
    """Return whether control goes elsewhere than LLVM says."""
    flow = ISA.flow(word.to_bytes(4, "little"), AT)
    distance = None if flow.target is None else (flow.target - AT + 2**63) % 2**64 - 2**63
    if there.opcode in TRAPS:
        return flow.kind != "trap"
    if there.opcode in LEAVES:
        return flow.kind != "indirect" or flow.falls_through
    if there.opcode.startswith(SIGNING_RETURNS):
        return flow.kind != "return" or flow.falls_through
    if distance != (there.target if flow.kind != "next" else None):
        return True
    if "c" in there.flags:
        return flow.kind != "call" or not flow.falls_through
    if "r" in there.flags:
        return flow.kind != "return" or flow.falls_through
    if "i" in there.flags:
        return flow.kind != "indirect" or flow.falls_through
    if "b" in there.flags:
        always = there.opcode in ("Bcc", "BCcc") and word & 0xF >= 14
        return flow.kind != ("jump" if always else "branch") or flow.falls_through == always
    if "j" in there.flags:
        return flow.kind != "jump" or flow.falls_through
    return flow.kind != ("landing" if word in LANDINGS else "next")


def is_relative(there: Known) -> bool:
    """Return whether the effect depends on the instruction's address, by LLVM."""
    return "p" in there.flags or there.target is not None or there.opcode in SIGNS


def numbers(names: frozenset[str]) -> set[int]:
    """Return registers as rerun.Effect has them."""
    found = set[int]()
    for name in names - {"XZR", "WZR"}:
        if name in ("SP", "WSP"):
            found.add(rerun._STACK)
        elif name == "NZCV":
            found.add(rerun._FLAGS)
        else:
            found.add({"FP": 29, "LR": 30}.get(name) or int(name[1:]))
    return found


def compared(sample: list[int]) -> Counter[str]:
    """Compare words with LLVM; return how many were known to which side."""
    codes = [word.to_bytes(4, "little") for word in sample]
    counted: Counter[str] = Counter()
    wrong = []
    for word, code, there in zip(
        sample, codes, known_to_llvm("aarch64", "+all", codes), strict=True
    ):
        displaced = isinstance(ISA.displace(code, AT, AT + 0x10000), Relocated)
        unknown = p.parse(code, AT).kind == p.UNKNOWN
        if there is None:
            counted["displaced, unknown to LLVM" if displaced else "refused, unknown to LLVM"] += 1
            counted["may lead anywhere"] += unknown
            # To LLVM an ldtr of its own address register changes the address.
            if displaced and word & 0x3F200C00 != 0x38000800:
                wrong.append(f"{word:#x}: displaced, and LLVM does not know it")
            continue
        counted["displaced" if displaced else "refused"] += 1
        if unknown:
            wrong.append(f"{word:#x} {there}: not known here")
        elif flow_differs(word, there):
            wrong.append(f"{word:#x} {there}: {ISA.flow(code, AT)}")
        if displaced and is_relative(there) and p.parse(code, AT).kind not in RELATIVE:
            wrong.append(f"{word:#x} {there}: copied")
        effect = rerun._step(word, AT) if displaced else None
        if effect is not None:
            counted["run again"] += 1
            if numbers(there.reads) - effect.reads or numbers(there.writes) ^ effect.writes:
                wrong.append(f"{word:#x} {there}: {effect}")
        exclusive = sequences._exclusive(word)
        if exclusive in (sequences._LOAD, sequences._END):
            counted["exclusive"] += 1
        is_load = there.opcode.startswith(("LDXR", "LDAXR", "LDXP", "LDAXP"))
        is_end = there.opcode.startswith(("STXR", "STLXR", "STXP", "STLXP", "CLREX", "WFET"))
        if is_load != (exclusive == sequences._LOAD) or (is_end and exclusive != sequences._END):
            wrong.append(f"{word:#x} {there}: exclusive {exclusive}")
    assert wrong == [], (len(wrong), wrong[:12])
    return counted


@pytest.mark.slow
def test_all_opcodes() -> None:
    counted = compared(list(words()))
    assert counted["displaced"] > 100_000 and counted["run again"] > 5_000, counted
    assert counted["exclusive"] > 500 and counted["may lead anywhere"] > 10_000, counted
