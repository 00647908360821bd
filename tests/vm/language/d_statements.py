"""Statements of D made at random: their text, and their effect on a World."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from tests.vm.language.d_integers import DIVIDE, PLAIN
from tests.vm.language.d_model import (
    BADADDR,
    INT,
    LONG,
    TYPES,
    UINT,
    Conversion,
    FaultError,
    Leaf,
    Number,
    Type,
    Value,
    World,
    common,
    promoted,
    there,
)
from tests.vm.language.d_strings import strtok
from tests.vm.language.d_texts import Texts

Do = Callable[[World], None]


@dataclass(frozen=True)
class Statement:
    text: str
    do: Do


class Statements(Texts):
    """Makes parts of programs.

    Attributes:
        at: the program's number, which is in the names of its variables.
    """

    at = 0
    serial = 0
    declarations: list[str]

    def name(self, prefix: str) -> str:
        self.serial += 1
        return f"{prefix}_{self.at}_{self.serial}"

    def variable(self) -> str:
        return self.name(self.random.choice(("v", "this->t", "self->s")))

    # Assignments

    def assign(self) -> Statement:
        """Make a first assignment, or another one; without a cast the first sets the type."""
        value = self.number(2)
        names = self.scope.numbers
        if names and self.chance(0.3):
            name, type_ = self.random.choice(list(names.items()))
            text = f"{name} = {value.text};"
        else:
            name, type_ = self.variable(), value.type
            text = f"{name} = {value.text};"
            if self.chance(0.5):
                type_ = self.random.choice(TYPES)
                text = f"{name} = ({type_.name}){value.text};"
            names[name] = type_

        def do(w: World) -> None:
            w.values[name] = type_.fit(value.value(w))

        return Statement(text, do)

    def assign_text(self) -> Statement:
        value = self.string(2)
        if self.scope.strings and self.chance(0.3):
            name = self.random.choice(self.scope.strings)
        else:
            name = self.variable()
            self.scope.strings.append(name)

        def do(w: World) -> None:
            w.values[name] = value.value(w)

        return Statement(f"{name} = {value.text};", do)

    def lvalue(self) -> tuple[str, Type, int, Callable[[World], int], Callable[[World, int], int]]:
        """Return text, type, bits (0: all), read, and write, which returns the value that is
        stored."""
        if self.scope.cells and (not self.scope.numbers or self.chance(0.5)):
            cell = self.random.choice(self.scope.cells)
            return cell.text, cell.type, cell.width, cell.value, self.scope.stores[cell.text]
        name, type_ = self.random.choice(list(self.scope.numbers.items()))

        def write(w: World, value: int) -> int:
            kept = type_.fit(value)
            w.values[name] = kept
            return kept

        return name, type_, 0, lambda w: w.values.get(name) or 0, write  # type: ignore[return-value]

    def compound(self) -> Statement:
        if not (self.scope.numbers or self.scope.cells):
            return self.assign()
        text, type_, width, read, write = self.lvalue()
        if self.chance(0.4):
            return self.stepped(text, type_, width, read, write)
        own = Number(text, type_, read, width).plain.type
        op = self.random.choice([*PLAIN, "<<", ">>", "/", "%"])
        value = self.number(1)
        if op in DIVIDE and not self.faults:
            op = "+"
        if op in DIVIDE and value.text not in self.scope.numbers:
            op = "-"
        both = promoted(own) if op in ("<<", ">>") else common(own, value.type)

        def do(w: World) -> None:
            b = value.value(w)
            a = both.fit(read(w))
            if op in ("<<", ">>"):
                result = a << (b & 63) if op == "<<" else a >> (b & 63)
            else:
                result = {**PLAIN, **DIVIDE}[op](a, both.fit(b))
            write(w, both.fit(result))

        return Statement(f"{text} {op}= {value.text};", do)

    def stepped(
        self, text: str, type_: Type, width: int, read: Callable[[World], int],
        write: Callable[[World, int], int],
    ) -> Statement:  # fmt: skip
        """Make ++ and --, before and after a variable, as a statement or as a value."""
        by, before = self.random.choice((1, -1)), self.chance(0.5)
        sign = "++" if by > 0 else "--"
        step = f"{sign}{text}" if before else f"{text}{sign}"
        to = self.variable() if self.chance(0.5) else ""
        if to:
            self.scope.numbers[to] = LONG

        def do(w: World) -> None:
            old = read(w)
            new = write(w, old + by)
            if to:
                w.values[to] = new if before else old

        return Statement(f"{to} = (int64_t){step};" if to else f"{step};", do)

    # Associative arrays

    def array(self) -> list[Statement]:
        """Make an array with a tuple of keys: some elements are stored, one of them is read as a
        cell."""
        name = self.name(self.random.choice(("a", "self->a")))
        strings = [self.chance(0.4) for _ in range(self.random.randrange(1, 4))]
        kinds = [self.random.choice(TYPES) for _ in strings]
        type_ = self.random.choice(TYPES)
        made = []
        for _ in range(self.random.randrange(1, 4)):
            text, keys = self.keys(strings, kinds)
            value = self.number(1)
            cell = f"{name}[{text}]"
            self.remember(cell, name, keys, type_)
            made.append(Statement(f"{cell} = ({type_.name}){value.text};",
                                  self.stored(name, keys, type_, value)))  # fmt: skip
        if self.chance(0.3):
            text, keys = self.keys(strings, kinds)
            self.remember(f"{name}[{text}]", name, keys, type_)  # may have been stored, or not
        return made

    def keys(
        self, strings: list[bool], kinds: list[Type]
    ) -> tuple[str, Callable[[World], tuple[Value, ...]]]:
        words, makers = [], []
        for is_text, kind in zip(strings, kinds, strict=True):
            if is_text:
                text = self.quoted() if self.chance(0.5) else self.string(1)
                words.append(text.text)
                makers.append(lambda w, t=text: there(t.value(w)))
            else:
                number = self.number(0)
                words.append(f"({kind.name}){number.text}")
                makers.append(lambda w, n=number, k=kind: k.fit(n.value(w)))
        return ", ".join(words), lambda w: tuple(make(w) for make in makers)

    def stored(
        self, name: str, keys: Callable[[World], tuple[Value, ...]], type_: Type, value: Number
    ) -> Do:
        def do(w: World) -> None:
            new = value.value(w)
            w.arrays.setdefault(name, {})[keys(w)] = type_.fit(new)

        return do

    def remember(
        self, cell: str, name: str, keys: Callable[[World], tuple[Value, ...]], type_: Type
    ) -> None:
        """Remember an element that later expressions may read and assign."""

        def read(w: World) -> int:
            return w.arrays.get(name, {}).get(keys(w)) or 0  # type: ignore[return-value]

        def write(w: World, value: int) -> int:
            kept = type_.fit(value)
            w.arrays.setdefault(name, {})[keys(w)] = kept
            return kept

        self.scope.cells.append(Number(cell, type_, read))
        self.scope.stores[cell] = write

    def declared_array(self) -> list[Statement]:
        """Declare an array of a fixed size before the programs; elements not yet stored are 0."""
        name, type_ = self.name("c"), self.random.choice(TYPES)
        count = self.random.choice((1, 2, 4, 8, 32))
        self.declarations.append(f"{type_.name} {name}[{count}];")
        made = []
        for _ in range(self.random.randrange(1, 4)):
            value = self.number(1)
            place = self.place(count)
            cell = f"{name}[{place.text}]"

            def keys(w: World, place: Number = place) -> tuple[Value, ...]:
                return (place.value(w),)

            self.remember(cell, name, keys, type_)
            made.append(Statement(f"{cell} = {value.text};",
                                  self.stored(name, keys, type_, value)))  # fmt: skip
        return made

    def place(self, count: int) -> Number:
        """Return an index into an array whose length is a power of two."""
        if self.chance(0.5):
            n = self.random.randrange(count)
            return Number(str(n), INT, lambda _: n)
        of = self.number(0)
        return Number(f"({of.text} & {count - 1})", LONG, lambda w: of.value(w) & count - 1)

    # Memory

    def memory(self) -> list[Statement]:
        """Make the clause's own memory into an array of structures, and fill every byte of it."""
        struct = self.random.choice(self.structs)
        pointer, count = self.name("this->p"), self.random.randrange(1, 3)
        words = -(-count * struct.size // 8)
        bits = self.random.getrandbits(64 * words)

        def made(w: World) -> None:
            w.memory[pointer] = bytearray(bits.to_bytes(8 * words, "little"))

        text = f"{pointer} = (struct {struct.name} *)alloca({8 * words});"
        for k in range(words):
            text += f" ((uint64_t *){pointer})[{k}] = {bits >> 64 * k & (1 << 64) - 1:#x};"
        for leaf in self.random.choices(struct.leaves, k=3):
            index = self.random.randrange(count)
            places = [f"{pointer}[{index}]", f"(*({pointer} + {index}))"]
            places += [f"{pointer}->", f"(*{pointer})"] if index == 0 else []
            place = self.random.choice(places)
            path = leaf.path[1:] if place.endswith("->") else leaf.path
            self.remember_leaf(place + path, pointer, leaf, index * struct.size)
        byte, of_byte = self.random.randrange(count * struct.size), self.random.choice(TYPES[:3])
        view = Leaf("", of_byte, 0, 8)
        self.remember_leaf(f"(({of_byte.name} *){pointer})[{byte}]", pointer, view, byte)
        made_too = []
        if self.chance(0.4):
            made_too.append(self.copied(pointer, struct.size, count, struct.name))
        if self.faults and self.chance(0.3):
            made_too.append(self.outside(pointer))
        return [Statement(text, made), *made_too]

    def remember_leaf(self, text: str, pointer: str, leaf: Leaf, at: int) -> None:
        cell = Number(f"{text}", leaf.type, lambda w: leaf.read(w.memory[pointer], at),
                      leaf.bits if leaf.is_field else 0)  # fmt: skip
        self.scope.cells.append(cell)
        self.scope.stores[cell.text] = lambda w, v: leaf.write(w.memory[pointer], at, v)

    def copied(self, pointer: str, size: int, count: int, name: str) -> Statement:
        """Copy bytes of the memory to more memory, or one structure over another."""
        if count > 1 and self.chance(0.5):

            def over(w: World) -> None:
                w.memory[pointer][size : 2 * size] = w.memory[pointer][:size]

            return Statement(f"{pointer}[1] = *{pointer};", over)
        other, length = self.name("this->q"), self.random.randrange(1, size + 1)
        view, at = Leaf("", UINT, 0, 32), 4 * self.random.randrange((length + 3) // 4)
        self.remember_leaf(f"(*(unsigned int *)({other} + {at}))", other, view, at)
        zeros = " ".join(f"((uint64_t *){other})[{k}] = 0;" for k in range((length + 7) // 8))

        def do(w: World) -> None:
            room = bytearray(-(-length // 8) * 8)
            room[:length] = w.memory[pointer][:length]
            w.memory[other] = room

        text = f"{other} = (char *)alloca({-(-length // 8) * 8}); {zeros}"
        return Statement(f"{text} bcopy({pointer}, {other}, {length});", do)

    def outside(self, pointer: str) -> Statement:
        def do(_: World) -> None:
            raise FaultError(BADADDR)

        return Statement(f"((char *){pointer})[{self.random.choice((20000, 1 << 30))}] = 1;", do)

    # Output

    def show(self) -> Statement:
        """Make a printf of one to three values by conversions of every kind."""
        words: list[str] = []
        makers: list[Callable[[World], str]] = []
        formats: list[str] = []
        for _ in range(self.random.randrange(1, 4)):
            form, text, make = self.shown_text() if self.chance(0.3) else self.shown_number()
            formats.append(form)
            words.append(text)
            makers.append(make)

        def do(w: World) -> None:
            w.pending.append(f"{at} " + "|".join(make(w) for make in makers))

        at = self.at
        return Statement(f'printf("{at} {"|".join(formats)}\\n", {", ".join(words)});', do)

    def shown_number(self) -> tuple[str, str, Callable[[World], str]]:
        number = self.number(self.random.randrange(1, 4))
        if self.chance(0.5):
            conversion = Conversion("", 0, None, "d")
        else:
            letter = self.random.choice("diouxXc")
            flags = "".join(f for f in self.random.sample("#+-0 ", 5) if self.chance(0.2))
            flags = "".join(f for f in flags if f == "-") if letter == "c" else flags
            precision = self.random.randrange(0, 9) if self.chance(0.3) else None
            precision = None if letter == "c" else precision
            conversion = Conversion(flags, self.random.choice((0, 0, 5, 25)), precision, letter)
        if conversion.letter == "c":
            number = Number(f"(char)(97 + ({number.text} & 15))", TYPES[0],
                            lambda w, n=number: 97 + (n.value(w) & 15))  # fmt: skip
        return (
            conversion.text, number.text,
            lambda w: conversion.of_number(number.type, number.value(w)),
        )  # fmt: skip

    def shown_text(self) -> tuple[str, str, Callable[[World], str]]:
        text = self.string(2)
        precision = self.random.randrange(0, 9) if self.chance(0.3) else None
        flags = "-" if self.chance(0.3) else ""
        conversion = Conversion(flags, self.random.choice((0, 0, 12)), precision, "s")
        return (
            conversion.text, text.text,
            lambda w: conversion.of_text(there(text.value(w)).decode()),
        )  # fmt: skip

    def token(self) -> list[Statement]:
        """Make strtok() calls for a string: the first, and later ones that continue in it."""
        text, delimiters = self.string(1), self.random.choice(("/", ".", "b ", "/.", "x"))
        made = []
        for k in range(self.random.randrange(1, 4)):
            name = self.variable()

            def do(w: World, name: str = name, first: bool = k == 0) -> None:
                start = text.value(w) if first else None
                w.values[name] = strtok(w, start, delimiters.encode())

            made.append(Statement(f'{name} = strtok({text.text if k == 0 else "NULL"}, '
                                  f'"{delimiters}");', do))  # fmt: skip
            shown, at = self.random.random(), self.at
            if shown < 0.5:
                flag = Number("", INT, lambda w, name=name: int(not w.values.get(name)))
                made.append(
                    Statement(
                        f'printf("{at} %s %d\\n", {name} == NULL ? "none" : {name}, '
                        f"{name} == NULL);",
                        self._token_shown(name, flag),
                    )
                )
        return made

    def _token_shown(self, name: str, flag: Number) -> Do:
        at = self.at

        def do(w: World) -> None:
            value = w.values.get(name)
            text = "none" if not value else value.decode()  # type: ignore[union-attr]
            w.pending.append(f"{at} {text} {flag.value(w)}")

        return do

    def address(self) -> list[Statement]:
        """Make an address of IPv4 or IPv6 as text."""
        return self.address6() if self.chance(0.5) else self.address4()

    def address6(self) -> list[Statement]:
        """Make inet_ntoa6() of an address in the clause's own memory, with its text by RFC 1884,
        2.2.

        The text is in the second form, without the first of the longest rows of zeros, or, if an
        IPv4 address is in it, in the third form.
        """
        name, at = self.name("this->i"), self.at
        if self.chance(0.2):
            raw = bytes(10) + b"\xff\xff" + self.random.randbytes(4)
            shown = "::ffff:" + ".".join(map(str, raw[12:]))
        else:
            groups = [self.random.choice((0x1, 0xAB, 0xC00, 0xFFFF)) for _ in range(8)]
            for first in self.random.sample(range(1, 6), self.random.randrange(3)):
                groups[first : first + 2] = [0, 0]  # never a single zero
            raw = b"".join(group.to_bytes(2, "big") for group in groups)
            shown = ipaddress.IPv6Address(raw).compressed
        words = [int.from_bytes(raw[at : at + 8], "little") for at in (0, 8)]
        call = self.random.choice((f"inet_ntoa6({name})", f"inet_ntop(AF_INET6, {name})"))

        def do(w: World) -> None:
            w.pending.append(f"{at} {shown}")

        stores = " ".join(f"((uint64_t *){name})[{k}] = {n:#x};" for k, n in enumerate(words))
        return [Statement(f"{name} = (in6_addr_t *)alloca(16); {stores} "
                          f'printf("{at} %s\\n", {call});', do)]  # fmt: skip

    def address4(self) -> list[Statement]:
        """Make inet_ntoa() of an address in the clause's own memory; low byte first, as in
        memory."""
        n, name, at = self.random.getrandbits(32), self.name("this->i"), self.at
        dots = ".".join(str(byte) for byte in n.to_bytes(4, "little"))
        call = self.random.choice((f"inet_ntoa({name})", f"inet_ntop(AF_INET, {name})"))

        def do(w: World) -> None:
            w.pending.append(f"{at} {dots}")

        return [Statement(f"{name} = (ipaddr_t *)alloca(4); *{name} = {n}u; "
                          f'printf("{at} %s\\n", {call});', do)]  # fmt: skip
