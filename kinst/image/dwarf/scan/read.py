"""Compiled readers of integers, LEB128 numbers and strings.

Every function of the scan checks that the bytes that it reads lie inside their section. Otherwise
it returns minus an error number (of TROUBLE) instead of a position. Positions and addresses are
int64; addresses are the bit patterns of unsigned numbers.

Tested by tests/image/dwarf/scan/test_forms.py and tests/image/dwarf/scan/test_random.py.
"""

from __future__ import annotations

import numpy as np

from kinst.image.dwarf.numbers import E_CUT
from kinst.image.dwarf.scan.jit import U8, compiled, signed

ONE, TWO, THREE = np.uint64(1), np.uint64(2), np.uint64(3)
FOUR, FIVE, SIX, SEVEN = np.uint64(4), np.uint64(5), np.uint64(6), np.uint64(7)


@compiled
def u8(b: U8, p: int) -> int:
    """Return the byte at position p of b; p must be inside b."""
    # Index by unsigned numbers: numba tests signed ones for counting "from the end".
    return signed(b[np.uint64(p)])


@compiled
def number(b: U8, p: int, size: int) -> int:
    """Return the unsigned little-endian integer of 1, 2, 3, 4 or 8 bytes at position p of b; the
    bytes must be inside b."""
    i = np.uint64(p)
    v = signed(b[i])
    if size >= 2:
        v |= signed(b[i + ONE]) << 8
    if size >= 3:
        v |= signed(b[i + TWO]) << 16
    if size >= 4:
        v |= signed(b[i + THREE]) << 24
    if size == 8:
        v |= signed(b[i + FOUR]) << 32 | signed(b[i + FIVE]) << 40
        v |= signed(b[i + SIX]) << 48 | signed(b[i + SEVEN]) << 56
    return v


@compiled
def uleb(b: U8, p: int, end: int) -> tuple[int, int]:
    """Read the unsigned LEB128 number at position p of b. Return (value, position after it); the
    position is minus the error number if the number does not end before `end`."""
    if p >= end:
        return 0, -E_CUT
    c = u8(b, p)
    p += 1
    if c < 128:
        return c, p
    v = c & 127
    shift = 7
    while p < end and shift < 126:
        c = u8(b, p)
        p += 1
        if shift < 64:
            v |= (c & 127) << shift
        shift += 7
        if c < 128:
            return v, p
    return 0, -E_CUT


@compiled
def sleb(b: U8, p: int, end: int) -> tuple[int, int]:
    """Read the signed LEB128 number at position p of b. Return (value, position after it); the
    position is minus the error number if the number does not end before `end`."""
    start = p
    v, p = uleb(b, p, end)
    if p > 0:
        bits = 7 * (p - start)
        if bits < 64 and u8(b, p - 1) & 64:
            v |= -1 << bits
    return v, p


@compiled
def string_end(b: U8, p: int, end: int) -> int:
    """Return the position after the NUL of the string at position p of b; minus the error number if
    there is no NUL before `end`."""
    while p < end:
        if u8(b, p) == 0:
            return p + 1
        p += 1
    return -E_CUT
