"""Line number programs drawn at random, with the headers of DWARF 2 to 5 (section 6.2), against the
rows that they were written from."""

from __future__ import annotations

import itertools
import random
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.image.dwarf.index import open_index
from kinst.image.dwarf.lines import Lines, LineSpan
from kinst.image.dwarf.sections import DebugSections
from kinst.image.elf import open_elf
from tests.image.dwarf_asm import Unit, Value, elf, sleb, uleb

UNIT, NAME, STMT_LIST, COMP_DIR = 0x11, 0x03, 0x10, 0x1B
FUNCTION, STRUCTURE, LOW, HIGH, SPECIFICATION = 0x2E, 0x13, 0x11, 0x12, 0x47
DECL_FILE, DECL_LINE, DECLARATION, INLINE = 0x3A, 0x3B, 0x3C, 0x20
STRING, LINE_STRP, STRP, SEC_OFFSET, DATA4, DATA8 = 0x08, 0x1F, 0x0E, 0x17, 0x06, 0x07
FOLDERS = [b"/home/me", b"include", b"/usr/include"]
NAMES = [(b"a.c", 0), (b"b.h", 1), (b"/abs/c.h", 1), (b"d.h", 2), (b"e.c", 0)]
PATHS = ["/home/me/a.c", "/home/me/include/b.h", "/abs/c.h", "/usr/include/d.h", "/home/me/e.c"]
# Of each standard opcode, how many operands it has (6.2.4, standard_opcode_lengths).
OPERANDS = [0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1]


@dataclass(frozen=True)
class Row:
    address: int
    file: int
    line: int
    statement: bool


