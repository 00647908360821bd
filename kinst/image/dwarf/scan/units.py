"""Compiled reading of unit headers, unit entries and the headers of line tables.

DWARF 5, sections 7.5.1 (unit headers), 3.1.1 (unit entries), 6.2.4 (line tables' headers).

Tested by tests/image/dwarf/scan/test_forms.py and tests/image/dwarf/scan/test_random.py.
"""
# ruff: noqa: SIM109 (membership in a tuple compiles to a loop)

from __future__ import annotations

from kinst.image.dwarf.numbers import (
    ABSENT,
    ADDR_BASE,
    C_LANGUAGES,
    COMP_DIR,
    DWO_NAME,
    E_ABBREV,
    E_HEADER,
    E_LINE,
    E_SPLIT,
    E_VERSION,
    FORM_BLOCK,
    FORM_DATA1,
    FORM_DATA2,
    FORM_DATA4,
    FORM_DATA8,
    FORM_DATA16,
    FORM_LINE_STRP,
    FORM_STRING,
    FORM_STRP,
    FORM_UDATA,
    KEY_LINE,
    KEY_LINE_STR,
    KEY_SHIFT,
    KEY_STR,
    LANGUAGE,
    LOW_PC,
    RNGLISTS_BASE,
    STMT_LIST,
    STR_OFFSETS_BASE,
    U_ABBREV,
    U_ADDR_BASE,
    U_ADDRSIZE,
    U_C_LIKE,
    U_COLUMNS,
    U_COMP_DIR,
    U_END,
    U_FIRST,
    U_KIND,
    U_LOW,
    U_OFFSET,
    U_OFFSIZE,
    U_RNG_BASE,
    U_STMT,
    U_STR_BASE,
    U_VERSION,
    UT_COMPILE,
    UT_PARTIAL,
    UT_SKELETON,
    UT_SPLIT_COMPILE,
    UT_TYPE,
)
from kinst.image.dwarf.scan.abbrev import find
from kinst.image.dwarf.scan.entry import address_of, read_entry, string_of
from kinst.image.dwarf.scan.jit import compiled, entry_point
from kinst.image.dwarf.scan.read import number, string_end, u8, uleb
from kinst.image.dwarf.scan.space import AT, CLASS, END, S_LINE, START, UNITS, VALUE, Space


@compiled
def read_header(s: Space, p: int, u: int) -> int:
    """Read a unit's header into the unit's row. Return the position of the next unit's header, or
    minus the error number.

    Args:
        p: position of the header in s.info.
        u: index of the unit's row in s.w (the scan's tables).
    """
    w = s.w
    b = s.info
    for i in range(U_COLUMNS):
        w[u + i] = 0
    w[u + U_OFFSET] = p
    w[u + U_OFFSIZE] = 4
    w[u + U_STMT] = -1
    if len(b) - p < 11:
        return -E_HEADER
    length = number(b, p, 4)
    p += 4
    if length == 0xFFFFFFFF:
        if len(b) - p < 16:
            return -E_HEADER
        length = number(b, p, 8)
        p += 8
        w[u + U_OFFSIZE] = 8
    # The longest header: version, type, address size, offset, signature and type offset.
    if length < 7 or length > len(b) - p:
        return -E_HEADER
    end = p + length
    w[u + U_END] = end
    version = number(b, p, 2)
    w[u + U_VERSION] = version
    if version < 2 or version > 5:
        return -E_VERSION
    p += 2
    size = w[u + U_OFFSIZE]
    w[u + U_KIND] = UT_COMPILE
    if version == 5:
        w[u + U_KIND] = u8(b, p)
        w[u + U_ADDRSIZE] = u8(b, p + 1)
        p += 2
    if end - p < size:
        return -E_HEADER
    w[u + U_ABBREV] = number(b, p, size)
    p += size
    if version < 5:
        if p >= end:
            return -E_HEADER
        w[u + U_ADDRSIZE] = u8(b, p)
        p += 1
    if w[u + U_KIND] == UT_SKELETON or w[u + U_KIND] == UT_SPLIT_COMPILE:
        return -E_SPLIT
    if w[u + U_KIND] == UT_TYPE:
        p += 8 + size
    elif w[u + U_KIND] != UT_COMPILE and w[u + U_KIND] != UT_PARTIAL:
        return -E_HEADER
    if w[u + U_ADDRSIZE] != 8 and w[u + U_ADDRSIZE] != 4:
        return -E_HEADER
    if p > end:
        return -E_HEADER
    w[u + U_FIRST] = p
    return end


@entry_point
def count_units(s: Space, row: int) -> tuple[int, int]:
    """Count the units in .debug_info and check their headers. Return (count, 0), or (minus the
    error number, offset of the damaged unit).

    Args:
        row: index in s.w of a row of the table UNITS, which is overwritten by each unit in turn.
    """
    n = 0
    p = 0
    while p < len(s.info):
        after = read_header(s, p, row)
        if after < 0:
            return after, p
        n += 1
        p = after
    return n, 0


@entry_point
def read_headers(s: Space, count: int) -> None:
    """Fill the rows of all units; count_units() must have checked the units before."""
    p = 0
    for i in range(count):
        p = read_header(s, p, s.w[AT + UNITS] + i * U_COLUMNS)


@compiled
def defaults(s: Space, u: int) -> None:
    """Set the default offsets of a unit's parts of shared sections. They hold if the unit's entry
    does not give other offsets.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
    """
    w = s.w
    if w[u + U_VERSION] >= 5:
        # After the section's own header (DWARF 5, sections 7.26, 7.27 and 7.28).
        w[u + U_STR_BASE] = 8 if w[u + U_OFFSIZE] == 4 else 16
        w[u + U_ADDR_BASE] = 8 if w[u + U_OFFSIZE] == 4 else 16
        w[u + U_RNG_BASE] = 12 if w[u + U_OFFSIZE] == 4 else 20


