"""Compiled reading of abbreviation tables (DWARF 5, section 7.5.3).

A table is stored as arrays. For each abbreviation they have the attributes in order, and a shorter
list of steps to skip an entry. A step sums up attributes of fixed size; only an attribute of
varying size must be read.

Tested by tests/image/dwarf/scan/test_forms.py and tests/image/dwarf/scan/test_random.py.
"""

from __future__ import annotations

from kinst.image.dwarf.numbers import (
    AT_SIBLING,
    E_ABBREV,
    E_FORM,
    FORM_IMPLICIT_CONST,
    FULL_ABBREVIATIONS,
    SIZE_NONE,
    U_ABBREV,
    U_ADDRSIZE,
    U_OFFSIZE,
    U_VERSION,
)
from kinst.image.dwarf.scan.entry import size_of
from kinst.image.dwarf.scan.jit import compiled
from kinst.image.dwarf.scan.read import sleb, u8, uleb
from kinst.image.dwarf.scan.space import (
    A_CHILDREN,
    A_CODE,
    A_COLUMNS,
    A_DO,
    A_FIRST,
    A_LAST,
    A_SIBLING,
    A_STEP,
    A_STEPS,
    A_TAIL,
    ABBREVIATIONS,
    AT,
    ATTRIBUTES,
    B_COLUMNS,
    B_CONST,
    B_FORM,
    B_SIZE,
    B_SLOT,
    B_STEP_FIXED,
    B_STEP_FORM,
    DO_OF,
    END,
    K_COUNT,
    K_FIRST,
    K_OFFSET,
    K_SHAPE,
    KNOWN,
    MEMORY,
    ROOM,
    S_ABBREV,
    SLOT_OF,
    START,
    WORK,
    N,
    Space,
    fold,
)


@compiled
def read_attributes(s: Space, u: int, r: int, attribute: int, p: int) -> tuple[int, int]:
    """Store the attributes of one abbreviation in the table ATTRIBUTES.

    Return (number of the next free row of ATTRIBUTES, position after the attributes). After an
    error the position is minus the error number.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        r: index in s.w of the abbreviation's row.
        attribute: number of the first free row of ATTRIBUTES.
        p: position in s.rest of the abbreviation's first attribute.
    """
    w = s.w
    b = s.rest
    end = w[END + S_ABBREV]
    rows = w[AT + ATTRIBUTES]
    w[r + A_FIRST] = rows + attribute * B_COLUMNS
    w[r + A_STEP] = rows + attribute * B_COLUMNS
    w[r + A_SIBLING] = 0
    step = attribute
    fixed = 0
    while True:
        at, p = uleb(b, p, end)
        if p < 0:
            return 0, -E_ABBREV
        form, p = uleb(b, p, end)
        if p < 0:
            return 0, -E_ABBREV
        const = 1
        if form == FORM_IMPLICIT_CONST:
            const, p = sleb(b, p, end)
            if p < 0:
                return 0, -E_ABBREV
        if at == 0 and form == 0:
            break
        if attribute >= w[ROOM + ATTRIBUTES]:
            return 0, -FULL_ABBREVIATIONS
        form = fold(form)
        size = size_of(s, u, form)
        if size == SIZE_NONE:
            return 0, -E_FORM
        row = rows + attribute * B_COLUMNS
        w[row + B_SLOT] = w[SLOT_OF + fold(at)]
        w[row + B_FORM] = form
        w[row + B_CONST] = const
        w[row + B_SIZE] = size
        attribute += 1
        if at == AT_SIBLING:
            w[r + A_SIBLING] = 1
        if size >= 0:
            fixed += size
        else:
            # There are never more steps than attributes, so steps share the attributes' rows.
            w[rows + step * B_COLUMNS + B_STEP_FIXED] = fixed
            w[rows + step * B_COLUMNS + B_STEP_FORM] = form
            step += 1
            fixed = 0
    w[r + A_LAST] = rows + attribute * B_COLUMNS
    w[r + A_STEPS] = rows + step * B_COLUMNS
    w[r + A_TAIL] = fixed
    return attribute, p