class Drawn:
    """A line table.

    Attributes:
        rows: of each sequence; the last row ends it.
    """

    def __init__(self, seed: int, version: int, wide: bool) -> None:
        rng = self.rng = random.Random(seed)
        self.version, self.offset = version, 8 if wide else 4
        self.step, self.default = rng.choice((1, 2, 4)), rng.choice((False, True))
        self.base, self.range = (
            rng.choice((-10, -5, -3, 0, 1)),
            rng.choice((1, 4, 5, 7, 11, 12, 14)),
        )
        # One opcode more than DWARF has, or those of DWARF 2.
        self.opcodes = rng.choice((10, 13, 14))
        self.strings = {".debug_str": b"", ".debug_line_str": b""}
        self.rows = [self.sequence() for _ in range(rng.randrange(1, 5))]
        program = b"".join(map(self.encoded, self.rows))
        lengths = [*OPERANDS, 3][: self.opcodes - 1]
        fixed = bytes([self.step]) + (b"\1" if version >= 4 else b"")
        fixed += bytes([self.default, self.base % 256, self.range, self.opcodes, *lengths])
        tables = fixed + (self.new_files() if version == 5 else self.old_files())
        head = struct.pack("<H", version) + (b"\x08\0" if version == 5 else b"")
        body = head + self.wide(len(tables)) + tables + program
        length = struct.pack("<IQ", 2**32 - 1, len(body)) if wide else struct.pack("<I", len(body))
        self.table = length + body

    def wide(self, value: int) -> bytes:
        return struct.pack("<I" if self.offset == 4 else "<Q", value)

    def text(self, form: int, text: bytes) -> bytes:
        if form == STRING:
            return text + b"\0"
        name = ".debug_str" if form == STRP else ".debug_line_str"
        self.strings[name] += b"x" + text + b"\0"
        return self.wide(len(self.strings[name]) - len(text) - 1)

    def old_files(self) -> bytes:
        made = b"".join(folder + b"\0" for folder in FOLDERS[1:]) + b"\0"
        for name, folder in NAMES:
            made += name + b"\0" + uleb(folder) + uleb(self.rng.randrange(1 << 30)) + uleb(300)
        return made + b"\0"

    def new_files(self) -> bytes:
        rng = self.rng
        form, index = rng.choice((STRING, LINE_STRP, STRP)), rng.choice((0x0B, 0x05, 0x0F))
        made = b"\1" + uleb(1) + uleb(form) + uleb(len(FOLDERS))
        made += b"".join(self.text(form, folder) for folder in FOLDERS)
        # The sum of the contents (5) as a number or a block, times (3), and what vendors add.
        more = {(5, 0x1E): bytes(16), (5, 0x09): b"\3\x01\x02\x03", (3, 0x0F): uleb(1 << 40),
                (4, 0x06): bytes(4), (0x2001, 0x08): b"a\0", (0x2002, 0x07): bytes(8),
                (0x2003, 0x09): b"\0"}  # fmt: skip
        chosen = rng.sample(list(more), rng.randrange(len(more) + 1))
        formats = [(1, form), (2, index), *chosen]
        rng.shuffle(formats)
        made += bytes([len(formats)]) + b"".join(uleb(a) + uleb(b) for a, b in formats)
        made += uleb(len(NAMES))
        for name, folder in NAMES:
            packed = {0x0B: bytes([folder]), 0x05: struct.pack("<H", folder), 0x0F: uleb(folder)}
            known = {(1, form): self.text(form, name), (2, index): packed[index], **more}
            made += b"".join(known[one] for one in formats)
        return made

    def sequence(self) -> list[Row]:
        rng = self.rng
        first = 0 if self.version == 5 else 1
        at, line, statement = 0x1000 * rng.randrange(1, 1 << 20), 1, self.default
        rows = []
        for _ in range(rng.randrange(1, 25)):
            # Beside a file that is there, the number behind the last one.
            file = first + rng.randrange(len(NAMES) + (rng.random() < 0.1))
            line = max(0, line + rng.choice((0, 1, 2, -1, 5, -9, 300, -70000)))
            statement ^= rng.random() < 0.2
            rows.append(Row(at, file, line, statement))
            at += self.step * rng.choice((0, 1, 2, 3, 7, 17, 200, 70000))
        return [*rows, Row(at, 0, 0, False)]

    def encoded(self, rows: list[Row]) -> bytes:
        made = b"\0\x09\2" + struct.pack("<Q", rows[0].address)
        now = Row(rows[0].address, 1, 1, self.default)
        for row in rows:
            made += self.noise()
            forward = (row.address - now.address) // self.step
            if row is rows[-1]:
                return made + self.forward(forward) + b"\0\1\1"
            if row.file != now.file:
                made += b"\4" + uleb(row.file)
            if row.statement != now.statement:
                made += b"\6"
            made += self.advance(forward, row.line - now.line)
            now = row
        return made

    def noise(self) -> bytes:
        """Add opcodes that do not change lines: columns, blocks, prologues, discriminators,
        vendors'."""
        kinds = [b"", b"", b"\5" + uleb(200), b"\7", b"\0\2\4\7", b"\0\5\x80abcd", b"\0\0"]
        if self.opcodes >= 13:
            kinds += [b"\x0a", b"\x0b", b"\x0c" + uleb(300)]
        if self.opcodes == 14:
            kinds.append(b"\x0d" + uleb(1) + uleb(200) + uleb(70000))
        return self.rng.choice(kinds)

    def advance(self, forward: int, lines: int) -> bytes:
        """Advance to the next row, and make it."""
        opcode = lines - self.base + self.range * forward + self.opcodes
        if self.base <= lines < self.base + self.range and opcode < 256 and self.rng.random() < 0.7:
            return bytes([opcode])
        constant = (255 - self.opcodes) // self.range  # of DW_LNS_const_add_pc
        rest = opcode - self.range * constant
        if self.base <= lines < self.base + self.range and self.opcodes <= rest < 256:
            return b"\x08" + bytes([rest])
        return self.forward(forward) + (b"\3" + sleb(lines) if lines else b"") + b"\1"

    def forward(self, count: int) -> bytes:
        if count * self.step < 1 << 16 and self.rng.random() < 0.3:
            return b"\x09" + struct.pack("<H", count * self.step)
        return b"\2" + uleb(count) if count else b""

    def wanted(self) -> list[LineSpan]:
        """Return the spans: a row holds up to the next one of another address; of several at one
        address the last counts, and line 0 is no line (6.2.2)."""
        first, found = 0 if self.version == 5 else 1, []
        for rows in self.rows:
            last = {row.address: row for row in rows}
            places = sorted(last)
            for low, high in itertools.pairwise(places):
                row = last[low]
                known = row.file - first < len(PATHS)
                if row.line:
                    path = PATHS[row.file - first] if known else ""
                    found.append(LineSpan(low, high, path, row.line, row.statement))
        return sorted(found, key=lambda span: span.low)


