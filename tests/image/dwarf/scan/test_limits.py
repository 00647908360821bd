"""Limits of the scan of debug information: numbers that lead out of their sections, tables that are
shared, full or in another order, entries and headers that are cut off."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinst.core.errors import KinstError
from kinst.image.dwarf import build
from kinst.image.dwarf.dies import Dies
from kinst.image.dwarf.index import Index, open_index
from kinst.image.dwarf.location_lists import Lists
from kinst.image.dwarf.numbers import SCANNED
from kinst.image.dwarf.scan import space
from kinst.image.dwarf.sections import DebugSections
from kinst.image.elf import open_elf
from kinst.image.elf_file import open_file
from tests.image.dwarf_asm import Unit, Value, elf, sleb, uleb
from tests.image.random_dwarf import drawn

NAME, SIZE, LINES, LOW, HIGH, LANGUAGE = 0x03, 0x0B, 0x10, 0x11, 0x12, 0x13
ORIGIN, RANGES, INLINE, SPECIFICATION, DECL_FILE = 0x31, 0x55, 0x20, 0x47, 0x3A
STR_BASE, ADDR_BASE, RNG_BASE, DWO_NAME, GNU_DWO_NAME = 0x72, 0x73, 0x74, 0x76, 0x2130
UNIT, FUNCTION, COPY, STRUCTURE, VARIABLE, MEMBER = 0x11, 0x2E, 0x1D, 0x13, 0x34, 0x0D
LEXICAL_BLOCK = 0x0B
ADDR, DATA1, DATA2, STRING, STRP, REF_ADDR, REF4, REF8, SEC_OFFSET, LINE_STRP = (
    0x01, 0x0B, 0x05, 0x08, 0x0E, 0x10, 0x13, 0x14, 0x17, 0x1F,
)  # fmt: skip
FLAG_PRESENT, GNU_ADDR_INDEX = 0x19, 0x1F01
INDIRECT, IMPLICIT, STRX1, ADDRX1, RNGLISTX = 0x16, 0x21, 0x25, 0x29, 0x23
BASE = 0x7000_0000


def text(name: str) -> Value:
    return Value(NAME, STRING, name.encode() + b"\0")


def code(low: int) -> list[Value]:
    return [Value(LOW, ADDR, struct.pack("<Q", low)), Value(HIGH, DATA1, b"\x20")]


def opened(folder: Path, *units: Unit, **more: bytes) -> Index:
    """Return the index of these units, each with abbreviations of its own."""
    info, table = b"", b""
    for unit in units:
        made = unit.sections()
        at = (4 if unit.offset_size == 4 else 12) + 2 + 2 * (unit.version >= 5)
        body = made[".debug_info"]
        info += body[:at] + struct.pack("<I", len(table)) + body[at + 4 :]
        table += made[".debug_abbrev"]
    sections = {".debug_info": info, ".debug_abbrev": table}
    return open_index(
        elf(folder / "a", sections | {f".{name}": data for name, data in more.items()})
    )


def with_function(unit: Unit, values: list[Value], of_unit: tuple[Value, ...] = ()) -> Unit:
    unit.entry(UNIT, [text("x.c"), *of_unit], True)
    unit.entry(FUNCTION, [*code(BASE), *values])  # the last value of an attribute counts
    unit.end()
    return unit


OUT = {
    "abbreviations": "its abbreviations are damaged or missing",
    "string": "a string lies outside its section", "reference": "a reference leads outside",
    "list": "a range list is damaged", "address": "an address index lies outside .debug_addr",
}  # fmt: skip
# What has an offset of 8 bytes: the function's attribute and form, or the unit's and what the
# function has by index.
FAR: dict[str, tuple[int, int, Value | None, str]] = {
    "strp": (NAME, STRP, None, "string"), "line_strp": (NAME, LINE_STRP, None, "string"),
    "ref_addr": (ORIGIN, REF_ADDR, None, "reference"), "ref8": (ORIGIN, REF8, None, "reference"),
    "ranges": (RANGES, SEC_OFFSET, None, "list"),
    "str_offsets_base": (STR_BASE, SEC_OFFSET, Value(NAME, STRX1, b"\0"), "string"),
    "addr_base": (ADDR_BASE, SEC_OFFSET, Value(LOW, ADDRX1, b"\0"), "address"),
    "rnglists_base": (RNG_BASE, SEC_OFFSET, Value(RANGES, RNGLISTX, b"\0"), "list"),
}  # fmt: skip


@pytest.mark.parametrize("offset", [1 << 63, -1 % 2**64, -2 % 2**64, (1 << 63) - 1, 1 << 32],
                         ids=hex)  # fmt: skip
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("what", [*FAR, "abbreviations"])
def test_offsets_of_eight_bytes(what: str, version: int, offset: int, tmp_path: Path) -> None:
    """They lead past the end of their sections or, taken as signed numbers, before their start."""
    unit, data = Unit(version, 8), struct.pack("<Q", offset)
    more = {f"debug_{name}": bytes(64) for name in (
        "str", "line_str", "str_offsets", "addr", "ranges", "rnglists",
    )}  # fmt: skip
    if what == "abbreviations":
        made = with_function(unit, [text("f")]).sections()
        at = 14 + 2 * (version >= 5)
        info = made[".debug_info"]
        made[".debug_info"] = info[:at] + data + info[at + 8 :]
        path = elf(tmp_path / "a", made | {f".{name}": data for name, data in more.items()})
        with pytest.raises(KinstError, match=f"unit at 0x0: {OUT[what]}"):
            open_index(path)
        return
    attribute, form, indexed, trouble = FAR[what]
    value = Value(attribute, form, data)
    if indexed is None:
        with_function(unit, [text("f"), value])
    else:
        with_function(unit, [text("f"), indexed], (value,))
    with pytest.raises(KinstError, match=f"unit at 0x0: {OUT[trouble]}"):
        opened(tmp_path, unit, **more)


@pytest.mark.parametrize("first", range(6))
def test_units_that_share_abbreviations(first: int, tmp_path: Path) -> None:
    """They differ in the sizes of addresses and offsets, or are of DWARF 2, whose references to
    other units are as long as addresses."""
    shapes = [(4, 4, 8), (4, 4, 4), (4, 8, 8), (2, 4, 8), (4, 4, 8), (4, 8, 8)]
    info, table, wanted = b"", b"", {}
    for k, (version, offset, address) in enumerate(shapes[first:] + shapes[:first]):
        unit, low = Unit(version, offset, address), BASE + 0x100 * k
        unit.entry(UNIT, [text(f"{k}.c")], True)
        whole = address if version == 2 else offset
        values = [Value(0x2007, REF_ADDR, bytes(whole)), Value(0x2008, STRP, bytes(offset))]
        there = [Value(LOW, ADDR, low.to_bytes(address, "little")), Value(HIGH, DATA1, b"\x20")]
        unit.entry(FUNCTION, [*values, text(f"f{k}"), *there, *values])
        unit.end()
        made = unit.sections()
        info += made[".debug_info"]
        assert table in (b"", made[".debug_abbrev"])
        table, wanted[f"f{k}"] = made[".debug_abbrev"], [((low, low + 0x20),)]
    index = open_index(elf(tmp_path / "a", {
        ".debug_info": info, ".debug_abbrev": table, ".debug_str": b"\0",
    }))  # fmt: skip
    assert {name: [f.ranges for f in index.functions(name)] for name in wanted} == wanted
    assert list(index.function_names()) == sorted(wanted)


@pytest.mark.parametrize("count", [5000, 9000])
def test_more_abbreviations_than_are_kept(count: int, tmp_path: Path) -> None:
    """In a unit whose table was forgotten meanwhile, and whose place another one took; or in one
    table."""
    info, table, wanted = b"", b"", []
    places: dict[bool, int] = {}
    for k, odd in enumerate((False, True, False, True)):
        unit = Unit(4, skew=7 * odd)
        with_function(unit, [Value(0x2007, DATA2, b"ab")] * odd + [text(f"f{k}")])
        made = unit.sections()
        if odd not in places:
            places[odd] = len(table)
            more = b"".join(uleb(100 + row) + uleb(MEMBER) + bytes(3) for row in range(count))
            table += made[".debug_abbrev"][:-1] + more + b"\0"
        body = made[".debug_info"]
        info += body[:6] + struct.pack("<I", places[odd]) + body[10:]
        wanted.append(f"f{k}")
    index = open_index(elf(tmp_path / "a", {".debug_info": info, ".debug_abbrev": table}))
    assert list(index.function_names()) == wanted
    assert [f.ranges for name in wanted for f in index.functions(name)] == (
        [((BASE, BASE + 0x20),)] * 4
    )


def test_more_attributes_than_are_kept(tmp_path: Path) -> None:
    """In one abbreviation: the scan begins with room for 65,536."""
    unit = with_function(Unit(4), [text("f"), *[Value(0x2007, FLAG_PRESENT)] * 110_000])
    index = opened(tmp_path, unit)
    assert [f.ranges for f in index.functions("f")] == [((BASE, BASE + 0x20),)]


def test_abbreviations_in_any_order(tmp_path: Path) -> None:
    rows = {
        1: uleb(UNIT) + b"\1" + uleb(NAME) + uleb(STRING), 2: uleb(MEMBER) + b"\0",
        3: uleb(FUNCTION) + b"\0" + uleb(NAME) + uleb(STRING) + uleb(LOW) + uleb(ADDR)
           + uleb(HIGH) + uleb(DATA1),
    }  # fmt: skip
    body = b"\1x.c\0" + b"\3f\0" + struct.pack("<Q", BASE) + b"\x20" + b"\2" + b"\0"
    body = struct.pack("<HIB", 4, 0, 8) + body
    for order in ((1, 2, 3), (3, 1, 2), (2, 3, 1), (3, 2, 1), (1, 3, 2)):
        table = b"".join(uleb(code) + rows[code] + b"\0\0" for code in order) + b"\0"
        sections = {".debug_info": struct.pack("<I", len(body)) + body, ".debug_abbrev": table}
        index = open_index(elf(tmp_path / "a", sections))
        assert [f.ranges for f in index.functions("f")] == [((BASE, BASE + 0x20),)]


def test_cut_abbreviations(tmp_path: Path) -> None:
    """At any byte before the section's end, with or without another section after it."""
    unit = with_function(Unit(4), [Value(0x2007, IMPLICIT, b"", -70000), text("f")])
    made = unit.sections()
    whole = made[".debug_abbrev"]
    for size in range(len(whole)):
        for more in ({}, {".debug_str_offsets": b"\1" * 64}):
            sections = made | more | {".debug_abbrev": whole[:size]}
            with pytest.raises(KinstError, match=f"unit at 0x0: {OUT['abbreviations']}"):
                open_index(elf(tmp_path / "a", sections))


