"""The compiled scan of .debug_info: functions, inlined copies, types, variables into rows."""

from __future__ import annotations

from kinst.image import dwarf_abbrev as A
from kinst.image import dwarf_numbers as D
from kinst.image import dwarf_rows as R
from kinst.image.dwarf_files import read_files
from kinst.image.dwarf_jit import compiled
from kinst.image.dwarf_ranges import F_ANY, F_LOW, list_offset, read_ranges
from kinst.image.dwarf_read import Sections, uleb, value
from kinst.image.dwarf_store import I64
from kinst.image.dwarf_units import read_unit_entry

# Lists may be shared by entries, but not so often that reading them takes for ever: bytes of
# lists and tables read, as a multiple of the bytes there are.
WORK = 64


@compiled
def file_number(u: I64, rows: R.Rows, index: int) -> int:
    """The number in rows.files of a unit's file; -1 when there is none."""
    if index < 0 or index >= u[D.U_SLOTS]:
        return -1
    return rows.slots[u[D.U_SLOT] + index, 0]


@compiled
def type_kind(tag: int) -> int:
    """The kind of a named type; 0 for other tags."""
    if tag == D.TAG_STRUCTURE or tag == D.TAG_CLASS:
        return D.KIND_STRUCTURE
    if tag == D.TAG_TYPEDEF:
        return D.KIND_TYPEDEF
    if tag == D.TAG_UNION:
        return D.KIND_UNION
    if tag == D.TAG_ENUMERATION:
        return D.KIND_ENUMERATION
    if tag == D.TAG_BASE_TYPE:
        return D.KIND_BASE
    return 0


@compiled
def scan_type(
    s: Sections, u: I64, t: A.Abbreviations, r: I64, rows: R.Rows, die: int, p: int, kind: int
) -> tuple[int, int]:
    """A type: (position after its attributes or the trouble, its sibling or 0)."""
    name = 0
    size = 0
    file = 0
    line = 0
    sibling = 0
    declaration = False
    for k in range(r[A.A_FIRST], r[A.A_LAST]):
        b = t.attributes[k]
        at = b[A.B_ATTRIBUTE]
        p, v, what = value(s, u, p, b[A.B_FORM], b[A.B_CONST])
        if p < 0:
            return p, 0
        if at == D.AT_NAME and what == D.CLASS_STRING:
            name = v
        elif at == D.AT_BYTE_SIZE and what == D.CLASS_CONST:
            size = v
        elif at == D.AT_DECL_FILE:
            file = file_number(u, rows, v)
        elif at == D.AT_DECL_LINE:
            line = v
        elif at == D.AT_SIBLING and what == D.CLASS_REFERENCE:
            sibling = v
        elif at == D.AT_DECLARATION:
            declaration = True
    if name != 0 and not declaration:
        known = rows.counts[R.N_TYPES]
        row = R.intern(
            rows.types, rows.types_hash, rows.counts, R.N_TYPES,
            kind << 56 | name, size, file << 32 ^ line,
        )  # fmt: skip
        if row < 0:
            return row, 0
        if row == known:
            rows.types[row, R.T_DIE] = die
    return p, sibling


@compiled
def scan_variable(
    s: Sections, u: I64, t: A.Abbreviations, r: I64, rows: R.Rows, die: int, p: int
) -> tuple[int, int]:
    """A variable at file scope: (position after its attributes or the trouble, sibling or 0)."""
    n = rows.counts[R.N_VARIABLES]
    if n >= len(rows.variables):
        return -D.FULL, 0
    row = rows.variables[n]
    row[R.V_DIE] = die
    row[R.V_NAME] = 0
    row[R.V_SPECIFICATION] = -1
    row[R.V_DECLARATION] = 0
    sibling = 0
    for k in range(r[A.A_FIRST], r[A.A_LAST]):
        b = t.attributes[k]
        at = b[A.B_ATTRIBUTE]
        p, v, what = value(s, u, p, b[A.B_FORM], b[A.B_CONST])
        if p < 0:
            return p, 0
        if at == D.AT_NAME and what == D.CLASS_STRING:
            row[R.V_NAME] = v
        elif at == D.AT_SPECIFICATION or at == D.AT_ABSTRACT_ORIGIN:
            if what == D.CLASS_REFERENCE:
                row[R.V_SPECIFICATION] = v
        elif at == D.AT_DECLARATION:
            row[R.V_DECLARATION] = 1
        elif at == D.AT_SIBLING and what == D.CLASS_REFERENCE:
            sibling = v
    rows.counts[R.N_VARIABLES] = n + 1
    return p, sibling


