"""Instructions that may be inside a run, and padding, on code that is written by hand.

x86-64: 90 nop, 66 90 a nop of two bytes, c3 ret, cc int3, eb XX jmp, 75 XX jne, ff d0 call rax, ff
e0 jmp rax, 0f 0b ud2, e8 call.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinst.core.columns import columns_of
from kinst.isa import load
from kinst.patch.flows import flows_of
from kinst.patch.runs import CodeLines, idle_of, lines_of, near

AT = 0x1000
ISA = load("amd64")
FILLS = {b"\x90", b"\x66\x90", b"\xcc"}


def lines(
    *functions: str, entered: tuple[int, ...] = (), fault: tuple[int, ...] = (),
    unfit: tuple[int, ...] = (), padding: int = 0, gap: int = 0,
) -> tuple[CodeLines, list[int]]:  # fmt: skip
    """Return the lines of functions in hexadecimal, one after the other, and offsets of their
    instructions.

    Args:
        gap: bytes that are missing before each one's last instruction.
    """
    starts, codes, follows, position = [], [], [], []
    at = 0
    for text in functions:
        known = list(ISA.decode(bytes.fromhex(text), AT + at))
        for k, one in enumerate(known):
            offset = one.address - AT + (gap if k and k == len(known) - 1 else 0)
            starts.append(offset)
            codes.append(one.code)
            follows.append(k > 0)
        at += len(bytes.fromhex(text)) + 64
    columns = columns_of([AT + at for at in starts], codes)
    flows = replace(flows_of(columns, ISA), fault=np.isin(starts, fault))
    position = np.array(starts, np.int64)
    fills = np.array([code in FILLS for code in codes])
    idle = idle_of(flows, fills, np.array(follows))
    found = lines_of(
        position, columns.size, flows, np.array(follows), entered=np.isin(starts, entered),
        unfit=np.isin(starts, unfit), idle=idle, padding=np.full(len(starts), padding, np.int64),
        begins=np.ones(len(starts), np.bool_),
    )  # fmt: skip
    return found, starts


def joined(*functions: str, **more: tuple[int, ...] | int) -> list[int]:
    """Return the offsets of instructions that can be in a run after another one."""
    found, starts = lines(*functions, **more)  # type: ignore[arg-type]
    return [starts[k] for k in np.flatnonzero(found.joins)]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("90 90 90", [1, 2]),
        ("6690 90", [2]),
        ("7500 90", [2]),  # a branch continues
        ("ffd0 90", []),  # a call returns, even if a run is there by then
        ("e800000000 90 90", [6]),
        ("cc 31c0", []),
        ("0f0b 31c0 31c0", [4]),
        ("c3 31c0", []),  # nothing continues from a return
        ("ffe0 31c0 31c0", [4]),
        ("eb02 31c0 31c0", [4]),
        ("c3 90 90", [1, 2]),  # but padding is never run
        ("c3 90 31c0", [1]),
        ("c3 31c0 90", [3]),  # this one continues
        ("ffe0 6690 cc 31c0", [2, 4]),
        ("c3 6690 90 6690", [1, 3, 4]),
        ("eb00 90 31c0", [2]),
        ("ffd0 90 90", [3]),  # the code that a call returns to is no padding
        ("31c0 c3 90 6690 31c0", [2, 3, 4]),
        ("eb02 31c0 c3 31c0 90 eb00 90", [4, 7, 8, 10]),
    ],
)
def test_what_joins(code: str, expected: list[int]) -> None:
    assert joined(code) == expected


def test_what_only_fills_room() -> None:
    """Random instructions, against a walk from each one to the next."""
    rng = np.random.default_rng(5)
    found = 0
    for _ in range(200):
        codes = [bytes.fromhex(one) for one in rng.choice(["90", "6690", "cc", "31c0", "c3"], 12)]
        starts = np.cumsum([0, *map(len, codes)])[:-1]
        follows = rng.random(12) < 0.9
        follows[0] = False
        idle = idle_of(
            flows_of(columns_of((AT + starts).tolist(), codes), ISA),
            np.array([code in FILLS for code in codes]), follows,
        )  # fmt: skip
        unreached = False  # the instruction is after one that does not continue, or is padding
        for code, behind, is_idle in zip(codes, follows, idle, strict=True):
            assert is_idle == (unreached and behind and code in FILLS)
            unreached = bool(is_idle) or code in (b"\xc3", b"\xcc")
            found += int(is_idle)
    assert found > 200


def test_who_else_comes_there() -> None:
    assert joined("90 90 90 90", entered=(2,)) == [1, 3]
    assert joined("90 90 90 90", fault=(1,)) == [2, 3]
    assert joined("c3 90 90 90", entered=(2,)) == [1, 3]  # so it runs, and continues
    assert joined("c3 90 90 90", fault=(2,)) == [1, 3]
    assert joined("90 90 90 90", unfit=(1,)) == [1, 2, 3]  # `fits` says so
    found, _ = lines("90 90 90", unfit=(1,))
    assert found.fits.tolist() == [True, False, True]


def test_functions_and_gaps() -> None:
    assert joined("90 90", "90 90") == [1, 67]
    assert joined("c3", "90 90") == [66]  # padding of another function
    assert joined("90 90 90", gap=1) == [1]
    assert joined("c3 90 90", gap=1) == [1]


def test_room_is_behind_what_does_not_go_on() -> None:
    codes = ("90", "0f0b", "ffd0", "c3", "ffe0", "eb00", "cc", "7500")
    for code, room in zip(codes, (0, 0, 0, 7, 7, 7, 7, 0), strict=True):
        found, _ = lines(code, padding=7)
        assert found.padding.tolist() == [room], code


@pytest.mark.parametrize("jump", [5, 8])
def test_what_is_near(jump: int) -> None:
    """Near enough for a jump at one to cover the other, in either direction."""
    rng = np.random.default_rng(1)
    for _ in range(60):
        position = np.cumsum(rng.integers(1, 8, 14))
        short = rng.random(14) < 0.2
        found = near(position, short, jump)
        for k, at in enumerate(position.tolist()):
            reach = [abs(at - other) < jump for other in position[short].tolist()]
            if any(reach):
                assert found[k]
            elif not any(abs(at - other) <= jump for other in position[short].tolist()):
                assert not found[k]
    assert near(np.zeros(0, np.int64), np.zeros(0, np.bool_), jump).tolist() == []
