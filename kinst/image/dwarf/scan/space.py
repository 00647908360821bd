"""Memory of the compiled scan: the sections that it reads, and its tables.

The functions of the scan share one value with three arrays: .debug_info, the other sections one
after another, and the tables. All tables are parts of one array of int64, s.w, because every array
that a compiled function takes costs numba compile time. This array starts with a head, which has
the start and the number of rows of each table. A row is given by its index in s.w.

Tested by tests/image/dwarf/scan/test_limits.py.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from kinst.image.dwarf.numbers import (
    ALSO_SLOTTED,
    FORMS,
    FULL,
    SCANNED,
    SIZE_NONE,
    SLOTTED,
    TAGS,
    U_COLUMNS,
)
from kinst.image.dwarf.scan.jit import I64, U8, compiled, entry_point

# Columns of a function: offset of its entry, its unit's number, string key of its name, number
# of its source file (or -1), line, DW_AT_inline (0 if absent), offsets of the entries that are its
# abstract origin and its specification (or -1), number of its first range, count of its ranges.
(
    F_DIE, F_UNIT, F_NAME, F_FILE, F_LINE, F_INLINE, F_ORIGIN, F_SPECIFICATION, F_RANGE,
    F_RANGES,
) = range(10)  # fmt: skip
# Columns of an inlined copy.  C_PARENT: number of the copy that contains it, or -1; C_ROOT: number
# of the function that contains it, or -1.
(
    C_DIE, C_UNIT, C_ORIGIN, C_ENTRY, C_HAS_ENTRY, C_RANGE, C_RANGES, C_FILE, C_LINE, C_PARENT,
    C_ROOT,
) = range(11)  # fmt: skip
CODE_COLUMNS = 11
# Columns of a type: kind and name, size, source file and line, offset of its entry.  Types that are
# equal in the first three are one type.
T_NAME, T_SIZE, T_PLACE, T_DIE = range(4)
V_DIE, V_NAME, V_SPECIFICATION, V_DECLARATION = range(4)
# Columns of the path from the unit to the current entry, by level: number of the containing
# function, number of the containing copy, whether the level is at file scope.
S_FUNCTION, S_COPY, S_GLOBAL = range(3)
# Columns of an abbreviation, of an attribute (B_STEP_*: fixed bytes before a form that varies),
# and of the list of abbreviation tables that are still in memory.
A_CODE, A_DO, A_CHILDREN, A_SIBLING, A_FIRST, A_LAST, A_STEP, A_STEPS, A_TAIL = range(9)
A_COLUMNS = 9
B_SLOT, B_FORM, B_CONST, B_SIZE, B_STEP_FIXED, B_STEP_FORM = range(6)
B_COLUMNS = 6
K_OFFSET, K_SHAPE, K_FIRST, K_COUNT = range(4)

# The tables, in their order in the array, with their columns.
(
    FUNCTIONS, COPIES, RANGES, TYPES, VARIABLES, FILES, SLOTS, ABBREVIATIONS, ATTRIBUTES,
    TYPES_HASH, FILES_HASH, KNOWN, PATH, UNITS,
) = range(14)  # fmt: skip
COLUMNS = (CODE_COLUMNS, CODE_COLUMNS, 2, 4, 4, 3, 1, A_COLUMNS, B_COLUMNS, 1, 1, 4, 3, U_COLUMNS)
TABLES = len(COLUMNS)
GROWING = range(FUNCTIONS, ATTRIBUTES + 1)
DEPTH = 1024
MEMORY = 1024
# The head: number of rows in use of each table, start of each table, number of rows that each table
# has space for.
N, AT, ROOM = 0, 16, 32
# Bytes of lists read; two numbers that read_ranges() sets; start and end of each section.
WORK, FIRST_ANY, FIRST_LOW, START, END = 48, 49, 50, 64, 80
# The current entry's attributes: value and class by slot (LINE and FILE of its declaration or
# call are among them).
VALUE, CLASS = 96, 128
# By the number that fold() returns: size and class of forms, slot of attributes, DO_* of tags.
FORM_SIZE, FORM_CLASS, SLOT_OF, DO_OF = 160, 416, 672, 928
HEAD = 1184
S_ABBREV, S_STR, S_LINE_STR, S_STR_OFFSETS, S_ADDR, S_RANGES, S_RNGLISTS, S_LINE = range(8)


class Words(Protocol):
    """An array of int64, as compiled code sees it: elements are plain numbers."""

    def __getitem__(self, at: int) -> int: ...
    def __setitem__(self, at: int, value: int) -> None: ...


class Space(NamedTuple):
    """Arrays that the scan's functions share.

    Attributes:
        info: bytes of .debug_info.
        rest: bytes of the other sections, one after another.
        w: head and tables of the scan.
    """

    info: U8
    rest: U8
    w: Words


# Python cannot call a compiled function that only compiled functions call: use its source.
def _fold(number: int) -> int:
    place: int = fold.py_func(number)  # type: ignore[attr-defined]
    return place


def make_space(arrays: dict[str, U8]) -> Space:
    """Return the scan's arrays for these sections: tables without rows, and with space for only one
    unit.

    Args:
        arrays: bytes of each section, by its name without ".debug_" (DebugSections).
    """
    pieces, bounds, at = [], list[tuple[int, int]](), 0
    for name in SCANNED[1:]:
        size = len(arrays[name])
        # The scan reads only the keys of strings.
        if name in ("str", "line_str"):
            bounds.append((0, size))
            continue
        pieces.append(arrays[name])
        bounds.append((at, at + size))
        at += size
    rest = np.concatenate(pieces)
    few = max(64, len(arrays["info"]) // 400)
    types = max(64, len(arrays["info"]) // 2000)
    w = _tables([few, few, 2 * few, types, few, 1 << 14, 3 * few, 1 << 13, 1 << 16], 1)
    w[FORM_SIZE : FORM_SIZE + 256] = SIZE_NONE
    w[SLOT_OF:HEAD] = 0
    for form, (size, what) in FORMS.items():
        w[FORM_SIZE + _fold(form)], w[FORM_CLASS + _fold(form)] = size, what
    for slot, attribute in enumerate(SLOTTED):
        w[SLOT_OF + attribute] = slot
    for attribute, slot in ALSO_SLOTTED.items():
        w[SLOT_OF + _fold(attribute)] = slot
    for tag, do in TAGS.items():
        w[DO_OF + tag] = do
    for number, (start, end) in enumerate(bounds):
        w[START + number], w[END + number] = start, end
    return Space(arrays["info"], rest, cast(Words, w))


def _hash_size(rows: int) -> int:
    return 1 << (2 * rows).bit_length()


def _tables(rooms: list[int], units: int) -> I64:
    rooms = [*rooms, _hash_size(rooms[TYPES]), _hash_size(rooms[FILES]), MEMORY, DEPTH, units]
    w = np.empty(HEAD + sum(r * c for r, c in zip(rooms, COLUMNS, strict=True)), dtype=np.int64)
    w[:HEAD] = 0
    at = HEAD
    for number, (room, columns) in enumerate(zip(rooms, COLUMNS, strict=True)):
        w[AT + number], w[ROOM + number] = at, room
        if number in (TYPES_HASH, FILES_HASH, KNOWN):
            w[at : at + room * columns] = -1
        at += room * columns
    return w


def words(space: Space) -> I64:
    """Return the scan's array of head and tables, typed for numpy."""
    return cast(I64, space.w)