def lines_of(
    path: Path,
    table: bytes,
    version: int,
    offset: int = 4,
    ran: bytes = FOLDERS[0],
    **more: bytes,
) -> Lines:
    """Return the lines of a file whose second unit alone has a line table.

    Args:
        ran: where the compiler ran.
    """
    unit = Unit(min(version, 4), offset)
    form = SEC_OFFSET if version >= 4 else DATA8 if offset == 8 else DATA4
    at = struct.pack("<I" if offset == 4 else "<Q", 3)
    named = Value(NAME, STRING, b"unit\0")
    home = Value(COMP_DIR, STRING, ran + b"\0")
    unit.entry(UNIT, [named, home, Value(STMT_LIST, form, at)])
    without = Unit(4)
    without.entry(UNIT, [named])
    without.abbreviations += b"\0" + unit.abbreviations
    first, second = without.sections(), unit.sections()
    there = len(without.abbreviations) - len(unit.abbreviations)
    info = bytearray(second[".debug_info"])
    place = 6 if offset == 4 else 14
    info[place : place + 4] = struct.pack("<I", there)
    sections = {
        ".debug_info": first[".debug_info"] + bytes(info), ".debug_abbrev": first[".debug_abbrev"],
        ".debug_line": b"\1\2\3" + table, **{f".{name}": data for name, data in more.items()},
    }  # fmt: skip
    made = elf(path, sections)
    return Lines(DebugSections(open_elf(made)), open_index(made))


def units(lines: Lines) -> list[int]:
    return list(lines._index.units)


@pytest.mark.parametrize("version", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(10))
def test_rows_are_those_that_were_drawn(seed: int, version: int, tmp_path: Path) -> None:
    drawn = Drawn(seed, version, seed % 3 == 1)
    strings = {name.strip("."): data for name, data in drawn.strings.items()}
    lines = lines_of(tmp_path / "a", drawn.table, version, drawn.offset, **strings)
    without, unit = units(lines)
    assert lines.spans(without) == () and lines.at(without, 0x1000) is None
    spans = drawn.wanted()
    found = lines.spans(unit)
    key = [(s.low, s.high, s.line, s.file, s.statement) for s in found]
    assert sorted(key) == sorted((s.low, s.high, s.line, s.file, s.statement) for s in spans)
    assert [span.low for span in found] == sorted(span.low for span in found)
    if sum(len(rows) for rows in drawn.rows) == len({r.address for rs in drawn.rows for r in rs}):
        for span in spans:
            for address in (span.low, span.high - 1):
                assert lines.at(unit, address) in [s for s in spans if s.low <= address < s.high]
    low, high = min(s.low for s in found), max(s.high for s in found)
    assert lines.at(unit, low - 1) is None and lines.at(unit, high) is None


def damaged(folder: Path, drawn: Drawn, table: bytes) -> None:
    """Return the error for a line table that was complete when the index was made; making one
    notices most damage."""
    strings = {name.strip("."): data for name, data in drawn.strings.items()}
    whole = lines_of(folder / "a", drawn.table, drawn.version, drawn.offset, **strings)
    with pytest.raises(KinstError, match="its line table's file names are damaged"):
        lines_of(folder / "b", table, drawn.version, drawn.offset, **strings)
    sections = {".debug_line": b"\1\2\3" + table, **drawn.strings}
    other = DebugSections(open_elf(elf(folder / "b", sections)))
    _, unit = units(whole)
    with pytest.raises(KinstError, match=f"/b: .* line table at 0x3 of the unit at {unit:#x}"):
        Lines(other, whole._index).spans(unit)


