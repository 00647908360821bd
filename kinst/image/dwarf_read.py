"""Compiled readers of DWARF: numbers, attribute values, range lists.

Every function checks that what it reads lies inside its section, and returns a negative
position (minus one of TROUBLE's numbers) where it does not.  Positions and addresses are int64;
addresses are the bit patterns of unsigned ones.  Arrays are uint8, read-only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


from kinst.image import dwarf_numbers as D
from kinst.image.dwarf_jit import compiled, signed
from kinst.image.dwarf_store import I64, U8

ONE, TWO, THREE = np.uint64(1), np.uint64(2), np.uint64(3)
FOUR, FIVE, SIX, SEVEN = np.uint64(4), np.uint64(5), np.uint64(6), np.uint64(7)


class Sections(NamedTuple):
    """The debug sections' bytes; an absent one is empty."""

    info: U8
    abbrev: U8
    str: U8
    line_str: U8
    str_offsets: U8
    addr: U8
    ranges: U8
    rnglists: U8
    line: U8


@compiled
def u8(b: U8, p: int) -> int:
    """One byte at p, which must be inside b."""
    # Indexing by unsigned numbers: by signed ones numba tests each for "from the end".
    return signed(b[np.uint64(p)])


@compiled
def u16(b: U8, p: int) -> int:
    i = np.uint64(p)
    return signed(b[i]) | signed(b[i + ONE]) << 8


@compiled
def u32(b: U8, p: int) -> int:
    i = np.uint64(p)
    return (
        signed(b[i])
        | signed(b[i + ONE]) << 8
        | signed(b[i + TWO]) << 16
        | signed(b[i + THREE]) << 24
    )


@compiled
def u64(b: U8, p: int) -> int:
    return u32(b, p) | u32(b, p + 4) << 32


@compiled
def number(b: U8, p: int, size: int) -> int:
    """An unsigned number of 1, 2, 3, 4 or 8 bytes at p, which must be inside b."""
    if size == 4:
        return u32(b, p)
    if size == 8:
        return u64(b, p)
    if size == 2:
        return u16(b, p)
    if size == 3:
        return u16(b, p) | u8(b, p + 2) << 16
    return u8(b, p)


@compiled
def uleb(b: U8, p: int, end: int) -> tuple[int, int]:
    """An unsigned LEB128 number at p: (value, position after it)."""
    if p >= end:
        return 0, -D.E_CUT
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
    return 0, -D.E_CUT


@compiled
def sleb(b: U8, p: int, end: int) -> tuple[int, int]:
    """A signed LEB128 number at p: (value, position after it)."""
    start = p
    v, p = uleb(b, p, end)
    if p > 0:
        bits = 7 * (p - start)
        if bits < 64 and u8(b, p - 1) & 64:
            v |= -1 << bits
    return v, p


@compiled
def skip_form(b: U8, p: int, end: int, form: int, offsize: int) -> int:
    """The position after a value of a form that has no fixed size."""
    if form == D.FORM_EXPRLOC or form == D.FORM_BLOCK:
        n, p = uleb(b, p, end)
    elif form == D.FORM_STRING:
        while p < end:
            if u8(b, p) == 0:
                return p + 1
            p += 1
        return -D.E_CUT
    elif form == D.FORM_BLOCK1:
        if end - p < 1:
            return -D.E_CUT
        n = u8(b, p)
        p += 1
    elif form == D.FORM_BLOCK2:
        if end - p < 2:
            return -D.E_CUT
        n = u16(b, p)
        p += 2
    elif form == D.FORM_BLOCK4:
        if end - p < 4:
            return -D.E_CUT
        n = u32(b, p)
        p += 4
    else:
        # udata, sdata, ref_udata, strx, addrx, loclistx, rnglistx and GNU's indexes.
        n, p = uleb(b, p, end)
        return p
    if p < 0:
        return p
    if n < 0 or n > end - p:
        return -D.E_CUT
    return p + n


