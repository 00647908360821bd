"""Entries of QEMU's jump cache, against its formula written out for one address."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kinst.machines.stub.jump_cache import JUMP_CACHE


def entry_in_qemu(pc: int) -> int:
    """Compute the entry by accel/tcg/tb-hash.h of QEMU 7.2 and 10.0.

    TB_JMP_CACHE_BITS is 12, TB_JMP_PAGE_BITS half of it, TARGET_PAGE_BITS 12.
    """
    cache_bits, target_page_bits = 12, 12
    page_bits = cache_bits // 2
    addr_mask = 2**page_bits - 1
    page_mask = 2**cache_bits - 2**page_bits
    tmp = pc ^ pc >> target_page_bits - page_bits
    return tmp >> target_page_bits - page_bits & page_mask | tmp & addr_mask


@pytest.mark.parametrize("first", [0x400000, 0xFFFF_8000_0800_0000, 0xFFFF_FFFF_8100_0000])
def test_the_entry_of_any_address_is_qemus(first: int) -> None:
    draw = random.Random(first)
    addresses = [first + draw.randrange(1 << 30) for _ in range(5000)]
    found = JUMP_CACHE.entry(np.array(addresses, np.uint64)).tolist()
    assert found == [entry_in_qemu(pc) for pc in addresses]
    assert max(found) < JUMP_CACHE.entries == 4096


def test_a_page_has_a_64th_of_the_entries() -> None:
    page = np.arange(0xFFFF_FFFF_8123_4000, 0xFFFF_FFFF_8123_5000, dtype=np.uint64)
    found = JUMP_CACHE.entry(page)
    assert len(np.unique(found)) == 64 and len(np.unique(found >> 6)) == 1
