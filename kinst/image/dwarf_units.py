"""Compiled reading of unit headers, unit entries and the file names of line tables.

DWARF 5, sections 7.5.1 (unit headers), 3.1.1 (unit entries), 6.2.4 (line tables' headers).
"""

from __future__ import annotations

from kinst.image import dwarf_abbrev as A
from kinst.image import dwarf_numbers as D
from kinst.image.dwarf_jit import compiled
from kinst.image.dwarf_read import Sections, number, skip_form, u8, u16, u32, u64, uleb, value
from kinst.image.dwarf_store import I64


@compiled
def read_header(s: Sections, p: int, u: I64) -> int:
    """The unit header at p into the row u: the next header's position, or minus the trouble."""
    b = s.info
    u[:] = 0
    u[D.U_OFFSET] = p
    u[D.U_OFFSIZE] = 4
    u[D.U_STMT] = -1
    if len(b) - p < 11:
        return -D.E_HEADER
    length = u32(b, p)
    p += 4
    if length == 0xFFFFFFFF:
        if len(b) - p < 16:
            return -D.E_HEADER
        length = u64(b, p)
        p += 8
        u[D.U_OFFSIZE] = 8
    # The longest header: version, type, address size, offset, signature and type offset.
    if length < 7 or length > len(b) - p:
        return -D.E_HEADER
    end = p + length
    u[D.U_END] = end
    version = u16(b, p)
    u[D.U_VERSION] = version
    if version < 2 or version > 5:
        return -D.E_VERSION
    p += 2
    size = u[D.U_OFFSIZE]
    u[D.U_KIND] = D.UT_COMPILE
    if version == 5:
        u[D.U_KIND] = u8(b, p)
        u[D.U_ADDRSIZE] = u8(b, p + 1)
        p += 2
    if end - p < size:
        return -D.E_HEADER
    u[D.U_ABBREV] = number(b, p, size)
    p += size
    if version < 5:
        if p >= end:
            return -D.E_HEADER
        u[D.U_ADDRSIZE] = u8(b, p)
        p += 1
    if u[D.U_KIND] == D.UT_SKELETON or u[D.U_KIND] == D.UT_SPLIT_COMPILE:
        return -D.E_SPLIT
    if u[D.U_KIND] == D.UT_TYPE:
        p += 8 + size
    elif u[D.U_KIND] != D.UT_COMPILE and u[D.U_KIND] != D.UT_PARTIAL:
        return -D.E_HEADER
    if u[D.U_ADDRSIZE] != 8 and u[D.U_ADDRSIZE] != 4:
        return -D.E_HEADER
    if p > end:
        return -D.E_HEADER
    u[D.U_FIRST] = p
    return end


@compiled
def count_units(s: Sections, row: I64) -> tuple[int, int]:
    """How many units there are: (count, 0), or (minus the trouble, offset of the unit)."""
    n = 0
    p = 0
    while p < len(s.info):
        after = read_header(s, p, row)
        if after < 0:
            return after, p
        n += 1
        p = after
    return n, 0


@compiled
def read_headers(s: Sections, rows: I64) -> None:
    """Fill the rows of all units, which count_units() has found sound."""
    p = 0
    for i in range(len(rows)):
        p = read_header(s, p, rows[i])


@compiled
def defaults(u: I64) -> None:
    """Where the unit's parts of shared sections start when its entry does not say."""
    u[D.U_STR_BASE] = 0
    if u[D.U_VERSION] >= 5:
        # After the section's own header (DWARF 5, sections 7.26, 7.27 and 7.28).
        u[D.U_STR_BASE] = 8 if u[D.U_OFFSIZE] == 4 else 16
        u[D.U_ADDR_BASE] = 8 if u[D.U_OFFSIZE] == 4 else 16
        u[D.U_RNG_BASE] = 12 if u[D.U_OFFSIZE] == 4 else 20


