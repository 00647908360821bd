"""Search for addresses that riscv64 code may lead to, without knowing where its instructions begin.

The search tries every halfword. It finds all direct branches in the code, and all addresses that
two neighbouring instructions make. Some results are false, because their bytes are inside other
instructions. Source: RISC-V unprivileged specification, "Control Transfer Instructions" and "RVC
Instruction Set Listings".

Tested by tests/isa/test_what_leads_where.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kinst.core.columns import I64, U64

_CHUNK = 1 << 20  # bytes searched at once: bounds the memory for intermediate arrays
_LONGEST = 8  # bytes after a chunk that instructions beginning in it may need

# Bits of displacements, (from, to), as in parse.py.
_CJ = ((12, 11), (11, 4), (10, 9), (9, 8), (8, 10), (7, 6), (6, 7), (5, 3), (4, 2), (3, 1), (2, 5))
_CB = ((12, 8), (11, 4), (10, 3), (6, 7), (5, 6), (4, 2), (3, 1), (2, 5))


def branches(code: bytes, address: int) -> tuple[U64, U64]:
    sources, targets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for at in range(0, len(code), _CHUNK):
        size = (min(_CHUNK, len(code) - at) + 1 & -2) + _LONGEST
        piece = code[at : at + size].ljust(size, b"\0")
        for source, target in _found(np.frombuffer(piece, "<u2").astype(np.int64)):
            target += at
            inside = (target >= 0) & (target < len(code))
            sources.append(source[inside] + at)
            targets.append(target[inside])
    source, target = np.concatenate(sources), np.concatenate(targets)
    order = np.argsort(target, kind="stable")
    base = np.uint64(address)
    return source[order].astype(np.uint64) + base, target[order].astype(np.uint64) + base


def _found(halves: I64) -> Iterator[tuple[I64, I64]]:
    """Yield possible branches and addresses in code, as arrays (offset of the instruction, offset
    that it leads to), in bytes.

    Args:
        halves: the code and _LONGEST bytes after it, in halfwords; no instruction is searched for
            in those last bytes.
    """
    low = halves[: -_LONGEST // 2]
    for which, bit_moves, bits in (
        (low & 0xE003 == 0xA001, _CJ, 12),
        (low & 0xC003 == 0xC001, _CB, 9),
    ):
        where = np.flatnonzero(which)
        yield 2 * where, 2 * where + _signed(_gathered(low[where], bit_moves), bits)
    words = halves[:-2] | halves[1:-1] << 16
    here, following = words[: len(low)], words[2 : len(low) + 2]
    where = np.flatnonzero(here & 0x7F == 0x6F)  # jal
    word = here[where]
    imm = (word >> 31 & 1) << 20 | (word >> 12 & 0xFF) << 12
    imm |= (word >> 20 & 1) << 11 | (word >> 21 & 0x3FF) << 1
    yield 2 * where, 2 * where + _signed(imm, 21)
    where = np.flatnonzero(here & 0x7F == 0x63)  # branches
    word = here[where]
    imm = (word >> 31 & 1) << 12 | (word >> 7 & 1) << 11
    imm |= (word >> 25 & 0x3F) << 5 | (word >> 8 & 0xF) << 1
    yield 2 * where, 2 * where + _signed(imm, 13)
    # auipc, directly followed by an instruction that adds to its register: addi, jalr.
    pair = (here & 0x7F == 0x17) & ((following & 0x707F == 0x13) | (following & 0x707F == 0x67))
    where = np.flatnonzero(pair & (here >> 7 & 31 == following >> 15 & 31))
    high, low_part = here[where] & 0xFFFF_F000, following[where] >> 20
    yield 2 * where, 2 * where + _signed(high, 32) + _signed(low_part, 12)


def _gathered(words: I64, bit_moves: tuple[tuple[int, int], ...]) -> I64:
    values = np.zeros(len(words), np.int64)
    for from_, to in bit_moves:
        values |= (words >> from_ & 1) << to
    return values


def _signed(values: I64, bits: int) -> I64:
    sign = np.int64(1) << np.int64(bits - 1)
    return (values ^ sign) - sign