def test_abbreviations_that_are_read_again_and_again(tmp_path: Path) -> None:
    """Units alternate between two tables, and the scan has room for one of them (their offsets have
    one place in its memory): an error, instead of a scan without an end."""
    long = b"\x80" * 16 + b"\0"  # of a number: it makes it 18 bytes long
    unit = uleb(1) + uleb(UNIT) + bytes(3)
    rows = unit + b"".join(b"\x82" + long + b"\x8d" + long + bytes(3) for _ in range(100))
    other = 4100
    table = rows.ljust(other, b"\0") + unit + b"\0"
    one, two = (struct.pack("<IHIBB", 8, 4, at, 8, 1) for at in (0, other))
    sections = {".debug_info": (one + two) * 200, ".debug_abbrev": table}
    with pytest.raises(KinstError, match="its lists are longer than the sections they are in"):
        open_index(elf(tmp_path / "a", sections))
    index = open_index(elf(tmp_path / "b", sections | {".debug_info": one * 200 + two * 200}))
    assert len(index.units) == 400


def test_each_of_many_units_has_a_line_table(tmp_path: Path) -> None:
    """No table is read twice, so the work stays below the limit."""
    fixed = bytes([1, 1, 1, 0, 1, 1]) + b"\0" + b"\0"
    body = struct.pack("<HI", 4, len(fixed)) + fixed
    table = struct.pack("<I", len(body)) + body
    info, abbreviations = b"", uleb(1) + uleb(UNIT) + b"\0" + uleb(LINES) + uleb(SEC_OFFSET)
    for k in range(600):
        info += struct.pack("<IHIBBI", 12, 4, 0, 8, 1, k * len(table))
    index = open_index(elf(tmp_path / "a", {
        ".debug_info": info, ".debug_abbrev": abbreviations + bytes(3), ".debug_line": table * 600,
    }))  # fmt: skip
    assert [index.lines_of(unit).offset for unit in index.units] == [
        k * len(table) for k in range(600)
    ]