@compiled
def code_ranges(
    s: Sections, u: I64, rows: R.Rows, low: int, has_low: bool, high: int, high_is: int,
    ranges: int, ranges_is: int, first: I64,
) -> int:  # fmt: skip
    """Append an entry's ranges to rows.ranges: 0, or minus the trouble.

    high_is, ranges_is: class of the attribute, -1 when it is absent.
    """
    n = rows.counts[R.N_RANGES]
    first[F_ANY] = 0
    if ranges_is >= 0:
        offset = ranges
        if ranges_is == D.CLASS_RANGE_INDEX:
            offset = list_offset(s, u, ranges)
            if offset < 0:
                return offset
        n, read = read_ranges(s, u, offset, rows.ranges, n, first)
        if n < 0:
            return n
        rows.counts[R.N_WORK] += read
    elif has_low and high_is >= 0:
        if n >= len(rows.ranges):
            return -D.FULL
        if high_is != D.CLASS_ADDRESS:
            high += low
        if low ^ (-1 << 63) < high ^ (-1 << 63):
            rows.ranges[n, 0] = low
            rows.ranges[n, 1] = high
            n += 1
    rows.counts[R.N_RANGES] = n
    return 0


@compiled
def scan_code(
    s: Sections, u: I64, number: int, t: A.Abbreviations, r: I64, rows: R.Rows, die: int, p: int,
    copy: bool, depth: int,
) -> tuple[int, int]:  # fmt: skip
    """A function or an inlined copy: (position after its attributes or the trouble, sibling)."""
    table = rows.copies if copy else rows.functions
    n = rows.counts[R.N_COPIES if copy else R.N_FUNCTIONS]
    if n >= len(table):
        return -D.FULL, 0
    name = 0
    file = -1
    line = 0
    inline = 0
    origin = -1
    specification = -1
    declaration = 0
    sibling = 0
    low = 0
    has_low = False
    high = 0
    high_is = -1
    ranges = 0
    ranges_is = -1
    entry = 0
    entry_is = -1
    for k in range(r[A.A_FIRST], r[A.A_LAST]):
        b = t.attributes[k]
        at = b[A.B_ATTRIBUTE]
        p, v, what = value(s, u, p, b[A.B_FORM], b[A.B_CONST])
        if p < 0:
            return p, 0
        if at == D.AT_ABSTRACT_ORIGIN:
            if what == D.CLASS_REFERENCE:
                origin = v
        elif at == D.AT_LOW_PC:
            low = v
            has_low = what == D.CLASS_ADDRESS
        elif at == D.AT_HIGH_PC:
            high = v
            high_is = what
        elif at == D.AT_RANGES:
            ranges = v
            ranges_is = what
        elif at == D.AT_ENTRY_PC:
            entry = v
            entry_is = what
        elif at == D.AT_CALL_FILE or at == D.AT_DECL_FILE:
            if copy == (at == D.AT_CALL_FILE):
                file = file_number(u, rows, v)
        elif at == D.AT_CALL_LINE or at == D.AT_DECL_LINE:
            if copy == (at == D.AT_CALL_LINE):
                line = v
        elif at == D.AT_NAME:
            if what == D.CLASS_STRING:
                name = v
        elif at == D.AT_INLINE:
            inline = v
        elif at == D.AT_SPECIFICATION:
            if what == D.CLASS_REFERENCE:
                specification = v
        elif at == D.AT_DECLARATION:
            declaration = 1
        elif at == D.AT_SIBLING and what == D.CLASS_REFERENCE:
            sibling = v
    # A place for two numbers that nobody else uses: descend() fills it later.
    first = rows.path[depth]
    start = rows.counts[R.N_RANGES]
    bad = code_ranges(s, u, rows, low, has_low, high, high_is, ranges, ranges_is, first)
    if bad < 0:
        return bad, 0
    has_entry = 1
    if entry_is == D.CLASS_CONST:
        # An offset from the entry's own start (DWARF 5, section 2.18).
        entry += low if has_low else first[F_LOW] if first[F_ANY] != 0 else 0
    elif entry_is != D.CLASS_ADDRESS:
        if has_low:
            entry = low
        elif first[F_ANY] != 0:
            entry = first[F_LOW]
        else:
            entry = 0
            has_entry = 0
    row = table[n]
    row[R.C_DIE] = die
    row[R.C_UNIT] = number
    if copy:
        row[R.C_ORIGIN] = origin
        row[R.C_ENTRY] = entry
        row[R.C_HAS_ENTRY] = has_entry
        row[R.C_RANGE] = start
        row[R.C_RANGES] = rows.counts[R.N_RANGES] - start
        row[R.C_FILE] = file
        row[R.C_LINE] = line
        row[R.C_PARENT] = rows.path[depth - 1, R.S_COPY]
        row[R.C_ROOT] = rows.path[depth - 1, R.S_FUNCTION]
        rows.counts[R.N_COPIES] = n + 1
    else:
        row[R.F_NAME] = name
        row[R.F_FILE] = file
        row[R.F_LINE] = line
        row[R.F_INLINE] = inline
        row[R.F_ORIGIN] = origin
        row[R.F_SPECIFICATION] = specification
        row[R.F_RANGE] = start
        row[R.F_RANGES] = rows.counts[R.N_RANGES] - start
        row[R.F_DECLARATION] = declaration
        rows.counts[R.N_FUNCTIONS] = n + 1
    return p, sibling


