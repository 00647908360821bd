"""The index of randomly drawn debug information, against the data that it was written from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.core.inline import FunctionDie
from kinst.image.dwarf.index import Index, open_index
from tests.image.dwarf_asm import elf
from tests.image.random_dwarf import World, drawn


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
    # Of types without a name that have one size and place, the first stands for all.
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


@pytest.mark.parametrize("seed", range(46, 52))
def test_functions_by_files(seed: int, tmp_path: Path) -> None:
    world = drawn(seed)
    index = index_of(world, tmp_path)
    by_name = sorted(world.functions, key=lambda one: (one.name, one.die))
    files = {one.file for one in world.functions} - {""}
    assert sorted(index.file_names()) == sorted(files)
    for file in files:
        parts = file.strip("/").split("/")
        for end in range(len(parts)):
            wanted = "/".join(parts[end:])
            there = [one.told() for one in by_name if f"/{one.file}".endswith(f"/{wanted}")]
            assert list(index.declared_in(wanted)) == there
        assert index.declared_in(f"x{parts[-1]}") == []
    with_code = [one for one in by_name if one.ranges and one.file.endswith(".h")]
    found = index.functions_of(lambda path: path.endswith(".h"))
    assert list(found) == [one.told() for one in with_code]


@pytest.mark.parametrize("seed", range(52, 58))
def test_copies_of_a_function_and_in_a_range(seed: int, tmp_path: Path) -> None:
    world = drawn(seed)
    index = index_of(world, tmp_path)
    functions = {one.die: one.told() for one in world.functions}
    ordered = sorted(world.copies, key=lambda copy: (copy.function, copy.die))
    for one in functions.values():
        wanted = [copy for copy in ordered if world.origins[copy.die] == one.die]
        assert list(index.copies_of(one)) == wanted
    starts = sorted(low for copy in ordered for low, _ in copy.ranges)
    for low, high in zip(starts, starts[2:], strict=False):
        wanted = [copy for copy in ordered if any(low <= a < high for a, _ in copy.ranges)]
        assert list(index.copies_within(low, high)) == [
            (copy, functions[world.origins[copy.die]]) for copy in wanted
        ]


@pytest.mark.parametrize("seed", range(58, 62))
def test_line_tables_of_units(seed: int, tmp_path: Path) -> None:
    world = drawn(seed)
    index = index_of(world, tmp_path)
    assert list(index.units) == [unit for unit, *_ in world.units]
    for unit, lines, home, version in world.units:
        found = index.lines_of(unit)
        assert (found.offset, found.home, found.version) == (lines, home, version)
        with pytest.raises(KinstError, match=f"no unit of debug information at {unit + 1:#x}"):
            index.lines_of(unit + 1)
    ranges, first, units = (list(column) for column in index.function_columns())
    found = list[tuple[int, tuple[tuple[int, int], ...]]]()
    for k, unit in enumerate(units):
        own = ranges[2 * first[k] : 2 * first[k + 1]]
        found.append((world.units[unit][0], tuple(zip(own[::2], own[1::2], strict=True))))
    by_name = sorted(world.functions, key=lambda one: (one.name, one.die))
    assert found == [(one.unit, one.ranges) for one in by_name]


def test_symbols_by_address(tmp_path: Path) -> None:
    """As nm prints them: the innermost, and of aliases the global one."""
    source = tmp_path / "s.c"
    source.write_text(
        "int one(void) { return 1; } int two(int n) { return n * 3 + one(); }\n"
        'static int other(void) __attribute__((alias("one"))); int main(void) { return other(); }\n'
    )
    made = tmp_path / "s"
    subprocess.run(["gcc", "-g", "-O0", "-no-pie", "-o", made, source], check=True)
    shown = subprocess.run(["nm", "-S", made], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in shown.splitlines()]
    known = {row[3]: (int(row[0], 16), int(row[1], 16)) for row in rows if len(row) == 4}
    index = open_index(made)
    for name in ("one", "two", "main"):
        low, size = known[name]
        for address in (low, low + 1, low + size - 1):
            assert index.symbol_at(address) == (name, low)
    assert index.symbol_at(0x1000) is None
    end = max(low + size for low, size in known.values())
    assert index.symbol_at(end + 4096) is None
    first = min(low for low, _ in known.values())
    assert index.symbol_at(first - 1) is None
    for row in rows:
        if len(row) == 4 and row[2] in "tT":
            low, size = int(row[0], 16), int(row[1], 16)
            for address in (low, low + size - 1):
                assert index.symbol_at(address) in [(name, low) for name in known]


def test_names_of_one_address(tmp_path: Path) -> None:
    """A global name, otherwise a weak one, otherwise a local one, in any order."""
    kinds = {"g": "globl", "w": "weak", "l": "local"}
    lines = [".text"]
    for group in ("lwg", "gwl", "wl", "lw", "lg", "l"):
        for kind in group:
            name = f"{group}_{kind}"
            lines += [f".{kinds[kind]} {name}", f".type {name}, @function", f".size {name}, 4"]
        lines += [f"{group}_{kind}:" for kind in group] + ["nop"] * 4
    (tmp_path / "a.s").write_text("\n".join(lines) + "\n")
    subprocess.run(["as", "-g", "-o", "a.o", "a.s"], cwd=tmp_path, check=True)
    subprocess.run(["ld", "-e", "0", "-Ttext=0x400000", "-o", "a", "a.o"], cwd=tmp_path, check=True)
    index = open_index(tmp_path / "a")
    for k, wanted in enumerate(("lwg_g", "gwl_g", "wl_w", "lw_w", "lg_g", "l_l")):
        at = 0x400000 + 4 * k
        assert index.symbol_at(at) == index.symbol_at(at + 3) == (wanted, at)
