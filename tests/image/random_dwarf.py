"""Debug information drawn at random, written by the tables of DWARF 5 (chapter 7) and 2 to 4, with
its contents: functions, inlined copies, types and variables, with every form that values have."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

from kinst.core.inline import FunctionDie, InlineCopy
from tests.image.dwarf_asm import sleb, uleb

# Tags and attributes, figures 7.3 and 7.5.
UNIT, SUBPROGRAM, INLINED, BLOCK, VARIABLE = 0x11, 0x2E, 0x1D, 0x0B, 0x34
STRUCTURE, UNION, ENUMERATION, TYPEDEF, BASE_TYPE, MEMBER = 0x13, 0x17, 0x04, 0x16, 0x24, 0x0D
CLASS = 0x02
NAMESPACE, LABEL = 0x39, 0x0A
SIBLING, NAME, BYTE_SIZE, STMT_LIST, LOW, HIGH, LANGUAGE = 1, 3, 0x0B, 0x10, 0x11, 0x12, 0x13
COMP_DIR, INLINE, ORIGIN, DECL_FILE, DECL_LINE = 0x1B, 0x20, 0x31, 0x3A, 0x3B
DECLARATION, SPECIFICATION, ENTRY_PC, RANGES, CALL_FILE = 0x3C, 0x47, 0x52, 0x55, 0x58
CALL_LINE, STR_BASE, ADDR_BASE, RNG_BASE = 0x59, 0x72, 0x73, 0x74
KINDS = {STRUCTURE: "struct", UNION: "union", ENUMERATION: "enum", TYPEDEF: "typedef",
         BASE_TYPE: "base", CLASS: "struct"}  # fmt: skip

Attribute = tuple[int, int, bytes, int | None]  # number, form, bytes, implicit constant
Spans = tuple[tuple[int, int], ...]


@dataclass
class Function:
    """A function, with the fields of FunctionDie."""

    name: str
    die: int
    unit: int
    file: str
    line: int
    inlined: bool
    ranges: Spans = ()

    def told(self) -> FunctionDie:
        return FunctionDie(
            self.name, self.die, self.unit, self.file, self.line, self.inlined, self.ranges
        )


@dataclass
class World:
    """All units' sections, and their contents."""

    rng: random.Random
    sections: dict[str, bytearray] = field(default_factory=dict)
    functions: list[Function] = field(default_factory=list)
    copies: list[InlineCopy] = field(default_factory=list)
    types: list[tuple[str, str, int, int]] = field(default_factory=list)  # kind, name, die, unit
    variables: list[tuple[str, int, int]] = field(default_factory=list)
    enumerations: list[int] = field(default_factory=list)
    units: list[tuple[int, int, str, int]] = field(
        default_factory=list
    )  # die, lines, home, version
    origins: dict[int, int] = field(default_factory=dict)  # of copies' entries: the functions'
    names: int = 0

    def section(self, name: str) -> bytearray:
        return self.sections.setdefault(name, bytearray())

    def new_name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def string_at(self, section: str, text: bytes) -> int:
        data = self.section(section)
        at = len(data)
        data += text + b"\0"
        return at