@compiled
def fixed_size(form: int, offsize: int, addrsize: int, version: int) -> int:
    """Bytes of a form's values; -1 when they vary, -2 when there is no such form."""
    if form == D.FORM_DATA1 or form == D.FORM_REF1 or form == D.FORM_FLAG:
        return 1
    if form == D.FORM_STRX1 or form == D.FORM_ADDRX1:
        return 1
    if form == D.FORM_DATA2 or form == D.FORM_REF2 or form == D.FORM_STRX2:
        return 2
    if form == D.FORM_ADDRX2:
        return 2
    if form == D.FORM_STRX3 or form == D.FORM_ADDRX3:
        return 3
    if form == D.FORM_DATA4 or form == D.FORM_REF4 or form == D.FORM_STRX4:
        return 4
    if form == D.FORM_ADDRX4 or form == D.FORM_REF_SUP4:
        return 4
    if form == D.FORM_DATA8 or form == D.FORM_REF8 or form == D.FORM_REF_SIG8:
        return 8
    if form == D.FORM_REF_SUP8:
        return 8
    if form == D.FORM_DATA16:
        return 16
    if form == D.FORM_FLAG_PRESENT or form == D.FORM_IMPLICIT_CONST:
        return 0
    if form == D.FORM_ADDR:
        return addrsize
    if form == D.FORM_REF_ADDR:
        return addrsize if version == 2 else offsize
    if form == D.FORM_STRP or form == D.FORM_SEC_OFFSET or form == D.FORM_LINE_STRP:
        return offsize
    if form == D.FORM_STRP_SUP or form == D.FORM_GNU_REF_ALT or form == D.FORM_GNU_STRP_ALT:
        return offsize
    if form == D.FORM_UDATA or form == D.FORM_SDATA or form == D.FORM_REF_UDATA:
        return -1
    if form == D.FORM_STRING or form == D.FORM_EXPRLOC or form == D.FORM_INDIRECT:
        return -1
    if form == D.FORM_BLOCK or form == D.FORM_BLOCK1 or form == D.FORM_BLOCK2:
        return -1
    if form == D.FORM_BLOCK4 or form == D.FORM_STRX or form == D.FORM_ADDRX:
        return -1
    if form == D.FORM_LOCLISTX or form == D.FORM_RNGLISTX:
        return -1
    if form == D.FORM_GNU_ADDR_INDEX or form == D.FORM_GNU_STR_INDEX:
        return -1
    return -2


@compiled
def address_at(s: Sections, u: I64, index: int) -> tuple[int, int]:
    """The address of an index into .debug_addr: (address, 0 or minus the trouble)."""
    size = u[D.U_ADDRSIZE]
    base = u[D.U_ADDR_BASE]
    room = len(s.addr) - base
    if base < 0 or room < 0 or index < 0 or index >= room // size:
        return 0, -D.E_ADDRX
    return number(s.addr, base + index * size, size), 0


@compiled
def string_at(s: Sections, u: I64, index: int) -> tuple[int, int]:
    """The string key of an index into .debug_str_offsets: (key, 0 or minus the trouble)."""
    size = u[D.U_OFFSIZE]
    base = u[D.U_STR_BASE]
    room = len(s.str_offsets) - base
    if base < 0 or room < 0 or index < 0 or index >= room // size:
        return 0, -D.E_STRING
    return string_key(s, D.KEY_STR, number(s.str_offsets, base + index * size, size))


@compiled
def string_key(s: Sections, section: int, offset: int) -> tuple[int, int]:
    """A string key, checked to start inside its section."""
    size = len(s.str)
    if section == D.KEY_LINE_STR:
        size = len(s.line_str)
    if offset < 0 or offset >= size:
        return 0, -D.E_STRING
    return section << D.KEY_SHIFT | offset, 0


@compiled
def reference(s: Sections, offset: int) -> tuple[int, int, int]:
    """Checks an offset into .debug_info: (0 or minus the trouble, offset, class)."""
    if offset < 0 or offset >= len(s.info):
        return -D.E_REF, 0, D.CLASS_REFERENCE
    return 0, offset, D.CLASS_REFERENCE


