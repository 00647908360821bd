"""Addresses of code in a program's data: those of a table of labels, in both kinds of program."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kinst.image.elf import open_elf
from kinst.image.program_elf import program_elf

SOURCE = """
    .globl _start, first, second
_start:
    nop
first:
    nop
second:
    nop
    ret
    .data
    .quad 1, first, second
"""


@pytest.mark.parametrize(
    "options",
    [("-no-pie",), ("-pie",), ("-pie", "-Wl,-z,pack-relative-relocs")],
)
def test_addresses_in_data_are_found(options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "program.s").write_text(SOURCE)
    subprocess.run(
        ["gcc", "-nostdlib", *options, "-o", "program", "program.s"], cwd=tmp_path, check=True
    )
    elf = open_elf(tmp_path / "program")
    found = program_elf(elf).code_pointers.tolist()
    assert {elf.address("first"), elf.address("second")} <= {*found}
    assert elf.address("_start") not in found


@pytest.mark.parametrize("options", [("-no-pie",), ("-pie",), ("-static",), ("-static-pie",)])
def test_main_of_a_stripped_program(options: tuple[str, ...], tmp_path: Path) -> None:
    source = "int other(int n) { return n + 1; }\nint main(int n) { return other(n); }\n"
    (tmp_path / "program.c").write_text(source)
    subprocess.run(["gcc", *options, "-o", "program", "program.c"], cwd=tmp_path, check=True)
    main = open_elf(tmp_path / "program").address("main")
    subprocess.run(["strip", "-o", "stripped", "program"], cwd=tmp_path, check=True)
    symbols = program_elf(open_elf(tmp_path / "stripped")).symbols
    named = {symbols.strings[at:].split(b"\0", 1)[0]: k for k, at in enumerate(symbols.name)}
    assert int(symbols.address[named[b"main"]]) == main
    assert b"other" not in named


def test_a_program_without_main(tmp_path: Path) -> None:
    (tmp_path / "program.s").write_text(SOURCE)
    subprocess.run(["gcc", "-nostdlib", "-o", "program", "program.s"], cwd=tmp_path, check=True)
    subprocess.run(["strip", "program"], cwd=tmp_path, check=True)
    assert b"main" not in program_elf(open_elf(tmp_path / "program")).symbols.strings
