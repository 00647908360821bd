"""The compiled scan of .debug_info: it fills tables of functions, inlined copies, types and
variables.

Tested by tests/image/dwarf/scan/test_forms.py and tests/image/dwarf/scan/test_random.py.
"""
# ruff: noqa: SIM109 (membership in a tuple compiles to a loop)

from __future__ import annotations

from kinst.image.dwarf.numbers import (
    ABSENT,
    ABSTRACT_ORIGIN,
    BYTE_SIZE,
    CALL_FILE,
    CALL_LINE,
    CLASS_ADDRESS,
    CLASS_ADDRX,
    CLASS_CONST,
    CLASS_RNGLISTX,
    DECL_FILE,
    DECL_LINE,
    DECLARATION,
    DO_COPY,
    DO_FUNCTION,
    DO_NOTHING,
    DO_TYPE,
    DO_VARIABLE,
    E_ABBREV,
    E_ADDRX,
    E_DEPTH,
    E_SIBLING,
    E_WORK,
    ENTRY_PC,
    FULL,
    HIGH_PC,
    INLINE,
    KIND_ENUMERATION,
    LOW_PC,
    NAME,
    RANGE_LIST,
    SIBLING,
    SPECIFICATION,
    U_C_LIKE,
    U_COLUMNS,
    U_END,
    U_FIRST,
    U_SLOT,
    U_SLOTS,
)
from kinst.image.dwarf.scan.abbrev import compile_table, find
from kinst.image.dwarf.scan.entry import (
    address_of,
    read_entry,
    reference_of,
    skip_entry,
    string_of,
)
from kinst.image.dwarf.scan.files import read_files
from kinst.image.dwarf.scan.jit import compiled, entry_point
from kinst.image.dwarf.scan.ranges import add_range, list_offset, read_ranges
from kinst.image.dwarf.scan.read import uleb
from kinst.image.dwarf.scan.space import (
    A_CHILDREN,
    A_DO,
    A_SIBLING,
    AT,
    C_DIE,
    C_ENTRY,
    C_FILE,
    C_HAS_ENTRY,
    C_LINE,
    C_ORIGIN,
    C_PARENT,
    C_RANGE,
    C_RANGES,
    C_ROOT,
    C_UNIT,
    CLASS,
    CODE_COLUMNS,
    COPIES,
    DEPTH,
    F_FILE,
    F_INLINE,
    F_LINE,
    F_NAME,
    F_ORIGIN,
    F_RANGE,
    F_RANGES,
    F_SPECIFICATION,
    FILES,
    FIRST_ANY,
    FIRST_LOW,
    FUNCTIONS,
    PATH,
    RANGES,
    ROOM,
    S_COPY,
    S_FUNCTION,
    S_GLOBAL,
    SLOTS,
    T_DIE,
    TYPES,
    TYPES_HASH,
    UNITS,
    V_DECLARATION,
    V_DIE,
    V_NAME,
    V_SPECIFICATION,
    VALUE,
    VARIABLES,
    WORK,
    N,
    Space,
    intern,
)
from kinst.image.dwarf.scan.units import read_unit_entry

# Most bytes of lists and tables to read, as a multiple of the bytes in the file.  Entries may share
# lists, but not so often that reading the lists takes forever.
WORK_LIMIT = 64


@compiled
def file_number(s: Space, u: int, slot: int) -> int:
    """Return the source file that an attribute names, by its number in the table FILES; -1 if the
    entry has no such attribute, or the unit has no such file.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        slot: index of the attribute in the arrays VALUE and CLASS.
    """
    w = s.w
    index = w[VALUE + slot]
    if w[CLASS + slot] == ABSENT or index < 0 or index >= w[u + U_SLOTS]:
        return -1
    return w[w[AT + SLOTS] + w[u + U_SLOT] + index]


