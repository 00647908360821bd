"""Compiled reading of abbreviation tables (DWARF 5, section 7.5.3).

A table becomes arrays: for each abbreviation its attributes in order, and a shorter program to
step over an entry: what is of fixed size is one addition, and only what varies is read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


from kinst.image import dwarf_numbers as D
from kinst.image.dwarf_jit import compiled, signed
from kinst.image.dwarf_read import Sections, fixed_size, skip_form, sleb, uleb
from kinst.image.dwarf_store import I64

# Columns of an abbreviation's row.
A_CODE, A_TAG, A_CHILDREN, A_SIBLING, A_FIRST, A_LAST, A_STEP, A_STEPS, A_TAIL = range(9)
A_COLUMNS = 9
# Columns of an attribute's row, and of a step's: fixed bytes before a form that varies.
B_ATTRIBUTE, B_FORM, B_CONST, B_STEP_FIXED, B_STEP_FORM = range(5)
B_COLUMNS = 5
# Columns of the memory of tables that are still in the arrays.
T_OFFSET, T_SHAPE, T_FIRST, T_COUNT = range(4)
MEMORY = 1024


class Abbreviations(NamedTuple):
    """Room for abbreviations: rows for them, for attributes, for known tables, and counts.

    counts: rows in use of `rows` and of `attributes`.
    """

    rows: I64
    attributes: I64
    known: I64
    counts: I64


def make_abbreviations(rows: int, attributes: int) -> Abbreviations:
    """Empty tables with room for so many rows."""
    return Abbreviations(
        np.zeros((rows, A_COLUMNS), dtype=np.int64),
        np.zeros((attributes, B_COLUMNS), dtype=np.int64),
        np.full((MEMORY, 4), -1, dtype=np.int64),
        np.zeros(2, dtype=np.int64),
    )


@compiled
def compile_table(s: Sections, u: I64, t: Abbreviations, counts: I64, work: int) -> tuple[int, int]:
    """The abbreviations of a unit: (first row, how many), or (minus the trouble, 0).

    counts[work] grows by the bytes read.
    """
    offset = u[D.U_ABBREV]
    shape = u[D.U_OFFSIZE] << 16 | u[D.U_ADDRSIZE] << 8 | (1 if u[D.U_VERSION] == 2 else 0)
    slot = t.known[(offset ^ offset >> 10) & (MEMORY - 1)]
    if slot[T_OFFSET] == offset and slot[T_SHAPE] == shape:
        return slot[T_FIRST], slot[T_COUNT]
    first = t.counts[0]
    n, p = read_table(s, u, t)
    if n == -D.FULL_ABBREVIATIONS and first > 0:
        # Forget the tables of units before and start at the front again.
        t.known[:] = -1
        t.counts[:] = 0
        first = 0
        n, p = read_table(s, u, t)
    if n < 0:
        t.counts[0] = first
        return n, 0
    counts[work] += p - offset
    slot[T_OFFSET] = offset
    slot[T_SHAPE] = shape
    slot[T_FIRST] = first
    slot[T_COUNT] = n
    return first, n


@compiled
def read_table(s: Sections, u: I64, t: Abbreviations) -> tuple[int, int]:
    """Append the table at a unit's abbreviation offset: (how many, position after it)."""
    b = s.abbrev
    end = len(b)
    p = u[D.U_ABBREV]
    if p < 0 or p >= end:
        return -D.E_ABBREV, 0
    start = t.counts[0]
    row = start
    attribute = t.counts[1]
    while True:
        code, p = uleb(b, p, end)
        if p < 0:
            return -D.E_ABBREV, 0
        if code == 0:
            break
        if row >= len(t.rows):
            return -D.FULL_ABBREVIATIONS, 0
        tag, p = uleb(b, p, end)
        if p < 0 or p >= end:
            return -D.E_ABBREV, 0
        r = t.rows[row]
        r[A_CODE] = code
        r[A_TAG] = tag
        r[A_CHILDREN] = signed(b[p])
        attribute, p = read_attributes(s, u, t, r, attribute, p + 1)
        if p < 0:
            return p, 0
        row += 1
    t.counts[0] = row
    t.counts[1] = attribute
    return row - start, p


@compiled
def read_attributes(
    s: Sections, u: I64, t: Abbreviations, r: I64, attribute: int, p: int
) -> tuple[int, int]:
    """The attributes of one abbreviation into rows: (next free row, position after them)."""
    b = s.abbrev
    end = len(b)
    r[A_FIRST] = attribute
    r[A_STEP] = attribute
    r[A_SIBLING] = 0
    step = attribute
    fixed = 0
    while True:
        at, p = uleb(b, p, end)
        if p < 0:
            return 0, -D.E_ABBREV
        form, p = uleb(b, p, end)
        if p < 0:
            return 0, -D.E_ABBREV
        const = 0
        if form == D.FORM_IMPLICIT_CONST:
            const, p = sleb(b, p, end)
            if p < 0:
                return 0, -D.E_ABBREV
        if at == 0 and form == 0:
            break
        if attribute >= len(t.attributes):
            return 0, -D.FULL_ABBREVIATIONS
        size = fixed_size(form, u[D.U_OFFSIZE], u[D.U_ADDRSIZE], u[D.U_VERSION])
        if size == -2:
            return 0, -D.E_FORM
        row = t.attributes[attribute]
        row[B_ATTRIBUTE] = at
        row[B_FORM] = form
        row[B_CONST] = const
        attribute += 1
        if at == D.AT_SIBLING:
            r[A_SIBLING] = 1
        if size >= 0:
            fixed += size
        else:
            # There are never more steps than attributes, so they share the rows.
            t.attributes[step, B_STEP_FIXED] = fixed
            t.attributes[step, B_STEP_FORM] = form
            step += 1
            fixed = 0
    r[A_LAST] = attribute
    r[A_STEPS] = step
    r[A_TAIL] = fixed
    return attribute, p


@compiled
def find(t: Abbreviations, first: int, count: int, code: int) -> int:
    """The row of an abbreviation code in a table; -1 when it has none."""
    # Compilers number them from 1, without gaps.
    if 0 < code <= count and t.rows[first + code - 1, A_CODE] == code:
        return first + code - 1
    for row in range(first, first + count):
        if t.rows[row, A_CODE] == code:
            return row
    return -1


@compiled
def skip_value(s: Sections, u: I64, p: int, form: int) -> int:
    """The position after a value of any form at p, or minus the trouble."""
    end = u[D.U_END]
    while form == D.FORM_INDIRECT:
        form, p = uleb(s.info, p, end)
        if p < 0:
            return p
        if form == D.FORM_IMPLICIT_CONST:
            return -D.E_FORM
    size = fixed_size(form, u[D.U_OFFSIZE], u[D.U_ADDRSIZE], u[D.U_VERSION])
    if size == -2:
        return -D.E_FORM
    if size == -1:
        return skip_form(s.info, p, end, form, u[D.U_OFFSIZE])
    return p + size if size <= end - p else -D.E_CUT


@compiled
def skip_entry(s: Sections, u: I64, t: Abbreviations, r: I64, p: int) -> int:
    """The position after the attributes of an entry, or minus the trouble."""
    end = u[D.U_END]
    for k in range(r[A_STEP], r[A_STEPS]):
        p += t.attributes[k, B_STEP_FIXED]
        if p > end:
            return -D.E_CUT
        p = skip_value(s, u, p, t.attributes[k, B_STEP_FORM])
        if p < 0:
            return p
    p += r[A_TAIL]
    return p if p <= end else -D.E_CUT