def table(space: Space, number: int) -> npt.NDArray[np.int64]:
    """Return the rows in use of one of the scan's tables, as a view.

    Args:
        number: FUNCTIONS, COPIES, RANGES, ...
    """
    w, columns = words(space), COLUMNS[number]
    start, rows = int(w[AT + number]), int(w[N + number])
    found: npt.NDArray[np.int64] = w[start : start + rows * columns].reshape(rows, columns)
    return found


def grown(space: Space, units: int, double: bool = True, all_of_them: bool = False) -> Space:
    """Return the scan's arrays with larger tables, and copy the rows into them.

    Args:
        units: how many units the new table UNITS has space for.
        double: whether to double the space of each table of GROWING that is at least half full.
        all_of_them: whether to double the emptier tables of GROWING as well. This is needed if
            doubling the half full tables did not help.
    """
    old = words(space)
    rooms = [
        int(old[ROOM + n])
        * (2 if double and (all_of_them or 2 * int(old[N + n]) >= int(old[ROOM + n])) else 1)
        for n in GROWING
    ]
    w = _tables(rooms, units)
    w[:AT] = old[:AT]
    w[WORK:HEAD] = old[WORK:HEAD]
    larger = Space(space.info, space.rest, cast(Words, w))
    for number in (*GROWING, UNITS):
        if number not in (ABBREVIATIONS, ATTRIBUTES):
            table(larger, number)[:] = table(space, number)
    # The abbreviations will be read again.
    w[N + ABBREVIATIONS] = w[N + ATTRIBUTES] = 0
    rehash(larger, TYPES, TYPES_HASH)
    rehash(larger, FILES, FILES_HASH)
    return larger


