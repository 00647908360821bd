"""Every form and every kind of range list, in debug information written by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.core.inline import InlineCopy
from kinst.image.dwarf.index import open_index
from tests.image.dwarf_asm import Unit, Value, elf, sleb, uleb

NAME, LOW, HIGH, INLINE, ORIGIN, RANGES = 0x03, 0x11, 0x12, 0x20, 0x31, 0x55
CALL_FILE, CALL_LINE, ENTRY, SIBLING, LANGUAGE = 0x58, 0x59, 0x52, 0x01, 0x13
STR_BASE, ADDR_BASE, RNG_BASE = 0x72, 0x73, 0x74
UNIT, FUNCTION, COPY = 0x11, 0x2E, 0x1D

BASE = 0xFFFF_FFFF_8100_0000
STRINGS = b"\0zero\0twice\0main\0"
TWICE, MAIN = STRINGS.index(b"twice"), STRINGS.index(b"main")
OFFSETS = [0, TWICE, MAIN]
ADDRESSES = [0, BASE + 0x10, BASE + 0x40, BASE + 0x80]


def text(value: bytes) -> tuple[int, bytes]:
    return 0x08, value + b"\0"


def build(
    path: Path,
    *,
    twice: tuple[int, bytes] = text(b"twice"),
    ref: int = 0x13,
    where: Sequence[Value] = (),
    before: Sequence[Value] = (),
    version: int = 5,
    offset_size: int = 4,
    address_size: int = 8,
    low: int = BASE,
    skew: int = 0,
    extra: dict[str, bytes] | None = None,
    compress: bool = False,
) -> Path:
    """Build a file with the function twice() and a copy of it in main(), with the given attributes.

    Args:
        twice: form and bytes of the function's name.
        ref: form of references to it.
        where: the copy's addresses.
        before: other attributes of the copy, in front.
    """
    unit = Unit(version, offset_size, address_size, skew=skew)
    wide = "<I" if offset_size == 4 else "<Q"
    sections = dict(extra or {})
    bases = []
    if version >= 5:
        head = 8 if offset_size == 4 else 16
        for attribute, at in ((STR_BASE, head), (ADDR_BASE, head), (RNG_BASE, head + 4)):
            bases.append(Value(attribute, 0x17, struct.pack(wide, at)))
        sections.setdefault(
            ".debug_str_offsets", bytes(head) + b"".join(struct.pack(wide, o) for o in OFFSETS)
        )
        sections.setdefault(
            ".debug_addr", bytes(head) + b"".join(struct.pack("<Q", a) for a in ADDRESSES)
        )
    lows = struct.pack("<Q" if address_size == 8 else "<I", low & (1 << 8 * address_size) - 1)
    # The bases come after the attributes that need them, which is allowed.
    name = Value(NAME, 0x25, b"\1") if version >= 5 else Value(NAME, *text(b"x.c"))
    unit.entry(UNIT, [name, Value(LOW, 0x01, lows), *bases], True)
    unit.here("twice")
    unit.entry(FUNCTION, [Value(NAME, *twice), Value(INLINE, 0x0B, b"\1")])
    unit.entry(FUNCTION, [Value(NAME, *text(b"main"))], True)
    unit.here("copy")
    at = unit.places["twice"]
    data = {
        0x10: struct.pack("<Q" if version == 2 and address_size == 8 else wide, at),
        0x11: bytes([at]), 0x12: struct.pack("<H", at), 0x13: struct.pack("<I", at),
        0x14: struct.pack("<Q", at), 0x15: uleb(at), 0x16: uleb(0x13) + struct.pack("<I", at),
    }.get(ref, bytes(8))[: 8 if ref != 0x1F20 else offset_size]  # fmt: skip
    unit.entry(COPY, [*before, Value(ORIGIN, ref, data), *where, Value(CALL_LINE, 0x0B, b"\x2a")])
    unit.end()
    unit.end()
    sections = {".debug_str": STRINGS, ".debug_line_str": STRINGS, **sections, **unit.sections()}
    return elf(path, sections, compress)


def only(path: Path) -> InlineCopy:
    index = open_index(path)
    (copy,) = index.copies("twice")
    assert index.inline_names() == ["twice"]
    assert (copy.caller, copy.call_line, copy.within) == ("main", 42, ())
    return copy


ADDR = [Value(LOW, 0x01, struct.pack("<Q", BASE + 0x10)), Value(HIGH, 0x0B, b"\x20")]
RANGE = ((BASE + 0x10, BASE + 0x30),)


@pytest.mark.parametrize(
    "name",
    [
        text(b"twice"), (0x0E, struct.pack("<I", TWICE)), (0x1F, struct.pack("<I", TWICE)),
        (0x1A, b"\1"), (0x25, b"\1"), (0x26, b"\1\0"), (0x27, b"\1\0\0"), (0x28, b"\1\0\0\0"),
        (0x1F02, b"\1"), (0x16, uleb(0x0E) + struct.pack("<I", TWICE)), (0x16, b"\x08twice\0"),
    ],
    ids=lambda name: f"{name[0]:#x}",
)  # fmt: skip
def test_names(name: tuple[int, bytes], tmp_path: Path) -> None:
    assert only(build(tmp_path / "a", twice=name, where=ADDR)).ranges == RANGE


@pytest.mark.parametrize("ref", [0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16], ids=hex)
@pytest.mark.parametrize("version", [2, 3, 4, 5])
@pytest.mark.parametrize("offset_size", [4, 8])
def test_references(ref: int, version: int, offset_size: int, tmp_path: Path) -> None:
    path = build(
        tmp_path / "a", ref=ref, version=version, offset_size=offset_size, where=ADDR
    )  # fmt: skip
    copy = only(path)
    assert (copy.ranges, copy.entry) == (RANGE, BASE + 0x10)


@pytest.mark.parametrize(
    "form",
    [(0x1B, b"\1"), (0x29, b"\1"), (0x2A, b"\1\0"), (0x2B, b"\1\0\0"), (0x2C, b"\1\0\0\0"),
     (0x1F01, b"\1"), (0x01, struct.pack("<Q", BASE + 0x10)),
     (0x16, uleb(0x1B) + b"\1")],
    ids=lambda form: f"{form[0]:#x}",
)  # fmt: skip
def test_addresses(form: tuple[int, bytes], tmp_path: Path) -> None:
    """DW_AT_low_pc and, as an address, DW_AT_high_pc."""
    high = form[1][:-1] + b"\2" if form[0] in (0x1B, 0x29, 0x1F01) else None
    where = [Value(LOW, *form)]
    if high is not None:
        where.append(Value(HIGH, form[0], high))
        assert only(build(tmp_path / "a", where=where)).ranges == ((BASE + 0x10, BASE + 0x40),)
    else:
        where.append(Value(HIGH, 0x01, struct.pack("<Q", BASE + 0x44)))
        assert only(build(tmp_path / "a", where=where)).ranges == ((BASE + 0x10, BASE + 0x44),)


def test_each_byte_of_an_address(tmp_path: Path) -> None:
    """All eight bytes differ, the lowest first."""
    low = Value(LOW, 0x01, bytes.fromhex("10 32 54 76 98 ba dc 0e"))
    copy = only(build(tmp_path / "a", where=[low, ADDR[1]]))
    assert copy.ranges == ((0x0EDC_BA98_7654_3210, 0x0EDC_BA98_7654_3230),)


@pytest.mark.parametrize(
    "high",
    [Value(HIGH, 0x0B, b"\x20"), Value(HIGH, 0x05, b"\x20\0"), Value(HIGH, 0x06, b"\x20\0\0\0"),
     Value(HIGH, 0x07, b"\x20" + bytes(7)), Value(HIGH, 0x0F, b"\x20"),
     Value(HIGH, 0x0D, sleb(32)), Value(HIGH, 0x21, b"", 32), Value(HIGH, 0x16, b"\x0b\x20")],
    ids=lambda value: f"{value.form:#x}",
)  # fmt: skip
def test_high_pc_is_an_offset(high: Value, tmp_path: Path) -> None:
    assert only(build(tmp_path / "a", where=[ADDR[0], high])).ranges == RANGE


@pytest.mark.parametrize(
    "other",
    [
        Value(0x2007, form, data)
        for form, data in (
            (0x0A, b"\3abc"), (0x03, b"\3\0abc"), (0x0D, b"\xff\x7f"), (0x04, b"\3\0\0\0abc"),
            (0x09, b"\3abc"), (0x18, b"\0"), (0x1E, bytes(16)), (0x0C, b"\1"), (0x19, b""),
            (0x20, bytes(8)), (0x22, b"\x81\1"), (0x23, b"\5"), (0x1C, bytes(4)),
            (0x24, bytes(8)), (0x1D, bytes(4)), (0x1F20, bytes(4)), (0x1F21, bytes(4)),
            (0x17, bytes(4)), (0x16, b"\x08abc\0"), (0x0F, b"\x80\1"), (0x16, b"\x19"),
            (0x1E, b"\xff" * 16), (0x16, b"\x1e" + b"\x80" * 16), (0x16, b"\x09\3abc"),
        )
    ] + [Value(0x2007, 0x21, b"", -5), Value(0, 0x0B, b"\1")],
    ids=lambda value: f"{value.form:#x}",
)  # fmt: skip
def test_others_are_stepped_over(other: Value, tmp_path: Path) -> None:
    assert only(build(tmp_path / "a", before=[other], where=ADDR)).ranges == RANGE


PAIR = struct.pack("<QQ", BASE + 0x10, BASE + 0x18)
LISTS = {
    "offset_pair": (b"\4\x10\x18\0", [(BASE + 0x10, BASE + 0x18)]),
    "base_address": (
        b"\5" + struct.pack("<Q", 0x1000) + b"\4\x10\x18\4\x20\x21\0",
        [(0x1010, 0x1018), (0x1020, 0x1021)],
    ),
    "base_addressx": (b"\1\2\4\x10\x18\0", [(BASE + 0x50, BASE + 0x58)]),
    "startx_endx": (b"\2\1\2\0", [(BASE + 0x10, BASE + 0x40)]),
    "startx_length": (b"\3\1\7\0", [(BASE + 0x10, BASE + 0x17)]),
    "start_end": (b"\6" + PAIR + b"\0", [(BASE + 0x10, BASE + 0x18)]),
    "start_length": (b"\7" + PAIR[:8] + b"\x80\1\0", [(BASE + 0x10, BASE + 0x90)]),
    "empty ones are no code": (
        b"\4\x10\x10\4\x20\x28\4\x30\x30\0", [(BASE + 0x20, BASE + 0x28)]
    ),
    "nothing": (b"\0", []),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("indexed", [False, True], ids=["sec_offset", "rnglistx"])
def test_range_lists(name: str, indexed: bool, tmp_path: Path) -> None:
    data, expected = LISTS[name]
    section = bytes(12) + struct.pack("<I", 4) + data
    value = Value(RANGES, 0x23, b"\0") if indexed else Value(RANGES, 0x17, struct.pack("<I", 16))
    copy = only(build(tmp_path / "a", where=[value], extra={".debug_rnglists": section}))
    assert copy.ranges == tuple(expected)
    first = {"empty ones are no code": BASE + 0x10, "nothing": None}
    assert copy.entry == first.get(name, expected[0][0] if expected else None)


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("low", [0, BASE], ids=hex)
@pytest.mark.parametrize("size", [4, 8])
def test_old_range_lists(version: int, low: int, size: int, tmp_path: Path) -> None:
    """Relative to the unit's low_pc, or to a base that the list selects; a range that ends before
    it begins is no code, and does not end the list."""
    low &= (1 << 8 * size) - 1
    code = "<QQ" if size == 8 else "<II"
    top = (1 << 8 * size) - 1
    pairs = [(0x10, 0x18), (0x20, 0x20), (0x28, 0), (top, 0x5000), (0x10, 0x1C), (0, 0)]
    data = bytes(8) + b"".join(struct.pack(code, *pair) for pair in pairs)
    value = Value(RANGES, 0x17 if version == 4 else 0x06, struct.pack("<I", 8))
    copy = only(
        build(
            tmp_path / "a", version=version, low=low, address_size=size, where=[value],
            extra={".debug_ranges": data},
        )
    )  # fmt: skip
    assert copy.ranges == ((low + 0x10, low + 0x18), (0x5010, 0x501C))
    assert copy.entry == low + 0x10


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (Value(ENTRY, 0x01, struct.pack("<Q", BASE + 0x14)), BASE + 0x14),
        (Value(ENTRY, 0x1B, b"\2"), BASE + 0x40),
        (Value(ENTRY, 0x0B, b"\6"), BASE + 0x16),
        # -(1 << 40) in ten bytes, whose last ones have no bits of a number of 64 bits.
        (
            Value(ENTRY, 0x0D, b"\x80" * 5 + b"\xe0" + b"\xff" * 3 + b"\x7f"),
            BASE + 0x10 - (1 << 40),
        ),
        (Value(0x2007, 0x0B, b"\6"), BASE + 0x10),
    ],
    ids=["address", "index", "offset", "far below", "absent"],
)
def test_entry(entry: Value, expected: int, tmp_path: Path) -> None:
    assert only(build(tmp_path / "a", where=[*ADDR, entry])).entry == expected


def test_a_copy_without_addresses(tmp_path: Path) -> None:
    copy = only(build(tmp_path / "a"))
    assert (copy.entry, copy.ranges) == (None, ())


def test_a_copy_outside_of_functions(tmp_path: Path) -> None:
    """No compiler writes one: it belongs to no function."""
    unit = Unit(4)
    unit.entry(UNIT, [Value(NAME, *text(b"x.c"))], True)
    unit.here("twice")
    unit.entry(FUNCTION, [Value(NAME, *text(b"twice")), Value(INLINE, 0x0B, b"\1")])
    at = struct.pack("<I", unit.places["twice"])
    unit.entry(COPY, [Value(ORIGIN, 0x13, at), *ADDR])
    unit.entry(FUNCTION, [Value(NAME, *text(b"main")), *ADDR])
    unit.end()
    (copy,) = open_index(elf(tmp_path / "a", unit.sections())).copies("twice")
    assert (copy.caller, copy.within, copy.ranges) == ("", (), RANGE)


def test_a_copy_of_what_is_no_function(tmp_path: Path) -> None:
    """Its origin comes after all functions, and is a type: it is ignored."""
    unit = Unit(4)
    unit.entry(UNIT, [Value(NAME, *text(b"x.c"))], True)
    unit.entry(FUNCTION, [Value(NAME, *text(b"main")), *ADDR], True)
    place = (
        unit.header_size + len(unit.info) + 1
    )  # offset of the reference, after the next entry's code
    unit.entry(COPY, [Value(ORIGIN, 0x13, b"HERE"), *ADDR])
    unit.end()
    unit.here("type")
    unit.entry(0x24, [Value(NAME, *text(b"int"))])
    unit.end()
    sections = unit.sections()
    info = sections[".debug_info"]
    assert info[place : place + 4] == b"HERE"
    at = struct.pack("<I", unit.places["type"])
    sections[".debug_info"] = info[:place] + at + info[place + 4 :]
    index = open_index(elf(tmp_path / "a", sections))
    assert list(index.inline_names()) == [] and index.copies_at(BASE + 0x10) == []
    assert [one.ranges for one in index.functions("main")] == [RANGE]


def test_a_copy_where_there_is_no_function(tmp_path: Path) -> None:
    unit = Unit(4)
    unit.entry(UNIT, [Value(NAME, *text(b"x.c"))], True)
    unit.here("type")
    unit.entry(0x24, [Value(NAME, *text(b"int"))])
    at = struct.pack("<I", unit.places["type"])
    unit.entry(COPY, [Value(ORIGIN, 0x13, at), *ADDR])
    unit.end()
    index = open_index(elf(tmp_path / "a", unit.sections()))
    assert not list(index.inline_names()) and not list(index.function_names())
    assert index.copies_at(BASE + 0x10) == []


def test_code_without_a_name(tmp_path: Path) -> None:
    """It belongs to no function that can be looked up; its neighbours are unchanged."""
    unit = Unit(4)
    unit.entry(UNIT, [Value(NAME, *text(b"x.c"))], True)
    unit.entry(FUNCTION, [Value(LOW, 0x01, struct.pack("<Q", BASE)), Value(HIGH, 0x0B, b"\x08")])
    unit.entry(FUNCTION, [Value(NAME, *text(b"main")), *ADDR])
    unit.end()
    index = open_index(elf(tmp_path / "a", unit.sections()))
    assert list(index.function_names()) == ["main"]
    assert [one.ranges for one in index.functions("main")] == [RANGE]


@pytest.mark.parametrize("skew", [125, 100_000])
def test_sparse_abbreviation_codes(skew: int, tmp_path: Path) -> None:
    """On both sides of 128, where codes begin to have more than one byte."""
    assert only(build(tmp_path / "a", where=ADDR, skew=skew)).ranges == RANGE


@pytest.mark.parametrize("form", [0x0A, 0x03, 0x04, 0x09], ids=hex)
def test_an_empty_block_at_the_very_end(form: int, tmp_path: Path) -> None:
    """The unit does not end its lists of entries."""
    unit = Unit(4)
    unit.entry(UNIT, [Value(NAME, *text(b"x.c"))], True)
    empty = bytes({0x0A: 1, 0x03: 2, 0x04: 4, 0x09: 1}[form])
    unit.entry(FUNCTION, [Value(NAME, *text(b"main")), *ADDR, Value(0x2007, form, empty)])
    index = open_index(elf(tmp_path / "a", unit.sections()))
    assert [one.ranges for one in index.functions("main")] == [RANGE]


def test_a_sibling_of_what_has_no_children(tmp_path: Path) -> None:
    """The next entry is its sibling (DWARF 5, 2.3), no matter what the attribute says."""
    unit = Unit(4)
    unit.entry(UNIT, [Value(NAME, *text(b"x.c")), Value(LANGUAGE, 0x0B, b"\x0c")], True)
    behind = unit.header_size + len(unit.info) + 5 + 15  # this entry and the next
    unit.entry(0x13, [Value(SIBLING, 0x13, struct.pack("<I", behind))])
    unit.entry(FUNCTION, [Value(NAME, *text(b"main")), *ADDR])
    assert unit.header_size + len(unit.info) == behind
    unit.end()
    index = open_index(elf(tmp_path / "a", unit.sections()))
    assert [one.ranges for one in index.functions("main")] == [RANGE]


def test_compressed(tmp_path: Path) -> None:
    assert only(build(tmp_path / "a", where=ADDR, compress=True)).ranges == RANGE


@pytest.mark.parametrize(
    ("form", "data"),
    [(0x0A, b"\x05ab"), (0x03, b"\x05\0ab"), (0x04, b"\x05\0\0\0ab"), (0x09, b"\x05ab"),
     (0x0A, b""), (0x03, b"\x05"), (0x04, bytes(3)),
     (0x18, b"\x05ab"), (0x06, b"abc"), (0x07, b"abcd"), (0x1E, bytes(15)), (0x08, b"abc"),
     (0x0F, b"\x80\x80"), (0x0D, b"\xff"), (0x16, b"\x06abc"), (0x16, b"\x09\x03ab"), (0x16, b"")],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("tag", [FUNCTION, 0x0D], ids=["function", "member"])
@pytest.mark.parametrize("more", [0, 1, 40])
def test_a_value_that_leads_into_the_next_unit(
    form: int, data: bytes, tag: int, more: int, tmp_path: Path
) -> None:
    """The last value of a unit, without the ends of the entries above, which some compilers leave
    out; or with as many bytes after it.  Entries of some tags are only stepped over."""
    unit = Unit(5)
    unit.entry(UNIT, [Value(NAME, *text(b"x.c"))], True)
    behind = [Value(0x2008, 0x0C)] * more
    unit.entry(tag, [Value(NAME, *text(b"main")), Value(0x2007, form, data), *behind])
    sections = unit.sections()
    following = Unit(5)
    following.entry(UNIT, [Value(NAME, *text(b"next.c\0" * 9))])
    info = sections[".debug_info"] + following.sections()[".debug_info"]
    with pytest.raises(KinstError, match="unit at 0x0: it is cut off inside an entry"):
        open_index(elf(tmp_path / "a", {**sections, ".debug_info": info}))


@pytest.mark.parametrize("offset_size", [4, 8])
def test_references_out_of_the_section(offset_size: int, tmp_path: Path) -> None:
    """To an offset after all units or, if the form can express it, before them."""
    for at in (b"\xff" * offset_size, b"\0\0\1" + bytes(offset_size - 3)):
        unit = Unit(5, offset_size)
        unit.entry(UNIT, [Value(NAME, *text(b"x.c"))], True)
        unit.entry(FUNCTION, [Value(NAME, *text(b"main")), Value(ORIGIN, 0x10, at), *ADDR])
        unit.end()
        with pytest.raises(KinstError, match="unit at 0x0: a reference"):
            open_index(elf(tmp_path / "a", unit.sections()))


@pytest.mark.parametrize("number", [-1, -2, 7, 99, 1 << 20])
def test_files_that_a_line_table_does_not_have(number: int, tmp_path: Path) -> None:
    unit = Unit(4)
    unit.entry(UNIT, [Value(NAME, *text(b"x.c"))], True)
    said = [Value(0x3A, 0x0D, sleb(number)), Value(0x3B, 0x0D, sleb(number))]
    unit.entry(FUNCTION, [Value(NAME, *text(b"main")), *said, *ADDR])
    unit.end()
    (found,) = open_index(elf(tmp_path / "a", unit.sections())).functions("main")
    assert (found.decl_file, found.decl_line) == ("", max(number, 0))


@pytest.mark.parametrize("name", [name for name in LISTS if name != "nothing"])
def test_cut_range_lists(name: str, tmp_path: Path) -> None:
    """Cut off anywhere before their end."""
    data, _ = LISTS[name]
    section = bytes(12) + struct.pack("<I", 4) + data
    value = Value(RANGES, 0x17, struct.pack("<I", 16))
    for size in range(16, len(section)):
        extra = {".debug_rnglists": section[:size]}
        with pytest.raises(KinstError, match=r"unit at 0x0: (a range list is|it is cut off)"):
            open_index(build(tmp_path / "a", where=[value], extra=extra))


def test_types_of_several_units(tmp_path: Path) -> None:
    """Types of one name, in three units that share their strings: equal ones count once, as the
    first of them."""
    strings = b"\0s\0t\0"
    info, table, places = b"", b"", []
    rows = [(b"s", 8), (b"s", 8), (b"s", 16), (b"t", 8), (b"s", 16), (b"t", 8), (b"s", 8)]
    for k in range(3):
        unit = Unit(4)
        unit.entry(UNIT, [Value(NAME, *text(b"x.c")), Value(LANGUAGE, 0x0B, b"\x0c")], True)
        for name, size in rows[k:] + rows[:k]:
            unit.here("last")
            places.append((name.decode(), size, len(info) + unit.places["last"]))
            named = Value(NAME, 0x0E, struct.pack("<I", strings.index(name)))
            unit.entry(0x13, [named, Value(0x0B, 0x0B, bytes([size]))])
        unit.end()
        sections = unit.sections()
        made = sections[".debug_info"]
        info += made[:6] + struct.pack("<I", len(table)) + made[10:]
        table += sections[".debug_abbrev"]
    sections = {".debug_info": info, ".debug_abbrev": table, ".debug_str": strings}
    index = open_index(elf(tmp_path / "a", sections))
    for name in ("s", "t"):
        first: dict[int, int] = {}
        for known, size, die in places:
            if known == name:
                first.setdefault(size, die)
        assert [one.die for one in index.types(name)] == sorted(first.values())


def test_a_sibling_in_another_unit(tmp_path: Path) -> None:
    """DW_FORM_ref_addr can express that."""
    unit = Unit(4)
    unit.entry(UNIT, [Value(NAME, *text(b"x.c")), Value(LANGUAGE, 0x0B, b"\x0c")], True)
    at = unit.header_size + len(unit.info) + 1 + 4 + 2 + 1 + 1 + 5
    unit.entry(0x13, [Value(SIBLING, 0x10, struct.pack("<I", at))], True)
    unit.entry(0x0D, [Value(0x2007, 0x0B, b"\7")])
    unit.end()
    unit.end()
    following = Unit(4)
    following.entry(UNIT, [Value(NAME, *text(b"next.c\0" * 9))])
    sections = unit.sections()
    info = sections[".debug_info"] + following.sections()[".debug_info"]
    with pytest.raises(KinstError, match="unit at 0x0: "):
        open_index(elf(tmp_path / "a", {**sections, ".debug_info": info}))


@pytest.mark.parametrize("at", [b"\xff\xff\xff\x7f", b"\0\0\1\0", b"\xff" * 4], ids=bytes.hex)
def test_a_range_list_by_index_that_is_not_there(at: bytes, tmp_path: Path) -> None:
    section = bytes(12) + at + b"\4\x10\x18\0"
    path = build(tmp_path / "a", where=[Value(RANGES, 0x23, b"\0")],
                 extra={".debug_rnglists": section})  # fmt: skip
    with pytest.raises(KinstError, match="unit at 0x0: a range list is damaged"):
        open_index(path)


@pytest.mark.parametrize("behind", [1, 2, 200])
@pytest.mark.parametrize("language", [0x01, 0x02, 0x0C, 0x1D, 0x2C], ids=hex)
def test_siblings_that_are_not_there(language: int, behind: int, tmp_path: Path) -> None:
    """After the unit, and before the entry itself; for a structure of C89, C, C99, C11 or C17
    (table 7.17), whose members are skipped."""
    for ahead in (True, False):
        unit = Unit(4)
        said = Value(LANGUAGE, 0x0B, bytes([language]))
        unit.entry(UNIT, [Value(NAME, *text(b"x.c")), said], True)
        at = unit.header_size + len(unit.info)
        end = at + 1 + 4 + 2 + 1 + 1  # this entry, a member's, two ends
        place = end + behind if ahead else at - behind % 3
        unit.entry(0x13, [Value(SIBLING, 0x13, struct.pack("<I", place))], True)
        unit.entry(0x0D, [Value(0x2007, 0x0B, b"\7")])
        unit.end()
        unit.end()
        assert unit.header_size + len(unit.info) == end
        with pytest.raises(KinstError, match="unit at 0x0: "):
            open_index(elf(tmp_path / "a", unit.sections()))


@pytest.mark.parametrize("behind", [0, 1, 1 << 20, (1 << 32) - 20])
def test_abbreviations_that_are_not_there(behind: int, tmp_path: Path) -> None:
    """At the section's end, or after it."""
    unit = Unit(4)
    unit.entry(UNIT, [Value(NAME, *text(b"x.c"))])
    sections = unit.sections()
    at = struct.pack("<I", (len(sections[".debug_abbrev"]) + behind) % (1 << 32))
    info = sections[".debug_info"]
    sections[".debug_info"] = info[:6] + at + info[10:]
    with pytest.raises(KinstError, match="unit at 0x0: "):
        open_index(elf(tmp_path / "a", sections))