@pytest.mark.parametrize("version", [0, 1, 6])
def test_versions_that_there_are_not(version: int, tmp_path: Path) -> None:
    drawn = Drawn(3, 4, False)
    damaged(tmp_path, drawn, drawn.table[:4] + struct.pack("<H", version) + drawn.table[6:])


@pytest.mark.parametrize("version", [3, 5])
def test_cut_tables(version: int, tmp_path: Path) -> None:
    """With a length that leads out of the section, from any place."""
    drawn = Drawn(4, version, False)
    for size in [*range(0, len(drawn.table), 17), len(drawn.table) - 1]:
        damaged(tmp_path, drawn, drawn.table[:size])


@pytest.mark.parametrize("version", [2, 4, 5])
def test_lengths_that_end_within_the_header(version: int, tmp_path: Path) -> None:
    """The table ends by its length before its files are named, with more bytes after it."""
    drawn = Drawn(8, version, False)
    end = drawn.table.index(b"\0\x09\2" + struct.pack("<Q", drawn.rows[0][0].address))
    for size in range(0, end - 4):
        damaged(tmp_path, drawn, struct.pack("<I", size) + drawn.table[4:])


def test_a_line_range_of_none(tmp_path: Path) -> None:
    """Special opcodes cannot be divided by 0: addresses and files are those of the other
    opcodes."""
    drawn = Drawn(6, 4, False)
    at = drawn.table.index(bytes([drawn.default, drawn.base % 256, drawn.range, drawn.opcodes])) + 2
    table = drawn.table[:at] + b"\0" + drawn.table[at + 1 :]
    lines = lines_of(tmp_path / "a", table, 4)
    found = lines.spans(units(lines)[1])
    assert {span.file for span in found} <= {"", *PATHS}
    assert min(span.low for span in found) == min(rows[0].address for rows in drawn.rows)


def test_spans_within_another(tmp_path: Path) -> None:
    """Sequences overlap, as those of discarded code do: the nearest that holds the address
    counts."""
    drawn = Drawn(6, 4, False)
    drawn.rows = [
        [Row(0x2000, 1, 10, drawn.default), Row(0x2400, 0, 0, False)],
        [Row(0x2100, 1, 20, drawn.default), Row(0x2120, 1, 21, drawn.default),
         Row(0x2140, 0, 0, False)],
        [Row(0x2200, 1, 30, drawn.default), Row(0x2210, 0, 0, False)],
    ]  # fmt: skip
    program = b""
    for rows in drawn.rows:
        before = 1
        for row in rows[:-1]:
            program += b"\0\x09\2" + struct.pack("<Q", row.address)
            program += b"\3" + sleb(row.line - before) + b"\1"
            before = row.line
        program += b"\0\x09\2" + struct.pack("<Q", rows[-1].address) + b"\0\1\1"
    fixed = bytes([1, 1, drawn.default, 0, 1, 10, *OPERANDS[:9]]) + drawn.old_files()
    body = struct.pack("<HI", 4, len(fixed)) + fixed + program
    lines = lines_of(tmp_path / "a", struct.pack("<I", len(body)) + body, 4)
    _, unit = units(lines)
    wanted = {0x1FFF: 0, 0x2000: 10, 0x20FF: 10, 0x2100: 20, 0x2120: 21, 0x2140: 10, 0x21FF: 10,
              0x2200: 30, 0x220F: 30, 0x2210: 10, 0x23FF: 10, 0x2400: 0}  # fmt: skip
    for address, line in wanted.items():
        found = lines.at(unit, address)
        assert (found.line if found else 0) == line, hex(address)


