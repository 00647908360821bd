"""Single debugging information entries (DIEs) of .debug_info, read when they are needed (DWARF 5,
section 7.5).

The index (index.py) gives the offsets of DIEs; this module reads their attributes and children.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.image.dwarf.numbers import (
    AT_SIBLING,
    AT_STR_OFFSETS_BASE,
    CLASS_LINE_STRP,
    CLASS_REFERENCE,
    CLASS_STRP,
    CLASS_STRX,
    FORM_FLAG_PRESENT,
    FORM_IMPLICIT_CONST,
    FORM_INDIRECT,
    FORM_REF4,
    FORMS,
    SIZE_ADDRESS,
    SIZE_BLOCK,
    SIZE_BLOCK1,
    SIZE_BLOCK2,
    SIZE_BLOCK4,
    SIZE_OFFSET,
    SIZE_REF_ADDR,
    SIZE_SLEB,
    SIZE_STRING,
    SIZE_ULEB,
    UT_PARTIAL,
    UT_SKELETON,
    UT_SPLIT_COMPILE,
    UT_TYPE,
)
from kinst.image.dwarf.reader import Reader
from kinst.image.dwarf.sections import DebugSections

Value = int | str | bytes
# (tag, whether the DIE has children, its attributes); an attribute is (DW_AT_*, DW_FORM_*, value of
# an implicit constant).
Abbreviation = tuple[int, bool, Sequence[tuple[int, int, int]]]
_ONE_BYTE = 127  # largest abbreviation code that takes one byte
_LENGTHS = {SIZE_BLOCK1: 1, SIZE_BLOCK2: 2, SIZE_BLOCK4: 4}


@dataclass(frozen=True, slots=True)
class DieUnit:
    """A DWARF unit in .debug_info.

    Attributes:
        offset: offset of the unit's header.
        end: offset after the unit's last byte.
        first: offset of the unit's first DIE.
        version: DWARF version.
        offset_size: bytes of an offset.
        address_size: bytes of an address.
        abbreviations: the unit's abbreviation table, by code.
    """

    offset: int
    end: int
    first: int
    version: int
    offset_size: int
    address_size: int
    abbreviations: Mapping[int, Abbreviation]


@dataclass(frozen=True, slots=True)
class Die:
    """A debugging information entry (DIE) with its attributes.

    Attributes:
        offset: offset in .debug_info.
        unit: the unit that contains the DIE.
        tag: DW_TAG_*.
        children: whether the DIE has children.
        attributes: values by DW_AT_*; references are offsets in .debug_info, blocks and expressions
            are bytes, flags and constants are numbers.
        forms: DW_FORM_* of each attribute, by DW_AT_*.
        next: offset after the DIE's attributes.
    """

    offset: int
    unit: DieUnit
    tag: int
    children: bool
    attributes: Mapping[int, Value]
    forms: Mapping[int, int]
    next: int

    def number(self, attribute: int, default: int = 0) -> int:
        value = self.attributes.get(attribute, default)
        return value if isinstance(value, int) else default

    def text(self, attribute: int) -> str:
        value = self.attributes.get(attribute, "")
        return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class _AttributeLayout:
    """Where the attributes of all DIEs with one abbreviation are.

    Attributes:
        tag: DW_TAG_*.
        children: whether the DIEs have children.
        size: bytes of all attributes together; -1 if this number differs from DIE to DIE.
        sibling: offset of DW_AT_sibling from the first attribute, if its form is DW_FORM_ref4 and
            the attributes before it have fixed sizes; otherwise -1.
    """

    tag: int
    children: bool
    size: int
    sibling: int


def _attribute_layout(abbreviation: Abbreviation, unit: DieUnit) -> _AttributeLayout:
    tag, children, rows = abbreviation
    at, sibling = 0, -1
    for attribute, form, _ in rows:
        if attribute == AT_SIBLING and form == FORM_REF4:
            sibling = at
        size = FORMS.get(form, (SIZE_BLOCK, 0))[0]
        if size in (SIZE_ADDRESS, SIZE_OFFSET):
            size = unit.address_size if size == SIZE_ADDRESS else unit.offset_size
        if size < 0:
            return _AttributeLayout(tag, children, -1, -1)
        at += size
    return _AttributeLayout(tag, children, at, sibling)


class Dies:
    """Debugging information entries (DIEs) of one debug file, by their offsets in .debug_info."""

    def __init__(self, sections: DebugSections, units: Sequence[int]) -> None:
        """Open the sections .debug_info and .debug_abbrev.

        Args:
            sections: debug sections of the file.
            units: offsets of all units' headers, ascending (Index.units).
        """
        self._sections = sections
        self._info = sections.array("info").data
        self._abbrev = sections.array("abbrev").data
        self._offsets = units
        self._units: dict[int, DieUnit] = {}
        self._tables: dict[int, Mapping[int, Abbreviation]] = {}
        self._string_bases: dict[int, int] = {}
        # By abbreviation table, sizes of addresses and offsets, and code.
        self._layouts: dict[tuple[int, int, int, int], _AttributeLayout] = {}

    def die(self, offset: int) -> Die:
        """Return the DIE at an offset in .debug_info. Raises KinstError for damaged debug
        information."""
        try:
            return self._die(offset, self._unit_of(offset))
        except (IndexError, ValueError, KeyError):
            where = self._sections.where
            raise KinstError(
                f"{where}: damaged debug information: no entry at {offset:#x}"
            ) from None

    def first_of(self, unit: int) -> int:
        """Return the offset of a unit's first DIE.

        Args:
            unit: offset of the unit's header.
        """
        if unit not in self._units:
            self._units[unit] = self._header(unit)
        return self._units[unit].first

    def children(self, die: Die) -> Iterator[Die]:
        """Yield the direct children of a DIE, in their order."""
        at = die.next
        while die.children and at < die.unit.end:
            if self._info[at] == 0:
                return
            child = self.die(at)
            yield child
            at = self._end_of(child)

    def children_with(self, die: Die, tag: int) -> Iterator[Die]:
        """Yield the direct children of a DIE that have this tag, in their order.

        The others are skipped without reading their attributes if their sizes are fixed and their
        next sibling is known.
        """
        at = die.next
        while die.children and at < die.unit.end:
            if self._info[at] == 0:
                return
            after = self._skipped(at, die.unit, tag)
            if after is None:
                child = self.die(at)
                if child.tag == tag:
                    yield child
                after = self._end_of(child)
            at = after

    def _skipped(self, at: int, unit: DieUnit, tag: int) -> int | None:
        """Return the offset after a DIE and its descendants, for a DIE of another tag; None if its
        attributes must be read to know that."""
        code, values = self._info[at], at + 1
        if code > _ONE_BYTE:
            if values >= unit.end or self._info[values] > _ONE_BYTE:
                return None  # a code of three bytes or more, or a code that is cut off
            code, values = code - 128 | self._info[values] << 7, values + 1
        key = id(unit.abbreviations), unit.address_size, unit.offset_size, code
        layout = self._layouts.get(key)
        if layout is None:
            if code not in unit.abbreviations:
                return None  # no abbreviation, which die() reports
            layout = self._layouts[key] = _attribute_layout(unit.abbreviations[code], unit)
        if layout.tag == tag or layout.size < 0:
            return None
        if not layout.children:
            return values + layout.size
        if layout.sibling < 0:
            return None
        start = values + layout.sibling
        sibling = unit.offset + int.from_bytes(self._info[start : start + 4], "little")
        return sibling if sibling > at else None

    def _end_of(self, die: Die) -> int:
        """Return the offset after a DIE and all of its descendants."""
        sibling = die.number(AT_SIBLING)
        if sibling > die.offset:
            return sibling
        at, depth = die.next, int(die.children)
        while depth:
            if self._info[at] == 0:
                at, depth = at + 1, depth - 1
                continue
            inner = self.die(at)
            sibling = inner.number(AT_SIBLING)
            if inner.children and sibling > inner.offset:
                at = sibling
            else:
                at, depth = inner.next, depth + int(inner.children)
        return at

    def _unit_of(self, offset: int) -> DieUnit:
        start = self._offsets[bisect_right(self._offsets, offset) - 1]
        if start not in self._units:
            self._units[start] = self._header(start)
        unit = self._units[start]
        if not unit.first <= offset < unit.end:
            raise ValueError
        return unit

    def _header(self, start: int) -> DieUnit:
        r = Reader(self._info, start)
        length = r.number(4)
        size = 4
        if length == 0xFFFFFFFF:
            length, size = r.number(8), 8
        end = r.at + length
        version = r.number(2)
        kind = 0
        if version >= 5:
            kind, address_size = r.number(1), r.number(1)
            table = r.number(size)
            # Skeleton units have an id; type units a signature and an offset.
            if kind in (UT_SKELETON, UT_SPLIT_COMPILE):
                r.at += 8
            elif kind > UT_PARTIAL or kind == UT_TYPE:
                r.at += 8 + size
        else:
            table, address_size = r.number(size), r.number(1)
        return DieUnit(start, end, r.at, version, size, address_size, self._table(table))

    def _table(self, offset: int) -> Mapping[int, Abbreviation]:
        if offset not in self._tables:
            table: dict[int, Abbreviation] = {}
            r = Reader(self._abbrev, offset)
            while code := r.uleb():
                tag, children = r.uleb(), bool(r.number(1))
                rows = []
                while True:
                    attribute, form = r.uleb(), r.uleb()
                    constant = r.sleb() if form == FORM_IMPLICIT_CONST else 0
                    if not attribute and not form:
                        break
                    rows.append((attribute, form, constant))
                table[code] = tag, children, rows
            self._tables[offset] = table
        return self._tables[offset]

    def _die(self, offset: int, unit: DieUnit) -> Die:
        r = Reader(self._info, offset)
        tag, children, rows = unit.abbreviations[r.uleb()]
        attributes: dict[int, Value] = {}
        forms: dict[int, int] = {}
        for attribute, form, constant in rows:
            while form == FORM_INDIRECT:
                form = r.uleb()
            attributes[attribute] = self._value(r, unit, form, constant)
            forms[attribute] = form
        return Die(offset, unit, tag, children, attributes, forms, r.at)

    def _value(
        self, r: Reader, unit: DieUnit, form: int, constant: int, by_index: bool = True
    ) -> Value:
        """Read the value of an attribute and return it.

        Args:
            r: reader at the start of the value.
            form: DW_FORM_*.
            constant: the value, if the form is DW_FORM_implicit_const.
            by_index: whether to look up a string that is given by an index; otherwise the index is
                returned.
        """
        size, form_class = FORMS[form]
        if form in (FORM_FLAG_PRESENT, FORM_IMPLICIT_CONST):
            return 1 if form == FORM_FLAG_PRESENT else constant
        if size == SIZE_STRING:
            text = self._sections.text("info", r.at)
            r.at += len(text) + 1
            return text.decode("utf-8", "replace")
        if size in _LENGTHS or size == SIZE_BLOCK:
            return r.take(r.uleb() if size == SIZE_BLOCK else r.number(_LENGTHS[size]))
        if size == SIZE_ULEB:
            value = r.uleb()
        elif size == SIZE_SLEB:
            return r.sleb()
        else:
            if size == SIZE_ADDRESS or (size == SIZE_REF_ADDR and unit.version == 2):
                size = unit.address_size
            elif size in (SIZE_OFFSET, SIZE_REF_ADDR):
                size = unit.offset_size
            if size == 16:
                return r.take(16)
            value = r.number(size)
        if form_class == CLASS_STRP:
            return self._sections.text("str", value).decode("utf-8", "replace")
        if form_class == CLASS_LINE_STRP:
            return self._sections.text("line_str", value).decode("utf-8", "replace")
        if form_class == CLASS_STRX and by_index:
            return self._indexed(unit, value)
        if form_class == CLASS_REFERENCE:
            return value + unit.offset
        return value

    def _indexed(self, unit: DieUnit, index: int) -> str:
        """Return the string with this index in the unit's part of .debug_str_offsets; "" if the
        index lies outside of the section."""
        if unit.offset not in self._string_bases:
            self._string_bases[unit.offset] = self._string_base(unit)
        at = self._string_bases[unit.offset] + index * unit.offset_size
        piece = self._sections.array("str_offsets")[at : at + unit.offset_size].tobytes()
        if len(piece) != unit.offset_size:
            return ""
        offset = int.from_bytes(piece, "little")
        return self._sections.text("str", offset).decode("utf-8", "replace")

    def _string_base(self, unit: DieUnit) -> int:
        """Return the offset in .debug_str_offsets at which a unit's part begins
        (DW_AT_str_offsets_base of the unit's first DIE).

        Strings of this DIE may come before the attribute and need its value, so strings given by an
        index are not looked up here.
        """
        r = Reader(self._info, unit.first)
        _, _, rows = unit.abbreviations[r.uleb()]
        for attribute, form, constant in rows:
            while form == FORM_INDIRECT:
                form = r.uleb()
            value = self._value(r, unit, form, constant, by_index=False)
            if attribute == AT_STR_OFFSETS_BASE and isinstance(value, int):
                return value
        # After the header of the section, unless the unit says otherwise.
        return 16 if unit.offset_size == 8 else 8