@compiled
def read_table(s: Space, u: int) -> int:
    """Append a unit's abbreviation table to the table ABBREVIATIONS.

    Return the number of abbreviations that were appended, or minus the error number.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
    """
    w = s.w
    end = w[END + S_ABBREV]
    p = w[u + U_ABBREV]
    if p < 0 or p >= end - w[START + S_ABBREV]:
        return -E_ABBREV
    p += w[START + S_ABBREV]
    start = p
    row = w[N + ABBREVIATIONS]
    attribute = w[N + ATTRIBUTES]
    while True:
        code, p = uleb(s.rest, p, end)
        if p < 0:
            return -E_ABBREV
        if code == 0:
            break
        if row >= w[ROOM + ABBREVIATIONS]:
            return -FULL_ABBREVIATIONS
        tag, p = uleb(s.rest, p, end)
        if p < 0 or p >= end:
            return -E_ABBREV
        r = w[AT + ABBREVIATIONS] + row * A_COLUMNS
        w[r + A_CODE] = code
        w[r + A_DO] = w[DO_OF + tag] if 0 <= tag < 0x80 else 0
        w[r + A_CHILDREN] = u8(s.rest, p)
        attribute, p = read_attributes(s, u, r, attribute, p + 1)
        if p < 0:
            return p
        row += 1
    n = row - w[N + ABBREVIATIONS]
    w[N + ABBREVIATIONS] = row
    w[N + ATTRIBUTES] = attribute
    w[WORK] += p - start
    return n


@compiled
def compile_table(s: Space, u: int) -> tuple[int, int]:
    """Return a unit's abbreviation table as (index in s.w of its first row, number of rows). After
    an error return (minus the error number, 0).

    A table that several units share is read again only if its rows are no longer in s.w.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
    """
    w = s.w
    offset = w[u + U_ABBREV]
    shape = w[u + U_OFFSIZE] << 16 | w[u + U_ADDRSIZE] << 8
    if w[u + U_VERSION] == 2:
        shape |= 1
    slot = w[AT + KNOWN] + ((offset ^ offset >> 10) & (MEMORY - 1)) * 4
    if w[slot + K_OFFSET] == offset and w[slot + K_SHAPE] == shape:
        return w[slot + K_FIRST], w[slot + K_COUNT]
    n = read_table(s, u)
    if n == -FULL_ABBREVIATIONS and w[N + ABBREVIATIONS] > 0:
        # Forget the tables of earlier units and start at the front again.
        for i in range(MEMORY):
            w[w[AT + KNOWN] + i * 4 + K_OFFSET] = -1
        w[N + ABBREVIATIONS] = 0
        w[N + ATTRIBUTES] = 0
        n = read_table(s, u)
    if n < 0:
        return n, 0
    w[slot + K_OFFSET] = offset
    w[slot + K_SHAPE] = shape
    w[slot + K_FIRST] = w[AT + ABBREVIATIONS] + (w[N + ABBREVIATIONS] - n) * A_COLUMNS
    w[slot + K_COUNT] = n
    return w[slot + K_FIRST], n


@compiled
def find(s: Space, first: int, count: int, code: int) -> int:
    """Return the row (index in s.w) of the abbreviation with this code; -1 if the table lacks the
    code.

    Args:
        first: row of the table's first abbreviation.
        count: number of abbreviations in the table.
    """
    w = s.w
    # Compilers number them from 1, without gaps.
    if 0 < code <= count and w[first + (code - 1) * A_COLUMNS + A_CODE] == code:
        return first + (code - 1) * A_COLUMNS
    for row in range(count):
        if w[first + row * A_COLUMNS + A_CODE] == code:
            return first + row * A_COLUMNS
    return -1
