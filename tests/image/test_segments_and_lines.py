"""Program headers as readelf has them, and the source lines of small programs as objdump has them:
every version of line tables, and every form that the assembler can write."""

from __future__ import annotations

import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from kinst.core.dtypes import IntType
from kinst.core.errors import KinstError
from kinst.image.debug_info import DebugInfo
from kinst.image.dwarf.cfi import InspectedFrame
from kinst.image.elf_file import open_file
from kinst.isa import load
from tests.image.dwarf_made import CROSS, compiled

HEADER = re.compile(r" +(\w+) +0x(\w+) 0x(\w+) 0x\w+ 0x(\w+) 0x(\w+) (.{3}) 0x\w+", re.MULTILINE)


@pytest.mark.parametrize("isa", sorted(CROSS))
def test_program_headers_are_readelfs(isa: str, tmp_path: Path) -> None:
    file = open_file(compiled(tmp_path, CROSS[isa], "-O1"))
    command = ["readelf", "-lW", file.path]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [
        (int(offset, 16), int(address, 16), int(stored, 16), int(size, 16), flags)
        for _, offset, address, stored, size, flags in HEADER.findall(shown)
    ]
    letters = {4: "R", 2: "W", 1: "E"}
    found = [
        (s.offset, s.address, s.file_size, s.size,
         "".join(letter if s.flags & bit else " " for bit, letter in letters.items()))
        for s in file.segments
    ]  # fmt: skip
    assert found == rows and len(rows) > 2
    loaded = [m for m in HEADER.findall(shown) if m[0] == "LOAD" and m[5][2] == "E"]
    ranges = sorted((int(m[2], 16), int(m[2], 16) + int(m[4], 16)) for m in loaded)
    assert file.code_segments == tuple(ranges) and ranges


def test_program_headers_that_are_damaged(tmp_path: Path) -> None:
    """e_phoff is at 32, e_phentsize at 54 and e_phnum at 56 (System V ABI, figure 4-3)."""
    path = compiled(tmp_path, "gcc", "-O1")
    whole = path.read_bytes()
    for at, value in ((32, len(whole).to_bytes(8, "little")), (54, b"\x37\0"), (56, b"\xf0\xff")):
        path.write_bytes(whole[:at] + value + whole[at + len(value) :])
        with pytest.raises(KinstError, match="damaged program headers"):
            assert open_file(path).segments
    path.write_bytes(whole[:56] + b"\0\0" + whole[58:])
    assert open_file(path).segments == () == open_file(path).code_segments


def decoded(path: Path) -> list[tuple[int, str, int]]:
    """Return objdump's rows of line tables: (address, name of the file, line); line 0 at an end."""
    command = ["objdump", "--dwarf=decodedline", "-WL", path]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"^(\S+) +(\d+|-) +(0x\w+|0)(?: |$)", shown, re.MULTILINE)
    return [
        (int(address, 16), name, 0 if line == "-" else int(line)) for name, line, address in rows
    ]


def check_lines(path: Path) -> int:
    """Check that every address of the table's spans belongs to the row that objdump has there."""
    debug = DebugInfo(path)
    units = list(debug.index.units)
    spans = sorted(s for unit in units for s in
                   [(x.low, x.high, x.file, x.line) for x in debug.lines.spans(unit)])  # fmt: skip
    rows = decoded(path)
    wanted = []
    for (low, name, line), (high, _, _) in pairwise(rows):
        if line and high > low:
            wanted += [(at, name, line) for at in range(low, high)]
    found = [
        (at, Path(file).name, line) for low, high, file, line in spans for at in range(low, high)
    ]
    assert sorted(found) == sorted(wanted)
    return len(found)


@pytest.mark.parametrize("compiler", ["gcc", pytest.param("clang", marks=pytest.mark.full)])
@pytest.mark.parametrize("version", [2, 3, 4, 5])
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_lines_are_objdumps(compiler: str, version: int, level: str, tmp_path: Path) -> None:
    path = compiled(tmp_path, compiler, level, f"-gdwarf-{version}")
    assert check_lines(path) > 200


