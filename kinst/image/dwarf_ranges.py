"""Compiled reading of range lists (DWARF 4, section 2.17.3; DWARF 5, section 2.17.3)."""

from __future__ import annotations

from kinst.image import dwarf_numbers as D
from kinst.image.dwarf_jit import compiled
from kinst.image.dwarf_read import Sections, address_at, number, u8, uleb
from kinst.image.dwarf_store import I64

# What read_ranges says beside the rows: has any entry been there, and the start of the first.
F_ANY, F_LOW = 0, 1


@compiled
def add_range(rows: I64, n: int, low: int, high: int, first: I64) -> int:
    """Append a range unless it is empty; the new count, or minus FULL."""
    if first[F_ANY] == 0:
        first[F_ANY] = 1
        first[F_LOW] = low
    # Empty ones have no code.  Neither have those that end before they start; addresses are
    # unsigned, which a flipped top bit compares.
    if low ^ (-1 << 63) >= high ^ (-1 << 63):
        return n
    if n >= len(rows):
        return -D.FULL
    rows[n, 0] = low
    rows[n, 1] = high
    return n + 1


@compiled
def read_old_ranges(
    s: Sections, u: I64, offset: int, rows: I64, n: int, first: I64
) -> tuple[int, int]:
    """A list of .debug_ranges (DWARF 2 to 4) appended to rows: (new count, bytes read)."""
    b = s.ranges
    size = u[D.U_ADDRSIZE]
    base = u[D.U_LOW]
    select = -1 if size == 8 else 0xFFFFFFFF
    p = offset
    if p < 0:
        return -D.E_RANGES, 0
    while 2 * size <= len(b) - p:
        low = number(b, p, size)
        high = number(b, p + size, size)
        p += 2 * size
        if low == select:
            base = high
        elif low == 0 and high == 0:
            return n, p - offset
        else:
            n = add_range(rows, n, base + low, base + high, first)
            if n < 0:
                return n, 0
    return -D.E_RANGES, 0


@compiled
def list_offset(s: Sections, u: I64, index: int) -> int:
    """The offset in .debug_rnglists of an index (DW_FORM_rnglistx), or minus the trouble."""
    size = u[D.U_OFFSIZE]
    base = u[D.U_RNG_BASE]
    room = len(s.rnglists) - base
    if base < 0 or room < 0 or index < 0 or index >= room // size:
        return -D.E_RANGES
    at = base + number(s.rnglists, base + index * size, size)
    return at if at >= 0 else -D.E_RANGES


@compiled
def read_operand(s: Sections, u: I64, p: int, indexed: bool) -> tuple[int, int]:
    """An address in a range list, plain or by index: (address, position after it)."""
    b = s.rnglists
    if indexed:
        index, p = uleb(b, p, len(b))
        if p < 0:
            return 0, p
        address, bad = address_at(s, u, index)
        return address, (bad if bad < 0 else p)
    size = u[D.U_ADDRSIZE]
    if size > len(b) - p:
        return 0, -D.E_RANGES
    return number(b, p, size), p + size


@compiled
def read_ranges(
    s: Sections, u: I64, offset: int, rows: I64, n: int, first: I64
) -> tuple[int, int]:
    """The range list at an offset appended to rows: (new count, bytes read).

    The count is minus the trouble where the list is damaged.  first: see F_ANY and F_LOW.
    """
    if u[D.U_VERSION] < 5:
        return read_old_ranges(s, u, offset, rows, n, first)
    b = s.rnglists
    base = u[D.U_LOW]
    p = offset
    if p < 0:
        return -D.E_RANGES, 0
    while p < len(b):
        kind = u8(b, p)
        p += 1
        if kind == D.RLE_END:
            return n, p - offset
        if kind == D.RLE_BASE_ADDRESSX or kind == D.RLE_BASE_ADDRESS:
            base, p = read_operand(s, u, p, kind == D.RLE_BASE_ADDRESSX)
            if p < 0:
                return p, 0
            continue
        if kind == D.RLE_OFFSET_PAIR:
            low, p = uleb(b, p, len(b))
            if p >= 0:
                high, p = uleb(b, p, len(b))
            if p < 0:
                return -D.E_RANGES, 0
            low += base
            high += base
        elif kind <= D.RLE_START_LENGTH:
            indexed = kind == D.RLE_STARTX_ENDX or kind == D.RLE_STARTX_LENGTH
            low, p = read_operand(s, u, p, indexed)
            if p < 0:
                return p, 0
            if kind == D.RLE_STARTX_ENDX or kind == D.RLE_START_END:
                high, p = read_operand(s, u, p, indexed)
            else:
                high, p = uleb(b, p, len(b))
                high += low
            if p < 0:
                return -D.E_RANGES, 0
        else:
            return -D.E_RANGES, 0
        n = add_range(rows, n, low, high, first)
        if n < 0:
            return n, 0
    return -D.E_RANGES, 0