@compiled
def line_number(s: Space, slot: int) -> int:
    """Return the source line in an attribute's slot; 0 if the entry has no such attribute, or the
    line is out of range."""
    v = s.w[VALUE + slot]
    return v if s.w[CLASS + slot] != ABSENT and 0 <= v < 1 << 31 else 0


@compiled
def add_type(s: Space, u: int, die: int, kind: int) -> int:
    """Add the type whose entry was just read to the table TYPES, unless it is a declaration or
    equals an earlier type. Return 0, or minus the error number.

    A type without a name is added only if it is an enumeration: its constants have names.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        die: offset of the entry in .debug_info.
        kind: KIND_*.
    """
    w = s.w
    name = string_of(s, u, NAME)
    if name < 0:
        return name
    if w[CLASS + DECLARATION] != ABSENT or (name == 0 and kind != KIND_ENUMERATION):
        return 0
    size = w[VALUE + BYTE_SIZE] if w[CLASS + BYTE_SIZE] == CLASS_CONST else 0
    place = file_number(s, u, DECL_FILE) << 32 ^ line_number(s, DECL_LINE)
    before = w[N + TYPES]
    row = intern(s, TYPES, TYPES_HASH, kind << 56 | name, size, place)
    if row < 0:
        return row
    if row == before:
        w[w[AT + TYPES] + row * 4 + T_DIE] = die
    return 0


@compiled
def add_variable(s: Space, u: int, die: int) -> int:
    """Append the variable at file scope whose entry was just read to the table VARIABLES. Return 0,
    or minus the error number.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        die: offset of the entry in .debug_info.
    """
    w = s.w
    n = w[N + VARIABLES]
    if n >= w[ROOM + VARIABLES]:
        return -FULL
    name = string_of(s, u, NAME)
    specification = reference_of(s, u, SPECIFICATION)
    if specification == ABSENT:
        specification = reference_of(s, u, ABSTRACT_ORIGIN)
    if name < 0 or specification < ABSENT:
        return name if name < 0 else specification
    row = w[AT + VARIABLES] + n * 4
    w[row + V_DIE] = die
    w[row + V_NAME] = name
    w[row + V_SPECIFICATION] = specification
    w[row + V_DECLARATION] = 0 if w[CLASS + DECLARATION] == ABSENT else 1
    w[N + VARIABLES] = n + 1
    return 0


@compiled
def add_ranges(s: Space, u: int) -> int:
    """Append the address ranges of the entry that was just read to the table RANGES. Return 0, or
    minus the error number.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
    """
    w = s.w
    n = w[N + RANGES]
    w[FIRST_ANY] = 0
    if w[CLASS + RANGE_LIST] != ABSENT:
        offset = w[VALUE + RANGE_LIST]
        if w[CLASS + RANGE_LIST] == CLASS_RNGLISTX:
            offset = list_offset(s, u, offset)
            if offset < 0:
                return offset
        n, read = read_ranges(s, u, offset, n)
        w[WORK] += read
    elif w[CLASS + LOW_PC] != ABSENT and w[CLASS + HIGH_PC] != ABSENT:
        low, bad = address_of(s, u, LOW_PC)
        high, bad_too = address_of(s, u, HIGH_PC)
        if bad < 0 or bad_too < 0:
            return -E_ADDRX
        if w[CLASS + HIGH_PC] == CLASS_CONST:
            high += low
        n = add_range(s, n, low, high)
    if n < 0:
        return n
    w[N + RANGES] = n
    return 0