def test_spans_of_a_line(tmp_path: Path) -> None:
    """Spans of one line of one file, within some addresses."""
    debug = DebugInfo(compiled(tmp_path, "gcc", "-O2", "-gdwarf-5"))
    (unit,) = debug.index.units
    every = debug.lines.spans(unit)
    ((low, high),) = debug.functions("nested")[0].ranges
    lines = {span.line for span in every}
    found = 0
    for line in lines:
        for file in ("copies.c", "c/copies.c", "", "opies.c", "other.c"):
            known = file in ("copies.c", "c/copies.c", "")
            wanted = [s for s in every if known and s.line == line and low <= s.low < high]
            assert list(debug.lines.of_line(unit, file, line, [(low, high)])) == wanted
            found += len(wanted)
    assert found > 10 and len(lines) > 10


LOCATIONS = """
.text
.globl _start
.file 1 "one.s"
.file 2 "/abs/two.h"
_start:
.loc 1 10
nop
.loc 1 300 4
.skip 40, 0x90
.loc 2 5
.skip 300, 0x90
.loc 1 11 prologue_end
nop
.loc 1 70000 is_stmt 0
.skip 70000, 0x90
.loc 1 3 discriminator 7
ret
.section .other, "ax"
other: .loc 2 8
nop
.loc 2 9 epilogue_begin
ret
"""


# A unit with a line table and nothing else (DWARF 4, 7.5.1.1 and 7.5.3).
UNIT = """
.section .debug_info, "", @progbits
.long 2f - 1f
1: .short 4
.long 0
.byte 8
.uleb128 1
.long 0
2:
.section .debug_abbrev, "", @progbits
.uleb128 1, 0x11
.byte 0
.uleb128 0x10, 0x17, 0, 0, 0
"""


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_lines_of_every_advance(version: int, tmp_path: Path) -> None:
    """By special opcodes, by constants, and by numbers of any size, in several sequences."""
    (tmp_path / "a.s").write_text(LOCATIONS + UNIT)
    for command in (
        ["as", f"--gdwarf-{version}", "-o", "a.o", "a.s"],
        ["ld", "-o", "a", "a.o"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True)
    assert check_lines(tmp_path / "a") > 70000


CONSTANTS = """
#include <stdint.h>
int seen;
__attribute__((noinline)) int values(int n)
{
    const char letter = 'x';
    const short little = -7;
    const int number = 123456;
    const long large = 0x123456789abcdefL;
    const unsigned long top = ~0UL - 4;
    seen += n;
    return n + letter + little + number + (large == n) + (top == n);
}
int main(int argc, char **argv) { return values(argc); }
"""
WANTED = {
    "letter": ord("x"), "little": -7, "number": 123456, "large": 0x123456789ABCDEF, "top": -5,
}  # fmt: skip


@pytest.mark.parametrize("version", [4, 5])
def test_variables_that_are_constants(version: int, tmp_path: Path) -> None:
    """By DW_AT_const_value, or by an expression: the source has their values."""
    source = tmp_path / "c.c"
    source.write_text(CONSTANTS)
    path = tmp_path / "c"
    command = ["gcc", "-O2", f"-gdwarf-{version}", "-no-pie", "-o", path, source]
    subprocess.run(command, check=True)
    debug = DebugInfo(path)
    known = debug.locals(load("amd64").dwarf_registers)
    ((low, high),) = debug.functions("values")[0].ranges
    assert known is not None
    for name, value in WANTED.items():
        said = 0
        for at in range(low, high):
            frame = InspectedFrame(at, at == low, "(regs[R_RSP] + 8)", int)
            found = known.find("values", frame, name)
            assert found is not None, name
            assert isinstance(found.type, IntType)
            if found.pieces:
                (piece,) = found.pieces
                told = int(re.sub(r"[()]|u?ll$", "", piece.text), 0)
                assert (told - value) % (1 << 8 * found.type.size) == 0, (name, piece.text)
                said += 1
        assert said == high - low, name
