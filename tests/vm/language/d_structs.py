"""Structures and unions declared at random, laid out by the System V ABI (x86-64 psABI 3.1.2).

A member is at the next multiple of its alignment.  A bit-field is in the next bits, unless it
would cross a boundary of its type.  The whole is as aligned as its strictest member.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.vm.language.d_model import CHAR, INT, LONG, TYPES, UINT, ULONG, Leaf, Struct, Type

_FIELDS = (INT, UINT)
_COUNTED = (CHAR, INT, LONG, ULONG)


def _up(value: int, align: int) -> int:
    return -(-value // align) * align


class _Layout:
    """Members in the order of their declaration."""

    def __init__(self, union: bool) -> None:
        self.union = union
        self.bit = 0  # where the next member may begin
        self.bits = 0
        self.align = 1
        self.leaves: list[Leaf] = []
        self.tops: list[tuple[str, int]] = []
        self.lines: list[str] = []

    def place(self, bits: int, align: int) -> int:
        """Return the first bit of a member that begins at a multiple of `align` bytes."""
        at = 0 if self.union else _up(self.bit, 8 * align)
        return self._take(at, bits, align)

    def _take(self, at: int, bits: int, align: int) -> int:
        self.align = max(self.align, align)
        self.bit = at + bits
        self.bits = max(self.bits, at + bits)
        return at

    def scalar(self, name: str, type_: Type) -> None:
        at = self.place(type_.bits, type_.size)
        self.lines.append(f"{type_.name} {name};")
        self.tops.append((name, at // 8))
        self.leaves.append(Leaf(f".{name}", type_, at, type_.bits))

    def array(self, name: str, type_: Type, count: int) -> None:
        at = self.place(count * type_.bits, type_.size)
        self.lines.append(f"{type_.name} {name}[{count}];")
        self.tops.append((name, at // 8))
        for k in range(count):
            self.leaves.append(Leaf(f".{name}[{k}]", type_, at + k * type_.bits, type_.bits))

    def field(self, name: str, type_: Type, bits: int) -> None:
        at = 0 if self.union else self.bit
        if at // type_.bits != (at + bits - 1) // type_.bits:
            at = _up(at, type_.bits)
        self._take(at, bits, type_.size)
        self.lines.append(f"{type_.name} {name} : {bits};")
        self.leaves.append(Leaf(f".{name}", type_, at, bits, True))

    def inner(self, name: str, struct: Struct) -> None:
        at = self.place(8 * struct.size, struct.align)
        self.lines.append(f"struct {struct.name} {name};")
        self.tops.append((name, at // 8))
        for leaf in struct.leaves:
            self.leaves.append(replace(leaf, path=f".{name}{leaf.path}", bit=at + leaf.bit))

    def anonymous(self, other: _Layout) -> None:
        """Add an anonymous structure, whose members are this one's (C11 6.7.2.1)."""
        size = _up(other.bits, 8 * other.align)
        at = self.place(size, other.align)
        kind = "union" if other.union else "struct"
        self.lines.append(f"{kind} {{ {' '.join(other.lines)} }};")
        self.tops += [(name, at // 8 + inner) for name, inner in other.tops]
        self.leaves += [replace(leaf, bit=at + leaf.bit) for leaf in other.leaves]


def _fill(chance: random.Random, layout: _Layout, prefix: str, before: list[Struct]) -> None:
    for k in range(chance.randrange(2, 6)):
        name, kind = f"{prefix}{k}", chance.random()
        if kind < 0.45:
            layout.scalar(name, chance.choice(TYPES))
        elif kind < 0.6:
            layout.array(name, chance.choice(_COUNTED), chance.randrange(1, 4))
        elif kind < 0.8:
            layout.field(name, chance.choice(_FIELDS), chance.randrange(1, 33))
        elif kind < 0.9 and before:
            layout.inner(name, chance.choice(before))
        elif len(prefix) == 1:
            other = _Layout(chance.random() < 0.7)
            other.scalar(f"{prefix}{k}_first", chance.choice(TYPES))
            _fill(chance, other, f"{prefix}{k}_", [])
            layout.anonymous(other)


def structs(chance: random.Random, count: int) -> list[Struct]:
    """Return structures, of which later ones may contain earlier ones."""
    found: list[Struct] = []
    for number in range(count):
        layout = _Layout(False)
        layout.scalar("first", chance.choice(TYPES))
        _fill(chance, layout, "m", [s for s in found if s.size < 32])
        name = f"s{number}"
        text = f"struct {name} {{ {' '.join(layout.lines)} }};"
        size = _up(layout.bits, 8 * layout.align) // 8
        found.append(
            Struct(name, text, size, layout.align, tuple(layout.leaves), tuple(layout.tops))
        )
    return found
