"""kinst::F:@LINE and kinst::FILE@LINE are where gdb would put breakpoints on that line.

They have one site in each function and each inlined copy in it; with a * they have all of its
instructions.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import kinst
from kinst.core.probe import ProbePattern
from kinst.image.elf import open_elf
from kinst.kernels.fetch import Prepared
from kinst.sugar.lines import SourceFile, SourceLine, file_of, line_of

GDB_LINES = Path(__file__).parent.parent / "gdb_lines.py"
Place = tuple[int, tuple[str, int, int]]  # address; name, start and end of the innermost function


def gdb_says(program: Path, file: str, lines: range) -> dict[int, list[int]]:
    """Return the lowest address in each function and copy where gdb breaks on a line."""
    wanted = " ".join(f"{file}:{line}" for line in lines)
    done = subprocess.run(
        ["gdb", "-nx", "-batch", "-x", str(GDB_LINES), str(program)],
        env={**os.environ, "LINES_WANTED": wanted}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    answer: dict[str, list[Place]] = json.loads(done.stdout.split("LINES ", 1)[1])
    found = {}
    for where, places in answer.items():
        firsts: dict[tuple[str, int, int], int] = {}
        for address, function in sorted(places):
            firsts.setdefault((function[0], function[1], function[2]), address)
        found[int(where.rpartition(":")[2])] = sorted(firsts.values())
    return found


def sites(program: Path, description: str) -> list[int]:
    """Return the addresses of a description's sites, [] if it matches none."""
    try:
        text = kinst.expand_in_file(f"{description} {{ }}", program)
    except kinst.KinstError:
        return []
    symbols = open_elf(program).symbols
    found = re.findall(r"kinst:(?:\w+)?:([^:\n]+):(\d+)", text)
    starts = {name: int(symbols.address[symbols.indexes(name)[0]]) for name, _ in found}
    return sorted(starts[name] + int(offset) for name, offset in found)


def has_line(program: Path, address: int, line: int) -> bool:
    """Return whether the instruction there is of that line, by binutils."""
    done = subprocess.run(
        ["addr2line", "-e", str(program), f"{address:#x}"], text=True, check=True,
        capture_output=True,
    )  # fmt: skip
    return f":{line} " in f"{done.stdout.strip()} "


def begins_statement(program: Path, address: int, line: int) -> bool:
    """Return whether a row of the line table has this line there as a statement, by binutils."""
    done = subprocess.run(
        ["objdump", "--dwarf=decodedline", str(program)], text=True, check=True,
        capture_output=True,
    )  # fmt: skip
    rows = (row.split() for row in done.stdout.splitlines())
    return any(row[1:3] == [str(line), f"{address:#x}"] and row[-1] == "x" for row in rows)


def compare(program: Path, file: str, lines: range, least: int) -> None:
    compared = 0
    for line, places in gdb_says(program, file, lines).items():
        found = sites(program, f"kinst::{file}@{line}")
        compared += bool(places)
        # gdb leaves out rows of a line that continues, and so whole lines, after a discriminator.
        more = {*found} - {*places}
        # A line without a statement is its first instruction; gdb breaks on a later line.
        breaks = any(has_line(program, at, line) for at in places)
        assert all(
            begins_statement(program, at, line) or (not breaks and has_line(program, at, line))
            for at in more
        ), line
        assert not breaks or not more, line
        # gdb also breaks where an inlined copy ends: at an instruction of another line.
        left = [at for at in {*places} - {*found} if has_line(program, at, line)]
        assert not left, line
        every = sites(program, f"kinst::{file}@{line}*")
        assert len(every) >= len([at for at in found if has_line(program, at, line)])
    assert compared >= least


@pytest.mark.parametrize(
    "level", ["-O2", *(pytest.param(level, marks=pytest.mark.full) for level in ("-O1", "-Os"))]
)
def test_lines_are_where_gdb_breaks(tmp_path: Path, level: str) -> None:
    source = Path(__file__).parent.parent / "c" / "copies.c"
    program = tmp_path / "copies"
    subprocess.run(
        ["gcc", "-g", level, "-nostdlib", "-static", "-o", str(program), str(source)], check=True
    )  # fmt: skip
    count = len(source.read_text().splitlines())
    compare(program, source.name, range(1, count + 1), 10)


@pytest.mark.full
def test_lines_of_a_kernel_are_where_gdb_breaks(prepared: Prepared) -> None:
    compare(prepared.debug, "read_write.c", range(440, 500), 20)


def test_a_line_of_one_function_fires_once(prepared: Prepared) -> None:
    """The line at which vfs_read begins has eight instructions; only the first has a site."""
    once = sites(prepared.debug, "kinst::vfs_read:@451")
    every = sites(prepared.debug, "kinst::vfs_read:@451*")
    assert once == every[:1] and len(every) > 4


def test_a_line_without_a_statement(prepared: Prepared) -> None:
    """The code of line 459 of vfs_read begins no statement: gdb breaks on another line."""
    (once,) = sites(prepared.debug, "kinst::vfs_read:@459")
    assert has_line(prepared.debug, once, 459)
    assert [once] == sites(prepared.debug, "kinst::vfs_read:@459*")[:1]
    assert [once] == sites(prepared.debug, "kinst::read_write.c@459")


def test_a_line_that_is_an_inlined_call(prepared: Prepared) -> None:
    """Line 474 of read_write.c is fsnotify_access(file)."""
    with pytest.raises(kinst.DError) as caught:
        kinst.expand_in_file("kinst::vfs_read:@474 { }", prepared.debug)
    hint = "line 474 calls fsnotify_access(), inlined: kinst::fsnotify_access:entry"
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        (ProbePattern("kinst", "", "f", "@12*"), SourceLine("", "f", "", 12, True)),
        (ProbePattern("kinst", "", "f", "@a.h@12"), SourceLine("", "f", "a.h", 12)),
        (ProbePattern("kinst", "", "f", "@fs/a.h@12*"), SourceLine("", "f", "fs/a.h", 12, True)),
        (ProbePattern("kinst", "", "a.c", "@12*"), SourceFile("", "a.c", 12, True)),
        (ProbePattern("kinst", "", "", "a.c@12*"), SourceFile("", "a.c", 12, True)),
        (ProbePattern("", "kinst", "", "a.c@12*"), SourceFile("", "a.c", 12, True)),
    ],
)
def test_descriptions_with_a_star(pattern: ProbePattern, meant: SourceLine | SourceFile) -> None:
    found = line_of(pattern) if isinstance(meant, SourceLine) else file_of(pattern)
    assert found == meant
