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