@pytest.mark.parametrize("data", [b"\x16\x0b\1", b"\x21\1", b"\x70\1", b"\xff\xff\x03\1", b"\0"],
                         ids=bytes.hex)  # fmt: skip
@pytest.mark.parametrize("attribute", [NAME, 0x2007], ids=hex)
def test_indirect_forms(attribute: int, data: bytes, tmp_path: Path) -> None:
    """An indirect form, a constant in the abbreviations, and unknown forms (DWARF 5, 7.5.3)."""
    unit = with_function(Unit(5), [Value(attribute, INDIRECT, data)])
    with pytest.raises(KinstError, match="unit at 0x0: an attribute has a form that DWARF 5 does"):
        opened(tmp_path, unit)


def test_a_form_of_0(tmp_path: Path) -> None:
    """It ends an abbreviation if the attribute is 0 as well (7.5.3); otherwise it is damage."""
    unit = Unit(5)
    unit.entry(UNIT, [text("x.c"), Value(0x2007, 0)])
    with pytest.raises(KinstError, match="unit at 0x0: an attribute has a form that DWARF 5 does"):
        opened(tmp_path, unit)


@pytest.mark.parametrize("cut", [b"\x80", b"\xff\xff", b"\x81\x80\x80"], ids=bytes.hex)
def test_a_cut_abbreviation_code(cut: bytes, tmp_path: Path) -> None:
    """At the end of its unit, no matter how the next one begins."""
    unit = Unit(4)
    unit.entry(UNIT, [text("x.c")], True)
    unit.entry(FUNCTION, [text("f"), *code(BASE)])
    unit.info += cut
    for more in ([], [with_function(Unit(4), [text("g")])]):
        with pytest.raises(KinstError, match="unit at 0x0: it is cut off inside an entry"):
            opened(tmp_path, unit, *more)


