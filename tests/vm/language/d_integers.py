"""Integer expressions of D, made at random, each with its value."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.vm.language.d_model import (
    BADADDR,
    INT,
    LONG,
    TYPES,
    UINT,
    ULONG,
    USHORT,
    FaultError,
    Number,
    Struct,
    Text,
    Type,
    World,
    common,
    promoted,
    quotient,
    remainder,
)
from tests.vm.language.d_model import there as read_text
from tests.vm.language.d_strings import index_of, rindex_of, strtoll

EDGES = [0, 1, 2, 3, 7, 8, 63, 64, 127, 128, 255, 256, 32767, 32768, 65535, 2**31 - 1, 2**31]
EDGES += [2**32 - 1, 2**32, 2**63 - 1]
PLAIN: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
}  # fmt: skip
DIVIDE: dict[str, Callable[[int, int], int]] = {"/": quotient, "%": remainder}
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip
NOWHERE = World()  # where constants have their values
_ORDERS = {"ntohs": USHORT, "htons": USHORT, "htonl": UINT, "ntohl": UINT, "htonll": ULONG}
_NUMERALS = ("0", "12", "-7", "007", "0x1f", "  99", "12ab", "zz9", "-", "", "7fffffff", "101")


def made(text: str, type_: Type, exact: Callable[[World], int], *of: Number) -> Number:
    """Return the result of an operator.

    For constant operands the result is a constant, of type LONG if INT cannot hold it (docs/d.md),
    like a literal of that value.
    """
    constant = all(one.constant for one in of)
    int_ = (type_.size, type_.signed) == (INT.size, INT.signed)
    if constant and int_ and INT.fit(exact(NOWHERE)) != exact(NOWHERE):
        type_ = LONG
    return Number(text, type_, lambda w: type_.fit(exact(w)), constant=constant)


def combined(a: Number, op: str, b: Number) -> Number:
    """Return two numbers combined by an operator of PLAIN or DIVIDE, in their common type."""
    type_ = common(a.type, b.type)
    work = PLAIN[op] if op in PLAIN else DIVIDE[op]
    return made(
        f"({a.text} {op} {b.text})", type_,
        lambda w: work(type_.fit(a.value(w)), type_.fit(b.value(w))), a, b,
    )  # fmt: skip


@dataclass
class Scope:
    """Names that a program may use.

    Attributes:
        numbers: variables and their types.
        cells: elements of arrays and members in memory, which can also be assigned.
    """

    numbers: dict[str, Type] = field(default_factory=dict)
    strings: list[str] = field(default_factory=list)
    cells: list[Number] = field(default_factory=list)
    stores: dict[str, Callable[[World, int], int]] = field(default_factory=dict)


def literal(value: int, chance: random.Random) -> Number:
    """Return an integer constant in one of its notations, of the type that C99 6.4.4.1 gives
    it."""
    form = chance.randrange(6)
    if form == 0:
        types = [t for t in (INT, UINT, LONG, ULONG) if t.fit(value) == value]
        return Number(f"{value:#x}", types[0], lambda _: value, constant=True)
    if form == 1:
        types = [t for t in (UINT, ULONG) if t.fit(value) == value]
        return Number(f"{value}u", types[0], lambda _: value, constant=True)
    if form == 2 and 32 < value < 127 and chr(value) not in "'\\\"?":
        return Number(f"'{chr(value)}'", INT, lambda _: value, constant=True)
    type_ = INT if value < 2**31 else LONG
    return Number(str(value), type_, lambda _: value, constant=True)


class Integers:
    """Makes integer expressions.

    Args:
        seed: of everything random.
        structs: declarations of the script.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.scope = Scope()
        self.structs: list[Struct] = []
        self.faults = False  # whether expressions may fault

    def string(self, depth: int) -> Text:
        raise NotImplementedError

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def constant(self) -> Number:
        value = self.random.choice(EDGES)
        if self.chance(0.5):
            value = self.random.getrandbits(self.random.randrange(1, 63))
        if self.structs and self.chance(0.1):
            return self.of_layout(self.random.choice(self.structs))
        return literal(value, self.random)

    def of_layout(self, struct: Struct) -> Number:
        if self.chance(0.5):
            text = f"sizeof (struct {struct.name})"
            return Number(text, ULONG, lambda _: struct.size, constant=True)
        member, at = self.random.choice(struct.tops)
        text = f"offsetof (struct {struct.name}, {member})"
        return Number(text, ULONG, lambda _: at, constant=True)

    def read(self) -> Number:
        if self.scope.cells and self.chance(0.5):
            return self.random.choice(self.scope.cells)
        if not self.scope.numbers:
            return self.constant()
        name, type_ = self.random.choice(list(self.scope.numbers.items()))
        return Number(name, type_, lambda w: w.values.get(name) or 0)  # type: ignore[arg-type]

    def number(self, depth: int) -> Number:
        """Return any integer expression, with its type as an operand."""
        return self.leaf(depth).plain

    def leaf(self, depth: int) -> Number:
        if depth <= 0:
            return self.read() if self.chance(0.6) else self.constant()
        makers = [
            self.plain, self.plain, self.divided, self.shifted, self.compared, self.logical,
            self.unary, self.cast, self.cast, self.chosen, self.of_text, self.of_size,
            self.swapped,
        ]  # fmt: skip
        if self.faults and self.chance(0.15):
            makers = [self.divided_by_any, self.wild]
        return self.random.choice(makers)(depth - 1)

    def plain(self, depth: int) -> Number:
        a, b = self.number(depth), self.number(depth)
        return combined(a, self.random.choice(list(PLAIN)), b)

    def divided(self, depth: int) -> Number:
        """Return a division whose divisor has "| 1", so is never zero."""
        b = self.number(depth)
        under = promoted(b.type)
        odd = made(f"({b.text} | 1)", under, lambda w: under.fit(b.value(w)) | 1, b)
        return self.quotient(self.number(depth), odd)

    def divided_by_any(self, depth: int) -> Number:
        """Return a division by zero now and then, which the compiler cannot see."""
        b = self.read()
        if b.text not in {*self.scope.numbers, *(cell.text for cell in self.scope.cells)}:
            return self.divided(depth)
        under = promoted(b.plain.type)
        few = Number(f"({b.text} & 1)", under, lambda w: under.fit(b.value(w) & 1))
        return self.quotient(self.number(depth), few)

    def quotient(self, a: Number, b: Number) -> Number:
        return combined(a, self.random.choice("/%"), b)

    def wild(self, depth: int) -> Number:
        """Return an address in the first page, which is never mapped."""
        type_ = self.random.choice(TYPES)

        def value(_: World) -> int:
            raise FaultError(BADADDR)

        address = self.random.choice(("NULL", str(self.random.randrange(4080))))
        return Number(f"(*({type_.name} *){address})", type_, value)

    def shifted(self, depth: int) -> Number:
        """Return a shift: in 64 bits with the count modulo 64, then cut to the promoted left type
        (docs/d.md)."""
        a, count = self.number(depth), self.random.randrange(64)
        b = Number(str(count), INT, lambda _: count, constant=True)
        if self.chance(0.4):
            b = self.number(min(depth, 1))
        type_ = promoted(a.type)
        left = self.chance(0.5)

        def value(w: World) -> int:
            inner, by = type_.fit(a.value(w)), b.value(w) & 63
            return inner << by if left else inner >> by

        return made(f"({a.text} {'<<' if left else '>>'} {b.text})", type_, value, a, b)

    def compared(self, depth: int) -> Number:
        a, b = self.number(depth), self.number(depth)
        op = self.random.choice(list(_COMPARE))
        type_, work = common(a.type, b.type), _COMPARE[op]
        return made(
            f"({a.text} {op} {b.text})", INT,
            lambda w: int(work(type_.fit(a.value(w)), type_.fit(b.value(w)))), a, b,
        )  # fmt: skip

    def logical(self, depth: int) -> Number:
        a, b = self.number(depth), self.number(depth)
        op = self.random.choice(("&&", "||", "^^"))

        def value(w: World) -> int:
            x = bool(a.value(w))
            if op == "^^":
                return int(x != bool(b.value(w)))
            return int(bool(b.value(w)) if x == (op == "&&") else x)

        return made(f"({a.text} {op} {b.text})", INT, value, a, b)

    def unary(self, depth: int) -> Number:
        a = self.number(depth)
        op = self.random.choice("-~!+")
        if op == "!":
            return made(f"(!{a.text})", INT, lambda w: int(a.value(w) == 0), a)
        type_ = promoted(a.type)

        def value(w: World) -> int:
            inner = type_.fit(a.value(w))
            return {"-": -inner, "~": ~inner, "+": inner}[op]

        return made(f"({op} {a.text})", type_, value, a)

    def cast(self, depth: int) -> Number:
        a, type_ = self.number(depth), self.random.choice(TYPES)
        text = f"(({type_.name}){a.text})"
        return Number(text, type_, lambda w: type_.fit(a.value(w)), constant=a.constant)

    def chosen(self, depth: int) -> Number:
        c, a, b = self.number(depth), self.number(depth), self.number(depth)
        # Two operands of one type are not promoted, unlike in C (libdtrace, dt_parser.c:
        # dt_cook_op3).
        alike = (a.type.size, a.type.signed) == (b.type.size, b.type.signed)
        type_ = a.type if alike else common(a.type, b.type)
        taken = c.constant and (a if c.value(NOWHERE) else b).constant
        return Number(
            f"({c.text} ? {a.text} : {b.text})", type_,
            lambda w: type_.fit(a.value(w) if c.value(w) else b.value(w)), constant=taken,
        )  # fmt: skip

    def of_size(self, depth: int) -> Number:
        """Return sizeof of an expression: the size of its type, without evaluation."""
        a = self.leaf(depth)
        if a.width:  # sizeof of a bit-field is an error
            return a
        return Number(f"sizeof ({a.text})", ULONG, lambda _: a.type.size, constant=True)

    def swapped(self, depth: int) -> Number:
        """Return a call of htonl() or the like, for machines whose low byte is first."""
        a = self.number(depth)
        name, type_ = self.random.choice(list(_ORDERS.items()))

        def value(w: World) -> int:
            bits = a.value(w) & ((1 << type_.bits) - 1)
            return int.from_bytes(bits.to_bytes(type_.size, "little"), "big")

        return Number(f"{name}({a.text})", type_, value)

    def of_text(self, depth: int) -> Number:
        """Return an integer computed from strings."""
        a, b = self.string(min(depth, 1)), self.string(0)
        kind = self.random.randrange(6)
        if kind == 0:
            return Number(f"((int)strlen({a.text}))", INT, lambda w: len(read_text(a.value(w))))
        if kind == 1:
            op = self.random.choice(list(_COMPARE))
            work = _COMPARE[op]

            def compared(w: World) -> int:
                x, y = a.value(w) or b"", b.value(w) or b""
                return int(work((x > y) - (x < y), 0))

            return Number(f"({a.text} {op} {b.text})", INT, compared)
        if kind == 2:
            return Number(f"({a.text} == NULL)", INT, lambda w: int(not a.value(w)))
        if kind == 3:
            return self.numeral()
        start = self.random.choice([None, None, -3, 0, 1, 4, 20])
        more = "" if start is None else f", {start}"
        name, work_ = self.random.choice((("index", index_of), ("rindex", rindex_of)))

        def found(w: World) -> int:
            x, y = a.value(w), b.value(w)
            return work_(read_text(x), read_text(y), start)

        return Number(f"{name}({a.text}, {b.text}{more})", INT, found)

    def numeral(self) -> Number:
        text = self.random.choice(_NUMERALS)
        if self.chance(0.5):
            text = str(self.random.randrange(-(2**62), 2**62))
        base = self.random.choice((None, 2, 8, 10, 16, 36)) if len(text) < 9 else None
        more = "" if base is None else f", {base}"
        found = strtoll(text.encode(), base or 10)
        return Number(f'strtoll("{text}"{more})', LONG, lambda _: found)