@compiled
def fold(number: int) -> int:
    """Map the number of a tag, attribute or form in DWARF to an index below 256, for the scan's
    tables; 0 if it is unknown.

    DWARF's numbers of GNU's forms begin at 0x1f00, those of GNU's attributes at 0x2100.
    """
    if number < 0:
        return 0
    if number < 0x80:
        return number
    if 0x1F00 <= number < 0x1F40:
        return number - 0x1F00 + 0x80
    if 0x2100 <= number < 0x2140:
        return number - 0x2100 + 0xC0
    return 0


@compiled
def hash_slot(s: Space, table: int, slots: int, a: int, b: int, c: int) -> int:
    """Find the slot of a hash table for the row whose first three columns are (a, b, c).

    Return the index in s.w of the slot that has the row's number. If the table has no such row,
    return the index of the free slot for its number.

    Args:
        table: TYPES or FILES.
        slots: TYPES_HASH or FILES_HASH, the hash table of `table`.
    """
    w = s.w
    h = (a ^ (b << 17) ^ (b >> 9)) * 0x9E3779B97F4A7C1 + c
    h = (h ^ (h >> 29)) * 0x1B873593CC9E2D5
    mask = w[ROOM + slots] - 1
    columns = 4 if table == TYPES else 3
    at = (h ^ (h >> 31)) & mask
    while True:
        row = w[w[AT + slots] + at]
        if row < 0:
            return w[AT + slots] + at
        r = w[AT + table] + row * columns
        if w[r] == a and w[r + 1] == b and w[r + 2] == c:
            return w[AT + slots] + at
        at = (at + 1) & mask


@entry_point
def rehash(s: Space, table: int, slots: int) -> None:
    """Enter all rows of a table into its hash table, which must be empty.

    Args:
        table: TYPES or FILES.
        slots: TYPES_HASH or FILES_HASH, the hash table of `table`.
    """
    w = s.w
    columns = 4 if table == TYPES else 3
    for row in range(w[N + table]):
        r = w[AT + table] + row * columns
        w[hash_slot(s, table, slots, w[r], w[r + 1], w[r + 2])] = row


@compiled
def intern(s: Space, table: int, slots: int, a: int, b: int, c: int) -> int:
    """Return the number of the row whose first three columns are (a, b, c). If the table has no
    such row, append it; return minus FULL if the table is full.

    Args:
        table: TYPES or FILES.
        slots: TYPES_HASH or FILES_HASH, the hash table of `table`.
    """
    w = s.w
    at = hash_slot(s, table, slots, a, b, c)
    row = w[at]
    if row >= 0:
        return row
    row = w[N + table]
    if row >= w[ROOM + table]:
        return -FULL
    r = w[AT + table] + row * (4 if table == TYPES else 3)
    w[r] = a
    w[r + 1] = b
    w[r + 2] = c
    w[at] = row
    w[N + table] = row + 1
    return row
