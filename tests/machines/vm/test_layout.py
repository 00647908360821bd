"""Scratch after a guest's memory: in one piece, whatever holes RAM has (q35: up to 2.75 GB in one
piece, otherwise 2 GB at 0 and the rest from 4 GB on; hw/i386/pc_q35.c)."""

from __future__ import annotations

import pytest

from kinst.isa import load
from kinst.machines.vm.qemu import lay_out_ram

MB, GB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("memory", "scratch", "end", "at", "size"),
    [
        (GB, 256 * MB, GB, GB, 1282 * MB),
        (2000 * MB, 256 * MB, 2000 * MB, 2000 * MB, 2258 * MB),
        # Both would be in the low piece without scratch, which begins the high one.
        (1900 * MB, GB, 1900 * MB, 4 * GB, (2048 + 1026) * MB),
        (2 * GB, GB, 4 * GB, 4 * GB, 3074 * MB),
        (3 * GB, 256 * MB, 5 * GB, 5 * GB, 3330 * MB),
    ],
)
def test_of_amd64(memory: int, scratch: int, end: int, at: int, size: int) -> None:
    layout, found, ranges = lay_out_ram(load("amd64").board, memory, scratch)
    assert (layout.end, layout.scratch, found) == (end, at, size)
    assert layout.tables == at + scratch
    assert sum(length for _, _, length in ranges) == size
    assert any(a <= at and layout.tables < a + length for a, _, length in ranges)


@pytest.mark.parametrize(("isa", "ram"), [("arm64", GB), ("riscv64", 2 * GB)])
def test_in_one_piece(isa: str, ram: int) -> None:
    layout, size, _ = lay_out_ram(load(isa).board, 5 * GB, 256 * MB)
    assert layout.end == layout.scratch == ram + 5 * GB
    assert size == 5 * GB + 258 * MB
