"""Location lists drawn at random, written by the tables of DWARF 5 (section 7.7.3) and of DWARF 2
to 4 (section 7.7.3 of DWARF 4): which expression holds at an address."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.image.dwarf.dies import Dies
from kinst.image.dwarf.location_lists import Lists
from kinst.image.dwarf.sections import DebugSections
from kinst.image.elf import open_elf
from tests.image.dwarf_asm import Unit, Value, elf, sleb, uleb

UNIT, VARIABLE = 0x11, 0x34
LOCATION, FRAME_BASE, LOW, ADDR_BASE, LOCLISTS_BASE = 0x02, 0x40, 0x11, 0x73, 0x8C
SEC_OFFSET, LOCLISTX, DATA4, DATA8, EXPRLOC, BLOCK1 = 0x17, 0x22, 0x06, 0x07, 0x18, 0x0A

Row = tuple[int, int, bytes]  # first address, the one behind the last, expression


class Drawn:
    """A unit with one variable, whose location is a list.

    Attributes:
        rows: of the list, in order.
    """

    def __init__(self, seed: int, version: int, indexed: bool) -> None:
        rng = self.rng = random.Random(seed)
        self.version, self.size = version, rng.choice((4, 8))
        self.offset = rng.choice((4, 8))
        top = 0x7000_0000 if self.size == 4 else 0xFFFF_FFFF_8000_0000
        self.low = top + 16 * rng.randrange(1 << 16)
        self.addresses = [top + 16 * rng.randrange(1 << 16) for _ in range(5)]
        self.default = b""
        self.rows: list[Row] = []
        made = self.new() if version >= 5 else self.old()
        self.sections: dict[str, bytes] = {}
        unit = Unit(version, self.offset, self.size)
        bases = [Value(LOW, 0x01, self.address(self.low))]
        before = rng.randbytes(rng.randrange(40))
        if version >= 5:
            head = bytes(20 if self.offset == 8 else 12)
            table, data = self.address_table(rng.randrange(3))
            bases.append(Value(ADDR_BASE, SEC_OFFSET, self.wide(table)))
            self.sections[".debug_addr"] = data
            others = [self.wide(rng.randrange(99)) for _ in range(rng.randrange(4))]
            first = self.wide(self.offset * (len(others) + 1) + len(before))
            base = len(head) + len(before)
            section = before + head + b"".join(others) + first + before + made
            bases.append(Value(LOCLISTS_BASE, SEC_OFFSET, self.wide(base)))
            if indexed:
                value = Value(LOCATION, LOCLISTX, uleb(len(others)))
            else:
                value = Value(LOCATION, SEC_OFFSET, self.wide(len(section) - len(made)))
            self.sections[".debug_loclists"] = section
        else:
            form = SEC_OFFSET if version == 4 else DATA8 if self.offset == 8 else DATA4
            value = Value(LOCATION, form, self.wide(len(before)))
            self.sections[".debug_loc"] = before + made
        unit.entry(UNIT, bases, True)
        unit.here("variable")
        unit.entry(VARIABLE, [value])
        unit.end()
        self.die = unit.places["variable"]
        self.sections |= unit.sections()

    def wide(self, value: int) -> bytes:
        return struct.pack("<I" if self.offset == 4 else "<Q", value)

    def address(self, value: int) -> bytes:
        return struct.pack("<I" if self.size == 4 else "<Q", value)

    def address_table(self, more: int) -> tuple[int, bytes]:
        """Return where the unit's part of .debug_addr is, and the section."""
        head = bytes(16 if self.offset == 8 else 8) + bytes(more * self.size)
        return len(head), head + b"".join(map(self.address, self.addresses))

    def span(self) -> tuple[int, int, bytes]:
        low = self.rng.randrange(300)
        code = self.rng.randbytes(self.rng.choice((0, 1, 3, 130)))
        return low, low + self.rng.randrange(1, 200), code

    def old(self) -> bytes:
        """Return pairs of offsets from the base, each with its expression; pairs of the largest
        address and a new base; zeros at the end."""
        made, base = b"", self.low
        for _ in range(self.rng.randrange(1, 9)):
            if self.rng.random() < 0.3:
                base = self.rng.choice(self.addresses)
                made += self.address((1 << 8 * self.size) - 1) + self.address(base)
                continue
            low, high, code = self.span()
            made += self.address(low) + self.address(high) + struct.pack("<H", len(code)) + code
            self.rows.append((base + low, base + high, code))
        return made + bytes(2 * self.size) + b"\x10\0"

    def new(self) -> bytes:
        made, base = b"", self.low
        for _ in range(self.rng.randrange(1, 12)):
            kind = self.rng.choice((1, 2, 3, 4, 4, 5, 6, 7, 8))
            low, high, code = self.span()
            known = self.rng.randrange(len(self.addresses))
            start = self.addresses[known]
            if kind == 1:  # DW_LLE_base_addressx
                made, base = made + b"\1" + uleb(known), start
                continue
            if kind == 6:  # DW_LLE_base_address
                made, base = made + b"\6" + self.address(start), start
                continue
            made += bytes([kind])
            if kind == 5:  # DW_LLE_default_location, of which a list has at most one
                if self.default:
                    made = made[:-1]
                    continue
                self.default = code = b"\x50" + code
            elif kind == 2:  # DW_LLE_startx_endx
                last = self.rng.randrange(len(self.addresses))
                made += uleb(known) + uleb(last)
                self.rows.append((start, self.addresses[last], code))
            elif kind == 3:  # DW_LLE_startx_length
                made += uleb(known) + uleb(high)
                self.rows.append((start, start + high, code))
            elif kind == 4:  # DW_LLE_offset_pair
                made += uleb(low) + uleb(high)
                self.rows.append((base + low, base + high, code))
            elif kind == 7:  # DW_LLE_start_end
                made += self.address(start) + self.address(start + high)
                self.rows.append((start, start + high, code))
            else:  # DW_LLE_start_length
                made += self.address(start) + uleb(high)
                self.rows.append((start, start + high, code))
            made += uleb(len(code)) + code
        return made + b"\0\x08"

    def at(self, address: int) -> bytes | None:
        rows = [code for low, high, code in self.rows if low <= address < high]
        return rows[0] if rows else self.default or None

    def asked(self) -> Iterator[int]:
        for low, high, _ in self.rows:
            yield from (low - 1, low, low + 1, high - 1, high)


