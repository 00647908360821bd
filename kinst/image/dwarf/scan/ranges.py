"""Compiled reading of range lists (DWARF 4, section 2.17.3; DWARF 5, section 2.17.3).

Tested by tests/image/dwarf/scan/test_forms.py and tests/image/dwarf/scan/test_random.py.
"""
# ruff: noqa: SIM109 (membership in a tuple compiles to a loop)

from __future__ import annotations

from kinst.image.dwarf.numbers import (
    E_RANGES,
    FULL,
    RLE_BASE_ADDRESS,
    RLE_BASE_ADDRESSX,
    RLE_END,
    RLE_OFFSET_PAIR,
    RLE_START_END,
    RLE_START_LENGTH,
    RLE_STARTX_ENDX,
    RLE_STARTX_LENGTH,
    U_ADDRSIZE,
    U_LOW,
    U_OFFSIZE,
    U_RNG_BASE,
    U_VERSION,
)
from kinst.image.dwarf.scan.entry import address_at, element
from kinst.image.dwarf.scan.jit import compiled
from kinst.image.dwarf.scan.read import number, u8, uleb
from kinst.image.dwarf.scan.space import (
    AT,
    END,
    FIRST_ANY,
    FIRST_LOW,
    RANGES,
    ROOM,
    S_RANGES,
    S_RNGLISTS,
    START,
    Space,
)


@compiled
def add_range(s: Space, n: int, low: int, high: int) -> int:
    """Append an address range to the table RANGES unless it is empty. Return the new number of
    ranges, or minus FULL if the table is full.

    Also store the start of an entry's first range, even if this range is empty: it may be the entry
    address of an inlined copy. If w[FIRST_ANY] is 0, the range is the entry's first one: the
    function sets w[FIRST_ANY] to 1 and w[FIRST_LOW] to the range's start.

    Args:
        n: number of ranges so far.
    """
    w = s.w
    if w[FIRST_ANY] == 0:
        w[FIRST_ANY] = 1
        w[FIRST_LOW] = low
    # An empty range has no code.  Neither has one that ends before it starts; flipping the top
    # bits compares addresses as unsigned numbers.
    if low ^ (-1 << 63) >= high ^ (-1 << 63):
        return n
    if n >= w[ROOM + RANGES]:
        return -FULL
    w[w[AT + RANGES] + 2 * n] = low
    w[w[AT + RANGES] + 2 * n + 1] = high
    return n + 1


@compiled
def read_old_ranges(s: Space, u: int, offset: int, n: int) -> tuple[int, int]:
    """Append a list of .debug_ranges (DWARF 2 to 4) to the table RANGES. Return (new number of
    ranges, bytes read), or (minus the error number, 0).

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        offset: offset of the list in .debug_ranges.
        n: number of ranges so far.
    """
    w = s.w
    b = s.rest
    end = w[END + S_RANGES]
    size = w[u + U_ADDRSIZE]
    base = w[u + U_LOW]
    select = -1 if size == 8 else 0xFFFFFFFF
    if offset < 0 or offset > end - w[START + S_RANGES]:
        return -E_RANGES, 0
    p = w[START + S_RANGES] + offset
    start = p
    while 2 * size <= end - p:
        low = number(b, p, size)
        high = number(b, p + size, size)
        p += 2 * size
        if low == select:
            base = high
        elif low == 0 and high == 0:
            return n, p - start
        else:
            n = add_range(s, n, base + low, base + high)
            if n < 0:
                return n, 0
    return -E_RANGES, 0


@compiled
def list_offset(s: Space, u: int, index: int) -> int:
    """Return the offset in .debug_rnglists of the range list with an index (DW_FORM_rnglistx), or
    minus the error number.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
    """
    w = s.w
    size = w[u + U_OFFSIZE]
    base = w[u + U_RNG_BASE]
    at = element(s, S_RNGLISTS, base, index, size)
    if at < 0:
        return -E_RANGES
    offset = number(s.rest, at, size)
    return base + offset if 0 <= offset <= len(s.rest) else -E_RANGES


@compiled
def read_operand(s: Space, u: int, p: int, indexed: bool) -> tuple[int, int]:
    """Read an address in a range list of DWARF 5. Return (address, position after the operand); the
    position is minus the error number if the operand is damaged.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        p: position of the operand in s.rest.
        indexed: whether the operand is an index in .debug_addr instead of an address.
    """
    w = s.w
    b = s.rest
    end = w[END + S_RNGLISTS]
    if indexed:
        index, p = uleb(b, p, end)
        if p < 0:
            return 0, p
        address, bad = address_at(s, u, index)
        return address, (bad if bad < 0 else p)
    size = w[u + U_ADDRSIZE]
    if size > end - p:
        return 0, -E_RANGES
    return number(b, p, size), p + size


@compiled
def read_ranges(s: Space, u: int, offset: int, n: int) -> tuple[int, int]:
    """Append a range list of any DWARF version to the table RANGES. Return (new number of ranges,
    bytes read), or (minus the error number, 0).

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        offset: offset of the list in its section.
        n: number of ranges so far.
    """
    w = s.w
    if w[u + U_VERSION] < 5:
        return read_old_ranges(s, u, offset, n)
    b = s.rest
    end = w[END + S_RNGLISTS]
    base = w[u + U_LOW]
    if offset < 0 or offset > end - w[START + S_RNGLISTS]:
        return -E_RANGES, 0
    p = w[START + S_RNGLISTS] + offset
    start = p
    while p < end:
        kind = u8(b, p)
        p += 1
        if kind == RLE_END:
            return n, p - start
        if kind == RLE_BASE_ADDRESSX or kind == RLE_BASE_ADDRESS:
            base, p = read_operand(s, u, p, kind == RLE_BASE_ADDRESSX)
            if p < 0:
                return p, 0
            continue
        if kind == RLE_OFFSET_PAIR:
            low, p = uleb(b, p, end)
            if p >= 0:
                high, p = uleb(b, p, end)
            if p < 0:
                return -E_RANGES, 0
            low += base
            high += base
        elif kind <= RLE_START_LENGTH:
            indexed = kind == RLE_STARTX_ENDX or kind == RLE_STARTX_LENGTH
            low, p = read_operand(s, u, p, indexed)
            if p < 0:
                return p, 0
            if kind == RLE_STARTX_ENDX or kind == RLE_START_END:
                high, p = read_operand(s, u, p, indexed)
            else:
                high, p = uleb(b, p, end)
                high += low
            if p < 0:
                return -E_RANGES, 0
        else:
            return -E_RANGES, 0
        n = add_range(s, n, low, high)
        if n < 0:
            return n, 0
    return -E_RANGES, 0