@pytest.mark.parametrize("inside", [False, True], ids=["beside it", "in a structure"])
def test_what_only_a_declaration_says(inside: bool, tmp_path: Path) -> None:
    """A definition with DW_AT_specification has only what is different (DWARF 5, 2.13.2)."""
    drawn = Drawn(7, 4, False)
    unit = Unit(4)
    text = Value(COMP_DIR, STRING, FOLDERS[0] + b"\0")
    unit.entry(UNIT, [text, Value(STMT_LIST, SEC_OFFSET, b"\3\0\0\0")], True)
    places = []
    if inside:
        unit.entry(STRUCTURE, [Value(NAME, STRING, b"s\0")], True)
    for name, file, line, inline in ((b"one\0", 2, 42, 0), (b"two\0", 3, 43, 3)):
        unit.here("last")
        places.append(unit.places["last"])
        said = [Value(DECL_FILE, 0x0B, bytes([file])), Value(DECL_LINE, 0x0B, bytes([line]))]
        said += [Value(INLINE, 0x0B, bytes([inline]))] * (inline > 0)
        unit.entry(FUNCTION, [Value(NAME, STRING, name), *said, Value(DECLARATION, 0x19)])
    if inside:
        unit.end()
    for k, own in enumerate(([], [Value(DECL_FILE, 0x0B, b"\1"), Value(DECL_LINE, 0x0B, b"\x4d")])):
        at = Value(SPECIFICATION, 0x13, struct.pack("<I", places[k]))
        low = Value(LOW, 0x01, struct.pack("<Q", 0x1000 * (k + 1)))
        unit.entry(FUNCTION, [at, *own, low, Value(HIGH, 0x0B, b"\x20")])
    unit.end()
    sections = {**unit.sections(), ".debug_line": b"\1\2\3" + drawn.table, **drawn.strings}
    index = open_index(elf(tmp_path / "a", sections))
    for name, path, line, at in (("one", PATHS[1], 42, 0x1000), ("two", PATHS[0], 0x4D, 0x2000)):
        (found,) = (one for one in index.functions(name) if one.ranges)
        assert (found.decl_file, found.decl_line) == (path, line)
        assert found.ranges == ((at, at + 0x20),) and found.inlined == (name == "two")


def test_files_without_a_folder(tmp_path: Path) -> None:
    """A table of DWARF 5 whose files have no folder: they are in the first one, where the compiler
    ran (6.2.4.1)."""
    drawn = Drawn(9, 5, False)
    folders = b"\1\1\x08" + uleb(2) + b"/first\0" + b"/second\0"
    files = b"\1\1\x08" + uleb(2) + b"one.c\0" + b"/abs/two.c\0"
    fixed = bytes([1, 1, 1, 0, 1, 10, *OPERANDS[:9]]) + folders + files
    program = b"\0\x09\2" + struct.pack("<Q", 0x1000)
    program += b"\4\0\1" + b"\2\x10" + b"\4\1\1" + b"\2\x10" + b"\0\1\1"
    body = struct.pack("<HBBI", 5, 8, 0, len(fixed)) + fixed + program
    table = struct.pack("<I", len(body)) + body
    lines = lines_of(tmp_path / "a", table, 5)
    found = [(span.low, span.high, span.file) for span in lines.spans(units(lines)[1])]
    assert found == [(0x1000, 0x1010, "/first/one.c"), (0x1010, 0x1020, "/abs/two.c")]
    unit = Unit(4)
    unit.entry(UNIT, [Value(STMT_LIST, SEC_OFFSET, b"\3\0\0\0")], True)
    for k in range(2):
        said = [Value(DECL_FILE, 0x0B, bytes([k])), Value(DECL_LINE, 0x0B, b"\5")]
        low = Value(LOW, 0x01, struct.pack("<Q", 0x1000 * (k + 1)))
        unit.entry(
            FUNCTION, [Value(NAME, STRING, b"f%d\0" % k), *said, low, Value(HIGH, 0x0B, b"\x20")]
        )
    unit.end()
    sections = {**unit.sections(), ".debug_line": b"\1\2\3" + table, **drawn.strings}
    index = open_index(elf(tmp_path / "b", sections))
    names = [index.functions(f"f{k}")[0].decl_file for k in range(2)]
    assert names == ["/first/one.c", "/abs/two.c"]