@compiled
def read_unit_entry(s: Sections, u: I64, t: A.Abbreviations, first: int, count: int) -> int:
    """The unit's own entry into its row: 0, or minus the trouble.

    Twice: what the indexes of the second reading count from may stand behind them.
    """
    b = s.info
    end = u[D.U_END]
    start = u[D.U_FIRST]
    defaults(u)
    if start >= end:
        return 0
    code, start = uleb(b, start, end)
    if start < 0:
        return start
    if code == 0:
        return 0
    row = A.find(t, first, count, code)
    if row < 0:
        return -D.E_ABBREV
    r = t.rows[row]
    for reading in range(2):
        p = start
        for k in range(r[A.A_FIRST], r[A.A_LAST]):
            at = t.attributes[k, A.B_ATTRIBUTE]
            form = t.attributes[k, A.B_FORM]
            base = (
                at == D.AT_STR_OFFSETS_BASE
                or at == D.AT_ADDR_BASE
                or at == D.AT_RNGLISTS_BASE
                or at == D.AT_GNU_ADDR_BASE
            )
            if at == D.AT_DWO_NAME or at == D.AT_GNU_DWO_NAME:
                return -D.E_SPLIT
            if reading == 0 and not base:
                p = A.skip_value(s, u, p, form)
                v = 0
            else:
                p, v, _ = value(s, u, p, form, t.attributes[k, A.B_CONST])
            if p < 0:
                return p
            if reading == 0 and base:
                if v < 0:
                    return -D.E_OFFSET
                keep_base(u, at, v)
            elif reading == 1:
                keep(u, at, v)
    return 0


@compiled
def keep_base(u: I64, at: int, v: int) -> None:
    """Keep the start of one of the unit's shared parts in its row."""
    if at == D.AT_STR_OFFSETS_BASE:
        u[D.U_STR_BASE] = v
    elif at == D.AT_RNGLISTS_BASE:
        u[D.U_RNG_BASE] = v
    else:
        u[D.U_ADDR_BASE] = v


@compiled
def keep(u: I64, at: int, v: int) -> None:
    """Keep an attribute of the unit's entry in its row."""
    if at == D.AT_STMT_LIST:
        u[D.U_STMT] = v
    elif at == D.AT_COMP_DIR:
        u[D.U_COMP_DIR] = v
    elif at == D.AT_LOW_PC:
        u[D.U_LOW] = v
    elif at == D.AT_LANGUAGE:
        for language in D.C_LANGUAGES:
            if v == language:
                u[D.U_C_LIKE] = 1


@compiled
def line_string(s: Sections, p: int, end: int, form: int, offsize: int) -> tuple[int, int, int]:
    """A value in a line table's header: (position after it, string key or number, is a key)."""
    b = s.line
    if form == D.FORM_STRING:
        return skip_form(b, p, end, form, 0), D.KEY_LINE << D.KEY_SHIFT | p, 1
    if form == D.FORM_LINE_STRP or form == D.FORM_STRP:
        if end - p < offsize:
            return -D.E_LINE, 0, 0
        section = D.KEY_LINE_STR if form == D.FORM_LINE_STRP else D.KEY_STR
        return p + offsize, section << D.KEY_SHIFT | number(b, p, offsize), 1
    if form == D.FORM_DATA1 or form == D.FORM_DATA2 or form == D.FORM_DATA4:
        size = 1 if form == D.FORM_DATA1 else 2 if form == D.FORM_DATA2 else 4
        if end - p < size:
            return -D.E_LINE, 0, 0
        return p + size, number(b, p, size), 0
    if form == D.FORM_DATA8 or form == D.FORM_DATA16:
        size = 8 if form == D.FORM_DATA8 else 16
        return (p + size if end - p >= size else -D.E_LINE), 0, 0
    if form == D.FORM_UDATA:
        v, p = uleb(b, p, end)
        return p, v, 0
    if form == D.FORM_BLOCK:
        return skip_form(b, p, end, form, 0), 0, 0
    return -D.E_LINE, 0, 0


@compiled
def line_header(s: Sections, u: I64) -> tuple[int, int, int, int]:
    """The header of a unit's line table: (version, offset size, first table's place, end).

    version is minus the trouble where it is damaged.
    """
    b = s.line
    p = u[D.U_STMT]
    if p < 0 or len(b) - p < 15:
        return -D.E_LINE, 0, 0, 0
    offsize = 4
    length = u32(b, p)
    p += 4
    if length == 0xFFFFFFFF:
        length = u64(b, p)
        p += 8
        offsize = 8
    if length < 0 or length > len(b) - p:
        return -D.E_LINE, 0, 0, 0
    end = p + length
    # Version, address and segment sizes, header length, five bytes, at least one opcode.
    if end - p < offsize + 10:
        return -D.E_LINE, 0, 0, 0
    version = u16(b, p)
    p += 2
    if version < 2 or version > 5:
        return -D.E_LINE, 0, 0, 0
    if version == 5:
        p += 2
    p += offsize + 1
    if version >= 4:
        p += 1
    p += 3
    if p >= end:
        return -D.E_LINE, 0, 0, 0
    opcodes = u8(b, p)
    p += max(opcodes, 1)
    if p > end:
        return -D.E_LINE, 0, 0, 0
    return version, offsize, p, end
