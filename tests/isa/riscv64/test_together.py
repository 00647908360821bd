"""Instructions of riscv64 that cannot be planted because of other instructions of their function.

Functions are drawn at random; every path between a load-reserved and a store-conditional is known
from how the function was written.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from kinst.isa import load
from tests.isa.gnu_assembler import assembled

TEXT = 0xFFFFFFFF_81000000
PLAIN = ("nop", "add a3, a3, a4", "ld a5, 0(a1)", "sd a5, 8(a1)", "li a4, 5", "csrr a4, cycle",
         "csrr a4, sepc", "csrw scounteren, a4", "fence", "amoadd.d a4, a5, (a1)")  # fmt: skip
STATE = ("csrw sepc, a4", "csrw sscratch, a4", "csrrw a4, scause, a5", "sret")
COUNT, STRIDE = 60, 128


def drawn(rng: random.Random) -> list[tuple[str, int]]:
    """Return random (instruction, index of its branch target or -1)."""
    length = rng.randrange(3, 14)
    lines = []
    for _ in range(length):
        kind = rng.random()
        to = rng.randrange(length)
        if kind < 0.15:
            lines.append(("lr.d a4, (a1)", -1))
        elif kind < 0.3:
            lines.append(("sc.d a2, a4, (a1)", -1))
        elif kind < 0.45:
            lines.append((f"bnez a2, L{{k}}_{to}", to))
        elif kind < 0.5:
            lines.append((f"j L{{k}}_{to}", to))
        elif kind < 0.53:
            lines.append(("ret", -1))
        elif kind < 0.55:
            lines.append((rng.choice(STATE), -1))
        else:
            lines.append((rng.choice(PLAIN), -1))
    return lines


def between(lines: list[tuple[str, int]]) -> set[int]:
    """Return all instructions on a path from an lr to an sc with neither in between, and all lr
    and sc."""
    count = len(lines)
    ends = [text[:2] in ("lr", "sc") for text, _ in lines]
    leads = np.zeros((count, count), np.bool_)
    for k, (text, to) in enumerate(lines):
        if to >= 0:
            leads[k, to] = True
        if not text.startswith(("j ", "ret", "sret")) and k + 1 < count:
            leads[k, k + 1] = True
    # Paths of any length with plain instructions.
    ways = leads.copy()
    for through in range(count):
        if not ends[through]:
            ways |= np.outer(ways[:, through], ways[through])
    first = [k for k in range(count) if lines[k][0].startswith("lr")]
    last = [k for k in range(count) if lines[k][0].startswith("sc")]
    inside = {k for k in range(count) if any(ways[a, k] for a in first)
              and any(ways[k, b] for b in last)}  # fmt: skip
    return inside | set(first) | set(last)


def test_every_way_from_a_reservation_to_its_end(tmp_path: Path) -> None:
    rng, isa = random.Random(9), load("riscv64")
    functions = [drawn(rng) for _ in range(COUNT)]
    source = []
    for k, lines in enumerate(functions):
        source.append(f".org {k * STRIDE}")
        source += [f"L{k}_{n}: {text.format(k=k)}" for n, (text, _) in enumerate(lines)]
    code = assembled("riscv64", "\n".join([*source, f".org {COUNT * STRIDE}"]), tmp_path)
    some = whole = 0
    for k, lines in enumerate(functions):
        known = []
        for one in isa.decode(code[k * STRIDE :][:STRIDE], TEXT):
            if len(known) < len(lines):
                known.append(one)
        body = b"".join(one.code for one in known)
        found = {n for n, one in enumerate(known) if one.address in isa.unsafe(known)}
        if any(text in STATE for text, _ in lines):
            assert found == set(range(len(lines))), lines
            whole += 1
        else:
            assert found == between(lines), lines
            some += bool(found)
        assert not found or isa.has_sequences(body)
        marks = ("lr.", "sc.", "amo", "csr", "sret")
        if not any(text.startswith(marks) for text, _ in lines):
            assert not found
    assert some > 20 and whole > 5


def test_what_takes_no_longer_look(tmp_path: Path) -> None:
    """A function of plain instructions has no sequences; with one of the others it may have."""
    plain = assembled("riscv64", "add a0, a0, a1; ld a5, 0(a1); ret; li a4, 5; mul a1, a2, a3",
                      tmp_path)  # fmt: skip
    isa = load("riscv64")
    assert not isa.has_sequences(plain) and not isa.has_sequences(b"")
    for text in ("lr.d a4, (a1)", "sc.w a2, a4, (a1)", "sret", "csrw sepc, a0"):
        one = assembled("riscv64", text, tmp_path)
        for code in (one, plain + one, one + plain, plain + one + b"\x01"):
            assert isa.has_sequences(code), text
    arm64 = load("arm64")
    plain = assembled("arm64", "add x0, x0, x1; ldr x5, [x1]; ret; mul x1, x2, x3; b .", tmp_path)
    assert not arm64.has_sequences(plain) and not arm64.has_sequences(b"")
    for text in ("ldxr x4, [x1]", "stlxr w2, x4, [x1]", "ldaxp x1, x2, [x3]"):
        one = assembled("arm64", text, tmp_path)
        for code in (one, plain + one, one + plain, plain + one + b"\0\0\0"):
            assert arm64.has_sequences(code), text


# Predicated and not, of each size (DDI 0487, C7: MOVPRFX); and similar ones that are not MOVPRFX.
PREFIXES = [*(f"movprfx z3.{t}, p1/{k}, z5.{t}" for t in "bhsd" for k in "mz"), "movprfx z31, z0"]
NO_PREFIXES = ["add z3.s, z3.s, z4.s", "movs p1.b, p2.b", "mov z3.d, z4.d", "lsr z3.s, z3.s, #3",
               "orv b3, p1, z5.b", "ftssel z3.s, z4.s, z5.s", "fexpa z3.s, z4.s"]  # fmt: skip


def test_a_prefix_stays_with_its_instruction(tmp_path: Path) -> None:
    isa = load("arm64")
    for text in (*PREFIXES, *NO_PREFIXES):
        source = f".arch armv8-a+sve\nnop\n{text}\nadd z3.s, p1/m, z3.s, z4.s\nnop"
        code = assembled("arm64", source, tmp_path)
        known = list(isa.decode(code, TEXT))
        assert len(known) == 4
        held = [TEXT + 4, TEXT + 8] if text in PREFIXES else []
        assert sorted(isa.unsafe(known)) == held, text
        assert isa.has_sequences(code) == bool(held), text
        assert isa.rerun_starts(known) == {}


def test_data_that_a_function_loads_is_none_of_its_instructions(tmp_path: Path) -> None:
    """Literals have as many bytes as the load, by its kind, and are not instructions."""
    isa = load("arm64")
    sizes = {"ldr w3": 4, "ldr x3": 8, "ldrsw x3": 4, "prfm pldl1keep": 0,
             "ldr s3": 4, "ldr d3": 8, "ldr q3": 16}  # fmt: skip
    for text, size in sizes.items():
        code = assembled("arm64", f"{text}, .+12\nret\nnop\nnop\nnop\nnop\nnop", tmp_path)
        known = list(isa.decode(code, TEXT))
        assert sorted(isa.unsafe(known)) == [TEXT + 12 + 4 * n for n in range(size // 4)], text
        assert isa.has_sequences(code)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        *((text, True) for text in (
            "stxr w3, w2, [x1]", "stlxrb w3, w2, [x1]", "stxp w3, x2, x4, [x1]", "clrex",
            "clrex #0", "clrex #3", "wfe")),
        *((text, False) for text in (
            "nop", "sevl", "sev", "yield", "dmb ish", "isb", "str w2, [x1]", "stlr w2, [x1]",
            "cas w2, w3, [x1]", "ldxr w5, [x6]")),
    ],
)  # fmt: skip
def test_what_the_mark_of_a_load_exclusive_is_lost_at(
    text: str, ends: bool, tmp_path: Path
) -> None:
    """DDI 0487, B2.9: stores of the pair, clrex, and a wfe, which waits for a change of the
    monitor."""
    isa = load("arm64")
    code = assembled("arm64", f"ldxr w2, [x1]\nadd w2, w2, #1\n{text}\nret", tmp_path)
    known = list(isa.decode(code, TEXT))
    assert {*isa.unsafe(known), *isa.rerun_starts(known)} == (
        {TEXT + 4, TEXT + 8} if ends else set()
    )