def new_table(tables: bytes, program: bytes = b"") -> bytes:
    """Return a table of version 5 with these folders and files."""
    fixed = bytes([1, 1, 1, 0, 1, 10, *OPERANDS[:9]]) + tables
    body = struct.pack("<HBBI", 5, 8, 0, len(fixed)) + fixed + program
    return struct.pack("<I", len(body)) + body


def test_a_table_without_files(tmp_path: Path) -> None:
    """Its entries, of which there are none, have no fields either (6.2.4)."""
    program = b"\0\x09\2" + struct.pack("<Q", 0x1000) + b"\1\2\x10\0\1\1"
    lines = lines_of(tmp_path / "a", new_table(b"\0\0" + b"\0\0", program), 5)
    (span,) = lines.spans(units(lines)[1])
    assert (span.low, span.high, span.file, span.line) == (0x1000, 0x1010, "", 1)


@pytest.mark.parametrize(
    ("form", "data"),
    [(0x08, b"abc\0"), (0x1F, bytes(4)), (0x0E, bytes(4)), (0x0B, bytes(1)), (0x05, bytes(2)),
     (0x06, bytes(4)), (0x07, bytes(8)), (0x1E, bytes(16)), (0x0F, b"\x80\1"), (0x09, b"\3abc")],
    ids=[f"{form:#x}" for form in (0x08, 0x1F, 0x0E, 0x0B, 0x05, 0x06, 0x07, 0x1E, 0x0F, 0x09)],
)  # fmt: skip
def test_a_table_that_ends_within_a_value(form: int, data: bytes, tmp_path: Path) -> None:
    """Within a field of a file, in each form; the section continues after it."""
    tables = b"\1\1\x08\1/home\0" + b"\2\1\x08" + uleb(0x2001) + uleb(form) + b"\1" + b"a.c\0"
    lines_of(tmp_path / "a", new_table(tables + data) + bytes(20), 5)
    for size in range(len(data)):
        with pytest.raises(KinstError, match="its line table's file names are damaged"):
            lines_of(tmp_path / "b", new_table(tables + data[:size]) + bytes(20), 5)


def test_a_table_that_ends_with_its_files(tmp_path: Path) -> None:
    """There is no program; the last file's checksum is a block, up to the last byte."""
    folders, formats = b"\1\1\x08\1/home\0", b"\2\1\x08\5\x09"
    table = new_table(folders + formats + b"\1" + b"a.c\0" + b"\3abc")
    lines = lines_of(tmp_path / "a", table, 5)
    assert list(lines.spans(units(lines)[1])) == []


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("folder", range(5))
def test_folders_that_there_are_not(folder: int, version: int, tmp_path: Path) -> None:
    """A file in such a folder is found by its name alone, where the compiler ran."""
    drawn = Drawn(9, version, False)
    if version == 5:
        tables = b"\1\1\x08" + uleb(3) + b"".join(name + b"\0" for name in FOLDERS)
        tables += b"\2\1\x08\2\x0b" + uleb(1) + b"one.c\0" + bytes([folder])
    else:
        tables = b"".join(name + b"\0" for name in FOLDERS[1:]) + b"\0"
        tables += b"one.c\0" + uleb(folder) + b"\0\0" + b"\0"
    fixed = bytes([1, 1, 1, 0, 1, 10, *OPERANDS[:9]]) + tables
    program = b"\0\x09\2" + struct.pack("<Q", 0x1000) + b"\4" + uleb(version == 4)
    program += b"\1\2\x10" + b"\0\1\1"
    head = struct.pack("<HBBI", 5, 8, 0, len(fixed)) if version == 5 else struct.pack(
        "<HI", 4, len(fixed)
    )  # fmt: skip
    table = struct.pack("<I", len(head + fixed + program)) + head + fixed + program
    lines = lines_of(tmp_path / "a", table, version)
    (span,) = lines.spans(units(lines)[1])
    homes = {0: "/home/me/", 1: "/home/me/include/", 2: "/usr/include/"}
    wanted = homes.get(folder, "/home/me/") + "one.c"
    assert (span.low, span.high, span.file) == (0x1000, 0x1010, wanted)
    unit = Unit(4)
    home = Value(COMP_DIR, STRING, FOLDERS[0] + b"\0")
    unit.entry(UNIT, [home, Value(STMT_LIST, SEC_OFFSET, b"\3\0\0\0")], True)
    said = [Value(NAME, STRING, b"f\0"), Value(DECL_FILE, 0x0B, bytes([version == 4]))]
    low = Value(LOW, 0x01, struct.pack("<Q", 0x1000))
    unit.entry(FUNCTION, [*said, low, Value(HIGH, 0x0B, b"\x20")])
    unit.end()
    sections = {**unit.sections(), ".debug_line": b"\1\2\3" + table, **drawn.strings}
    (found,) = open_index(elf(tmp_path / "b", sections)).functions("f")
    assert found.decl_file == wanted