@compiled
def may_skip(u: I64, tag: int) -> bool:
    """Whether nothing below an entry of this tag belongs into the index."""
    if tag == D.TAG_INLINED_SUBROUTINE or tag == D.TAG_LEXICAL_BLOCK or tag == D.TAG_SUBPROGRAM:
        return False
    if tag == D.TAG_STRUCTURE or tag == D.TAG_UNION:
        return u[D.U_C_LIKE] != 0
    return not (
        tag == D.TAG_CLASS
        or tag == D.TAG_COMPILE_UNIT
        or tag == D.TAG_PARTIAL_UNIT
        or tag == D.TAG_TYPE_UNIT
        or tag == D.TAG_NAMESPACE
        or tag == D.TAG_MODULE
        or tag == D.TAG_ENTRY_POINT
        or tag == D.TAG_TRY
        or tag == D.TAG_CATCH
        or tag == D.TAG_WITH
    )


@compiled
def descend(rows: R.Rows, depth: int, tag: int) -> int:
    """Enter the children of an entry: the new depth, or minus the trouble."""
    if depth + 1 >= R.DEPTH:
        return -D.E_DEPTH
    above = rows.path[depth - 1]
    here = rows.path[depth]
    here[R.S_FUNCTION] = above[R.S_FUNCTION]
    here[R.S_COPY] = above[R.S_COPY]
    here[R.S_GLOBAL] = above[R.S_GLOBAL]
    if tag == D.TAG_SUBPROGRAM:
        here[R.S_FUNCTION] = rows.counts[R.N_FUNCTIONS] - 1
        here[R.S_COPY] = -1
        here[R.S_GLOBAL] = 0
    elif tag == D.TAG_INLINED_SUBROUTINE:
        here[R.S_COPY] = rows.counts[R.N_COPIES] - 1
        here[R.S_GLOBAL] = 0
    return depth + 1


