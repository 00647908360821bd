"""Single entries of debug information drawn at random: tags, attributes and children as readelf has
them; the code of each as it was drawn."""

from __future__ import annotations

import re
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.image.dwarf.dies import Die, Dies
from kinst.image.dwarf.index import open_index
from kinst.image.dwarf.location_lists import Lists
from kinst.image.dwarf.sections import DebugSections
from kinst.image.elf import open_elf
from tests.image import random_dwarf
from tests.image.dwarf_asm import Unit, Value, elf
from tests.image.random_dwarf import drawn

TAGS = {
    "compile_unit": random_dwarf.UNIT, "subprogram": random_dwarf.SUBPROGRAM,
    "inlined_subroutine": random_dwarf.INLINED, "lexical_block": random_dwarf.BLOCK,
    "variable": random_dwarf.VARIABLE, "structure_type": random_dwarf.STRUCTURE,
    "class_type": random_dwarf.CLASS,
    "union_type": random_dwarf.UNION, "enumeration_type": random_dwarf.ENUMERATION,
    "typedef": random_dwarf.TYPEDEF, "base_type": random_dwarf.BASE_TYPE,
    "member": random_dwarf.MEMBER, "namespace": random_dwarf.NAMESPACE,
    "label": random_dwarf.LABEL,
}  # fmt: skip
PLACES = {
    "low_pc": random_dwarf.LOW, "high_pc": random_dwarf.HIGH, "entry_pc": random_dwarf.ENTRY_PC,
}  # fmt: skip
NUMBERS = {
    "sibling": random_dwarf.SIBLING, "byte_size": random_dwarf.BYTE_SIZE,
    "inline": random_dwarf.INLINE, "abstract_origin": random_dwarf.ORIGIN,
    "decl_file": random_dwarf.DECL_FILE, "decl_line": random_dwarf.DECL_LINE,
    "declaration": random_dwarf.DECLARATION, "specification": random_dwarf.SPECIFICATION,
    "call_file": random_dwarf.CALL_FILE, "call_line": random_dwarf.CALL_LINE,
    "stmt_list": random_dwarf.STMT_LIST, "language": random_dwarf.LANGUAGE,
    "str_offsets_base": random_dwarf.STR_BASE, "addr_base": random_dwarf.ADDR_BASE,
    "rnglists_base": random_dwarf.RNG_BASE,
}  # fmt: skip


@dataclass
class Shown:
    """An entry as readelf shows it.

    Attributes:
        offset: in .debug_info.
        depth: in the tree.
        tag: its name.
        attributes: by name, the text after the colon.
    """

    offset: int
    depth: int
    tag: str
    attributes: dict[str, str] = field(default_factory=dict)


def shown(path: Path) -> list[Shown]:
    done = subprocess.run(
        ["readelf", "--debug-dump=info", path], capture_output=True, check=True, timeout=60
    )
    found: list[Shown] = []
    for line in done.stdout.decode(errors="replace").splitlines():
        if entry := re.match(r" <(\w+)><(\w+)>: Abbrev Number: \d+ \(DW_TAG_(\w+)\)", line):
            found.append(Shown(int(entry[2], 16), int(entry[1], 16), entry[3]))
        elif row := re.match(r"    <\w+>   DW_AT_(\w+)\s*: ?(.*)", line):
            found[-1].attributes[row[1]] = row[2]
    return found


def plain(text: str) -> str:
    """Return a value without the form of DW_FORM_indirect and the index of an indexed value, which
    come before it, and without the explanation of a number."""
    text = re.sub(r"^DW_FORM_\w+ ?", "", text)
    return re.sub(r"^\([^()]*\): ", "", text).partition("\t")[0].strip()


def number_of(text: str) -> int:
    return int(plain(text).strip("<>"), 0)


def below(entries: list[Shown], row: int) -> list[int]:
    """Return the offsets of the direct children of an entry."""
    found = []
    for one in entries[row + 1 :]:
        if one.depth <= entries[row].depth:
            break
        if one.depth == entries[row].depth + 1:
            found.append(one.offset)
    return found


class Opened:
    def __init__(self, path: Path) -> None:
        sections = DebugSections(open_elf(path))
        self.dies = Dies(sections, open_index(path).units)
        self.lists = Lists(sections, self.dies)

    def compare(self, die: Die, one: Shown, name_drawn: str | None, based: bool) -> None:
        """Compare an entry's attributes that have one meaning in every form.

        Args:
            based: whether its unit says where its addresses are; otherwise readelf does not know
                it.
        """
        known = one.attributes
        assert (random_dwarf.NAME in die.attributes) == ("name" in known)
        # readelf 2.40 reads strings by index from a wrong place in some of several units.
        if "name" in known and "(indexed string" not in known["name"]:
            assert die.text(random_dwarf.NAME) == plain(known["name"]), one
        if "name" in known and name_drawn is not None:
            assert die.text(random_dwarf.NAME) == name_drawn
        for name, number in NUMBERS.items():
            assert (number in die.attributes) == (name in known)
            if name in known:
                assert die.number(number) == number_of(known[name]), (name, one)
        for name, number in PLACES.items():
            assert (number in die.attributes) == (name in known)
            if name in known and (based or "(index" not in known[name]):
                place = number_of(known[name])
                assert self.lists.address(die, number) == place, (name, one)