def test_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    """File names are bytes: Python keeps those that are not UTF-8 so (PEP 383)."""
    drawn = Drawn(9, 4, False)
    table = old_table(drawn, b"\xe9t\xe9\0" + b"\0" + b"\xffa.c\0\1\0\0" + b"\0",
                      b"\0\x09\2" + struct.pack("<Q", 0x1000) + b"\1\2\1\0\1\1")  # fmt: skip
    lines = lines_of(tmp_path / "a", table, 4, ran=b"/caf\xe9")
    (span,) = lines.spans(units(lines)[1])
    assert span.file == "/caf\udce9/\udce9t\udce9/\udcffa.c"


def test_each_sequence_begins_anew(tmp_path: Path) -> None:
    """At address 0, in file 1 and line 1, no matter what was before (6.2.2, table 6.4)."""
    drawn = Drawn(9, 4, False)
    one = b"\2\x40\1\4\2\3\x0a\2\x10\1\2\1\0\1\1"
    table = old_table(drawn, b"\0" + b"a.c\0\0\0\0" + b"b.c\0\0\0\0" + b"\0", one * 2)
    lines = lines_of(tmp_path / "a", table, 4)
    found = [(span.low, span.high, span.file, span.line) for span in lines.spans(units(lines)[1])]
    first, second = (0x40, 0x50, "/home/me/a.c", 1), (0x50, 0x51, "/home/me/b.c", 11)
    assert sorted(found) == [first, first, second, second]


def old_table(drawn: Drawn, files: bytes, program: bytes) -> bytes:
    """Return a table of version 4 with instructions of one byte: its folders and files, its
    program."""
    fixed = bytes([1, 1, drawn.default, 0, 1, 10, *OPERANDS[:9]]) + files
    body = struct.pack("<HI", 4, len(fixed)) + fixed + program
    return struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("opcodes", [10, 13])
@pytest.mark.parametrize("line_range", range(1, 25))
def test_const_add_pc_is_as_special_opcode_255(
    line_range: int, opcodes: int, tmp_path: Path
) -> None:
    """6.2.5.2: it advances the address by as much, and does nothing else."""
    found = []
    for k, program in enumerate((b"\x08\1", b"\xff")):
        tables = b"\0" + b"a.c\0\0\0\0" + b"\0"
        fixed = bytes([4, 1, 1, 0, line_range, opcodes, *OPERANDS[: opcodes - 1]]) + tables
        code = b"\0\x09\2" + struct.pack("<Q", 0x1000) + b"\1" + program + b"\2\1\0\1\1"
        body = struct.pack("<HI", 4, len(fixed)) + fixed + code
        lines = lines_of(tmp_path / f"{k}", struct.pack("<I", len(body)) + body, 4)
        found.append([span.low for span in lines.spans(units(lines)[1])])
    assert found[0] == found[1] and len(found[0]) == 2