@compiled
def read_unit_entry(s: Space, u: int, first: int, count: int) -> int:
    """Read a unit's first entry, which describes the unit, into the unit's row. Return 0, or minus
    the error number.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        first: index in s.w of the unit's first abbreviation.
        count: how many abbreviations the unit has.
    """
    w = s.w
    defaults(s, u)
    p = w[u + U_FIRST]
    if p >= w[u + U_END]:
        return 0
    code, p = uleb(s.info, p, w[u + U_END])
    if p < 0 or code == 0:
        return p if p < 0 else 0
    r = find(s, first, count, code)
    if r < 0:
        return -E_ABBREV
    p = read_entry(s, u, r, p)
    if p < 0:
        return p
    if w[CLASS + DWO_NAME] != ABSENT:
        return -E_SPLIT
    if w[CLASS + STR_OFFSETS_BASE] != ABSENT:
        w[u + U_STR_BASE] = w[VALUE + STR_OFFSETS_BASE]
    if w[CLASS + ADDR_BASE] != ABSENT:
        w[u + U_ADDR_BASE] = w[VALUE + ADDR_BASE]
    if w[CLASS + RNGLISTS_BASE] != ABSENT:
        w[u + U_RNG_BASE] = w[VALUE + RNGLISTS_BASE]
    if w[CLASS + STMT_LIST] != ABSENT:
        w[u + U_STMT] = w[VALUE + STMT_LIST]
    if w[CLASS + LANGUAGE] != ABSENT:
        for language in C_LANGUAGES:
            if w[VALUE + LANGUAGE] == language:
                w[u + U_C_LIKE] = 1
    key = string_of(s, u, COMP_DIR)
    if key < 0:
        return key
    w[u + U_COMP_DIR] = key
    if w[CLASS + LOW_PC] != ABSENT:
        low, bad = address_of(s, u, LOW_PC)
        if bad < 0:
            return bad
        w[u + U_LOW] = low
    return 0


@compiled
def line_string(s: Space, p: int, end: int, form: int, offsize: int) -> tuple[int, int, int]:
    """Read a value in a line table's header. Return (position after the value, value, kind). If the
    value is damaged, the position is minus the error number.

    A string has kind 1 and is returned as a string key: a number made of the section that has the
    string (KEY_*) and the string's offset there. A number has kind 0. kinst does not use blocks and
    numbers of 8 or 16 bytes: kind and value are 0 for them.

    Args:
        p: position of the value in s.rest.
        end: position after the line table.
        form: DW_FORM_*.
        offsize: bytes of an offset.
    """
    b = s.rest
    if form == FORM_STRING:
        return string_end(b, p, end), KEY_LINE << KEY_SHIFT | p - s.w[START + S_LINE], 1
    if form == FORM_LINE_STRP or form == FORM_STRP:
        if end - p < offsize:
            return -E_LINE, 0, 0
        section = KEY_LINE_STR if form == FORM_LINE_STRP else KEY_STR
        return p + offsize, section << KEY_SHIFT | number(b, p, offsize), 1
    if form == FORM_DATA1 or form == FORM_DATA2 or form == FORM_DATA4:
        size = 1 if form == FORM_DATA1 else 2 if form == FORM_DATA2 else 4
        if end - p < size:
            return -E_LINE, 0, 0
        return p + size, number(b, p, size), 0
    if form == FORM_DATA8 or form == FORM_DATA16:
        size = 8 if form == FORM_DATA8 else 16
        return (p + size if end - p >= size else -E_LINE), 0, 0
    if form == FORM_UDATA:
        v, p = uleb(b, p, end)
        return p, v, 0
    if form == FORM_BLOCK:
        n, p = uleb(b, p, end)
        if p < 0 or n < 0 or n > end - p:
            return -E_LINE, 0, 0
        return p + n, 0, 0
    return -E_LINE, 0, 0


@compiled
def line_header(s: Space, u: int) -> tuple[int, int, int, int]:
    """Read the header of a unit's line table up to its directories.

    Return (version, bytes of an offset, position of the directories, position after the line
    table). If the header is damaged, the version is minus the error number.

    Args:
        u: index in s.w (the scan's tables) of the row of a unit that has a line table.
    """
    w = s.w
    b = s.rest
    p = w[u + U_STMT]
    end = w[END + S_LINE]
    if end - w[START + S_LINE] - p < 15:
        return -E_LINE, 0, 0, 0
    p += w[START + S_LINE]
    offsize = 4
    length = number(b, p, 4)
    p += 4
    if length == 0xFFFFFFFF:
        length = number(b, p, 8)
        p += 8
        offsize = 8
    if length > end - p:
        return -E_LINE, 0, 0, 0
    end = p + length  # a negative length is too short as well
    # Version, address and segment sizes, header length, five bytes, at least one opcode.
    if end - p < offsize + 10:
        return -E_LINE, 0, 0, 0
    version = number(b, p, 2)
    p += 2
    if version < 2 or version > 5:
        return -E_LINE, 0, 0, 0
    if version == 5:
        p += 2
    p += offsize + 1
    if version >= 4:
        p += 1
    p += 3
    if p >= end:
        return -E_LINE, 0, 0, 0
    opcodes = u8(b, p)
    p += opcodes if opcodes > 0 else 1
    if p > end:
        return -E_LINE, 0, 0, 0
    return version, offsize, p, end
