"""The index of a whole kernel's debug information, against libdw's reading of the same file."""

from __future__ import annotations

import functools
import os
import random
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kinst.core.inline import DebugIndex
from kinst.image.dwarf.build import build
from kinst.image.dwarf.index import Index, indexing, open_index
from kinst.image.dwarf.lines import Lines
from kinst.image.dwarf.sections import DebugSections
from kinst.image.elf import open_elf
from kinst.image.elf_file import open_file
from kinst.kernels.fetch import Prepared
from kinst.kernels.fetch import prepared as prepared_kernel
from tests.image.dwarf_made import COPIES, CROSS, C, compiled

pytestmark = pytest.mark.full  # libdw, llvm-dwarfdump

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Copy:
    """An inlined copy, as libdw has it."""

    entry: int | None
    ranges: Ranges
    called: str
    decl: str


def test_compiling_the_scan_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert indexing() == "compiling the reader of debug information (once), and indexing"
    code = tmp_path / "kinst" / "compiled" / "sources" / "scan"
    code.mkdir(parents=True)
    (code / "scan.nbc").touch()
    assert indexing() == "indexing debug information"


@pytest.fixture(scope="session")
def libdw(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], dict[str, list[Copy]]]:
    """tests/c/libdw_copies.c: copies by name, in the file's order."""
    program = tmp_path_factory.mktemp("libdw") / "libdw_copies"
    source = C / "libdw_copies.c"
    command = ["gcc", "-O2", "-Wall", "-Werror", "-o", program, source, "-ldw", "-lelf"]
    subprocess.run(command, check=True, timeout=120)

    def read(path: Path) -> dict[str, list[Copy]]:
        done = subprocess.run(
            [program, path], capture_output=True, text=True, check=True, timeout=300
        )
        found = defaultdict(list)
        for line in done.stdout.splitlines():
            entry, name, pairs, called, decl = line.split(" ")
            ranges = () if pairs == "-" else tuple(
                (int(low, 16), int(high, 16))
                for low, high in (pair.split("-") for pair in pairs.split(","))
            )  # fmt: skip
            found[name].append(Copy(None if entry == "-" else int(entry, 16), ranges, called, decl))
        return found

    return read