class UnitWriter:
    """One unit: its header, abbreviations, line table and entries."""

    def __init__(self, world: World) -> None:
        self.world, self.rng = world, world.rng
        self.version = self.rng.choice((2, 3, 4, 5, 5))
        self.offset = self.rng.choice((4, 4, 8))
        self.address = self.rng.choice((8, 8, 4))
        self.start = len(world.section(".debug_info"))
        self.body = bytearray()  # behind the header
        self.abbreviations: dict[tuple[object, ...], int] = {}
        self.table = bytearray()
        self.skew = self.rng.choice((0, 0, 1, 1000))
        self.strings, self.addresses = list[int](), list[int]()
        self.lists: list[bytes] = []
        self.home = self.rng.choice((b"/home/me", b"build", b""))
        self.base = self.low_address()
        self.files = dict[int, str]()  # by number

    # Numbers and texts

    def wide(self, value: int) -> bytes:
        return struct.pack("<I" if self.offset == 4 else "<Q", value)

    def plain_address(self, value: int) -> bytes:
        return struct.pack("<I" if self.address == 4 else "<Q", value)

    def low_address(self) -> int:
        top = 0x7000_0000 if self.address == 4 else 0xFFFF_FFFF_8100_0000
        return top + self.rng.randrange(1 << 20) * 16

    @property
    def header(self) -> int:
        size = (4 if self.offset == 4 else 12) + 2 + self.offset + 1
        return size + (self.version >= 5)

    def here(self) -> int:
        return self.start + self.header + len(self.body)

    def text(self, number: int, text: str) -> Attribute:
        forms = [0x08, 0x0E]
        if self.version >= 5:
            forms += [0x1F, 0x1A, 0x25, 0x26, 0x27, 0x28]
        form, data = self.rng.choice(forms), text.encode()
        if form == 0x08:
            return number, form, data + b"\0", None
        if form in (0x0E, 0x1F):
            name = ".debug_str" if form == 0x0E else ".debug_line_str"
            return number, form, self.wide(self.world.string_at(name, data)), None
        self.strings.append(self.world.string_at(".debug_str", data))
        index = len(self.strings) - 1
        packed = uleb(index) if form == 0x1A else index.to_bytes(form - 0x24, "little")
        return number, form, packed, None

    def place(self, number: int, address: int) -> Attribute:
        forms = [0x01] + ([0x1B, 0x29, 0x2A, 0x2B, 0x2C] if self.version >= 5 else [])
        form = self.rng.choice(forms)
        if form == 0x01:
            return number, form, self.plain_address(address), None
        index = self.indexed(address)
        packed = uleb(index) if form == 0x1B else index.to_bytes(form - 0x28, "little")
        return number, form, packed, None

    def indexed(self, address: int) -> int:
        self.addresses.append(address)
        return len(self.addresses) - 1

    def number(self, number: int, value: int) -> Attribute:
        forms = [(0x0F, uleb(value)), (0x0D, sleb(value)), (0x06, struct.pack("<I", value))]
        forms.append((0x07, struct.pack("<Q", value)))
        if value < 256:
            forms.append((0x0B, bytes([value])))
        if value < 65536:
            forms.append((0x05, struct.pack("<H", value)))
        form, data = self.rng.choice(forms)
        if self.version >= 5 and self.rng.random() < 0.2:
            return number, 0x21, b"", value
        if self.rng.random() < 0.1:
            return number, 0x16, uleb(form) + data, None
        return number, form, data, None

    def flag(self, number: int) -> Attribute:
        if self.version >= 4 and self.rng.random() < 0.5:
            return number, 0x19, b"", None
        return number, 0x0C, b"\1", None

    def reference(self, number: int, die: int) -> Attribute:
        """Return a reference to an entry of this unit, or of an earlier one."""
        forms = [(0x10, self.plain_address(die) if self.version == 2 else self.wide(die))]
        own = die - self.start
        if own >= 0:
            forms += [(0x13, struct.pack("<I", own)), (0x14, struct.pack("<Q", own))]
            forms.append((0x15, uleb(own)))
            forms += [(0x12, struct.pack("<H", own))] if own < 65536 else []
            forms += [(0x11, bytes([own]))] if own < 256 else []
        form, data = self.rng.choice(forms)
        return number, form, data, None

    # Code

    def span(self, low: int, high: int) -> tuple[int, int]:
        first = self.rng.randrange(low, high - 8)
        return first, first + self.rng.randrange(1, min(64, high - first))

    def code(self, spans: list[tuple[int, int]], empty: bool = False) -> list[Attribute]:
        """Return attributes that say where code is.

        Args:
            empty: there may be an empty range before it.
        """
        if len(spans) == 1 and self.rng.random() < 0.8:
            low, high = spans[0]
            if self.version >= 4 and self.rng.random() < 0.6:
                return [self.place(LOW, low), self.number(HIGH, high - low)]
            return [self.place(LOW, low), self.place(HIGH, high)]
        form = 0x17 if self.version >= 4 else 0x06 if self.offset == 4 else 0x07
        if self.version < 5:
            data = self.section_list(self.old_list(spans, empty), ".debug_ranges")
            return [(RANGES, form, self.wide(data), None)]
        made = self.new_list(spans)
        if self.implied or self.rng.random() < 0.5:
            self.lists.append(made)
            return [(RANGES, 0x23, uleb(len(self.lists) - 1), None)]
        return [(RANGES, form, self.wide(self.section_list(made, ".debug_rnglists")), None)]

    def section_list(self, made: bytes, name: str) -> int:
        data = self.world.section(name)
        data += bytes(self.rng.randrange(1, 9))
        data += made
        return len(data) - len(made)

    def old_list(self, spans: list[tuple[int, int]], empty: bool) -> bytes:
        top = (1 << 8 * self.address) - 1
        rows, base = list[tuple[int, int]](), self.base
        if empty and self.rng.random() < 0.5:
            rows.append((5, 5))
        for low, high in spans:
            if low < base or self.rng.random() < 0.3:
                base = low - self.rng.randrange(16, 64)
                rows.append((top, base))
            rows.append((low - base, high - base))
            if self.rng.random() < 0.2:
                rows.append((rows[-1][1], rows[-1][1]))  # an empty one
        rows.append((0, 0))
        return b"".join(self.plain_address(a) + self.plain_address(b) for a, b in rows)

    def new_list(self, spans: list[tuple[int, int]]) -> bytes:
        made, base = b"", self.base
        for low, high in spans:
            kind = self.rng.choice((2, 3, 4, 4, 6, 7))
            if kind == 4 and (low < base or self.rng.random() < 0.4):
                base = low - self.rng.randrange(64)
                if self.rng.random() < 0.5:
                    made += b"\5" + self.plain_address(base)
                else:
                    made += b"\1" + uleb(self.indexed(base))
            made += bytes([kind])
            match kind:
                case 2:
                    made += uleb(self.indexed(low)) + uleb(self.indexed(high))
                case 3:
                    made += uleb(self.indexed(low)) + uleb(high - low)
                case 4:
                    made += uleb(low - base) + uleb(high - base)
                case 6:
                    made += self.plain_address(low) + self.plain_address(high)
                case 7:
                    made += self.plain_address(low) + uleb(high - low)
            if self.rng.random() < 0.2:
                made += b"\7" + self.plain_address(low + 1) + b"\0"  # an empty one
        return made + b"\0"

    # Entries

    def entry(self, tag: int, attributes: list[Attribute], children: bool = False) -> int:
        """Write an entry and return its offset.  Attributes come in any order, with others between
        them."""
        attributes = list(attributes)
        others: list[Attribute] = [
            (0x2001, 0x0A, b"\2xy", None), (0x2002, 0x0B, b"\7", None),
            (0x2003, 0x08, b"z\0", None), (0x2004, 0x09, uleb(300) + bytes(300), None),
            (0x2005, 0x0D, sleb(-9), None),
        ]  # fmt: skip
        attributes += self.rng.sample(others, self.rng.choice((0, 0, 1, 2)))
        self.rng.shuffle(attributes)
        shape = (tag, children, *((number, form, const) for number, form, _, const in attributes))
        if shape not in self.abbreviations:
            self.abbreviations[shape] = len(self.abbreviations) + 1 + self.skew
            self.table += uleb(self.abbreviations[shape]) + uleb(tag) + bytes([children])
            for number, form, _, const in attributes:
                self.table += uleb(number) + uleb(form) + (b"" if const is None else sleb(const))
            self.table += b"\0\0"
        die = self.here()
        self.body += uleb(self.abbreviations[shape])
        self.body += b"".join(data for _, _, data, _ in attributes)
        return die

    def parent(self, tag: int, attributes: list[Attribute]) -> tuple[int, int]:
        """Write an entry with children, with or without a reference to its sibling.  Return its
        offset and the argument for close()."""
        more: list[Attribute] = [(SIBLING, 0x13, b"here", None)] if self.rng.random() < 0.6 else []
        die = self.entry(tag, [*attributes, *more], True)
        return die, self.body.rindex(b"here") if more else -1

    def close(self, place: int) -> None:
        self.body += b"\0"
        if place >= 0:
            self.body[place : place + 4] = struct.pack("<I", self.here() - self.start)

    def declared(self) -> tuple[list[Attribute], str, int]:
        """Return (attributes, file, line)."""
        number, line = self.rng.choice(list(self.files)), self.rng.randrange(1, 70000)
        if self.rng.random() < 0.1:
            return [], "", 0
        made = [self.number(DECL_FILE, number), self.number(DECL_LINE, line)]
        return made, self.files[number], line

    # The line table's names

    def line_table(self) -> int:
        """Write its header, remember the files by their numbers, and return where it is."""
        rng, version = self.rng, self.rng.choice((2, 3, 4, 5))
        offset = rng.choice((4, 8))
        folders = [b"/usr/include", b"include/linux", b"kernel"]
        names = [b"a.c", b"/abs/b.h", b"c.h", b"sub/d.h", b"e.h"]
        made = bytearray()
        self.files = {}
        if version < 5:
            made += b"".join(folder + b"\0" for folder in folders) + b"\0"
            for number, name in enumerate(names, 1):
                at = rng.randrange(4)
                made += name + b"\0" + uleb(at) + uleb(rng.randrange(1 << 30)) + uleb(300)
                self.files[number] = self.path(folders[at - 1] if at else None, name)
            made += b"\0"
        else:
            folders.insert(0, self.home)
            text = rng.choice((0x08, 0x1F, 0x0E))
            index = rng.choice((0x0B, 0x05, 0x0F))
            made += b"\1" + uleb(1) + uleb(text) + uleb(len(folders))
            made += b"".join(self.line_text(text, folder, offset) for folder in folders)
            sums = rng.random() < 0.5
            made += bytes([2 + sums]) + uleb(1) + uleb(text) + uleb(2) + uleb(index)
            made += (uleb(5) + uleb(0x1E)) * sums + uleb(len(names))
            for number, name in enumerate(names):
                at = rng.randrange(4)
                made += self.line_text(text, name, offset)
                made += {0x0B: bytes([at]), 0x05: struct.pack("<H", at), 0x0F: uleb(at)}[index]
                made += rng.randbytes(16) * sums
                self.files[number] = self.path(folders[at] if at else None, name)
        opcodes = rng.choice((0, 1, 10, 13))
        fixed = b"\1" + b"\1" * (version >= 4) + b"\1\xfb\x0e" + bytes([opcodes])
        fixed += bytes([1]) * (opcodes - 1)
        wide = "<I" if offset == 4 else "<Q"
        head = struct.pack("<H", version) + bytes([self.address, 0]) * (version >= 5)
        head += struct.pack(wide, len(fixed) + len(made)) + fixed + made
        body = head + rng.randbytes(rng.randrange(30))  # a program that nobody runs here
        length = (
            struct.pack("<I", len(body))
            if offset == 4
            else struct.pack("<IQ", 2**32 - 1, len(body))
        )
        data = self.world.section(".debug_line")
        at = len(data)
        data += length + body
        return at

    def line_text(self, form: int, text: bytes, offset: int) -> bytes:
        if form == 0x08:
            return text + b"\0"
        at = self.world.string_at(".debug_str" if form == 0x0E else ".debug_line_str", text)
        return struct.pack("<I" if offset == 4 else "<Q", at)

    def path(self, folder: bytes | None, name: bytes) -> str:
        """Return a path as the compiler means it: relative names are below their folder, and
        relative folders below where it ran, if that is known in full."""
        if name.startswith(b"/"):
            return name.decode()
        if folder is None:
            folder = self.home
        elif self.home.startswith(b"/") and not folder.startswith(b"/"):
            folder = self.home + b"/" + folder
        return (folder + b"/" + name if folder else name).decode()

    # A whole unit

    def write(self) -> None:
        rng = self.rng
        self.c_like = rng.random() < 0.7
        lines = self.line_table()
        self.world.units.append((self.start, lines, self.home.decode(), self.version))
        attributes = [
            self.number(LANGUAGE, rng.choice((0x01, 0x0C, 0x1D)) if self.c_like else 0x21),
            self.text(COMP_DIR, self.home.decode()),
            (LOW, 0x01, self.plain_address(self.base), None),
            (STMT_LIST, 0x17 if self.version >= 4 else 0x06 if self.offset == 4 else 0x07,
             self.wide(lines), None),
            self.text(NAME, "unit.c"),
        ]  # fmt: skip
        # The first such unit may leave it to the sections' own headers.
        self.implied = ".debug_str_offsets" not in self.world.sections and rng.random() < 0.4
        if self.version >= 5 and not self.implied:
            # Where the unit's parts of these sections are going to be.
            sizes = {STR_BASE: ".debug_str_offsets", ADDR_BASE: ".debug_addr",
                     RNG_BASE: ".debug_rnglists"}  # fmt: skip
            self.bases = {at: bytes([at]) + b"MRK" + b"mark" for at in sizes}
            attributes += [(at, 0x17, mark[: self.offset], None) for at, mark in self.bases.items()]
        self.entry(UNIT, attributes, True)
        for _ in range(rng.randrange(2, 9)):
            rng.choice((self.abstract, self.function, self.type, self.type, self.variable))()
        if rng.random() < 0.3:
            _, place = self.parent(NAMESPACE, [self.text(NAME, "space")])
            self.type()
            self.variable()
            self.function()
            self.close(place)
        for _ in range(rng.randrange(1, 4)):
            self.function()
        self.body += b"\0" * rng.choice((1, 1, 3))  # some compilers pad units
        self.finish()

    def abstract(self) -> None:
        """Write a function that is inlined."""
        attributes, file, line = self.declared()
        name = self.world.new_name("inline")
        die = self.entry(
            SUBPROGRAM,
            [*attributes, self.text(NAME, name), self.number(INLINE, self.rng.choice((1, 2, 3)))],
        )
        self.world.functions.append(Function(name, die, self.start, file, line, True))

    def function(self) -> None:
        """Write a function with code and its contents, under its own name or as an out-of-line
        instance of an inlined one."""
        rng, world = self.rng, self.world
        mine = [one for one in world.functions if one.unit == self.start and not one.ranges
                and one.name.startswith("inline")]  # fmt: skip
        low = self.low_address()
        spans = [
            self.span(low + 256 * n, low + 256 * n + 200) for n in range(rng.choice((1, 1, 2)))
        ]
        attributes = self.code(spans, empty=True)
        if mine and rng.random() < 0.3:
            one = rng.choice(mine)
            one.ranges = tuple(spans)
            attributes.append(self.reference(ORIGIN, one.die))
            die, place = self.parent(SUBPROGRAM, attributes)
            name = one.name
        else:
            said, file, line = self.declared()
            name = world.new_name("function")
            die, place = self.parent(SUBPROGRAM, [*said, self.text(NAME, name), *attributes])
            world.functions.append(Function(name, die, self.start, file, line, False, tuple(spans)))
        for _ in range(rng.randrange(4)):
            self.inside(name, (), 0)
        self.close(place)

    def inside(self, caller: str, within: tuple[str, ...], depth: int) -> None:
        """Write entries that may come below a function's."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.15:  # of its own types and variables nothing is in the index
            self.entry(VARIABLE, [self.text(NAME, self.world.new_name("local"))])
            _, place = self.parent(STRUCTURE, [self.text(NAME, self.world.new_name("hidden"))])
            self.entry(MEMBER, [self.text(NAME, "m")])
            self.close(place)
        elif kind < 0.35 and depth < 4:
            _, place = self.parent(BLOCK, self.code([self.span(self.base, self.base + 512)]))
            self.inside(caller, within, depth + 1)
            self.close(place)
        elif kind < 0.45:
            self.entry(LABEL, [self.text(NAME, "out"), self.place(LOW, self.base)])
        else:
            self.copy(caller, within, depth)

    def copy(self, caller: str, within: tuple[str, ...], depth: int) -> None:
        rng = self.rng
        known = [one for one in self.world.functions if one.inlined]
        if not known:
            return
        one = rng.choice(known)
        low = self.low_address()
        spans = [
            self.span(low + 64 * n, low + 64 * n + 60) for n in range(rng.choice((1, 1, 2, 3)))
        ]
        attributes = self.code(spans)
        entry = spans[0][0]
        if any(at == LOW for at, *_ in attributes) and rng.random() < 0.3:
            entry += rng.randrange(1, 9)
            attributes.append(self.place(ENTRY_PC, entry))
        elif rng.random() < 0.3:
            entry += 3
            attributes.append(self.number(ENTRY_PC, 3))
        number, line = rng.choice(list(self.files)), rng.randrange(1, 70000)
        attributes += [self.number(CALL_FILE, number), self.number(CALL_LINE, line)]
        attributes.append(self.reference(ORIGIN, one.die))
        below = rng.randrange(3) if depth < 3 else 0
        if below or rng.random() < 0.3:
            die, place = self.parent(INLINED, attributes)
            for _ in range(below):
                self.inside(caller, (one.name, *within), depth + 1)
            self.close(place)
        else:
            die = self.entry(INLINED, attributes)
        self.world.origins[die] = one.die
        self.world.copies.append(
            InlineCopy(one.name, die, self.start, entry, tuple(spans), self.files[number], line,
                       within, caller)
        )  # fmt: skip

    def type(self) -> None:
        rng, world = self.rng, self.world
        tag = rng.choice(list(KINDS))
        name = world.new_name("type") if rng.random() < 0.9 else ""
        said, _, _ = self.declared()
        attributes = [*said, self.number(BYTE_SIZE, rng.randrange(1, 400))]
        if name:
            attributes.append(self.text(NAME, name))
        complete = rng.random() < 0.85
        if not complete:
            attributes.append(self.flag(DECLARATION))
        if tag in (STRUCTURE, UNION, CLASS):
            die, place = self.parent(tag, attributes)
            for _ in range(rng.randrange(3)):
                self.entry(MEMBER, [self.text(NAME, "member")])
            self.close(place)
        else:
            die = self.entry(tag, attributes)
        if complete and name:
            world.types.append((KINDS[tag], name, die, self.start))
        if complete and tag == ENUMERATION:
            world.enumerations.append(die)

    def variable(self) -> None:
        rng, world = self.rng, self.world
        name = world.new_name("variable")
        if rng.random() < 0.4:
            die = self.entry(VARIABLE, [self.text(NAME, name), self.flag(DECLARATION)])
            if rng.random() < 0.5:
                return
            number = rng.choice((SPECIFICATION, ORIGIN))
            die = self.entry(VARIABLE, [self.reference(number, die)])
        else:
            die = self.entry(VARIABLE, [self.text(NAME, name)])
        world.variables.append((name, die, self.start))

    def finish(self) -> None:
        """Write the header, and the unit's parts of the other sections."""
        world = self.world
        abbreviations = world.section(".debug_abbrev")
        at = len(abbreviations)
        abbreviations += self.table + b"\0"
        if self.version >= 5:
            wide = "<I" if self.offset == 4 else "<Q"
            parts = {
                STR_BASE: (".debug_str_offsets", [struct.pack(wide, n) for n in self.strings], 4),
                ADDR_BASE: (".debug_addr", [self.plain_address(n) for n in self.addresses], 4),
            }
            for number, (name, rows, rest) in parts.items():
                self.based(number, name, b"".join(rows), rest)
            first = len(self.lists) * self.offset
            table, lists = b"", b""
            for made in self.lists:
                table += struct.pack(wide, first + len(lists))
                lists += made
            self.based(RNG_BASE, ".debug_rnglists", table + lists, 8)
        kind = bytes([1, self.address]) if self.version >= 5 else b""
        table_at = self.wide(at)
        head = struct.pack("<H", self.version)
        head += kind + table_at if self.version >= 5 else table_at + bytes([self.address])
        size = len(head) + len(self.body)
        length = (
            struct.pack("<I", size) if self.offset == 4 else struct.pack("<IQ", 2**32 - 1, size)
        )
        data = world.section(".debug_info")
        assert len(data) == self.start and len(length) + len(head) == self.header
        data += length + head + self.body

    def based(self, number: int, name: str, rows: bytes, rest: int) -> None:
        """Append a unit's part of a section, after a header whose last bytes are `rest` many."""
        data = self.world.section(name)
        size = rest + len(rows)
        data += struct.pack("<I", size) if self.offset == 4 else struct.pack("<IQ", 2**32 - 1, size)
        data += bytes(rest)
        mark = b"" if self.implied else self.bases[number][: self.offset]
        if not self.implied:
            place = self.body.index(mark)
            self.body[place : place + self.offset] = self.wide(len(data))
        data += rows


def drawn(seed: int) -> World:
    world = World(random.Random(seed))
    for _ in range(world.rng.randrange(1, 6)):
        UnitWriter(world).write()
    return world
