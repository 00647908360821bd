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
    """Append an element to the table SLOTS, which lists the directories and the files of line
    tables. Return 0, or minus FULL if the table is full.

    Args:
        v: the element: the number of a file's row in the table FILES, or the string key of a
            directory's path (a number made of the string's section and its offset there).
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
    """Add a source file to the table FILES if it is new, and append its number in FILES to SLOTS.
    Return 0, or minus the error number.

    Args:
        u: the unit, by the index of its row in s.w (the scan's tables).
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
    """Read the directories or the files of a DWARF 5 line table, and append an element to SLOTS for
    each. Return the position after the list, or minus the error number.

    Args:
        u: the unit, by the index of its row in s.w (the scan's tables).
        p: position in s.rest at which the list of directories or files begins.
        end: position after the line table.
        offsize: bytes of an offset.
        start: -1 to read directories. To read files: index in SLOTS of the line table's first
            directory.
        directories: to read files: how many directories the line table has. Ignored to read
            directories.
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
    """Read the directories and files of a line table of DWARF 2 to 4, and append an element to
    SLOTS for each. Return the position after the files, or minus the error number.

    For read_files(), the unit's column U_SLOTS becomes the number of directories. Directory 0 is
    the folder in which the compiler ran. There is no file 0: the element of SLOTS for it is -1.

    Args:
        u: the unit, by the index of its row in s.w (the scan's tables).
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

    Afterwards SLOTS has an element for each file of the line table, and no directories. The element
    is the file's number in FILES; it is -1 for file 0, which DWARF 2 to 4 do not have. The unit's
    column U_SLOT is the index of the first of these elements, and U_SLOTS how many there are.

    Args:
        u: the unit, by the index of its row in s.w (the scan's tables).
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
