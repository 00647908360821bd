"""QEMU's jump cache: the table in which TCG finds translated code.

Each CPU has a table of 4096 entries, and each entry holds one block of translated code. A direct
jump within a page needs no table, since QEMU puts it into the translation. After any other jump, a
call or a return, QEMU looks up the next block in this table, by its virtual address. If the entry
holds a different block, QEMU replaces the entry. For this it must find the next block in a hash
table of all blocks, by its physical address, which takes longer.

Sources: QEMU 7.2 and 10.0, accel/tcg/tb-jmp-cache.h (TB_JMP_CACHE_BITS), accel/tcg/tb-hash.h
(tb_jmp_cache_hash_func), accel/tcg/translator.c (translator_use_goto_tb). Pages have 4 KB
(TARGET_PAGE_BITS is 12) for the CPUs that kinst asks for, on all ISAs.
"""

from __future__ import annotations

import numpy as np

from kinst.core.columns import I64, U64
from kinst.core.machine import CodeTable

_CACHE_BITS = 12
_PAGE_BITS = 12
_IN_PAGE_BITS = _CACHE_BITS // 2  # bits of an entry's number that differ within one page
_IN_PAGE = (1 << _IN_PAGE_BITS) - 1
_OF_PAGE = (1 << _CACHE_BITS) - 1 - _IN_PAGE


def entries_of(addresses: U64) -> I64:
    """Return, for each virtual address of code, the number of its entry in QEMU's jump cache."""
    shift = np.uint64(_PAGE_BITS - _IN_PAGE_BITS)
    mixed = addresses ^ (addresses >> shift)
    found = (mixed >> shift & np.uint64(_OF_PAGE)) | (mixed & np.uint64(_IN_PAGE))
    return found.astype(np.int64)


JUMP_CACHE = CodeTable(1 << _CACHE_BITS, entries_of)
