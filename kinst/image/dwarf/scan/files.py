"""Compiled reading of the file names in line tables (DWARF 5, section 6.2.4).

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
    """Append an element to the table SLOTS: a file or a directory of a line table. Return 0, or
    minus FULL if SLOTS is full.

    Args:
        v: for a file, the number of its row in the table FILES; for a directory, the string key of
            its path (a number made of the string's section and its offset there).
    """
    w = s.w
    n = w[N + SLOTS]
    if n >= w[ROOM + SLOTS]:
        return -FULL
    w[w[AT + SLOTS] + n] = v
    w[N + SLOTS] = n + 1
    return 0


@compiled
def add_file(s: Space, u: int, name: int, directory: int, start: int, directories: int) -> int:
    """Append a source file to the table SLOTS, by its number in the table FILES. If FILES lacks the
    file, add it there first. Return 0, or minus the error number.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        name: string key of the file's name (a number made of the string's section and its offset
            there).
        directory: the file's directory, as a number in the line table.
        start: index in SLOTS of the line table's first directory.
        directories: how many directories the line table has.
    """
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
    """Append the directories or the files of a DWARF 5 line table to the table SLOTS. Return the
    position after the list, or minus the error number.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        p: position in s.rest at which the list of directories or files begins.
        end: position after the line table.
        offsize: bytes of an offset.
        start: for a list of directories, -1; for a list of files, the index in SLOTS of the line
            table's first directory.
        directories: for a list of files, how many directories the line table has.
    """
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
    """Append the directories and files of a line table of DWARF 2 to 4 to the table SLOTS. Return
    the position after the files, or minus the error number.

    Directory 0 is the folder in which the compiler ran. These versions number files from 1, so the
    element for file 0 is -1. The unit's column U_SLOTS becomes the number of directories, which
    read_files() needs.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        p: position in s.rest at which the directories begin.
        end: position after the line table.
        start: number of elements in SLOTS before the call; the first directory gets this index.
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
    """Add the source files of a unit's line table to the tables FILES and SLOTS. Return 0, or minus
    the error number.

    Afterwards SLOTS has an element for each file of the line table: the file's number in FILES, or
    -1 for file 0 of DWARF 2 to 4, which number files from 1. The unit's columns U_SLOT and U_SLOTS
    say at which index of SLOTS these elements begin, and how many there are.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
    """
    w = s.w
    w[u + U_SLOT] = w[N + SLOTS]
    w[u + U_SLOTS] = 0
    if w[u + U_STMT] < 0:
        return 0
    version, offsize, p, end = line_header(s, u)
    if version < 0:
        return version
    # While the files are read, the directories are in SLOTS as well, by their string keys.
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