def opened(path: Path, units: list[int]) -> tuple[Dies, Lists]:
    sections = DebugSections(open_elf(path))
    dies = Dies(sections, units)
    return dies, Lists(sections, dies)


@pytest.mark.parametrize("version", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(12))
def test_the_first_that_holds_the_address(seed: int, version: int, tmp_path: Path) -> None:
    drawn = Drawn(seed, version, seed % 2 == 1)
    dies, lists = opened(elf(tmp_path / "file", drawn.sections), [0])
    die = dies.die(drawn.die)
    for address in drawn.asked():
        assert lists.location(die, LOCATION, address) == drawn.at(address), hex(address)
    assert lists.location(die, LOCATION, 5) == (drawn.default or None)
    assert lists.location(die, FRAME_BASE, drawn.low) is None
    for index, address in enumerate(drawn.addresses if version >= 5 else ()):
        assert lists.indexed(die, index) == address


@pytest.mark.parametrize("form", [EXPRLOC, BLOCK1], ids=["exprloc", "block1"])
def test_an_expression_holds_everywhere(form: int, tmp_path: Path) -> None:
    unit = Unit(5)
    unit.entry(UNIT, [], True)
    unit.here("variable")
    unit.entry(VARIABLE, [Value(LOCATION, form, b"\2\x91\x10")])
    unit.end()
    dies, lists = opened(elf(tmp_path / "file", unit.sections()), [0])
    die = dies.die(unit.places["variable"])
    assert lists.location(die, LOCATION, 0) == lists.location(die, LOCATION, 1 << 63) == b"\x91\x10"


DAMAGED = {
    "a kind that there is not": b"\x09\x10\x20\1\x50\0",
    "no end": b"\4\x10\x20\1\x50",
    "cut within an expression": b"\4\x10\x20\x7f\x50",
    "an address that .debug_addr does not have": b"\3\x7f\x20\1\x50\0",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_lists(name: str, tmp_path: Path) -> None:
    unit = Unit(5)
    bases = [Value(LOW, 0x01, struct.pack("<Q", 0x1000)), Value(ADDR_BASE, SEC_OFFSET, bytes(4))]
    unit.entry(UNIT, bases, True)
    unit.here("variable")
    unit.entry(VARIABLE, [Value(LOCATION, SEC_OFFSET, bytes(4)), Value(0x2007, 0x0D, sleb(-3))])
    unit.end()
    sections = {
        **unit.sections(), ".debug_loclists": DAMAGED[name], ".debug_addr": struct.pack("<Q", 7),
    }  # fmt: skip
    dies, lists = opened(elf(tmp_path / "file", sections), [0])
    die = dies.die(unit.places["variable"])
    with pytest.raises(KinstError, match=f"file: damaged debug information at {die.offset:#x}"):
        lists.location(die, LOCATION, 0x1030)


@pytest.mark.parametrize("index", [0, 2])
def test_an_address_by_its_index(index: int, tmp_path: Path) -> None:
    """In a section that holds two, after its header."""
    unit = Unit(5)
    unit.entry(UNIT, [Value(ADDR_BASE, SEC_OFFSET, b"\x08\0\0\0")], True)
    unit.here("label")
    unit.entry(0x0A, [Value(LOW, 0x1B, bytes([index]))])
    unit.end()
    sections = {**unit.sections(), ".debug_addr": bytes(8) + struct.pack("<QQ", 0x1234, 0x5678)}
    dies, lists = opened(elf(tmp_path / "file", sections), [0])
    label = dies.die(unit.places["label"])
    assert lists.ranges(label) == []
    if index == 0:
        assert lists.address(label, LOW) == 0x1234
        return
    with pytest.raises(KinstError, match=f"file: damaged debug information at {label.offset:#x}"):
        lists.address(label, LOW)
