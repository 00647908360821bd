"""QEMU's jump cache: where its TCG finds the translation of the code that a jump leads to.

Each CPU has a table of 4096 entries, one block of translated code in each.  A direct jump within
a page is patched into the translation; every other way into a block (a jump to another page, a
call, a return) looks the block up here by its virtual address.  Two blocks of one entry evict each
other: each is then looked for in a hash table of all blocks, by its physical address.

Sources: QEMU 7.2 and 10.0, accel/tcg/tb-jmp-cache.h (TB_JMP_CACHE_BITS), accel/tcg/tb-hash.h
(tb_jmp_cache_hash_func), accel/tcg/translator.c (translator_use_goto_tb).  Pages have 4 KB in the
QEMU of each ISA of kinst's.
"""

from __future__ import annotations

import numpy as np

from kinst.core.columns import I64, U64
from kinst.core.machine import CodeTable

_CACHE_BITS = 12
_PAGE_BITS = 12
_IN_PAGE_BITS = _CACHE_BITS // 2  # of an entry's number: all that differs within one page
_IN_PAGE = (1 << _IN_PAGE_BITS) - 1
_OF_PAGE = (1 << _CACHE_BITS) - 1 - _IN_PAGE


def entries_of(addresses: U64) -> I64:
    """The entry of each address."""
    shift = np.uint64(_PAGE_BITS - _IN_PAGE_BITS)
    mixed = addresses ^ (addresses >> shift)
    found = (mixed >> shift & np.uint64(_OF_PAGE)) | (mixed & np.uint64(_IN_PAGE))
    return found.astype(np.int64)


JUMP_CACHE = CodeTable(1 << _CACHE_BITS, entries_of)