ZSTD = struct.pack("<IIQQ", 2, 0, 100, 1) + b"\x28\xb5\x2f\xfd"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ref": 0x1F20}, "unit at 0x0: it refers to an alternate debug file"),
        ({"twice": (0x1F21, bytes(4))}, "alternate debug file"),
        ({"twice": (0x1D, bytes(4))}, "alternate debug file"),
        ({"ref": 0x1C}, "alternate debug file"),
        ({"twice": (0x0E, b"\xff\xff\0\0")}, "unit at 0x0: a string lies outside its section"),
        ({"twice": (0x1A, b"\x70")}, "a string lies outside its section"),
        ({"where": [Value(LOW, 0x1B, b"\x70")]}, "an address index lies outside .debug_addr"),
        ({"where": [Value(LOW, 0x1B, uleb(1 << 63))]}, "an address index lies outside .debug_addr"),
        ({"where": [Value(LOW, 0x1B, uleb(2**64 - 1))]}, "an address index lies outside"),
        ({"before": [Value(0x2007, 0x70, b"")]}, "a form that DWARF 5 does not have"),
        ({"before": [Value(0x2007, 0x0A, b"\xff")]}, "cut off"),
        ({"before": [Value(0x2007, 0x04, b"\xff\xff\xff\xff")]}, "cut off"),
        ({"before": [Value(0x2007, 0x09, b"\xff" * 9 + b"\1")]}, "cut off"),
        ({"where": [Value(RANGES, 0x17, b"\xff\0\0\0")]}, "a range list is damaged"),
        ({"where": [Value(RANGES, 0x23, b"\x70")]}, "a range list is damaged"),
        ({"before": [Value(0x76, 0x08, b"x.dwo\0")]}, ""),
        ({"version": 6}, "of a version other than DWARF 2 to 5"),
        ({"address_size": 3}, "its header is damaged"),
    ],
    ids=str,
)
def test_what_cannot_be_read(change: dict[str, object], said: str, tmp_path: Path) -> None:
    if change.get("address_size") == 3:
        path = build(tmp_path / "a", where=ADDR)
        data = bytearray(path.read_bytes())
        at = data.index(struct.pack("<HBB", 5, 1, 8))
        data[at + 3] = 3
        path.write_bytes(data)
    else:
        path = build(tmp_path / "a", **{"where": ADDR, **change})  # type: ignore[arg-type]
    if not said:
        # Only the unit's own entry can say that the rest is in another file.
        assert only(path).ranges == RANGE
        return
    with pytest.raises(KinstError) as caught:
        open_index(path)
    assert said in str(caught.value) and str(path) in str(caught.value)
    assert "unit at 0x0" in str(caught.value)
    # Entries that dwz -m moved to another file are complete there.
    moved = "alternate debug file" in said
    assert ("before dwz -m" in caught.value.hint) == moved
    assert ("damaged debug information" in caught.value.message) != moved


def test_zstd_says_what_it_needs(tmp_path: Path) -> None:
    path = elf(tmp_path / "a", {".debug_info": ZSTD, ".debug_abbrev": b"\0"})
    data = bytearray(path.read_bytes())
    table = struct.unpack_from("<Q", data, 40)[0]
    struct.pack_into("<Q", data, table + 64 + 8, 0x800)
    path.write_bytes(data)
    with pytest.raises(KinstError, match="zstd"):
        open_index(path)