@compiled
def add_entry(s: Space, u: int, row: int) -> int:
    """Store the entry address of an inlined copy in the copy's row. Return 0, or minus the error
    number.

    The address is DW_AT_entry_pc, otherwise DW_AT_low_pc, otherwise the start of the copy's first
    range.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        row: index in s.w of the copy's row.
    """
    w = s.w
    start = 0
    has_start = 0
    if w[CLASS + LOW_PC] == CLASS_ADDRESS or w[CLASS + LOW_PC] == CLASS_ADDRX:
        start, bad = address_of(s, u, LOW_PC)
        if bad < 0:
            return bad
        has_start = 1
    elif w[FIRST_ANY] != 0:
        start = w[FIRST_LOW]
        has_start = 1
    entry_class = w[CLASS + ENTRY_PC]
    if entry_class == CLASS_CONST:
        # An offset from where the entry starts (DWARF 5, section 2.18).
        start += w[VALUE + ENTRY_PC]
    elif entry_class == CLASS_ADDRESS or entry_class == CLASS_ADDRX:
        start, bad = address_of(s, u, ENTRY_PC)
        if bad < 0:
            return bad
        has_start = 1
    w[row + C_ENTRY] = start
    w[row + C_HAS_ENTRY] = has_start
    return 0


@compiled
def add_code(s: Space, u: int, number: int, die: int, copy: bool, depth: int) -> int:
    """Append the function or inlined copy whose entry was just read to the table FUNCTIONS or
    COPIES, with its ranges. Return 0, or minus the error number.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        number: position of the unit among all units, from 0.
        die: offset of the entry in .debug_info.
        copy: whether the entry is an inlined copy.
        depth: of the entry in the tree of entries.
    """
    w = s.w
    table = COPIES if copy else FUNCTIONS
    n = w[N + table]
    if n >= w[ROOM + table]:
        return -FULL
    start = w[N + RANGES]
    bad = add_ranges(s, u)
    if bad < 0:
        return bad
    origin = reference_of(s, u, ABSTRACT_ORIGIN)
    if origin < ABSENT:
        return origin
    row = w[AT + table] + n * CODE_COLUMNS
    w[row + C_DIE] = die
    w[row + C_UNIT] = number
    if copy:
        above = w[AT + PATH] + (depth - 1) * 3
        w[row + C_ORIGIN] = origin
        w[row + C_RANGE] = start
        w[row + C_RANGES] = w[N + RANGES] - start
        w[row + C_FILE] = file_number(s, u, CALL_FILE)
        w[row + C_LINE] = line_number(s, CALL_LINE)
        w[row + C_PARENT] = w[above + S_COPY]
        w[row + C_ROOT] = w[above + S_FUNCTION]
        bad = add_entry(s, u, row)
        if bad < 0:
            return bad
    else:
        name = string_of(s, u, NAME)
        specification = reference_of(s, u, SPECIFICATION)
        if name < 0 or specification < ABSENT:
            return name if name < 0 else specification
        w[row + F_NAME] = name
        w[row + F_FILE] = file_number(s, u, DECL_FILE)
        w[row + F_LINE] = line_number(s, DECL_LINE)
        w[row + F_INLINE] = 0 if w[CLASS + INLINE] == ABSENT else w[VALUE + INLINE]
        w[row + F_ORIGIN] = origin
        w[row + F_SPECIFICATION] = specification
        w[row + F_RANGE] = start
        w[row + F_RANGES] = w[N + RANGES] - start
    w[N + table] = n + 1
    return 0


@compiled
def may_skip(s: Space, u: int, do: int) -> bool:
    """Return whether the index needs none of an entry's descendants.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        do: what the scan does with an entry of this tag (DO_*).
    """
    if do >= DO_TYPE:
        # In C, structures hold no functions.
        return s.w[u + U_C_LIKE] != 0
    return do == DO_NOTHING or do == DO_VARIABLE


