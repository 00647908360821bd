"""Kernels without BTF: types, arguments, locals, lines and frames from ELF and DWARF alone.

Each build's answers are compared with what the same compiler put into the program as data, and
with readelf's reading of its call frames.
"""

from __future__ import annotations

import itertools
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kinst.core.dtypes import EnumType, StructType
from kinst.core.isa import Isa
from kinst.image.debug_info import DebugFiles, DebugInfo
from kinst.image.dwarf.cfi import CallerRule, InspectedFrame
from kinst.isa import load, name_of_machine
from kinst.session.expand import call_convention
from tests import ROOT
from tests.image.dwarf.test_cfi import rows_of

SOURCE = ROOT / "tests/c/small_kernel.c"
KERNEL_LIKE = ("-ffreestanding", "-nostdlib", "-static", "-fno-stack-protector")
COMPILERS = {
    "amd64": ["gcc"], "clang": ["clang"], "arm64": ["aarch64-linux-gnu-gcc"],
    "riscv64": ["riscv64-linux-gnu-gcc"],
    "clang for arm64": ["clang", "--target=aarch64-linux-gnu"],
    "clang for riscv64": ["clang", "--target=riscv64-linux-gnu"],
}  # fmt: skip
MEMBERS = ("x", "y", "next", "letter", "wide", "name", "grid", "colour", "call")
PARAMETERS = ("at", "count", "colour")
VARIABLES = (*PARAMETERS, "flag", "kept", "made")


def built(folder: Path, compiler: Sequence[str], *flags: str) -> Path:
    program = folder / "kernel"
    # clang needs another machine's linker, which comes with gcc's cross compilers.
    linker = {"--target=aarch64-linux-gnu": "aarch64", "--target=riscv64-linux-gnu": "riscv64"}
    target = next((linker[word] for word in compiler if word in linker), "")
    command = [*compiler, *flags, *KERNEL_LIKE]
    if target:
        made = folder / "kernel.o"
        subprocess.run([*command, "-c", "-o", made, SOURCE], check=True, timeout=120)
        command, source = [f"{target}-linux-gnu-ld"], made
    else:
        source = SOURCE
    subprocess.run([*command, "-o", program, source], check=True, timeout=120)
    return program


def isa_of(debug: DebugInfo) -> Isa:
    return load(name_of_machine(debug.elf.machine))


def check_types(debug: DebugInfo) -> None:
    assert debug.btf is None and debug.types is debug.dwarf is not None
    types = debug.dwarf
    point = types.tagged("struct", "point")
    assert isinstance(point, StructType)
    at = debug.elf.address("offsets")
    assert at is not None
    *wanted, size = struct.unpack("<10Q", debug.elf.read(at, 80))
    found = {name: point.member(name) for name in MEMBERS}
    assert [member.offset for member in found.values() if member is not None] == wanted
    assert point.size == size
    assert str(found["next"] and found["next"].type) == "struct point *"
    assert str(found["grid"] and found["grid"].type) == "int [2][3]"
    low, high = point.member("low"), point.member("high")
    assert low is not None and high is not None and (low.bits, high.bits) == (3, 5)
    origin = debug.symbol("origin")
    assert origin is not None and isinstance(origin.type, StructType)
    content = debug.elf.read(origin.address, size)
    word = int.from_bytes(content, "little")
    assert [word >> one.bit & (1 << one.bits) - 1 for one in (low, high)] == [5, 9]
    hue = types.tagged("enum", "hue")
    assert isinstance(hue, EnumType)
    assert hue.values == (("RED", 3), ("GREEN", 4), ("BLUE", 0x7FFFFFFF))
    green = debug.enumerator("GREEN")
    assert green is not None and green[1] == 4
    step = debug.prototype("step")
    assert step is not None and str(step.result) == "int"
    assert list(map(str, step.parameters)) == ["struct point *", "u64", "enum hue", "_Bool"]
    table = debug.symbol("table")
    assert table is not None and str(table.type) == "int [4]"


def check_code(debug: DebugInfo, *, optimised: bool) -> None:
    """Check that parameters can be read at the entry, and without optimisation every variable
    everywhere."""
    isa = isa_of(debug)
    start = debug.elf.address("step")
    assert start is not None
    (row,) = debug.elf.symbols.indexes("step")
    end = start + int(debug.elf.symbols.size[row])
    known = debug.locals(isa.dwarf_registers, call_convention(isa))
    assert known is not None and str(known.type_in("step", "kept")) == "long [4]"
    seen: dict[str, set[str]] = {name: set() for name in VARIABLES}
    for at in range(start, end, 4 if isa.name != "amd64" else 1):
        rule = debug.frame_address(at, isa.dwarf_registers)
        assert rule is not None, hex(at)
        frame = InspectedFrame(at, at == start, f"(regs[{rule[0]}] + {rule[1]})", int)
        for name in VARIABLES:
            found = known.find("step", frame, name)
            seen[name].add("?" if found is None else found.reason)
        if at == start:
            assert all(seen[name] == {""} for name in PARAMETERS), seen
    if not optimised:
        assert all(reasons == {""} for reasons in seen.values()), seen
    (copy,) = debug.copies("twice")
    assert copy.caller == "step"
    line = debug.line_at("step", start)
    assert line is not None and 0 <= line.line - line_of("int step(") <= 5
    place, outside = debug.place(copy.ranges[0][0]), debug.place(start)
    assert place is not None and place.line == copy.call_line == line_of("= twice(")
    assert [frame.function for frame in place.inlined] == ["twice"]
    first = line_of("int twice(")
    assert first <= place.inlined[0].line <= first + 4
    assert outside is not None and outside.inlined == () and outside.line == line.line


def line_of(text: str) -> int:
    """Return the number of the source line that has this text."""
    lines = SOURCE.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.full if "clang" in n else ()) for n in sorted(COMPILERS)],
)
def test_every_compiler(name: str, version: int, tmp_path: Path) -> None:
    for level, frames in itertools.product(("-O0", "-O2"), ("", "-fno-asynchronous-unwind-tables")):
        compiler = COMPILERS[name]
        if level == "-O0" and frames:
            continue
        program = built(tmp_path, compiler, level, f"-gdwarf-{version}", *filter(None, [frames]))
        debug = DebugFiles(tmp_path / "cache").open(program)
        check_types(debug)
        check_code(debug, optimised=level != "-O0")
        check_frames(debug)


def check_frames(debug: DebugInfo) -> None:
    """Check every row that readelf shows, of .eh_frame or .debug_frame."""
    isa = isa_of(debug)
    numbers = {"rsp": 7, "rbp": 6, "sp": {"arm64": 31, "riscv64": 2}.get(isa.name, 7), "s0": 8}
    numbers |= {"ra": {"amd64": 16, "arm64": 30, "riscv64": 1}[isa.name]}
    numbers |= {f"x{n}": n for n in range(31)} if isa.name == "arm64" else {}
    rows = list(rows_of(debug.path))
    assert len(rows) >= 2 and debug.cfi is not None
    for low, end, register, offset, back in rows:
        at = None if back == "u" else int(back.removeprefix("c"))
        wanted = CallerRule(numbers[register], offset, numbers["ra"], at)
        assert {debug.cfi.rule(address) for address in (low, end - 1)} == {wanted}, hex(low)
