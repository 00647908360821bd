"""What the scan fills: growing tables of rows, and sets of rows found by hashing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kinst.image import dwarf_numbers as D
from kinst.image.dwarf_jit import compiled
from kinst.image.dwarf_store import I64

# Columns of a function: offset of its entry, its unit's number, string key of its name, number
# of its file, line, DW_AT_inline (0 when absent), entries it refers to (-1 when it does not).
(
    F_DIE, F_UNIT, F_NAME, F_FILE, F_LINE, F_INLINE, F_ORIGIN, F_SPECIFICATION, F_RANGE,
    F_RANGES, F_DECLARATION,
) = range(11)  # fmt: skip
# Columns of an inlined copy; parent: row of the copy it is in, or -1.  root: row of the function.
(
    C_DIE, C_UNIT, C_ORIGIN, C_ENTRY, C_HAS_ENTRY, C_RANGE, C_RANGES, C_FILE, C_LINE, C_PARENT,
    C_ROOT,
) = range(11)  # fmt: skip
# Columns of a type.  The first three make it the same as another: kind and name, size, place.
T_NAME, T_SIZE, T_PLACE, T_DIE = range(4)
# Columns of a variable.
V_DIE, V_NAME, V_SPECIFICATION, V_DECLARATION = range(4)
# Columns of the path of entries above the current one: function, copy, is it file scope.
S_FUNCTION, S_COPY, S_GLOBAL = range(3)
# The counts: rows in use of each table, and bytes of lists read so far.
N_FUNCTIONS, N_COPIES, N_RANGES, N_TYPES, N_VARIABLES, N_FILES, N_SLOTS, N_WORK = range(8)
COUNTS = 8
DEPTH = 1024


class Rows(NamedTuple):
    """The tables (int64 rows), two hash tables of row numbers, and the counts."""

    functions: I64
    copies: I64
    ranges: I64
    types: I64
    variables: I64
    files: I64
    slots: I64
    types_hash: I64
    files_hash: I64
    path: I64
    counts: I64


def make_rows(size: int) -> Rows:
    """Empty tables for a .debug_info of so many bytes; they grow when they are full."""
    few = max(64, size // 400)

    def table(rows: int, columns: int) -> I64:
        return np.empty((rows, columns), dtype=np.int64)

    types, files = max(64, size // 2000), 1024
    return Rows(
        table(few, 11),
        table(few, 11),
        table(few * 2, 2),
        table(types, 4),
        table(few, 4),
        table(files, 3),
        table(few * 3, 1),
        np.full(hash_size(types), -1, dtype=np.int64),
        np.full(hash_size(files), -1, dtype=np.int64),
        np.zeros((DEPTH, 3), dtype=np.int64),
        np.zeros(COUNTS, dtype=np.int64),
    )


def hash_size(rows: int) -> int:
    """The size of a hash table for so many rows: a power of two, at most half full."""
    return 1 << (2 * rows).bit_length()


def grow(rows: Rows) -> Rows:
    """The same rows with twice the room in every table that is at least half full."""
    grown = []
    for number, table in enumerate(rows[:7]):
        used = int(rows.counts[number])
        if 2 * used >= len(table):
            wider = np.empty((2 * len(table), table.shape[1]), dtype=np.int64)
            wider[:used] = table[:used]
            table = wider
        grown.append(table)
    found = Rows(
        *grown,
        np.full(hash_size(len(grown[3])), -1, dtype=np.int64),
        np.full(hash_size(len(grown[5])), -1, dtype=np.int64),
        rows.path,
        rows.counts,
    )
    rehash(found.types, int(rows.counts[N_TYPES]), found.types_hash)
    rehash(found.files, int(rows.counts[N_FILES]), found.files_hash)
    return found


@compiled
def place_of(table: I64, slots: I64, a: int, b: int, c: int) -> int:
    """The slot of a hash table that holds the row (a, b, c), or the free one where it belongs."""
    h = (a ^ (b << 17) ^ (b >> 9)) * 0x9E3779B97F4A7C1 + c
    h = (h ^ (h >> 29)) * 0x1B873593CC9E2D5
    mask = len(slots) - 1
    at = (h ^ (h >> 31)) & mask
    while True:
        row = slots[at]
        if row < 0:
            return at
        if table[row, 0] == a and table[row, 1] == b and table[row, 2] == c:
            return at
        at = (at + 1) & mask


@compiled
def rehash(table: I64, count: int, slots: I64) -> None:
    """Fill an empty hash table with the first rows of a table."""
    for row in range(count):
        slots[place_of(table, slots, table[row, 0], table[row, 1], table[row, 2])] = row


@compiled
def intern(table: I64, slots: I64, counts: I64, count: int, a: int, b: int, c: int) -> int:
    """The number of the row (a, b, c), appended when it is new; minus FULL without room."""
    at = place_of(table, slots, a, b, c)
    row = slots[at]
    if row >= 0:
        return row
    row = counts[count]
    if row >= len(table):
        return -D.FULL
    table[row, 0] = a
    table[row, 1] = b
    table[row, 2] = c
    slots[at] = row
    counts[count] = row + 1
    return row