@pytest.mark.parametrize("wide", [False, True], ids=["32-bit", "64-bit"])
@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_cut_headers(version: int, wide: bool, tmp_path: Path) -> None:
    """By their own lengths, or by the section's end; a complete header may be the last thing in the
    section."""
    unit = Unit(version, 8 if wide else 4)
    unit.entry(UNIT, [text("x.c")])
    made = unit.sections()
    whole = made[".debug_info"]
    ahead = 12 if wide else 4

    def said(size: int, data: bytes) -> Index:
        length = struct.pack("<IQ", 2**32 - 1, size) if wide else struct.pack("<I", size)
        return open_index(elf(tmp_path / "a", made | {".debug_info": (length + data)}))

    header = unit.header_size - ahead
    for size in range(header):
        for data in (whole[ahead : ahead + size], whole[ahead:]):
            with pytest.raises(KinstError, match="unit at 0x0: its header is damaged"):
                said(size, data[:size])
    assert list(said(header, whole[ahead : ahead + header]).units) == [0]
    for size in range(1, len(whole)):
        with pytest.raises(KinstError, match="unit at 0x0: its header is damaged"):
            open_index(elf(tmp_path / "a", made | {".debug_info": whole[:size]}))


@pytest.mark.parametrize("kind", [0, 4, 5, 6, 7, 128, 255])
def test_kinds_of_units_that_are_not_read(kind: int, tmp_path: Path) -> None:
    """Skeletons and split units are split DWARF; type units of those, and kinds that DWARF 5 does
    not define, occur only in other files."""
    said = "it is split DWARF" if kind in (4, 5) else "its header is damaged"
    with pytest.raises(KinstError, match=f"unit at 0x0: {said}"):
        opened(tmp_path, with_function(Unit(5, kind=kind), [text("f")]))


def test_what_stands_behind_a_nested_function(tmp_path: Path) -> None:
    """gcc's functions inside of functions: variables after them belong to the outer one."""
    unit = Unit(4)
    unit.entry(UNIT, [text("x.c")], True)
    unit.entry(FUNCTION, [text("outer"), *code(BASE)], True)
    unit.entry(FUNCTION, [text("inner"), *code(BASE + 0x40)], True)
    unit.end()
    unit.entry(VARIABLE, [text("hidden")])
    unit.end()
    unit.entry(VARIABLE, [text("shown")])
    unit.end()
    index = opened(tmp_path, unit)
    assert list(index.function_names()) == ["inner", "outer"]
    assert [len(index.variables(name)) for name in ("hidden", "shown")] == [0, 1]


def test_entries_that_are_nested_too_deeply(tmp_path: Path) -> None:
    unit = Unit(4)
    for tag in (UNIT, FUNCTION, *[LEXICAL_BLOCK] * 2000):
        unit.entry(tag, [], True)
    with pytest.raises(KinstError, match="unit at 0x0: its entries are nested too deeply"):
        opened(tmp_path, unit)


@pytest.mark.parametrize("kind", [1, 3])
def test_kinds_of_units_that_are_read(kind: int, tmp_path: Path) -> None:
    """Compilation and partial units, which have the same header (7.5.1.1)."""
    index = opened(tmp_path, with_function(Unit(5, kind=kind), [text("f")]))
    assert list(index.function_names()) == ["f"]


