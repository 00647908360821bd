"""Which variable a name means at an instruction: functions, blocks and inlined functions drawn at
random, against C's rule, the innermost block that has one (DWARF 5, 3.3.8, 3.5 and 4.1)."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kinst.core.locals import Local, LocalPiece
from kinst.image.debug_info import DebugInfo
from kinst.image.dwarf.cfi import InspectedFrame
from kinst.image.dwarf.locals import DwarfLocals
from kinst.isa import load
from tests.image.dwarf_asm import Unit, Value, elf, sleb
from tests.tiers import draws

UNIT, SUBPROGRAM, INLINED, BLOCK, VARIABLE, PARAMETER, BASE = 0x11, 0x2E, 0x1D, 0x0B, 0x34, 5, 0x24
NAME, LOW, HIGH, INLINE, ORIGIN, TYPE = 0x03, 0x11, 0x12, 0x20, 0x31, 0x49
LOCATION, CONST_VALUE, SIZE, ENCODING = 0x02, 0x1C, 0x0B, 0x3E
ADDRESS, DATA1, DATA8, REF4, STRING, SDATA, EXPRLOC = 0x01, 0x0B, 0x07, 0x13, 0x08, 0x0D, 0x18
START = 0xFFFF_FFFF_8100_0000
NAMES = ("a", "b", "c", "d", "e")


@dataclass
class Variable:
    """A variable.

    Attributes:
        name: not unique.
        value: a constant that no other variable has; None: it is optimised out.
        static: its address, if it is in memory instead.
        die: of the one in the abstract instance, to which copies refer.
    """

    name: str
    value: int | None
    static: bool = False
    die: int = 0


@dataclass
class Scope:
    """A function, a block ("") or an inlined copy.

    Attributes:
        name: of the function, "" for a block.
        low: None for a block without a range of its own.
        high: None for a block without a range of its own.
        variables: written below it, in order.
        below: its nested scopes.
        origin: of a copy: its function.
        die: of its entry.
    """

    name: str
    low: int | None
    high: int
    variables: list[Variable] = field(default_factory=list)
    below: list[Scope] = field(default_factory=list)
    origin: Scope | None = None
    die: int = 0

    def holds(self, address: int) -> bool:
        if self.low is None:
            return any(one.holds(address) for one in self.below)
        return self.low <= address < self.high

    def all_variables(self) -> list[Variable]:
        """Return its variables, after the static ones that only the abstract instance has."""
        if self.origin is None:
            return self.variables
        known = {one.name for one in self.variables}
        statics = [one for one in self.origin.variables if one.static]
        names = [one.name for one in statics]
        left = [v for v in statics if v.name not in known and names.count(v.name) == 1]
        return [*left, *self.variables]


class Drawn:
    """A unit: functions that are inlined (abstract), and those with code."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.values = 0
        self.unit = Unit(4)
        self.unit.entry(UNIT, [self.text("unit.c")], True)
        self.types = {
            name: self.entry(
                BASE, self.text(f"{name}_type"), Value(SIZE, DATA1, b"\4"),
                Value(ENCODING, DATA1, b"\5"),
            )
            for name in NAMES
        }  # fmt: skip
        self.abstract = [self.inline(k) for k in range(3)]
        self.functions = [self.function(k) for k in range(3)]
        self.unit.end()

    def text(self, text: str) -> Value:
        return Value(NAME, STRING, text.encode() + b"\0")

    def reference(self, attribute: int, at: int) -> Value:
        return Value(attribute, REF4, struct.pack("<I", at))

    def entry(self, tag: int, *values: Value, children: bool = False) -> int:
        self.unit.here("last")
        at = self.unit.places["last"]
        self.unit.entry(tag, list(values), children)
        return at

    def number(self) -> int:
        self.values += 1
        return self.values

    def inline(self, number: int) -> Scope:
        """Draw an abstract instance, whose variables have no values except static ones."""
        made = Scope(f"inline{number}", None, 0)
        self.entry(SUBPROGRAM, self.text(made.name), Value(INLINE, DATA1, b"\3"), children=True)
        made.die = self.unit.places["last"]
        for _ in range(self.rng.randrange(1, 5)):
            static = self.rng.random() < 0.4
            one = Variable(self.rng.choice(NAMES), self.number() if static else None, static)
            if any(v.name == one.name for v in made.variables) and not static:
                continue
            tag = VARIABLE if static or self.rng.random() < 0.5 else PARAMETER
            one.die = self.variable(tag, one, self.text(one.name), self.type_of(one))
            made.variables.append(one)
        self.unit.end()
        return made

    def type_of(self, one: Variable) -> Value:
        return self.reference(TYPE, self.types[one.name])

    def variable(self, tag: int, one: Variable, *values: Value) -> int:
        more = []
        if one.static and one.value is not None:
            code = b"\x03" + struct.pack("<Q", one.value)
            more = [Value(LOCATION, EXPRLOC, bytes([len(code)]) + code)]
        elif one.value is not None:
            more = [Value(CONST_VALUE, SDATA, sleb(one.value))]
        return self.entry(tag, *values, *more)

    def function(self, number: int) -> Scope:
        low = START + 0x10000 * number
        return self.scope(f"function{number}", SUBPROGRAM, low, low + 0x1000, 0, frozenset())

    def scope(
        self, name: str, tag: int, low: int, high: int, depth: int, inside: frozenset[str],
        origin: Scope | None = None,
    ) -> Scope:  # fmt: skip
        """Draw a scope.

        Args:
            inside: the inlined functions that it is in.
        """
        rng = self.rng
        values = [self.text(name)] if tag == SUBPROGRAM else []
        values += [self.reference(ORIGIN, origin.die)] if origin else []
        ranged = tag != BLOCK or rng.random() < 0.7
        if ranged:
            values += [Value(LOW, ADDRESS, struct.pack("<Q", low)),
                       Value(HIGH, DATA8, struct.pack("<Q", high - low))]  # fmt: skip
        made = Scope(name, low if ranged else None, high, origin=origin)
        made.die = self.entry(tag, *values, children=True)
        self.own(made, tag)
        if depth < 4:
            step = (high - low) // 4
            for k in range(4):
                if rng.random() < 0.6:
                    first = low + k * step + rng.choice((0, 1, step // 4))
                    last = low + (k + 1) * step - rng.choice((0, 1, step // 4))
                    made.below.append(self.inner(first, last, depth + 1, inside))
        self.unit.end()
        return made

    def inner(self, low: int, high: int, depth: int, inside: frozenset[str]) -> Scope:
        left = [one for one in self.abstract if one.name not in inside]
        if left and self.rng.random() < 0.5:
            one = self.rng.choice(left)
            return self.scope(one.name, INLINED, low, high, depth, inside | {one.name}, one)
        return self.scope("", BLOCK, low, high, depth, inside)

    def own(self, made: Scope, tag: int) -> None:
        if made.origin is not None:
            for abstract in made.origin.variables:
                if self.rng.random() < 0.6 and not abstract.static:
                    value = self.number() if self.rng.random() < 0.8 else None
                    one = Variable(abstract.name, value)
                    self.variable(VARIABLE, one, self.reference(ORIGIN, abstract.die))
                    made.variables.append(one)
            return
        for _ in range(self.rng.randrange(4)):
            one = Variable(self.rng.choice(NAMES), self.number())
            kind = PARAMETER if tag == SUBPROGRAM and self.rng.random() < 0.5 else VARIABLE
            self.variable(kind, one, self.text(one.name), self.type_of(one))
            made.variables.append(one)


def way_to(scope: Scope, address: int) -> list[Scope]:
    """Return the scopes that hold an address, the innermost first."""
    for one in scope.below:
        if one.holds(address):
            return [*way_to(one, address), scope]
    return [scope]


def meant(way: list[Scope], name: str) -> tuple[Variable, str] | None:
    """Return the variable of a name, and its function."""
    for k, scope in enumerate(way):
        of = next(one.name for one in way[k:] if one.name)
        for one in reversed(scope.all_variables()):
            if one.name == name:
                return one, of
    return None


def every(scope: Scope) -> Iterator[Scope]:
    yield scope
    for one in scope.below:
        yield from every(one)


def check(found: Local | None, wanted: tuple[Variable, str] | None) -> None:
    if wanted is None:
        assert found is None
        return
    one, function = wanted
    assert found is not None
    assert (found.name, found.function, str(found.type)) == (one.name, function, f"{one.name}_type")
    if one.value is None:
        assert found.pieces == () and found.reason == "it is optimised out"
    else:
        kind = "memory" if one.static else "value"
        assert found.pieces == (LocalPiece(kind, f"{one.value:#x}ull"),)


def opened(drawn: Drawn, folder: Path) -> DwarfLocals:
    found = DebugInfo(elf(folder / "file", drawn.unit.sections())).locals(["R_AX"])
    assert found is not None
    return found


def asked(function: Scope) -> list[int]:
    """Return the addresses at which a scope begins or ends."""
    edges = {at for one in every(function) if one.low is not None for at in (one.low, one.high)}
    return sorted(at + k for at in edges for k in (-1, 0) if function.holds(at + k))


@pytest.mark.parametrize("seed", range(5))
def test_the_innermost_that_has_the_name(seed: int, tmp_path: Path) -> None:
    drawn = Drawn(seed)
    known = opened(drawn, tmp_path)
    for function in drawn.functions:
        for address in asked(function):
            way = way_to(function, address)
            frame = InspectedFrame(address, False, None, int)
            for name in (*NAMES, "f"):
                check(known.find(function.name, frame, name), meant(way, name))
            names = [one.name for scope in way for one in scope.all_variables()]
            assert known.names(function.name, address) == list(dict.fromkeys(names))
        outside = InspectedFrame(function.high, False, None, int)
        assert known.find(function.name, outside, "a") is None
        assert known.names(function.name, function.high) == []


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(5, 5 + draws(2, 4)))
def test_from_an_inlined_function_outwards(seed: int, tmp_path: Path) -> None:
    """By the inlined function's name, from anywhere within its copy; if it does not have the
    variable, the ones around it count."""
    drawn = Drawn(seed)
    known = opened(drawn, tmp_path)
    for function in drawn.functions:
        for address in asked(function):
            whole = way_to(function, address)
            frame = InspectedFrame(address, False, None, int)
            for inlined in drawn.abstract:
                at = next((k for k, one in enumerate(whole) if one.origin is inlined), 0)
                for name in NAMES:
                    found = known.find(function.name, frame, name, inlined.name)
                    check(found, meant(whole[at:], name))
                names = [one.name for scope in whole[at:] for one in scope.all_variables()]
                wanted = list(dict.fromkeys(names))
                assert known.names(function.name, address, inlined.name) == wanted


@pytest.mark.parametrize("seed", range(9, 12))
def test_names_and_types_anywhere_in_a_function(seed: int, tmp_path: Path) -> None:
    drawn = Drawn(seed)
    known = opened(drawn, tmp_path)
    for function in drawn.functions:
        scopes = list(every(function))
        names = {one.name for scope in scopes for one in scope.variables}
        names |= {v.name for s in scopes if s.origin for v in s.origin.variables}
        found = known.names_in(function.name)
        assert sorted(found) == sorted(names)
        own = list(dict.fromkeys(one.name for one in function.variables))
        assert found[: len(own)] == own
        for name in NAMES:
            type_ = known.type_in(function.name, name)
            assert (str(type_) if type_ else "") == (f"{name}_type" if name in names else "")
    assert known.names_in("absent") == [] and known.type_in("absent", "a") is None


def test_where_an_empty_copy_is(tmp_path: Path) -> None:
    """A copy without code begins at an instruction of another function: by its name, its variables
    are meant there, and only there."""
    drawn = Drawn(30)
    drawn.unit = Unit(4)
    drawn.unit.entry(UNIT, [drawn.text("unit.c")], True)
    drawn.types = {name: drawn.entry(BASE, drawn.text(f"{name}_type"), Value(SIZE, DATA1, b"\4"),
                                     Value(ENCODING, DATA1, b"\5")) for name in NAMES}  # fmt: skip
    inline = Scope("inline", None, 0)
    inline.die = drawn.entry(SUBPROGRAM, drawn.text("inline"), Value(INLINE, DATA1, b"\3"))
    drawn.entry(
        SUBPROGRAM, drawn.text("outer"), Value(LOW, ADDRESS, struct.pack("<Q", START)),
        Value(HIGH, DATA8, struct.pack("<Q", 64)), children=True,
    )  # fmt: skip
    drawn.entry(
        INLINED, drawn.reference(ORIGIN, inline.die),
        Value(LOW, ADDRESS, struct.pack("<Q", START + 16)), Value(HIGH, DATA8, bytes(8)),
        children=True,
    )  # fmt: skip
    one = Variable("a", 77)
    drawn.variable(VARIABLE, one, drawn.text("a"), drawn.type_of(one))
    for _ in range(3):
        drawn.unit.end()
    known = opened(drawn, tmp_path)
    for address in (START + 15, START + 16, START + 17):
        frame = InspectedFrame(address, False, None, int)
        there = address == START + 16
        check(known.find("outer", frame, "a", "inline"), (one, "inline") if there else None)
        check(known.find("outer", frame, "a"), None)
        assert known.names("outer", address, "inline") == (["a"] if there else [])


@pytest.mark.parametrize("name", ["outer", "alias", "outer.part.0", "alias@3"])
def test_functions_by_what_is_inlined_there(name: str, tmp_path: Path) -> None:
    """A function is looked up by a name that the debug information lacks, such as an alias, in a
    file without symbols: the unit of an inlined copy has the function."""
    drawn = Drawn(5)
    known = opened(drawn, tmp_path)
    seen = 0
    for function in drawn.functions:
        plain = name.replace("outer", function.name)
        for address in asked(function):
            way = way_to(function, address)
            if "alias" in name and all(scope.origin is None for scope in way):
                assert known.names(plain, address) == []
                continue
            names = [one.name for scope in way for one in scope.all_variables()]
            assert known.names(plain, address) == list(dict.fromkeys(names))
            seen += 1
            for one in NAMES:
                frame = InspectedFrame(address, False, None, int)
                check(known.find(plain, frame, one), meant(way, one))
    assert seen > 20
    # What is in front is no room for ftrace of a symbol.
    for room in (1, 4, 16):
        assert known.names(name.replace("outer", "function0"), START - room) == []


BYTES = bytes(range(1, 12))
CONSTANTS: list[tuple[Value, int | None]] = [
    *((Value(CONST_VALUE, 0x0A, bytes([size]) + BYTES[:size]),
       int.from_bytes(BYTES[:size], "little") if size <= 8 else None) for size in range(12)),
    (Value(CONST_VALUE, 0x1E, bytes(16)), None), (Value(CONST_VALUE, STRING, b"text\0"), None),
    (Value(CONST_VALUE, SDATA, sleb(-5)), 2**64 - 5),
    (Value(CONST_VALUE, SDATA, sleb(-(2**63))), 2**63),
    (Value(CONST_VALUE, DATA8, b"\xff" * 8), 2**64 - 1), (Value(CONST_VALUE, DATA1, b"\xff"), 255),
]  # fmt: skip


@pytest.mark.parametrize(("value", "number"), CONSTANTS, ids=str)
def test_constants_of_every_form(value: Value, number: int | None, tmp_path: Path) -> None:
    """Blocks have the bytes of the variable, the lowest first; None: it has too many."""
    drawn = Drawn(6)
    drawn.unit = Unit(5)
    drawn.unit.entry(UNIT, [drawn.text("unit.c")], True)
    at = [Value(LOW, ADDRESS, struct.pack("<Q", START)), Value(HIGH, DATA1, b"\x40")]
    drawn.entry(SUBPROGRAM, drawn.text("f"), *at, children=True)
    drawn.entry(VARIABLE, drawn.text("a"), value)
    drawn.unit.end()
    drawn.unit.end()
    found = opened(drawn, tmp_path).find("f", InspectedFrame(START, False, None, int), "a")
    assert found is not None
    if number is None:
        assert found.pieces == () and found.reason == "it is a constant of more than 8 bytes"
    else:
        assert found.pieces == (LocalPiece("value", f"{number:#x}ull"),)


ROOM = """
__asm__(".text\\n.globl stub\\n.type stub, %%function\\nstub: nop\\n.size stub, . - stub\\n");
extern int other(int) __attribute__((noipa));
int asked(int first, int second) { int sum = other(first); return sum + second; }
int other(int n) { return n + 1; }
int main(void) { return asked(3, 4) + other(2); }
"""


@pytest.mark.parametrize("isa", ["arm64", "riscv64"])
def test_room_for_ftrace_in_front(isa: str, tmp_path: Path) -> None:
    """gcc includes it in the symbol, and begins its description after it: there the variables are
    those of the first instruction.  Padding of another symbol has none of them."""
    compiler = {"arm64": "aarch64-linux-gnu-gcc", "riscv64": "riscv64-linux-gnu-gcc"}[isa]
    source, program = tmp_path / "room.c", tmp_path / "room"
    source.write_text(ROOM.replace("%%", "%" if isa == "arm64" else "@"))
    flags = ["-O1", "-g", "-nostdlib", "-static", "-fpatchable-function-entry=4", "-Wl,-e,main"]
    subprocess.run([compiler, *flags, "-fno-toplevel-reorder", "-o", program, source], check=True)
    registers = load(isa).dwarf_registers
    debug = DebugInfo(program)
    known = debug.locals(registers)
    assert known is not None
    symbols = debug.elf.symbols
    (row,), (stub,) = symbols.indexes("asked"), symbols.indexes("stub")
    start = int(symbols.address[row])
    ((low, high),) = debug.functions("asked")[0].ranges
    assert start + 8 <= low < high
    for at in (start, low - 1, low, high - 1):
        function = debug.function_at("asked", at)
        assert function is not None and function.ranges == ((low, high),), hex(at)
    assert debug.function_at("asked", high) is None
    line = debug.line_at("asked", low, start)
    assert line is not None and ROOM.splitlines()[line.line - 1].startswith("int asked(")
    taken = ["R_X0", "R_X1"] if isa == "arm64" else ["R_A0", "R_A1"]
    for address in range(start, low + 1):
        frame = InspectedFrame(address, True, None, int)
        assert known.names("asked", address) == ["first", "second", "sum"], hex(address)
        for name, register in zip(("first", "second"), taken, strict=True):
            found = known.find("asked", frame, name)
            assert found is not None and found.pieces == (LocalPiece("value", f"regs[{register}]"),)
    at = int(symbols.address[stub])
    assert known.names("stub", at) == []
    assert known.find("stub", InspectedFrame(at, True, None, int), "first") is None