@pytest.mark.parametrize("seed", range(100, 124))
def test_entries_are_readelfs(seed: int, tmp_path: Path) -> None:
    world = drawn(seed)
    path = elf(tmp_path / "file", {name: bytes(data) for name, data in world.sections.items()})
    opened, entries = Opened(path), shown(path)
    assert [one.offset for one in entries if not one.depth] == [
        opened.dies.first_of(unit) for unit, *_ in world.units
    ]
    names = {one.die: one.name for one in world.functions}
    names |= {die: name for _, name, die, _ in world.types}
    names |= {die: name for name, die, _ in world.variables}
    based = False
    for row, one in enumerate(entries):
        die = opened.dies.die(one.offset)
        assert die.tag == TAGS[one.tag]
        children = list(opened.dies.children(die))
        assert [child.offset for child in children] == below(entries, row), one
        for tag in {child.tag for child in children}:
            some = [child for child in children if child.tag == tag]
            assert list(opened.dies.children_with(die, tag)) == some
        if not one.depth:
            based = "addr_base" in one.attributes
        opened.compare(die, one, names.get(one.offset), based)
    # If a function is also inlined, its own code is at an entry that refers to the function's.
    ranges_of: dict[int, list[tuple[int, int]]] = {}
    for one in entries:
        if one.tag in ("subprogram", "inlined_subroutine"):
            code = [p for p in opened.lists.ranges(opened.dies.die(one.offset)) if p[0] != p[1]]
            owner = one.attributes.get("abstract_origin") if one.tag == "subprogram" else None
            ranges_of.setdefault(number_of(owner) if owner else one.offset, []).extend(code)
        elif "low_pc" not in one.attributes or "high_pc" not in one.attributes:
            code = opened.lists.ranges(opened.dies.die(one.offset))
            assert bool(code) == ("ranges" in one.attributes)  # a label has no code
    told = [(one.die, one.ranges) for one in world.functions]
    told += [(one.die, one.ranges) for one in world.copies]
    for offset, ranges in told:
        assert ranges_of[offset] == list(ranges)


@pytest.mark.parametrize(
    ("form", "data"),
    [(0x08, b"caf\xe9\0"), (0x0E, b"\1\0\0\0"), (0x1F, b"\1\0\0\0"), (0x25, b"\0")],
    ids=["string", "strp", "line_strp", "strx1"],
)
def test_names_that_are_no_text(form: int, data: bytes, tmp_path: Path) -> None:
    """From a source in Latin-1: bytes that are not UTF-8 become one U+FFFD (Unicode 16, 3.9)."""
    unit = Unit(5)
    unit.entry(random_dwarf.UNIT, [Value(random_dwarf.NAME, form, data)])
    strings = b"\0caf\xe9\0"
    sections = {".debug_str": strings, ".debug_line_str": strings, **unit.sections(),
                ".debug_str_offsets": bytes(8) + b"\1\0\0\0"}  # fmt: skip
    dies = Dies(DebugSections(open_elf(elf(tmp_path / "file", sections))), [0])
    assert dies.die(dies.first_of(0)).text(random_dwarf.NAME) == "caf\ufffd"


@pytest.mark.parametrize("first", [0, 127, 128, 16_383, 16_384, 32_767, 32_768, 1 << 21])
def test_codes_of_any_length(first: int, tmp_path: Path) -> None:
    """Codes are ULEB128 numbers: up to 127 in one byte, up to 16,383 in two. Entries of other tags
    are skipped with their attributes."""
    unit = Unit(5, skew=first - 1 if first else 0)
    unit.entry(random_dwarf.UNIT, [], True)
    for number in range(6):
        unit.entry(random_dwarf.STRUCTURE, [Value(random_dwarf.BYTE_SIZE, 0x0B, bytes([number]))])
        unit.entry(random_dwarf.UNION, [Value(random_dwarf.BYTE_SIZE, 0x05, bytes([number, 1]))])
    unit.end()
    dies = Dies(DebugSections(open_elf(elf(tmp_path / "file", unit.sections()))), [0])
    top = dies.die(dies.first_of(0))
    for tag, high in ((random_dwarf.STRUCTURE, 0), (random_dwarf.UNION, 256)):
        sizes = [die.number(random_dwarf.BYTE_SIZE) for die in dies.children_with(top, tag)]
        assert sizes == [number + high for number in range(6)]


@pytest.mark.parametrize("wide", [False, True], ids=["32-bit", "64-bit"])
@pytest.mark.parametrize(("kind", "ids", "offsets"), [(1, 0, 0), (2, 8, 1), (3, 0, 0), (4, 8, 0),
                                                     (5, 8, 0), (6, 8, 1)])  # fmt: skip
def test_headers_of_every_kind(
    kind: int, ids: int, offsets: int, wide: bool, tmp_path: Path
) -> None:
    """DWARF 5, 7.5.1.1 to 7.5.1.3: a skeleton and its split unit have an id of 8 bytes after the
    header's common part; type units a signature of 8 bytes and an offset."""
    size = 8 if wide else 4
    body = struct.pack("<HBB", 5, kind, 8) + bytes(size) + bytes(range(ids)) + bytes(offsets * size)
    first = len(body)
    body += b"\1unit\0"
    length = struct.pack("<IQ", 2**32 - 1, len(body)) if wide else struct.pack("<I", len(body))
    sections = {".debug_info": length + body, ".debug_abbrev": b"\1\x11\0\x03\x08\0\0\0"}
    dies = Dies(DebugSections(open_elf(elf(tmp_path / "file", sections))), [0])
    assert dies.first_of(0) == len(length) + first
    die = dies.die(dies.first_of(0))
    assert (die.tag, die.text(random_dwarf.NAME)) == (random_dwarf.UNIT, "unit")
    assert die.unit.end == len(length) + len(body) and list(dies.children(die)) == []
    for outside in (len(length), die.offset - 1, die.unit.end):
        with pytest.raises(KinstError, match=f"no entry at {outside:#x}"):
            dies.die(outside)
