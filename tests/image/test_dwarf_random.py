"""The index of debug information that was drawn at random, against what it was drawn from."""

from __future__ import annotations

from pathlib import Path

import pytest
from dwarf_asm import elf
from random_dwarf import World, drawn

from kinst.core.inline import FunctionDie
from kinst.image.dwarf.index import Index, open_index


def index_of(world: World, folder: Path) -> Index:
    sections = {name: bytes(data) for name, data in world.sections.items()}
    return open_index(elf(folder / "file", sections))


@pytest.mark.parametrize("seed", range(40))
def test_all_that_is_drawn_is_found(seed: int, tmp_path: Path) -> None:
    world = drawn(seed)
    index = index_of(world, tmp_path)
    used = {copy.function for copy in world.copies}
    functions: dict[str, list[FunctionDie]] = {}
    for one in world.functions:
        functions.setdefault(one.name, []).append(one.told())
    for name, wanted in functions.items():
        assert list(index.functions(name)) == wanted
    assert list(index.function_names()) == sorted(functions)
    for name in functions:
        copies = sorted((c for c in world.copies if c.function == name), key=lambda c: c.die)
        assert list(index.copies(name)) == copies
    assert list(index.inline_names()) == sorted(used)
    for kind, name, die, unit in world.types:
        assert [(t.kind, t.name, t.die, t.unit) for t in index.types(name)] == [
            (kind, name, die, unit)
        ]
    for name, die, unit in world.variables:
        assert [(v.name, v.die, v.unit) for v in index.variables(name)] == [(name, die, unit)]
    # Of those without a name, alike in size and place, the first stands for all.
    named = {die for kind, _, die, _ in world.types if kind == "enum"}
    assert named <= set(index.enumerations) <= set(world.enumerations)
    for number in range(1, world.names + 1):
        for kind in ("local", "hidden"):
            name = f"{kind}{number}"
            assert not index.variables(name) and not index.types(name)


@pytest.mark.parametrize("seed", range(40, 46))
def test_copies_by_address(seed: int, tmp_path: Path) -> None:
    """Every copy whose code holds an address, and no other."""
    world = drawn(seed)
    index = index_of(world, tmp_path)
    for copy in world.copies:
        for low, high in copy.ranges:
            for address in (low - 1, low, high - 1, high):
                there = {
                    one.die for one in world.copies if any(a <= address < b for a, b in one.ranges)
                }
                assert {one.die for one in index.copies_at(address)} == there
