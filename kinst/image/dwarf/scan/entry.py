"""Compiled reading of one debugging information entry: store its attributes' values, or step over
it.

The scan numbers the attributes that it uses. An attribute's number, its slot, is its index in two
arrays: w[VALUE + slot] gets the value as it is encoded, w[CLASS + slot] the value's class. The
functions at the end of this module interpret the values after the unit's bases have been read.

Tested by tests/image/dwarf/scan/test_forms.py and tests/image/dwarf/scan/test_random.py.
"""
# ruff: noqa: SIM109 (membership in a tuple compiles to a loop)

from __future__ import annotations

from kinst.image.dwarf.numbers import (
    ABSENT,
    CLASS_ADDRX,
    CLASS_ALT,
    CLASS_LINE_STRP,
    CLASS_REF_ADDR,
    CLASS_REFERENCE,
    CLASS_STRING,
    CLASS_STRP,
    CLASS_STRX,
    E_ADDRX,
    E_ALT,
    E_CUT,
    E_FORM,
    E_REF,
    E_STRING,
    FORM_IMPLICIT_CONST,
    KEY_INFO,
    KEY_LINE_STR,
    KEY_SHIFT,
    KEY_STR,
    SIZE_ADDRESS,
    SIZE_BLOCK,
    SIZE_BLOCK1,
    SIZE_BLOCK2,
    SIZE_INDIRECT,
    SIZE_NONE,
    SIZE_OFFSET,
    SIZE_REF_ADDR,
    SIZE_SLEB,
    SIZE_STRING,
    SIZE_ULEB,
    SLOTTED,
    U_ADDR_BASE,
    U_ADDRSIZE,
    U_END,
    U_OFFSET,
    U_OFFSIZE,
    U_STR_BASE,
    U_VERSION,
)
from kinst.image.dwarf.scan.jit import compiled
from kinst.image.dwarf.scan.read import number, sleb, string_end, uleb
from kinst.image.dwarf.scan.space import (
    A_FIRST,
    A_LAST,
    A_STEP,
    A_STEPS,
    A_TAIL,
    B_COLUMNS,
    B_CONST,
    B_FORM,
    B_SIZE,
    B_SLOT,
    B_STEP_FIXED,
    B_STEP_FORM,
    CLASS,
    END,
    FORM_CLASS,
    FORM_SIZE,
    S_ADDR,
    S_LINE_STR,
    S_STR,
    S_STR_OFFSETS,
    START,
    VALUE,
    Space,
    fold,
)

SLOTS_OF_ENTRY = len(SLOTTED)


@compiled
def size_of(s: Space, u: int, form: int) -> int:
    """Return how many bytes values of a form have in a unit, or a negative SIZE_* if that varies.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        form: number of the form after fold().
    """
    w = s.w
    size = w[FORM_SIZE + form]
    if size == SIZE_ADDRESS:
        size = w[u + U_ADDRSIZE]
    elif size == SIZE_OFFSET:
        size = w[u + U_OFFSIZE]
    elif size == SIZE_REF_ADDR:
        size = w[u + U_ADDRSIZE] if w[u + U_VERSION] == 2 else w[u + U_OFFSIZE]
    return size


@compiled
def fixed(s: Space, u: int, p: int, size: int, what: int, slot: int, const: int) -> int:
    """Store a value of fixed size in the scan's arrays VALUE and CLASS. Return the position after
    the value, or minus the error number.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        p: position of the value in s.info.
        size: bytes of the value.
        what: class of the value (CLASS_*).
        slot: index of the attribute in the arrays VALUE and CLASS.
        const: the value if size is 0.
    """
    w = s.w
    if size > w[u + U_END] - p:
        return -E_CUT
    v = const
    if size != 0 and size != 16:
        v = number(s.info, p, size)
    w[VALUE + slot] = v
    w[CLASS + slot] = what
    return p + size


@compiled
def varying(s: Space, u: int, p: int, form: int, size: int, slot: int) -> int:
    """Store a value of varying size in the scan's arrays VALUE and CLASS. Return the position after
    the value, or minus the error number.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        p: position of the value in s.info.
        form: number of the form after fold().
        size: SIZE_* of the form.
        slot: index of the attribute in the arrays VALUE and CLASS.
    """
    w = s.w
    b = s.info
    end = w[u + U_END]
    form_class = w[FORM_CLASS + form]
    if size == SIZE_INDIRECT:
        form, p = uleb(b, p, end)
        if p < 0:
            return p
        form = fold(form)
        size = size_of(s, u, form)
        form_class = w[FORM_CLASS + form]
        # An indirect constant would have no space for its value; a second level is not allowed.
        if size == SIZE_NONE or size == SIZE_INDIRECT or form == FORM_IMPLICIT_CONST:
            return -E_FORM
        if size >= 0:
            return fixed(s, u, p, size, form_class, slot, 1)
    v = p
    if size == SIZE_ULEB:
        v, p = uleb(b, p, end)
    elif size == SIZE_SLEB:
        v, p = sleb(b, p, end)
    elif size == SIZE_STRING:
        p = string_end(b, p, end)
    else:
        if size == SIZE_BLOCK:
            n, p = uleb(b, p, end)
            if p < 0:
                return p
        else:
            wide = 1 if size == SIZE_BLOCK1 else 2 if size == SIZE_BLOCK2 else 4
            if end - p < wide:
                return -E_CUT
            n = number(b, p, wide)
            p += wide
        if n < 0 or n > end - p:
            return -E_CUT
        p += n
    w[VALUE + slot] = v
    w[CLASS + slot] = form_class
    return p


