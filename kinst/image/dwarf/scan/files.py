"""Compiled reading of the file names of line tables (DWARF 5, section 6.2.4).

Tested by tests/image/dwarf/scan/test_forms.py and tests/image/dwarf/scan/test_random.py.
"""

from __future__ import annotations

from kinst.image.dwarf.numbers import (
    E_LINE,
    FULL,
    KEY_LINE,
    KEY_SHIFT,
    LNCT_DIRECTORY_INDEX,
    LNCT_PATH,
    U_COMP_DIR,
    U_SLOT,
    U_SLOTS,
    U_STMT,
)
from kinst.image.dwarf.scan.jit import compiled
from kinst.image.dwarf.scan.read import string_end, u8, uleb
from kinst.image.dwarf.scan.space import (
    AT,
    FILES,
    FILES_HASH,
    ROOM,
    S_LINE,
    SLOTS,
    START,
    WORK,
    N,
    Space,
    intern,
)
from kinst.image.dwarf.scan.units import line_header, line_string


@compiled
def add_slot(s: Space, v: int) -> int:
    """Append a slot.  Return 0, or minus FULL."""
    w = s.w
    n = w[N + SLOTS]
    if n >= w[ROOM + SLOTS]:
        return -FULL
    w[w[AT + SLOTS] + n] = v
    w[N + SLOTS] = n + 1
    return 0


@compiled
def add_file(s: Space, u: int, name: int, directory: int, start: int, directories: int) -> int:
    """Append the slot of a file.  Return 0, or minus the error."""
    w = s.w
    key = 0
    if 0 <= directory < directories:
        key = w[w[AT + SLOTS] + start + directory]
    file = intern(s, FILES, FILES_HASH, w[u + U_COMP_DIR], key, name)
    if file < 0:
        return file
    return add_slot(s, file)


@compiled
def read_entries(
    s: Space, u: int, p: int, end: int, offsize: int, start: int, directories: int
) -> int:
    """Read directories (start < 0) or files of a DWARF 5 table.  Return the position after them, or
    minus the error."""
    b = s.rest
    if p >= end:
        return -E_LINE
    formats = u8(b, p)
    p += 1
    format_at = p
    for _ in range(2 * formats):
        _, p = uleb(b, p, end)
        if p < 0:
            return -E_LINE
    count, p = uleb(b, p, end)
    # An entry has at least one byte, so the bytes bound the count.
    if p < 0 or count < 0 or count > end - p or (formats == 0 and count > 0):
        return -E_LINE
    for _ in range(count):
        q = format_at
        name = 0
        directory = 0
        for _ in range(formats):
            content, q = uleb(b, q, end)
            form, q = uleb(b, q, end)
            p, v, is_key = line_string(s, p, end, form, offsize)
            if p < 0:
                return -E_LINE
            if content == LNCT_PATH and is_key == 1:
                name = v
            elif content == LNCT_DIRECTORY_INDEX and is_key == 0:
                directory = v
        if start < 0:
            bad = add_slot(s, name)
        else:
            bad = add_file(s, u, name, directory, start, directories)
        if bad < 0:
            return bad
    return p


@compiled
def read_old_entries(s: Space, u: int, p: int, end: int, start: int) -> int:
    """Read directories and files of a table of DWARF 2 to 4.  Return the position after them, or
    minus the error.

    u[U_SLOTS] becomes the number of slots that are directories.  Directory 0 is the one in which
    the compiler ran; there is no file 0.
    """
    w = s.w
    b = s.rest
    bad = add_slot(s, 0)
    while bad == 0:
        if p >= end:
            return -E_LINE
        if u8(b, p) == 0:
            break
        bad = add_slot(s, KEY_LINE << KEY_SHIFT | p - w[START + S_LINE])
        p = string_end(b, p, end)
        if p < 0:
            return -E_LINE
    p += 1
    directories = w[N + SLOTS] - start
    w[u + U_SLOTS] = directories
    if bad == 0:
        bad = add_slot(s, -1)
    while bad == 0:
        if p >= end:
            return -E_LINE
        if u8(b, p) == 0:
            return p + 1
        name = KEY_LINE << KEY_SHIFT | p - w[START + S_LINE]
        p = string_end(b, p, end)
        directory = 0
        if p >= 0:
            directory, p = uleb(b, p, end)
        for _ in range(2):
            if p >= 0:
                _, p = uleb(b, p, end)
        if p < 0:
            return -E_LINE
        bad = add_file(s, u, name, directory, start, directories)
    return bad


@compiled
def read_files(s: Space, u: int) -> int:
    """Number the files of a unit's line table in FILES.  Return 0, or minus the error.

    u[U_SLOT] and u[U_SLOTS] say where SLOTS has the number of each.
    """
    w = s.w
    w[u + U_SLOT] = w[N + SLOTS]
    w[u + U_SLOTS] = 0
    if w[u + U_STMT] < 0:
        return 0
    version, offsize, p, end = line_header(s, u)
    if version < 0:
        return version
    # While they are read, directories are slots too: their string keys.
    start = w[N + SLOTS]
    if version == 5:
        p = read_entries(s, u, p, end, offsize, -1, 0)
        if p < 0:
            return p
        directories = w[N + SLOTS] - start
        p = read_entries(s, u, p, end, offsize, start, directories)
    else:
        p = read_old_entries(s, u, p, end, start)
        directories = w[u + U_SLOTS]
    if p < 0:
        return p
    # Keep only the files.
    files = w[N + SLOTS] - start - directories
    slots = w[AT + SLOTS] + start
    for i in range(files):
        w[slots + i] = w[slots + directories + i]
    w[N + SLOTS] = start + files
    w[u + U_SLOTS] = files
    w[WORK] += p - w[START + S_LINE] - w[u + U_STMT]
    return 0
