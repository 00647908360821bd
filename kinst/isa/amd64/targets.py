"""Search for addresses that amd64 code may lead to, without knowing where its instructions begin.

The search tries every byte offset. It finds all direct branches in the code, and all addresses that
instructions make or push. Some results are false, because their bytes are inside other
instructions. Source: Intel SDM volume 2 (Jcc, JMP, CALL, LOOP, LEA, and section 2.2.1.3,
"Displacement": 32 bits are sign-extended, also as immediates).

Tested by tests/isa/test_what_leads_where.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_CHUNK = 1 << 20  # bytes searched at once: bounds the memory for intermediate arrays
_LONGEST = 16  # bytes after a chunk that instructions beginning in it may need
_REACH = 1 << 30  # more than any kernel's code has


def branches(code: bytes, address: int) -> tuple[U64, U64]:
    raw = np.frombuffer(code, np.uint8)
    sources, targets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for at in range(0, len(raw), _CHUNK):
        piece = np.concatenate([raw[at : at + _CHUNK + _LONGEST], np.zeros(_LONGEST, np.uint8)])
        for source, target in _found(piece, address + at):
            target += at
            inside = (source < _CHUNK) & (target >= 0) & (target < len(raw))
            sources.append(source[inside] + at)
            targets.append(target[inside])
    source, target = np.concatenate(sources), np.concatenate(targets)
    order = np.argsort(target, kind="stable")
    base = np.uint64(address)
    return source[order].astype(np.uint64) + base, target[order].astype(np.uint64) + base


def _found(raw: U8, address: int) -> Iterator[tuple[I64, I64]]:
    """Yield possible branches and addresses in code, as arrays (offset of the instruction, offset
    that it leads to).

    Args:
        raw: the code and _LONGEST bytes after it, at which no branch is searched for.
        address: address of the code.
    """
    first, second = raw[:-_LONGEST], raw[1 : 1 - _LONGEST]
    short = (first & 0xF0 == 0x70) | (first & 0xFC == 0xE0) | (first == 0xEB)
    near = (first == 0xE8) | (first == 0xE9)
    # Jcc rel32, and lea of an address that is relative to rip.
    two = (first == 0x0F) & (second & 0xF0 == 0x80) | (first == 0x8D) & (second & 0xC7 == 0x05)
    for which, head, size in ((short, 1, 1), (near, 1, 4), (two, 2, 4)):
        where = np.flatnonzero(which)
        yield where, where + head + size + _signed(raw, where + head, size)
    start = address - (1 << 64) if address >> 63 else address
    for shift in range(4):
        count = (len(raw) - shift) // 4
        words = np.frombuffer(raw.tobytes(), "<i4", count, shift).astype(np.int64)
        where = np.flatnonzero((words >= start - _REACH) & (words < start + _REACH))
        yield where * 4 + shift, words[where] - start


def _signed(raw: U8, where: I64, size: int) -> I64:
    """Return the signed little-endian number of `size` bytes at each offset in `where`."""
    values = np.zeros(len(where), np.int64)
    for byte in range(size):
        values |= raw[where + byte].astype(np.int64) << 8 * byte
    sign = np.int64(1) << np.int64(8 * size - 1)
    return (values ^ sign) - sign