@compiled
def read_entry(s: Space, u: int, r: int, p: int) -> int:
    """Store the values of an entry's attributes in the scan's arrays VALUE and CLASS. Return the
    position after the attributes, or minus the error number.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        r: index in s.w of the entry's abbreviation.
        p: position in s.info of the entry's first attribute.
    """
    w = s.w
    for slot in range(SLOTS_OF_ENTRY):
        w[CLASS + slot] = ABSENT
    for b in range(w[r + A_FIRST], w[r + A_LAST], B_COLUMNS):
        size = w[b + B_SIZE]
        slot = w[b + B_SLOT]
        if size >= 0:
            if slot != 0:
                what = w[FORM_CLASS + w[b + B_FORM]]
                p = fixed(s, u, p, size, what, slot, w[b + B_CONST])
            else:
                p += size
                if p > w[u + U_END]:
                    return -E_CUT
        else:
            p = varying(s, u, p, w[b + B_FORM], size, slot)
        if p < 0:
            return p
    return p


@compiled
def skip_entry(s: Space, u: int, r: int, p: int) -> int:
    """Return the position after an entry's attributes, or minus the error number.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        r: index in s.w of the entry's abbreviation.
        p: position in s.info of the entry's first attribute.
    """
    w = s.w
    end = w[u + U_END]
    for b in range(w[r + A_STEP], w[r + A_STEPS], B_COLUMNS):
        p += w[b + B_STEP_FIXED]
        if p > end:
            return -E_CUT
        form = w[b + B_STEP_FORM]
        p = varying(s, u, p, form, w[FORM_SIZE + form], 0)
        if p < 0:
            return p
    p += w[r + A_TAIL]
    return p if p <= end else -E_CUT


@compiled
def element(s: Space, section: int, base: int, index: int, size: int) -> int:
    """Return the position in s.rest of an element of an array; -1 if it lies outside of its
    section.

    Args:
        section: S_* of the section that contains the array.
        base: offset of the array in the section.
        index: number of the element.
        size: bytes of an element.
    """
    w = s.w
    start = w[START + section]
    room = w[END + section] - start - base
    if base < 0 or room < 0 or index < 0 or index >= room // size:
        return -1
    return start + base + index * size


@compiled
def address_at(s: Space, u: int, index: int) -> tuple[int, int]:
    """Return (address, 0) for an index in the unit's part of .debug_addr, or (0, minus the error
    number).

    Args:
        u: index of the unit's row in s.w (the scan's tables).
    """
    w = s.w
    size = w[u + U_ADDRSIZE]
    at = element(s, S_ADDR, w[u + U_ADDR_BASE], index, size)
    if at < 0:
        return 0, -E_ADDRX
    return number(s.rest, at, size), 0


@compiled
def address_of(s: Space, u: int, slot: int) -> tuple[int, int]:
    """Return (address, 0) for an attribute of class address or addrx, or (0, minus the error
    number).

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        slot: index of the attribute in the arrays VALUE and CLASS.
    """
    w = s.w
    if w[CLASS + slot] == CLASS_ADDRX:
        return address_at(s, u, w[VALUE + slot])
    return w[VALUE + slot], 0


@compiled
def string_of(s: Space, u: int, slot: int) -> int:
    """Return the string key of an attribute's value; 0 if the entry has no such attribute. After an
    error return minus the error number.

    A string key is a number made of the section that has the string (KEY_*) and the string's offset
    there.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        slot: index of the attribute in the arrays VALUE and CLASS.
    """
    w = s.w
    value_class = w[CLASS + slot]
    v = w[VALUE + slot]
    if value_class == CLASS_ALT:
        return -E_ALT
    if value_class == CLASS_STRING:
        return KEY_INFO << KEY_SHIFT | v
    if value_class == CLASS_LINE_STRP:
        return KEY_LINE_STR << KEY_SHIFT | v if 0 <= v < w[END + S_LINE_STR] else -E_STRING
    if value_class == CLASS_STRX:
        size = w[u + U_OFFSIZE]
        at = element(s, S_STR_OFFSETS, w[u + U_STR_BASE], v, size)
        if at < 0:
            return -E_STRING
        v = number(s.rest, at, size)
    elif value_class != CLASS_STRP:
        return 0
    return KEY_STR << KEY_SHIFT | v if 0 <= v < w[END + S_STR] else -E_STRING


@compiled
def reference_of(s: Space, u: int, slot: int) -> int:
    """Return the offset in .debug_info that an attribute refers to; ABSENT (-1) if the entry has no
    such attribute. After an error return minus the error number, which is below ABSENT.

    Args:
        u: index of the unit's row in s.w (the scan's tables).
        slot: index of the attribute in the arrays VALUE and CLASS.
    """
    w = s.w
    value_class = w[CLASS + slot]
    v = w[VALUE + slot]
    if value_class == CLASS_ALT:
        return -E_ALT
    if value_class == CLASS_REFERENCE:
        # The reference is relative to the unit, and must lie inside it.
        v += w[u + U_OFFSET]
        return v if w[u + U_OFFSET] <= v < w[u + U_END] else -E_REF
    if value_class == CLASS_REF_ADDR:
        return v if 0 <= v < len(s.info) else -E_REF
    return ABSENT
