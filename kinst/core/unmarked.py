"""What an ISA answers that marks no instructions: all trampolines are made one by one.

Tested by tests/isa/test_marks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kinst.core.columns import (
    I32,
    I64,
    NO_COLUMNS,
    U8,
    U64,
    Batch,
    Bools,
    Columns,
    Leads,
    Made,
    Scanned,
    columns_in,
)
from kinst.core.displaced import Refused

Sizes = Callable[[bytes], I64]
Stub = Callable[[int, int, int, bool], bytes | Refused]
JumpPatch = Callable[[int, int, int], bytes | None]
RunPatch = Callable[[bytes, int, int, int], bytes | None]


def scan_sizes(sizes_in: Sizes, pieces: Sequence[tuple[int, bytes]]) -> Scanned:
    """Isa.scan() by the sizes of instructions alone: sizes_in gives those of a piece of code, in
    order, as far as decode() goes."""
    sizes = [sizes_in(code) for _, code in pieces]
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum([len(one) for one in sizes], out=bounds[1:])
    if not bounds[-1]:
        return Scanned(NO_COLUMNS, bounds)
    addresses = [
        np.uint64(at) + (np.cumsum(one) - one).astype(np.uint64)
        for (at, _), one in zip(pieces, sizes, strict=True)
    ]
    return Scanned(
        columns_in(pieces, bounds, np.concatenate(addresses), np.concatenate(sizes)), bounds
    )


def leads(columns: Columns) -> Leads:
    """See Isa.leads."""
    count = len(columns)
    return Leads(np.zeros(count, np.bool_), np.zeros(count, np.uint64), np.zeros(count, np.uint8))


def may_make_tables(columns: Columns) -> Bools:
    """See Isa.may_make_tables, for an ISA that needs several instructions to make an address."""
    return np.ones(len(columns), np.bool_)


def counts_freely(sites: Columns, following: Sequence[bytes]) -> Bools:
    """See Isa.counts_freely, for an ISA on which counting changes no flags."""
    return np.ones(len(sites), np.bool_)


def trampoline_sizes(batch: Batch) -> I32:
    """See Isa.trampoline_sizes."""
    return np.full(len(batch.columns), -1, np.int32)


def trampolines(batch: Batch, to: U64, goal: U64) -> Made:
    """See Isa.trampolines: there are none."""
    return Made(np.zeros(0, np.uint8), np.zeros(0, np.int32))


def jump_patches_with(jump_patch: JumpPatch, columns: Columns, to: U64) -> tuple[Bools, U8]:
    """Isa.jump_patches() by Isa.jump_patch()."""
    rows, known = np.zeros(columns.code.shape, np.uint8), np.zeros(len(columns), np.bool_)
    places = zip(columns.size.tolist(), columns.address.tolist(), to.tolist(), strict=True)
    for k, (size, address, there) in enumerate(places):
        patch = jump_patch(size, address, there)
        if patch is not None:
            known[k] = True
            rows[k, :size] = np.frombuffer(patch, np.uint8)
    return known, rows


def run_patches_with(
    run_patch: RunPatch, start: U64, at: I64, code: bytes, to: U64, spare: Sequence[int]
) -> tuple[Bools, bytes]:
    """Isa.run_patches() by Isa.run_patch()."""
    known, parts, bounds = np.zeros(len(start), np.bool_), [], at.tolist()
    places = zip(start.tolist(), bounds, bounds[1:], to.tolist(), spare, strict=False)
    for k, (address, low, high, there, free) in enumerate(places):
        patch = run_patch(code[low:high], address, there, free)
        known[k] = patch is not None
        parts.append(patch or code[low:high])
    return known, b"".join(parts)


def stubs_with(stub: Stub, at: int, counters: I64, to: U64, free: Bools) -> tuple[U8, I64] | None:
    """Isa.stubs() by Isa.stub()."""
    parts, sizes = [], []
    for counter, there, nothing in zip(
        counters.view(np.uint64).tolist(), to.tolist(), free.tolist(), strict=True
    ):
        made = stub(at, counter, there, nothing)
        if isinstance(made, Refused):
            return None
        parts.append(made)
        sizes.append(len(made))
        at += len(made)
    return np.frombuffer(b"".join(parts), np.uint8), np.array(sizes, np.int64)
