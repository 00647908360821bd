"""State of a D program while the evaluator runs it: types, variables, faults, and printf.

Written from the language's definition, not from kinst: integer promotions and the usual arithmetic
conversions are C99's (6.3.1), layouts of structures those of the x86-64 ABI (3.1.2, the same on
arm64 and riscv64), conversions of printf those of C99 7.19.6.1 with the argument's own size, as
the Dynamic Tracing Guide's "Output Formatting" says.  As in libdtrace, a precision of 0 is none,
and of the flags 0 and - the later one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

STRSIZE = 256
BADADDR, ILLOP, DIVZERO, NOSCRATCH = 1, 3, 4, 5  # DTRACEFLT_...: the Guide's "ERROR Probe"


class FaultError(Exception):
    """A fault, which fires dtrace:::ERROR and ends the clause; `kind` is a DTRACEFLT_...
    constant."""

    def __init__(self, kind: int) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass(frozen=True)
class Type:
    name: str
    size: int
    signed: bool

    @property
    def bits(self) -> int:
        return 8 * self.size

    def fit(self, value: int) -> int:
        return cut(value, self.bits, self.signed)


def cut(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


CHAR, INT8, UINT8 = Type("char", 1, True), Type("int8_t", 1, True), Type("uint8_t", 1, False)
SHORT, USHORT = Type("short", 2, True), Type("uint16_t", 2, False)
INT, UINT = Type("int", 4, True), Type("unsigned int", 4, False)
LONG, ULONG = Type("int64_t", 8, True), Type("uint64_t", 8, False)
TYPES = (CHAR, INT8, UINT8, SHORT, USHORT, INT, UINT, LONG, ULONG)


def promoted(type_: Type) -> Type:
    return INT if type_.size < 4 else type_


def common(a: Type, b: Type) -> Type:
    """Return the common type of the usual arithmetic conversions."""
    a, b = promoted(a), promoted(b)
    if a.size != b.size:
        return a if a.size > b.size else b
    return a if not a.signed else b


Value = int | bytes | None  # None: a string that is NULL


@dataclass
class World:
    """State while the programs of a script run, in their order."""

    values: dict[str, Value] = field(default_factory=dict)
    arrays: dict[str, dict[tuple[Value, ...], Value]] = field(default_factory=dict)
    memory: dict[str, bytearray] = field(default_factory=dict)  # of one clause, by pointer
    aggregations: dict[str, dict[tuple[Value, ...], list[int]]] = field(default_factory=dict)
    tokens: tuple[bytes, int] | None = None  # strtok()'s string and position
    pending: list[str] = field(default_factory=list)  # records, which are lost if the clause faults
    lines: list[str] = field(default_factory=list)

    def commit(self) -> None:
        self.lines += self.pending
        self.pending.clear()

    def fire(self) -> None:
        """Begin another firing of the probe, with a new this->."""
        for name in [name for name in self.values if name.startswith("this->")]:
            del self.values[name]
        self.tokens = None


@dataclass(frozen=True)
class Number:
    """An integer expression: its D text, its type, its value."""

    text: str
    type: Type
    value: Callable[[World], int]
    # The bits that promotion looks at: a bit-field has fewer than its type.
    width: int = 0
    constant: bool = False

    @property
    def plain(self) -> Number:
        """Return the number with the type that C gives it in an expression (6.3.1.1)."""
        if not self.width:
            return self
        fits = self.width < 32 or (self.width == 32 and self.type.signed)
        return Number(self.text, INT if fits else self.type, self.value)


@dataclass(frozen=True)
class Text:
    """A string expression; its value is None for NULL."""

    text: str
    value: Callable[[World], bytes | None]


def there(value: Value) -> bytes:
    """Return the string for reading; NULL faults."""
    if value is None:
        raise FaultError(BADADDR)
    assert isinstance(value, bytes)
    return value


def quotient(a: int, b: int) -> int:
    if b == 0:
        raise FaultError(DIVZERO)
    found = abs(a) // abs(b)
    return found if (a < 0) == (b < 0) else -found


def remainder(a: int, b: int) -> int:
    return a - b * quotient(a, b)


@dataclass(frozen=True)
class Conversion:
    """One conversion of a format, without its argument."""

    flags: str
    width: int
    precision: int | None
    letter: str

    @property
    def text(self) -> str:
        width = str(self.width) if self.width else ""
        precision = "" if self.precision is None else f".{self.precision}"
        return f"%{self.flags}{width}{precision}{self.letter}"

    @property
    def _pads(self) -> str:
        """Return the flag that counts, - or 0: the later one."""
        found = [f for f in self.flags if f in "-0"]
        return found[-1] if found else ""

    def of_text(self, value: str) -> str:
        if self.precision:
            value = value[: self.precision]
        return value.ljust(self.width) if self._pads == "-" else value.rjust(self.width)

    def of_number(self, type_: Type, value: int) -> str:
        """Return an integer as printf shows it.

        %d of an unsigned value is %u, as in libdtrace; other conversions print the bits of the
        argument's type.
        """
        signed = self.letter in "di" and type_.signed
        if self.letter == "c":
            return self.of_text(chr(value & 0xFF))
        bits = value if signed else cut(value, type_.bits, False)
        sign = "-" if bits < 0 else ""
        if signed and bits >= 0:
            sign = "+" if "+" in self.flags else " " if " " in self.flags else ""
        digits = format(abs(bits), {"o": "o", "x": "x", "X": "X"}.get(self.letter, "d"))
        digits = digits.rjust(self.precision or 0, "0")
        if "#" in self.flags and self.letter == "o" and not digits.startswith("0"):
            digits = "0" + digits
        if "#" in self.flags and self.letter in "xX" and bits:
            sign = "0" + self.letter
        room = self.width - len(sign)
        if self._pads == "-":
            return (sign + digits).ljust(self.width)
        if self._pads == "0" and not self.precision:
            return sign + digits.rjust(room, "0")
        return (sign + digits).rjust(self.width)


@dataclass(frozen=True)
class Leaf:
    """An integer somewhere in a structure: its path (`.a[1].b`), first bit, and number of bits."""

    path: str
    type: Type
    bit: int
    bits: int
    is_field: bool = False

    def read(self, memory: bytearray, at: int) -> int:
        whole = int.from_bytes(memory, "little") >> (8 * at + self.bit)
        return cut(whole, self.bits, self.type.signed)

    def write(self, memory: bytearray, at: int, value: int) -> int:
        """Store a value, and return what the member holds then."""
        place, mask = 8 * at + self.bit, (1 << self.bits) - 1
        whole = int.from_bytes(memory, "little")
        whole = whole & ~(mask << place) | (value & mask) << place
        memory[:] = whole.to_bytes(len(memory), "little")
        return cut(value, self.bits, self.type.signed)


@dataclass(frozen=True)
class Struct:
    """A structure or union of the program.

    Attributes:
        tops: each member and the byte at which it begins.
    """

    name: str
    text: str
    size: int
    align: int
    leaves: tuple[Leaf, ...]
    tops: tuple[tuple[str, int], ...]
