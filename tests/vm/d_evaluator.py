"""D programs made at random, each with what it must print by an evaluator in Python.

The evaluator is written from the language's definition, not from kinst: integer promotions and
the usual arithmetic conversions of C99 6.3.1 (Dynamic Tracing Guide, "Types, Operators, and
Expressions"), results that wrap at their type's width, division that cuts toward zero, and the
string subroutines as the Guide's "Actions and Subroutines" tells them.  A program is one clause
body that prints its number and values; nothing in it faults.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

STRSIZE = 256


@dataclass(frozen=True)
class Type:
    name: str
    size: int
    signed: bool

    def fit(self, value: int) -> int:
        bits = 8 * self.size
        value &= (1 << bits) - 1
        return value - (1 << bits) if self.signed and value >> (bits - 1) else value


CHAR, INT8, UINT8 = Type("char", 1, True), Type("int8_t", 1, True), Type("uint8_t", 1, False)
SHORT, USHORT = Type("short", 2, True), Type("uint16_t", 2, False)
INT, UINT = Type("int", 4, True), Type("unsigned int", 4, False)
LONG, ULONG = Type("int64_t", 8, True), Type("uint64_t", 8, False)
TYPES = (CHAR, INT8, UINT8, SHORT, USHORT, INT, UINT, LONG, ULONG)
EDGES = [0, 1, 2, 3, 7, 8, 63, 64, 127, 128, 255, 256, 32767, 32768, 65535, 2**31 - 1, 2**31]
EDGES += [2**32 - 1, 2**32, 2**63 - 1]


def promoted(type_: Type) -> Type:
    return INT if type_.size < 4 else type_


def common(a: Type, b: Type) -> Type:
    """The usual arithmetic conversions."""
    a, b = promoted(a), promoted(b)
    if a.size != b.size:
        return a if a.size > b.size else b
    return a if not a.signed else b


@dataclass
class World:
    """Variables by name while a program runs."""

    values: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Number:
    """An integer expression: as D, its type, its value."""

    text: str
    type: Type
    value: Callable[[World], int]


@dataclass(frozen=True)
class Text:
    """A string expression."""

    text: str
    value: Callable[[World], bytes]


def quotient(a: int, b: int) -> int:
    found = abs(a) // abs(b)
    return found if (a < 0) == (b < 0) else -found


_PLAIN: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
}  # fmt: skip
_DIVIDE: dict[str, Callable[[int, int], int]] = {
    "/": quotient, "%": lambda a, b: a - b * quotient(a, b),
}  # fmt: skip
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def substr(s: bytes, index: int, length: int | None) -> bytes:
    """As dtrace(1): a negative index counts from the end, a negative length leaves so many
    characters at the end."""
    size = len(s)
    if index < 0:
        index += size
        if index < 0 and length is not None and length > 0:
            length += index  # what lies before the string is cut off
            if length <= 0:
                return b""
        index = max(index, 0)
    if index > size:
        return b""
    if length is None:
        return s[index:]
    end = size + length if length < 0 else index + length
    return s[index : max(end, index)]


class Maker:
    """Makes programs; seed: of everything random in them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    # Integers

    def constant(self) -> Number:
        value = self.random.choice(EDGES)
        if self.random.random() < 0.5:
            value = self.random.getrandbits(self.random.randrange(1, 63))
        type_ = INT if value < 2**31 else LONG
        return Number(str(value), type_, lambda _: value)

    def read(self, names: dict[str, Type]) -> Number:
        name, type_ = self.random.choice(list(names.items()))
        return Number(name, type_, lambda world: world.values[name])

    def number(self, depth: int, names: dict[str, Type]) -> Number:
        """Any integer expression over these variables."""
        if depth <= 0:
            return self.read(names) if names and self.random.random() < 0.6 else self.constant()
        makers = [
            self.plain, self.plain, self.divided, self.shifted, self.compared, self.logical,
            self.unary, self.cast, self.cast, self.chosen, self.of_text,
        ]  # fmt: skip
        return self.random.choice(makers)(depth - 1, names)

    def plain(self, depth: int, names: dict[str, Type]) -> Number:
        a, b = self.number(depth, names), self.number(depth, names)
        op = self.random.choice(list(_PLAIN))
        type_ = common(a.type, b.type)
        work = _PLAIN[op]
        return Number(
            f"({a.text} {op} {b.text})", type_,
            lambda w: type_.fit(work(type_.fit(a.value(w)), type_.fit(b.value(w)))),
        )  # fmt: skip

    def divided(self, depth: int, names: dict[str, Type]) -> Number:
        a, b = self.number(depth, names), self.number(depth, names)
        op = self.random.choice("/%")
        under = promoted(b.type)
        type_ = common(a.type, under)
        work = _DIVIDE[op]

        def value(w: World) -> int:
            # "| 1": never zero.
            below = type_.fit(under.fit(under.fit(b.value(w)) | 1))
            return type_.fit(work(type_.fit(a.value(w)), below))

        return Number(f"({a.text} {op} ({b.text} | 1))", type_, value)

    def shifted(self, depth: int, names: dict[str, Type]) -> Number:
        a, count = self.number(depth, names), self.random.randrange(64)
        type_ = self.random.choice((LONG, ULONG))
        left = self.random.random() < 0.5

        def value(w: World) -> int:
            inner = type_.fit(a.value(w))
            return type_.fit(inner << count if left else inner >> count)

        op = "<<" if left else ">>"
        return Number(f"(({type_.name}){a.text} {op} {count})", type_, value)

    def compared(self, depth: int, names: dict[str, Type]) -> Number:
        a, b = self.number(depth, names), self.number(depth, names)
        op = self.random.choice(list(_COMPARE))
        type_, work = common(a.type, b.type), _COMPARE[op]
        return Number(
            f"({a.text} {op} {b.text})", INT,
            lambda w: int(work(type_.fit(a.value(w)), type_.fit(b.value(w)))),
        )  # fmt: skip

    def logical(self, depth: int, names: dict[str, Type]) -> Number:
        a, b = self.number(depth, names), self.number(depth, names)
        op = self.random.choice(("&&", "||", "^^"))

        def value(w: World) -> int:
            x, y = bool(a.value(w)), bool(b.value(w))
            return int({"&&": x and y, "||": x or y, "^^": x != y}[op])

        return Number(f"({a.text} {op} {b.text})", INT, value)

    def unary(self, depth: int, names: dict[str, Type]) -> Number:
        a = self.number(depth, names)
        op = self.random.choice("-~!+")
        if op == "!":
            return Number(f"(!{a.text})", INT, lambda w: int(a.value(w) == 0))
        type_ = promoted(a.type)

        def value(w: World) -> int:
            inner = type_.fit(a.value(w))
            return type_.fit({"-": -inner, "~": ~inner, "+": inner}[op])

        return Number(f"({op} {a.text})", type_, value)

    def cast(self, depth: int, names: dict[str, Type]) -> Number:
        a, type_ = self.number(depth, names), self.random.choice(TYPES)
        return Number(f"(({type_.name}){a.text})", type_, lambda w: type_.fit(a.value(w)))

    def chosen(self, depth: int, names: dict[str, Type]) -> Number:
        c = self.number(depth, names)
        a, b = self.number(depth, names), self.number(depth, names)
        type_ = common(a.type, b.type)
        return Number(
            f"({c.text} ? {a.text} : {b.text})", type_,
            lambda w: type_.fit(a.value(w) if c.value(w) else b.value(w)),
        )  # fmt: skip

    def of_text(self, depth: int, names: dict[str, Type]) -> Number:
        """An integer made of strings."""
        a = self.string(min(depth, 1), names)
        kind = self.random.randrange(4)
        if kind == 0:
            return Number(f"((int)strlen({a.text}))", INT, lambda w: len(a.value(w)))
        b = self.string(0, names)
        if kind == 1:
            op = self.random.choice(list(_COMPARE))
            work = _COMPARE[op]

            def compared(w: World) -> int:
                x, y = a.value(w), b.value(w)
                return int(work((x > y) - (x < y), 0))

            return Number(f"({a.text} {op} {b.text})", INT, compared)
        name = "index" if kind == 2 else "rindex"

        def found(w: World) -> int:
            return a.value(w).find(b.value(w)) if kind == 2 else a.value(w).rfind(b.value(w))

        return Number(f"{name}({a.text}, {b.text})", INT, found)

    # Strings

    def string(self, depth: int, names: dict[str, Type]) -> Text:
        if depth <= 0:
            letters = "".join(self.random.choices("abcABC/. 019", k=self.random.randrange(1, 9)))
            return Text(f'"{letters}"', lambda _: letters.encode())
        a = self.string(depth - 1, names)
        kind = self.random.randrange(7)
        if kind == 0:
            b = self.string(depth - 1, names)
            return Text(f"strjoin({a.text}, {b.text})", lambda w: a.value(w) + b.value(w))
        if kind == 1:
            return Text(f"toupper({a.text})", lambda w: a.value(w).upper())
        if kind == 2:
            return Text(f"tolower({a.text})", lambda w: a.value(w).lower())
        if kind in (3, 4):
            index = self.random.randrange(-4, 6)
            length = self.random.choice([None, 0, 1, 3, 20])
            rest = "" if length is None else f", {length}"
            return Text(f"substr({a.text}, {index}{rest})",
                        lambda w: substr(a.value(w), index, length))  # fmt: skip
        if kind == 5:
            n = self.number(1, names)
            return Text(f"lltostr({n.text})", lambda w: str(LONG.fit(n.value(w))).encode())
        c = self.number(0, names)
        b = self.string(depth - 1, names)
        return Text(f"({c.text} ? {a.text} : {b.text})",
                    lambda w: a.value(w) if c.value(w) else b.value(w))  # fmt: skip

    # Programs

    def program(self, number: int) -> tuple[str, str]:
        """(the body of a clause, the line it prints)."""
        world = World()
        names: dict[str, Type] = {}
        lines: list[str] = []
        prefixes = ("v{}_", "this->t{}_", "self->s{}_")
        for k in range(self.random.randrange(0, 4)):
            name = self.random.choice(prefixes).format(number) + str(k)
            self.assign(name, names, world, lines)
        if names and self.random.random() < 0.4:
            self.compound(names, world, lines)
        if names and self.random.random() < 0.3:
            self.branch(names, world, lines)
        if self.random.random() < 0.25:
            shown = self.string(2, names)
            lines.append(f'printf("{number} %s\\n", {shown.text});')
            return " ".join(lines), f"{number} {shown.value(world).decode()}"
        value = self.number(self.random.randrange(1, 5), names)
        lines.append(f'printf("{number} %d\\n", {value.text});')
        return " ".join(lines), f"{number} {value.value(world)}"

    def assign(self, name: str, names: dict[str, Type], world: World, lines: list[str]) -> None:
        """A first assignment, by a cast, so that the variable's type is plain to see."""
        type_ = self.random.choice(TYPES)
        value = self.number(2, names)
        lines.append(f"{name} = ({type_.name}){value.text};")
        world.values[name] = type_.fit(value.value(world))
        names[name] = type_

    def compound(self, names: dict[str, Type], world: World, lines: list[str]) -> None:
        name, type_ = self.random.choice(list(names.items()))
        if self.random.random() < 0.4:
            by = self.random.choice((1, -1))
            lines.append(f"{name}{'++' if by > 0 else '--'};")
            world.values[name] = type_.fit(world.values[name] + by)
            return
        op = self.random.choice(list(_PLAIN))
        value = self.number(1, names)
        both = common(type_, value.type)
        lines.append(f"{name} {op}= {value.text};")
        result = _PLAIN[op](both.fit(world.values[name]), both.fit(value.value(world)))
        world.values[name] = type_.fit(both.fit(result))

    def branch(self, names: dict[str, Type], world: World, lines: list[str]) -> None:
        condition = self.number(2, names)
        name, type_ = self.random.choice(list(names.items()))
        yes, no = self.number(1, names), self.number(1, names)
        lines.append(
            f"if ({condition.text}) {{ {name} = {yes.text}; }} else {{ {name} = {no.text}; }}"
        )
        chosen = yes if condition.value(world) else no
        world.values[name] = type_.fit(chosen.value(world))


def programs(seed: int, count: int) -> list[tuple[str, str]]:
    """(clause body, printed line) of `count` programs; the seed makes them all."""
    maker = Maker(seed)
    return [maker.program(number) for number in range(count)]