@compiled
def value(s: Sections, u: I64, p: int, form: int, const: int) -> tuple[int, int, int]:
    """An attribute's value at p in .debug_info: (position after it, value, class).

    const: the value of DW_FORM_implicit_const, from the abbreviation.  References come as
    offsets in .debug_info, strings as keys, indexes into .debug_addr as addresses.
    """
    b = s.info
    end = u[D.U_END]
    while form == D.FORM_INDIRECT:
        form, p = uleb(b, p, end)
        if p < 0:
            return p, 0, 0
        if form == D.FORM_IMPLICIT_CONST:
            return -D.E_FORM, 0, 0
    size = fixed_size(form, u[D.U_OFFSIZE], u[D.U_ADDRSIZE], u[D.U_VERSION])
    if size == -2:
        return -D.E_FORM, 0, 0
    if size == -1:
        return varying(s, u, p, form)
    if size > end - p:
        return -D.E_CUT, 0, 0
    if size == 0:
        return p, (const if form == D.FORM_IMPLICIT_CONST else 1), D.CLASS_CONST
    if size == 16:
        return p + 16, 0, D.CLASS_OTHER
    v = number(b, p, size)
    p += size
    kind = D.CLASS_CONST
    bad = 0
    if form == D.FORM_ADDR:
        kind = D.CLASS_ADDRESS
    elif form == D.FORM_STRP:
        kind = D.CLASS_STRING
        v, bad = string_key(s, D.KEY_STR, v)
    elif form == D.FORM_LINE_STRP:
        kind = D.CLASS_STRING
        v, bad = string_key(s, D.KEY_LINE_STR, v)
    elif form == D.FORM_SEC_OFFSET:
        kind = D.CLASS_OFFSET
    elif D.FORM_REF1 <= form <= D.FORM_REF8:
        # Relative to the unit, and inside it.
        v += u[D.U_OFFSET]
        kind = D.CLASS_REFERENCE
        if v < u[D.U_OFFSET] or v >= end:
            bad = -D.E_REF
    elif form == D.FORM_REF_ADDR:
        bad, v, kind = reference(s, v)
    elif D.FORM_STRX1 <= form <= D.FORM_STRX4:
        kind = D.CLASS_STRING
        v, bad = string_at(s, u, v)
    elif D.FORM_ADDRX1 <= form <= D.FORM_ADDRX4:
        kind = D.CLASS_ADDRESS
        v, bad = address_at(s, u, v)
    elif form == D.FORM_REF_SUP4 or form == D.FORM_REF_SUP8 or form == D.FORM_STRP_SUP:
        bad = -D.E_ALT
    elif form == D.FORM_GNU_REF_ALT or form == D.FORM_GNU_STRP_ALT:
        bad = -D.E_ALT
    elif form == D.FORM_REF_SIG8:
        kind = D.CLASS_OTHER
    return (bad if bad < 0 else p), v, kind


@compiled
def varying(s: Sections, u: I64, p: int, form: int) -> tuple[int, int, int]:
    """value() for the forms without a fixed size."""
    b = s.info
    end = u[D.U_END]
    start = p
    if form == D.FORM_STRING:
        p = skip_form(b, p, end, form, 0)
        return p, D.KEY_INFO << D.KEY_SHIFT | start, D.CLASS_STRING
    if form == D.FORM_SDATA:
        v, p = sleb(b, p, end)
        return p, v, D.CLASS_CONST
    if (
        form == D.FORM_EXPRLOC
        or form == D.FORM_BLOCK
        or form == D.FORM_BLOCK1
        or form == D.FORM_BLOCK2
        or form == D.FORM_BLOCK4
    ):
        p = skip_form(b, p, end, form, 0)
        return p, start, D.CLASS_BLOCK
    v, p = uleb(b, p, end)
    if p < 0:
        return p, 0, 0
    bad = 0
    kind = D.CLASS_CONST
    if form == D.FORM_REF_UDATA:
        kind = D.CLASS_REFERENCE
        v += u[D.U_OFFSET]
        if v < u[D.U_OFFSET] or v >= end:
            bad = -D.E_REF
    elif form == D.FORM_STRX or form == D.FORM_GNU_STR_INDEX:
        kind = D.CLASS_STRING
        v, bad = string_at(s, u, v)
    elif form == D.FORM_ADDRX or form == D.FORM_GNU_ADDR_INDEX:
        kind = D.CLASS_ADDRESS
        v, bad = address_at(s, u, v)
    elif form == D.FORM_RNGLISTX:
        kind = D.CLASS_RANGE_INDEX
    elif form == D.FORM_LOCLISTX:
        kind = D.CLASS_OTHER
    return (bad if bad < 0 else p), v, kind
