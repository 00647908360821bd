"""Functions of symbol tables drawn at random, as an assembler and a linker make them: where each
begins and ends."""

from __future__ import annotations

import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from kinst.image.elf import open_elf
from kinst.image.function_table import FunctionTable

SLIDE = 0x1000_0000


@dataclass(frozen=True)
class Mark:
    """A symbol.

    Attributes:
        name: of the symbol.
        at: offset in the section.
        size: of the symbol, None for a label.
    """

    name: str
    at: int
    size: int | None


def drawn(seed: int) -> tuple[str, list[Mark], int]:
    """Return assembly of one section, its symbols by offset, and its size."""
    rng, lines, marks, at = random.Random(seed), [".text"], list[Mark](), 0
    for k in range(rng.randrange(4, 14)):
        length = rng.randrange(2, 12)
        if rng.random() < 0.7:
            size = rng.choice((0, length, length, length, 1, length - 1, length + 3, length + 30))
            marks.append(Mark(f"f{k}", at, size))
            lines += [f".type f{k}, @function", f".size f{k}, {size}", f"f{k}:"]
        elif rng.random() < 0.8:
            marks.append(Mark(f"l{k}", at, None))
            lines.append(f"l{k}:")
        for step in range(length):
            if step and rng.random() < 0.2:
                marks.append(Mark(f"i{k}_{step}", at + step, None))
                lines.append(f"i{k}_{step}:")
            lines.append("nop")
        at += length
    # Assemblers leave out labels that are not referenced, except global ones.
    lines += [f".globl {mark.name}" for mark in marks]
    lines += [".data", ".globl data", ".type data, @object", ".size data, 8", "data: .quad 1"]
    return "\n".join(lines) + "\n", marks, at


def wanted(marks: list[Mark], end: int) -> dict[str, tuple[int, int]]:
    """Return (start, size) by name.

    A function ends where its symbol says, after at least one byte, and at the next function; labels
    inside a function are none; a label reaches to the next symbol.
    """
    functions = [mark for mark in marks if mark.size is not None]
    left = list(functions)
    for mark in marks:
        if mark.size is None:
            before = [one for one in functions if one.at <= mark.at]
            # Is it in the last function that begins before it?
            if not before or before[-1].at + max(before[-1].size or 0, 1) <= mark.at:
                left.append(mark)
    left.sort(key=lambda mark: mark.at)
    found = {}
    for mark, following in zip(left, [*left[1:], Mark("", end, None)], strict=True):
        room = following.at - mark.at
        found[mark.name] = (mark.at, min(mark.size or room, room))
    return found


@pytest.mark.parametrize("seed", range(25))
def test_where_functions_begin_and_end(seed: int, tmp_path: Path) -> None:
    text, marks, end = drawn(seed)
    (tmp_path / "a.s").write_text(text)
    subprocess.run(["as", "-o", "a.o", "a.s"], cwd=tmp_path, check=True)
    subprocess.run(["ld", "-e", "0", "-Ttext=0x400000", "-o", "a", "a.o"], cwd=tmp_path, check=True)
    table = FunctionTable(open_elf(tmp_path / "a"), SLIDE, "made")
    base = 0x400000 + SLIDE
    known = {one.name: (one.address - base, one.size) for one in table.all}
    expected = wanted(marks, end)
    assert known == expected
    assert sorted(table.names) == sorted(expected)
    holders = {
        at: name for name, (start, size) in expected.items() for at in range(start, start + size)
    }
    for at in range(-1, end + 1):
        found = table.at(base + at)
        assert (found.name if found else None) == holders.get(at), at
    for name, (start, size) in expected.items():
        (one,) = table.lookup(name)
        assert (one.module, one.address, one.size) == ("made", base + start, size)
    for name in ("data", "absent", "", *({mark.name for mark in marks} - expected.keys())):
        assert table.lookup(name) == []
    for pattern in ("f*", "i*_1", "*", "", "nothing*"):
        names = [one.name for one in table.glob(pattern)]
        prefix = pattern.partition("*")[0]
        assert names == [
            n for n in expected if n.startswith(prefix) and (pattern != "i*_1" or n.endswith("_1"))
        ]


@pytest.mark.parametrize("slide", [-0x300000, -0x400000, 0, 1 << 62])
def test_images_that_lie_elsewhere(slide: int, tmp_path: Path) -> None:
    """Also below their linked address; addresses have 64 bits."""
    text, marks, end = drawn(2)
    (tmp_path / "a.s").write_text(text)
    subprocess.run(["as", "-o", "a.o", "a.s"], cwd=tmp_path, check=True)
    subprocess.run(["ld", "-e", "0", "-Ttext=0x400000", "-o", "a", "a.o"], cwd=tmp_path, check=True)
    table = FunctionTable(open_elf(tmp_path / "a"), slide, "made")
    for name, (start, size) in wanted(marks, end).items():
        (one,) = table.lookup(name)
        assert (one.address, one.size) == (0x400000 + slide + start, size)
        assert table.at(one.address + size - 1) == one