@compiled
def descend(s: Space, depth: int, do: int) -> int:
    """Enter the children of an entry: record which function and inlined copy contain the children.
    Return the new depth, or minus the error number.

    Args:
        depth: of the entry in the tree of entries.
        do: what the scan does with an entry of this tag (DO_*).
    """
    w = s.w
    if depth + 1 >= DEPTH:
        return -E_DEPTH
    level = w[AT + PATH] + depth * 3
    above = level - 3
    w[level + S_FUNCTION] = w[above + S_FUNCTION]
    w[level + S_COPY] = w[above + S_COPY]
    w[level + S_GLOBAL] = w[above + S_GLOBAL]
    if do == DO_FUNCTION:
        w[level + S_FUNCTION] = w[N + FUNCTIONS] - 1
        w[level + S_COPY] = -1
        w[level + S_GLOBAL] = 0
    elif do == DO_COPY:
        w[level + S_COPY] = w[N + COPIES] - 1
        w[level + S_GLOBAL] = 0
    return depth + 1


@compiled
def scan_unit(s: Space, u: int, number: int, first: int, count: int) -> int:
    """Add the functions, inlined copies, types and variables of one unit to the tables. Return 0,
    or minus the error number.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        number: position of the unit among all units, from 0.
        first: index in s.w of the unit's first abbreviation.
        count: how many abbreviations the unit has.
    """
    w = s.w
    p = w[u + U_FIRST]
    end = w[u + U_END]
    depth = 1
    path = w[AT + PATH]
    w[path + S_FUNCTION] = -1
    w[path + S_COPY] = -1
    w[path + S_GLOBAL] = 1
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
        r = find(s, first, count, code)
        if r < 0:
            return -E_ABBREV
        do = w[r + A_DO]
        children = w[r + A_CHILDREN] != 0
        if do >= DO_VARIABLE and w[path + (depth - 1) * 3 + S_GLOBAL] == 0:
            # Leave out types and variables inside functions.
            do = DO_NOTHING
        skip = children and w[r + A_SIBLING] != 0 and may_skip(s, u, do)
        wanted = skip or do >= DO_FUNCTION
        p = read_entry(s, u, r, p) if wanted else skip_entry(s, u, r, p)
        if p < 0:
            return p
        bad = 0
        if do == DO_FUNCTION or do == DO_COPY:
            bad = add_code(s, u, number, die, do == DO_COPY, depth)
        elif do == DO_VARIABLE:
            bad = add_variable(s, u, die)
        elif do > DO_TYPE:
            bad = add_type(s, u, die, do - DO_TYPE)
        if bad < 0:
            return bad
        if skip and w[CLASS + SIBLING] != ABSENT:
            sibling = reference_of(s, u, SIBLING)
            if sibling < p or sibling > end:
                return -E_SIBLING
            p = sibling
        elif children:
            depth = descend(s, depth, do)
            if depth < 0:
                return depth
    return 0


@entry_point
def scan_units(s: Space, start: int, stop: int) -> tuple[int, int]:
    """Scan the units from `start` to `stop` (exclusive). Return (stop, 0). After an error return
    (number of the unit with the error, minus the error number).

    After the error FULL (a table of the scan was full) the tables are as they were before this
    unit. The caller must enlarge them and scan the unit again.
    """
    w = s.w
    limit = WORK_LIMIT * (len(s.info) + len(s.rest))
    for number in range(start, stop):
        u = w[AT + UNITS] + number * U_COLUMNS
        functions, copies, ranges = w[N + FUNCTIONS], w[N + COPIES], w[N + RANGES]
        types, variables, files = w[N + TYPES], w[N + VARIABLES], w[N + FILES]
        slots, work = w[N + SLOTS], w[WORK]
        first, count = compile_table(s, u)
        bad = first if first < 0 else read_unit_entry(s, u, first, count)
        if bad >= 0:
            bad = read_files(s, u)
        if bad >= 0:
            bad = scan_unit(s, u, number, first, count)
        if bad >= 0 and w[WORK] > limit:
            bad = -E_WORK
        if bad == -FULL:
            w[N + FUNCTIONS], w[N + COPIES], w[N + RANGES] = functions, copies, ranges
            w[N + TYPES], w[N + VARIABLES], w[N + FILES] = types, variables, files
            w[N + SLOTS], w[WORK] = slots, work
        if bad < 0:
            return number, bad
    return stop, 0
