"""Address ranges and location lists of single debugging information entries (DIEs), read when they
are needed.

Source: DWARF 4, sections 2.6.2 and 2.17.3; DWARF 5, sections 7.28 and 7.29.
"""

from __future__ import annotations

from collections.abc import Iterator

from kinst.core.dataclass import dataclass
from kinst.core.errors import KinstError
from kinst.image.dwarf.dies import Die, Dies
from kinst.image.dwarf.numbers import (
    AT_ADDR_BASE,
    AT_GNU_ADDR_BASE,
    AT_HIGH_PC,
    AT_LOW_PC,
    AT_RANGES,
    AT_RNGLISTS_BASE,
    FORM_ADDR,
    FORM_ADDRX,
    FORM_ADDRX1,
    FORM_ADDRX4,
    FORM_GNU_ADDR_INDEX,
    FORM_LOCLISTX,
    FORM_RNGLISTX,
)
from kinst.image.dwarf.reader import Reader
from kinst.image.dwarf.sections import DebugSections

AT_LOCLISTS_BASE = 0x8C
_INDEXED = (FORM_ADDRX, *range(FORM_ADDRX1, FORM_ADDRX4 + 1), FORM_GNU_ADDR_INDEX)
MOST = 100_000  # entries of one list
# Kinds of location list entries (table 7.10); kinds 0 to 4 are the same in range lists.
LLE_DEFAULT, LLE_BASE_ADDRESS = 5, 6


@dataclass(frozen=True, slots=True)
class Home:
    """Base address of a unit, and the offsets at which the unit's parts of shared sections start.

    Attributes:
        low: base address.
        addresses: offset in .debug_addr.
        ranges: offset in .debug_rnglists.
        locations: offset in .debug_loclists.
    """

    low: int
    addresses: int
    ranges: int
    locations: int