@pytest.fixture(scope="session")
def kernel(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Index:
    return open_index(prepared.debug, tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="session")
def by_libdw(
    prepared: Prepared, libdw: Callable[[Path], dict[str, list[Copy]]]
) -> dict[str, list[Copy]]:
    return libdw(prepared.debug)


@functools.cache
def as_copies(index: Index, name: str) -> list[Copy]:
    return [
        Copy(
            copy.entry,
            copy.ranges,
            f"{copy.call_file}:{copy.call_line}",
            f"{function.decl_file}:{function.decl_line}",
        )
        for _, copy, function in sorted(
            (copy.die, copy, function)
            for function in index.functions(name)
            for copy in index.copies_of(function)
        )
    ]


def test_it_is_a_debug_index(kernel: Index) -> None:
    index: DebugIndex = kernel
    assert index.copies("no such function") == [] == index.functions("")


def test_200_inline_functions_at_random(kernel: Index, by_libdw: dict[str, list[Copy]]) -> None:
    names = kernel.inline_names()
    assert set(names) == set(by_libdw)
    assert len(names) > 10_000
    seed = int(os.environ.get("KINST_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"KINST_TEST_SEED={seed}")
    for name in random.Random(seed).sample(names, 200):
        entries = {copy.entry for copy in kernel.copies(name)}
        assert entries == {copy.entry for copy in by_libdw[name]}, f"{name}, seed {seed}"
        assert as_copies(kernel, name) == by_libdw[name], f"{name}, seed {seed}"


@pytest.mark.parametrize("isa", [pytest.param("arm64", marks=pytest.mark.slow), "riscv64"])
def test_200_inline_functions_of_other_kernels(
    isa: str, libdw: Callable[[Path], dict[str, list[Copy]]], tmp_path: Path
) -> None:
    """Kernels of other instruction sets: the names, and every copy of some."""
    ready = prepared_kernel(isa)
    if ready is None:
        pytest.fail(f"no {isa} kernel is there: run `make setup-all`")
    index, theirs = open_index(ready.debug, tmp_path), libdw(ready.debug)
    names = index.inline_names()
    assert set(names) == set(theirs) and len(names) > 10_000
    seed = int(os.environ.get("KINST_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"KINST_TEST_SEED={seed}")
    for name in random.Random(seed).sample(names, 200):
        assert as_copies(index, name) == theirs[name], f"{name}, seed {seed}"


def sampled(
    by_libdw: dict[str, list[Copy]], wanted: Callable[[Copy], bool], at_least: int
) -> list[tuple[str, int, Copy]]:
    """Return 500 copies of one kind: (function, which of its copies, the copy)."""
    found = [
        (name, number, copy)
        for name, copies in by_libdw.items()
        for number, copy in enumerate(copies)
        if wanted(copy)
    ]
    assert len(found) >= at_least
    return random.Random(1).sample(found, min(500, len(found)))


def agree(kernel: Index, copies: list[tuple[str, int, Copy]]) -> None:
    for name, number, copy in copies:
        assert as_copies(kernel, name)[number] == copy, name


def test_copies_in_several_ranges(kernel: Index, by_libdw: dict[str, list[Copy]]) -> None:
    agree(kernel, sampled(by_libdw, lambda c: len(c.ranges) > 1, 50_000))


def test_copies_in_one_range(kernel: Index, by_libdw: dict[str, list[Copy]]) -> None:
    agree(kernel, sampled(by_libdw, lambda c: len(c.ranges) == 1, 100_000))


def test_entry_is_not_the_lowest_address(kernel: Index, by_libdw: dict[str, list[Copy]]) -> None:
    def later(copy: Copy) -> bool:
        return bool(copy.ranges) and copy.entry != min(low for low, _ in copy.ranges)

    agree(kernel, sampled(by_libdw, later, 50_000))


def test_copies_without_code(kernel: Index, by_libdw: dict[str, list[Copy]]) -> None:
    agree(kernel, sampled(by_libdw, lambda c: not c.ranges, 10_000))


def test_copies_in_cold_parts(
    kernel: Index, by_libdw: dict[str, list[Copy]], prepared: Prepared
) -> None:
    """Copies in f and f.cold: their ranges lie in symbols of those two names, as nm has them."""
    done = subprocess.run(
        ["nm", "-S", prepared.debug], capture_output=True, text=True, check=True, timeout=120
    )
    cold = {}
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) == 4 and words[3].endswith(".cold"):
            cold[words[3]] = range(int(words[0], 16), int(words[0], 16) + int(words[1], 16))
    lows = {low for part in cold.values() for low in part}
    split = sampled(
        by_libdw,
        lambda c: len({low in lows for low, _ in c.ranges}) == 2,
        1_000,
    )
    agree(kernel, split)
    for _, _, copy in split:
        for low, _ in copy.ranges:
            symbol = kernel.symbol_at(low)
            assert symbol is not None
            assert (low in lows) == symbol[0].endswith(".cold")


def test_nested_copies(kernel: Index) -> None:
    """The code of a nested copy is inside that of the one around it, and so on to the caller."""
    checked = 0
    for name in random.Random(2).sample(list(kernel.inline_names()), 300):
        for copy in kernel.copies(name)[:5]:
            if not copy.within or not copy.ranges:
                continue
            chain = kernel.copies_at(copy.ranges[0][0])
            at = [one.die for one in chain].index(copy.die)
            assert tuple(one.function for one in chain[at + 1 :]) == copy.within
            functions = kernel.functions(copy.caller)
            low, high = copy.ranges[0]
            assert any(l <= low and high <= h for f in functions for l, h in f.ranges)  # noqa: E741
            checked += 1
    assert checked > 100


def test_types_and_variables_are_where_readelf_has_them(kernel: Index) -> None:
    (sk_buff,) = (t for t in kernel.types("sk_buff") if t.kind == "struct")
    assert {t.kind for t in kernel.types("u64")} == {"typedef"}
    assert {t.kind for t in kernel.types("unsigned int")} == {"base"}
    (variable,) = kernel.variables("init_task")
    done = subprocess.run(
        ["llvm-dwarfdump", f"--debug-info={sk_buff.die}", kernel.where],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert 'DW_AT_name\t("sk_buff")' in done.stdout
    assert "DW_TAG_structure_type" in done.stdout
    done = subprocess.run(
        ["llvm-dwarfdump", f"--debug-info={variable.die}", "-p", kernel.where],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert "DW_TAG_variable" in done.stdout and "DW_OP_addr" in done.stdout


def test_modules_are_relocated(
    prepared: Prepared, libdw: Callable[[Path], dict[str, list[Copy]]], tmp_path: Path
) -> None:
    """An object file of every ISA: each copy as long, and in the same place, as libdwfl has it."""
    for isa, compiler in CROSS.items():
        path = compiled(tmp_path, compiler, "-O2", "-g", "-c", name=f"{isa}.o")
        index, theirs = open_index(path), libdw(path)
        assert set(index.inline_names()) == set(theirs)
        file = open_file(path)
        for name, copies in theirs.items():
            mine = as_copies(index, name)
            # libdwfl places .text elsewhere; all of this file's code is in it.
            shift = {(a.entry or 0) - (b.entry or 0) for a, b in zip(copies, mine, strict=True)} | {
                theirs_low - low
                for a, b in zip(copies, mine, strict=True)
                for (theirs_low, _), (low, _) in zip(a.ranges, b.ranges, strict=True)
            }
            assert len(shift) == 1, (isa, name, shift)
            assert all(file.place(copy.entry or 0) == (".text", copy.entry) for copy in mine)


def test_lines_are_addr2lines(tmp_path: Path) -> None:
    for version in (4, 5):
        path = compiled(tmp_path, "gcc", "-O2", f"-gdwarf-{version}")
        index = open_index(path)
        lines = Lines(DebugSections(open_elf(path)), index)
        (function,) = index.functions("nested")
        ((low, high),) = function.ranges
        addresses = [f"{address:#x}" for address in range(low, high)]
        done = subprocess.run(
            ["addr2line", "-e", path, *addresses], capture_output=True, text=True, check=True
        )
        said = done.stdout.splitlines()
        assert len(said) == high - low
        for address, place_said in zip(range(low, high), said, strict=True):
            span = lines.at(function.unit, address)
            assert span is not None
            assert f"{span.file}:{span.line}" == re.sub(r" \(.*", "", place_said)
        line = function.decl_line + 2
        found = lines.of_line(function.unit, "c/copies.c", line, function.ranges)
        assert found and all(lines.at(function.unit, one.low) == one for one in found)
        assert not lines.of_line(function.unit, "pies.c", line, function.ranges)
        assert {one.file for one in found} == {str(COPIES)}


@pytest.mark.parametrize(
    "flags",
    [("-gz=zlib",), ("-gdwarf64", "-gdwarf-5"), ("-ffunction-sections", "-gdwarf-4")],
    ids=str,
)
def test_other_shapes(
    flags: tuple[str, ...], tmp_path: Path, libdw: Callable[[Path], dict[str, list[Copy]]]
) -> None:
    path = compiled(tmp_path, "gcc", "-O2", "-g", *flags)
    index, theirs = open_index(path), libdw(path)
    assert {name: as_copies(index, name) for name in index.inline_names()} == theirs


def test_it_is_told_before_anything_takes_long(tmp_path: Path) -> None:
    told: list[float] = []
    build(open_file(compiled(tmp_path, "gcc", "-O2", "-g")), told.append)
    assert told[0] == 0.0
    assert told == sorted(told)


def test_dwz_partial_units(tmp_path: Path, libdw: Callable[[Path], dict[str, list[Copy]]]) -> None:
    """dwz moves entries that units share to partial units, to which DW_FORM_ref_addr refers."""
    header = tmp_path / "shared.h"
    header.write_text(
        "struct pair { long a, b; };\n"
        "static inline __attribute__((always_inline)) long both(struct pair *p)\n"
        "{ p->a += 3; return p->a * p->b; }\n"
    )
    for name in ("one", "two"):
        (tmp_path / f"{name}.c").write_text(
            f'#include "shared.h"\nlong {name}(struct pair *p) {{ return both(p); }}\n'
        )
    path = tmp_path / "both"
    command = ["gcc", "-O2", "-g", "-gdwarf-4", "-nostdlib", "-static", "-Wl,-e,one", "-o", path]
    subprocess.run([*command, tmp_path / "one.c", tmp_path / "two.c"], check=True)
    before = open_index(path)
    subprocess.run(["dwz", "--devel-die-count-method", path], capture_output=True, check=False)
    subprocess.run(["dwz", path], capture_output=True, check=False)
    index = open_index(path)
    assert as_copies(index, "both") == as_copies(before, "both") == libdw(path)["both"]
    assert {copy.caller for copy in index.copies("both")} == {"one", "two"}


def test_a_lookup_is_small(prepared: Prepared, kernel: Index, tmp_path: Path) -> None:
    """A new process with an index: less than 150 MB, without importing numba and numpy, which would
    take longer than the lookup (bench/inline_lookup.py has the times)."""
    code = (
        "import sys, pathlib\n"
        "from kinst.image.dwarf.index import open_index\n"
        f"index = open_index({str(prepared.debug)!r}, pathlib.Path(sys.argv[1]))\n"
        "assert len(index.copies('fdget')) > 100\n"
        "assert not {'numba', 'numpy', 'llvmlite'} & set(sys.modules)\n"
        # Not ru_maxrss: a child starts with its parent's.
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "print(status.split('VmHWM:')[1].split()[0])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    open_index(prepared.debug, tmp_path)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) < 150_000