@pytest.mark.parametrize("attribute", [DWO_NAME, GNU_DWO_NAME], ids=hex)
def test_units_that_are_elsewhere(attribute: int, tmp_path: Path) -> None:
    unit = with_function(Unit(4), [text("f")], (Value(attribute, STRING, b"x.dwo\0"),))
    with pytest.raises(KinstError, match="unit at 0x0: it is split DWARF") as caught:
        opened(tmp_path, unit)
    assert caught.value.hint == "build with -gno-split-dwarf"


@pytest.mark.parametrize("attribute", [0x2119, 0x3E00, 0x3FE1], ids=hex)
def test_attributes_that_compilers_add(attribute: int, tmp_path: Path) -> None:
    """DW_AT_GNU_macros, DW_AT_LLVM_include_path, DW_AT_APPLE_optimized: none says that the unit is
    in another file."""
    unit = with_function(Unit(4), [text("f")], (Value(attribute, STRING, b"a\0"),))
    assert list(opened(tmp_path, unit).function_names()) == ["f"]


@pytest.mark.parametrize("count", [63, 64, 65, 66, 128, 129, 130, 200])
def test_more_than_there_is_room_for(count: int, tmp_path: Path) -> None:
    """Variables, types that differ only in size, functions, their copies and ranges, in two units
    that both have the types: all are found, the types once."""
    strings = b"\0t\0"
    dies: dict[str, list[int]] = {}
    units, start = list[Unit](), 0
    for part in range(2):
        unit = Unit(4)
        unit.entry(UNIT, [text("x.c"), Value(LANGUAGE, DATA1, b"\x0c")], True)

        def note(kind: str, unit: Unit = unit, start: int = start) -> int:
            unit.here(kind)
            dies.setdefault(kind, []).append(start + unit.places[kind])
            return unit.places[kind]

        for _ in range(count // 2 if part == 0 else count - count // 2):
            note("variable")
            unit.entry(VARIABLE, [text("v")])
        for k in range(count):
            note(f"type{part}")
            size = Value(SIZE, DATA2, struct.pack("<H", k))
            unit.entry(STRUCTURE, [Value(NAME, STRP, b"\1\0\0\0"), size])
        for k in range(count // 2 if part == 0 else count - count // 2):
            at = struct.pack("<I", note("function"))
            unit.entry(FUNCTION, [text("f"), Value(INLINE, DATA1, b"\1")])
            unit.entry(FUNCTION, [text("main"), *code(BASE + 0x40 * k)], True)
            note("copy")
            unit.entry(COPY, [Value(ORIGIN, REF4, at), *code(BASE + 0x40 * k)])
            unit.end()
        unit.end()
        units.append(unit)
        start += len(unit.sections()[".debug_info"])
    index = opened(tmp_path, *units, debug_str=strings)
    assert [one.die for one in index.variables("v")] == dies["variable"]
    assert [one.die for one in index.types("t")] == dies["type0"]
    assert [one.die for one in index.functions("f")] == dies["function"]
    assert [one.die for one in index.copies("f")] == dies["copy"]
    halves = [*range(count // 2), *range(count - count // 2)]
    spans = [((BASE + 0x40 * k, BASE + 0x40 * k + 0x20),) for k in halves]
    assert [one.ranges for one in index.copies("f")] == spans
    assert [one.ranges for one in index.functions("main")] == spans


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("count", [100, 127, 128, 129, 130, 300])
def test_long_range_lists(count: int, version: int, tmp_path: Path) -> None:
    spans = [(BASE + 16 * k, BASE + 16 * k + 8) for k in range(count)]
    if version == 4:
        rows = b"".join(struct.pack("<QQ", *span) for span in [*spans, (0, 0)])
    else:
        rows = b"".join(b"\6" + struct.pack("<QQ", *span) for span in spans) + b"\0"
    unit = Unit(version)
    unit.entry(UNIT, [text("x.c")], True)
    unit.entry(FUNCTION, [text("f"), Value(RANGES, SEC_OFFSET, b"\4\0\0\0")])
    unit.end()
    name = "debug_ranges" if version == 4 else "debug_rnglists"
    (found,) = opened(tmp_path, unit, **{name: b"\1\2\3\4" + rows}).functions("f")
    assert found.ranges == tuple(spans)


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_files_of_another_unit(number: int, tmp_path: Path) -> None:
    """A unit without a line table has no files, even if the unit before it has some."""
    lines = b"".join(b"f%d\0" % k for k in range(1)) + b"\0" + b"a.c\0\1\0\0b.c\0\0\0\0\0"
    fixed = bytes([1, 1, 1, 0, 1, 10, 0, 1, 1, 1, 1, 0, 0, 0, 1])
    body = struct.pack("<HI", 4, len(fixed) + len(lines)) + fixed + lines
    units = []
    for k, of_unit in enumerate(((Value(LINES, SEC_OFFSET, bytes(4)),), ())):
        value = Value(DECL_FILE, 0x0D, sleb(number))
        units.append(with_function(Unit(4), [text(f"f{k}"), value], of_unit))
    index = opened(tmp_path, *units, debug_line=struct.pack("<I", len(body)) + body)
    paths = ["", "f0/a.c", "b.c", ""]
    assert [index.functions(f"f{k}")[0].decl_file for k in range(2)] == [paths[number], ""]


def test_addresses_by_index_before_dwarf_5(tmp_path: Path) -> None:
    """GNU's form: .debug_addr has no header, and a unit that does not say where its own addresses
    are has the first ones; in the index and in single entries."""
    unit, addresses = Unit(4), struct.pack("<QQQ", 0, BASE, BASE + 0x100)
    unit.entry(UNIT, [text("x.c")], True)
    for k in (1, 2):
        values = [Value(LOW, GNU_ADDR_INDEX, bytes([k])), Value(HIGH, DATA1, b"\x20")]
        unit.entry(FUNCTION, [text(f"f{k}"), *values])
    unit.end()
    index = opened(tmp_path, unit, debug_addr=addresses)
    sections = DebugSections(open_elf(tmp_path / "a"))
    dies = Dies(sections, index.units)
    for k, low in ((1, BASE), (2, BASE + 0x100)):
        (found,) = index.functions(f"f{k}")
        assert found.ranges == ((low, low + 0x20),)
        assert Lists(sections, dies).ranges(dies.die(found.die)) == [(low, low + 0x20)]


class Numpy:
    """numpy, whose empty() returns memory with these words in it, repeated."""

    def __init__(self, words: Any) -> None:
        self.words = words

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, size: int, dtype: Any) -> Any:
        return np.resize(self.words, size).astype(dtype)


def test_memory_for_a_whole_kernel() -> None:
    """The scan begins with less memory than the debug information takes."""
    sections = {name: np.zeros(0, dtype=np.uint8) for name in SCANNED}
    sections["info"] = np.zeros(1 << 28, dtype=np.uint8)
    assert space.words(space.make_space(sections)).nbytes < 1 << 28


@pytest.mark.parametrize("seed", range(70, 76))
def test_memory_as_it_comes(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The initial content of its memory does not matter."""
    sections = {name: bytes(data) for name, data in drawn(seed).sections.items()}
    file = open_file(elf(tmp_path / "file", sections))
    noise = np.random.default_rng(seed).integers(-(1 << 63), 1 << 63, 4999)
    small = np.random.default_rng(seed).integers(0, 50, 4999)
    made = []
    for words in (np.zeros(1, np.int64), noise, small, np.full(1, -1, np.int64)):
        monkeypatch.setattr(space, "np", Numpy(words))
        made.append(build.build(file, lambda part: None))
    for other in made[1:]:
        assert other.keys() == made[0].keys()
        for name, array in made[0].items():
            assert np.array_equal(other[name], array), name


def test_memory_that_another_scan_has_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are not cleared: entries that another file left, with abbreviations at the same place,
    are not used for this one."""

    def file(k: int) -> Path:
        unit = with_function(Unit(4), [Value(0x2007, DATA2, b"ab")] * k + [text("f" * (3 - 2 * k))])
        made = unit.sections()
        body = made[".debug_info"]
        table = bytes(700) + made[".debug_abbrev"]
        info = body[:6] + struct.pack("<I", 700) + body[10:]
        return elf(tmp_path / f"file{k}", {".debug_info": info, ".debug_abbrev": table})

    left: list[Any] = [np.zeros(1, np.int64)]
    for k, names in enumerate((["fff"], ["f"])):
        monkeypatch.setattr(space, "np", Numpy(left[-1]))
        found = build._scan(DebugSections(open_elf(file(k))), lambda part: None)
        left.append(space.words(found))
        assert list(open_index(file(k)).function_names()) == names
    assert len(left[1]) == len(left[2])