class Lists:
    """Address ranges and location lists of one file's debugging information entries (DIEs)."""

    def __init__(self, sections: DebugSections, dies: Dies) -> None:
        self._sections = sections
        self._dies = dies
        self._homes: dict[int, Home] = {}

    def home(self, die: Die) -> Home:
        unit = die.unit
        if unit.offset not in self._homes:
            first = self._dies.die(unit.first)
            # A unit that does not say where its tables are has them after the sections' headers.
            header = 0 if unit.version < 5 else 16 if unit.offset_size == 8 else 8
            after = header + 4  # before DWARF 5 there are none
            addresses = first.number(AT_ADDR_BASE, first.number(AT_GNU_ADDR_BASE, header))
            home = Home(0, addresses, first.number(AT_RNGLISTS_BASE, after),
                        first.number(AT_LOCLISTS_BASE, after))  # fmt: skip
            low = first.number(AT_LOW_PC)
            if first.forms.get(AT_LOW_PC) in _INDEXED:
                low = self._address(home, unit.address_size, low)
            self._homes[unit.offset] = Home(low, home.addresses, home.ranges, home.locations)
        return self._homes[unit.offset]

    def indexed(self, die: Die, index: int) -> int:
        """Return the address at an index of .debug_addr. Indexes count from the first address of
        the DIE's unit."""
        return self._address(self.home(die), die.unit.address_size, index)

    def address(self, die: Die, attribute: int) -> int:
        """Return the value of a DIE's attribute that is an address or an index of an address.
        Raises KinstError for damaged debug information."""
        value = die.number(attribute)
        try:
            return self.indexed(die, value) if die.forms[attribute] in _INDEXED else value
        except (IndexError, ValueError) as error:
            raise self._damaged(die) from error

    def _address(self, home: Home, size: int, index: int) -> int:
        return self._cursor("addr", home.addresses + index * size).number(size)

    def _cursor(self, section: str, offset: int) -> Reader:
        return Reader(self._sections.array(section).data, offset)

    def ranges(self, die: Die) -> list[tuple[int, int]]:
        """Return (low, high) of each range of a DIE's code; [] if the DIE has no code. Raises
        KinstError for damaged debug information."""
        try:
            if AT_RANGES in die.attributes:
                return list(self._range_list(die))
            if AT_LOW_PC not in die.attributes or AT_HIGH_PC not in die.attributes:
                return []
            low, high = self.address(die, AT_LOW_PC), self.address(die, AT_HIGH_PC)
            absolute = die.forms[AT_HIGH_PC] in (FORM_ADDR, *_INDEXED)
            return [(low, high if absolute else low + high)]
        except (IndexError, ValueError) as error:
            raise self._damaged(die) from error

    def _damaged(self, die: Die) -> KinstError:
        where = self._sections.where
        return KinstError(f"{where}: damaged debug information at {die.offset:#x}")

    def _range_list(self, die: Die) -> Iterator[tuple[int, int]]:
        home, unit = self.home(die), die.unit
        offset = die.number(AT_RANGES)
        if unit.version < 5:
            yield from self._old_pairs(self._cursor("ranges", offset), unit.address_size, home.low)
            return
        if die.forms[AT_RANGES] == FORM_RNGLISTX:
            at = home.ranges + offset * unit.offset_size
            offset = home.ranges + self._cursor("rnglists", at).number(unit.offset_size)
        r = self._cursor("rnglists", offset)
        base, size = home.low, unit.address_size
        for _ in range(MOST):
            kind = r.number(1)
            if kind == 0:
                return
            if kind in (1, 5):
                base = self.indexed(die, r.uleb()) if kind == 1 else r.number(size)
                continue
            yield self._pair(die, r, kind, base)

    def _old_pairs(self, r: Reader, size: int, base: int) -> Iterator[tuple[int, int]]:
        """Yield (low, high) of each entry of a range list or location list of DWARF 2 to 4.

        In a location list, an expression follows each pair of addresses. The caller must read it
        from `r` before it asks for the next pair.

        Args:
            r: reader at the start of the list.
            size: bytes of an address.
            base: base address of the unit.
        """
        last = (1 << 8 * size) - 1
        for _ in range(MOST):
            low, high = r.number(size), r.number(size)
            if low == high == 0:
                return
            if low == last:
                base = high
            else:
                yield base + low, base + high

    def _pair(self, die: Die, r: Reader, kind: int, base: int) -> tuple[int, int]:
        """Return (low, high) of an entry of a DWARF 5 list.

        Args:
            r: reader after the entry's kind.
            kind: 2, 3, 4, 6 or 7, numbered as in range lists (DW_RLE_*).
            base: base address in force.
        """
        size = die.unit.address_size
        if kind == 4:
            return base + r.uleb(), base + r.uleb()
        if kind in (2, 3):
            low, second = self.indexed(die, r.uleb()), r.uleb()
            return low, self.indexed(die, second) if kind == 2 else low + second
        if kind == 6:
            return r.number(size), r.number(size)
        if kind == 7:
            low = r.number(size)
            return low, low + r.uleb()
        raise ValueError(kind)

    def location(self, die: Die, attribute: int, address: int) -> bytes | None:
        """Return the DWARF expression of a location or frame base that holds at a linked address.
        None if the DIE lacks the attribute, or the attribute has no expression for this address.

        Args:
            die: the DIE.
            attribute: DW_AT_location or DW_AT_frame_base.
            address: the linked address.

        Raises:
            KinstError: the debug information is damaged.
        """
        value = die.attributes.get(attribute)
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return None
        try:
            rows = self._locations(die, attribute, value)
            return next((code for low, high, code in rows if low <= address < high), None)
        except (IndexError, ValueError) as error:
            raise self._damaged(die) from error

    def _locations(self, die: Die, attribute: int, offset: int) -> Iterator[tuple[int, int, bytes]]:
        home, unit = self.home(die), die.unit
        size, base = unit.address_size, home.low
        if unit.version < 5:
            r = self._cursor("loc", offset)
            for low, high in self._old_pairs(r, size, base):
                yield low, high, r.take(r.number(2))  # the expression follows its pair
            return
        if die.forms[attribute] == FORM_LOCLISTX:
            at = home.locations + offset * unit.offset_size
            offset = home.locations + self._cursor("loclists", at).number(unit.offset_size)
        r = self._cursor("loclists", offset)
        default: bytes | None = None
        for _ in range(MOST):
            kind = r.number(1)
            if kind == 0:
                break
            if kind in (1, LLE_BASE_ADDRESS):
                base = self.indexed(die, r.uleb()) if kind == 1 else r.number(size)
            elif kind == LLE_DEFAULT:
                default = r.take(r.uleb())
            else:
                # After the default entry the numbers are one higher than in range lists.
                low, high = self._pair(die, r, kind - (kind > LLE_DEFAULT), base)
                yield low, high, r.take(r.uleb())
        if default is not None:
            yield 0, 1 << 64, default