@compiled
def scan_unit(
    s: Sections, u: I64, number: int, t: A.Abbreviations, first: int, count: int, rows: R.Rows
) -> int:
    """One unit's entries into rows: 0, or minus the trouble."""
    p = u[D.U_FIRST]
    end = u[D.U_END]
    depth = 1
    path = rows.path
    path[0, R.S_FUNCTION] = -1
    path[0, R.S_COPY] = -1
    path[0, R.S_GLOBAL] = 1
    while p < end:
        die = p
        code, p = uleb(s.info, p, end)
        if p < 0:
            return p
        if code == 0:
            depth -= 1
            if depth <= 1:
                break
            continue
        row = A.find(t, first, count, code)
        if row < 0:
            return -D.E_ABBREV
        r = t.rows[row]
        tag = r[A.A_TAG]
        sibling = 0
        is_global = path[depth - 1, R.S_GLOBAL] != 0
        if tag == D.TAG_SUBPROGRAM or tag == D.TAG_INLINED_SUBROUTINE:
            copy = tag == D.TAG_INLINED_SUBROUTINE
            p, sibling = scan_code(s, u, number, t, r, rows, die, p, copy, depth)
        elif is_global and type_kind(tag) != 0:
            p, sibling = scan_type(s, u, t, r, rows, die, p, type_kind(tag))
        elif is_global and tag == D.TAG_VARIABLE:
            p, sibling = scan_variable(s, u, t, r, rows, die, p)
        elif r[A.A_CHILDREN] != 0 and r[A.A_SIBLING] != 0 and may_skip(u, tag):
            p, sibling = find_sibling(s, u, t, r, p)
        else:
            p = A.skip_entry(s, u, t, r, p)
        if p < 0:
            return p
        if r[A.A_CHILDREN] != 0:
            if sibling != 0 and may_skip(u, tag):
                if sibling < p or sibling > end:
                    return -D.E_SIBLING
                p = sibling
            else:
                depth = descend(rows, depth, tag)
                if depth < 0:
                    return depth
    return 0


@compiled
def find_sibling(s: Sections, u: I64, t: A.Abbreviations, r: I64, p: int) -> tuple[int, int]:
    """Step over an entry's attributes: (position or the trouble, DW_AT_sibling)."""
    sibling = 0
    for k in range(r[A.A_FIRST], r[A.A_LAST]):
        b = t.attributes[k]
        if b[A.B_ATTRIBUTE] == D.AT_SIBLING:
            p, v, what = value(s, u, p, b[A.B_FORM], b[A.B_CONST])
            if what == D.CLASS_REFERENCE:
                sibling = v
        else:
            p = A.skip_value(s, u, p, b[A.B_FORM])
        if p < 0:
            return p, 0
    return p, sibling


@compiled
def scan_units(
    s: Sections, units: I64, start: int, stop: int, t: A.Abbreviations, rows: R.Rows
) -> tuple[int, int]:
    """Scan the units start to stop: (where it ended, 0 or minus the trouble there).

    With minus FULL the counts are as before that unit, whose scan is to be tried again.
    """
    limit = len(s.info) + len(s.abbrev) + len(s.ranges) + len(s.rnglists) + len(s.line)
    before = rows.counts.copy()
    for number in range(start, stop):
        u = units[number]
        before[:] = rows.counts
        first, count = A.compile_table(s, u, t, rows.counts, R.N_WORK)
        bad = first if first < 0 else read_unit_entry(s, u, t, first, count)
        if bad >= 0:
            bad = read_files(s, u, rows)
        if bad >= 0:
            bad = scan_unit(s, u, number, t, first, count, rows)
        if bad >= 0 and rows.counts[R.N_WORK] > WORK * limit:
            bad = -D.E_WORK
        if bad < 0:
            if bad == -D.FULL:
                rows.counts[:] = before
            return number, bad
    return stop, 0
