"""Compiled reading of the file names of line tables (DWARF 5, section 6.2.4)."""

from __future__ import annotations

from kinst.image import dwarf_numbers as D
from kinst.image.dwarf_jit import compiled
from kinst.image.dwarf_read import Sections, skip_form, u8, uleb
from kinst.image.dwarf_rows import N_FILES, N_SLOTS, N_WORK, Rows, intern
from kinst.image.dwarf_store import I64
from kinst.image.dwarf_units import line_header, line_string


@compiled
def read_files(s: Sections, u: I64, rows: Rows) -> int:
    """The files of a unit's line table, numbered in rows.files: 0, or minus the trouble.

    u[U_SLOT] and u[U_SLOTS] say where rows.slots has the number of each.
    """
    u[D.U_SLOT] = rows.counts[N_SLOTS]
    u[D.U_SLOTS] = 0
    if u[D.U_STMT] < 0:
        return 0
    version, offsize, p, end = line_header(s, u)
    if version < 0:
        return version
    # Directories are slots too while they are read: their string keys.
    start = rows.counts[N_SLOTS]
    if version == 5:
        p = read_entries(s, u, rows, p, end, offsize, -1, 0)
        if p < 0:
            return p
        directories = rows.counts[N_SLOTS] - start
        p = read_entries(s, u, rows, p, end, offsize, start, directories)
    else:
        p = read_old_entries(s, u, rows, p, end, start)
        directories = u[D.U_SLOTS]
    if p < 0:
        return p
    # Only the files stay.
    files = rows.counts[N_SLOTS] - start - directories
    for i in range(files):
        rows.slots[start + i, 0] = rows.slots[start + directories + i, 0]
    rows.counts[N_SLOTS] = start + files
    u[D.U_SLOTS] = files
    rows.counts[N_WORK] += p - u[D.U_STMT]
    return 0


@compiled
def add_slot(rows: Rows, v: int) -> int:
    """Append a slot: 0, or minus FULL."""
    n = rows.counts[N_SLOTS]
    if n >= len(rows.slots):
        return -D.FULL
    rows.slots[n, 0] = v
    rows.counts[N_SLOTS] = n + 1
    return 0


@compiled
def add_file(u: I64, rows: Rows, name: int, directory: int, start: int, directories: int) -> int:
    """Append the slot of a file: 0, or minus the trouble."""
    key = 0
    if 0 <= directory < directories:
        key = rows.slots[start + directory, 0]
    file = intern(rows.files, rows.files_hash, rows.counts, N_FILES, u[D.U_COMP_DIR], key, name)
    if file < 0:
        return file
    return add_slot(rows, file)


@compiled
def read_entries(
    s: Sections, u: I64, rows: Rows, p: int, end: int, offsize: int, start: int, directories: int
) -> int:
    """Directories (start < 0) or files of a DWARF 5 table: the position after, or the trouble."""
    b = s.line
    if p >= end:
        return -D.E_LINE
    formats = u8(b, p)
    p += 1
    format_at = p
    for _ in range(2 * formats):
        _, p = uleb(b, p, end)
        if p < 0:
            return -D.E_LINE
    count, p = uleb(b, p, end)
    # Every entry has at least a byte, so the count is bounded by the bytes.
    if p < 0 or count < 0 or count > end - p or (formats == 0 and count > 0):
        return -D.E_LINE
    for _ in range(count):
        q = format_at
        name = 0
        directory = 0
        for _ in range(formats):
            what, q = uleb(b, q, end)
            form, q = uleb(b, q, end)
            p, v, is_key = line_string(s, p, end, form, offsize)
            if p < 0:
                return -D.E_LINE
            if what == D.LNCT_PATH and is_key == 1:
                name = v
            elif what == D.LNCT_DIRECTORY_INDEX and is_key == 0:
                directory = v
        if start < 0:
            bad = add_slot(rows, name)
        else:
            bad = add_file(u, rows, name, directory, start, directories)
        if bad < 0:
            return bad
    return p


@compiled
def read_old_entries(s: Sections, u: I64, rows: Rows, p: int, end: int, start: int) -> int:
    """Directories and files of a table of DWARF 2 to 4: the position after, or the trouble.

    u[U_SLOTS] becomes the number of slots that are directories.  Directory 0 is where the
    compiler ran, and file 0 is none.
    """
    b = s.line
    bad = add_slot(rows, 0)
    while bad == 0:
        if p >= end:
            return -D.E_LINE
        if u8(b, p) == 0:
            break
        bad = add_slot(rows, D.KEY_LINE << D.KEY_SHIFT | p)
        p = skip_form(b, p, end, D.FORM_STRING, 0)
        if p < 0:
            return -D.E_LINE
    p += 1
    directories = rows.counts[N_SLOTS] - start
    u[D.U_SLOTS] = directories
    if bad == 0:
        bad = add_slot(rows, -1)
    while bad == 0:
        if p >= end:
            return -D.E_LINE
        if u8(b, p) == 0:
            return p + 1
        name = D.KEY_LINE << D.KEY_SHIFT | p
        p = skip_form(b, p, end, D.FORM_STRING, 0)
        directory = 0
        if p >= 0:
            directory, p = uleb(b, p, end)
        for _ in range(2):
            if p >= 0:
                _, p = uleb(b, p, end)
        if p < 0:
            return -D.E_LINE
        bad = add_file(u, rows, name, directory, start, directories)
    return bad
