"""kinst/image/variable_table.py for a made program."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kinst.image.elf import Elf, open_elf
from kinst.image.variable_table import VariableTable

SLIDE = 0x1A000000
MADE = r"""
    .text
    .globl start
    .type start, @function
start: ret
    .size start, 1
    .type between, @object
between: .quad 9
    .size between, 8
    .data
    .balign 16
    .globl shared, own, tail
    .type whole, @object
whole: .quad 1, 2, 3
    .size whole, 24
    .type tail, @object
tail: .byte 4
    .size tail, 1
    .space 7
    .type own, @object
    .set hidden, own
    .type hidden, @object
own: .quad 5
    .size own, 8
    .size hidden, 8
label: .quad 6
    .bss
    .type empty, @object
empty: .space 32
    .size empty, 32
    .section .apart, "", @progbits
    .type unloaded, @object
unloaded: .quad 7
    .size unloaded, 8
    .bss
    .set shared, whole
    .type shared, @object
    .size shared, 8
"""


@pytest.fixture(scope="module")
def elf(tmp_path_factory: pytest.TempPathFactory) -> Elf:
    folder: Path = tmp_path_factory.mktemp("variables")
    (folder / "a.s").write_text(MADE)
    subprocess.run(["as", "-o", str(folder / "a.o"), str(folder / "a.s")], check=True)
    program = folder / "made"
    subprocess.run(["ld", "-e", "start", "-o", str(program), str(folder / "a.o")], check=True)
    return open_elf(program)


def test_an_address_within_a_variable(elf: Elf) -> None:
    table = VariableTable(elf, SLIDE)
    for name, size in (("whole", 24), ("tail", 1), ("own", 8), ("empty", 32)):
        linked = elf.address(name)
        assert linked is not None
        start = linked + SLIDE
        assert table.at(start) == (name, start)
        assert table.at(start + size - 1) == (name, start)


def test_an_address_of_none(elf: Elf) -> None:
    table = VariableTable(elf, SLIDE)
    tail, label, code = (elf.address(name) for name in ("tail", "label", "start"))
    assert tail is not None and label is not None and code is not None
    between = elf.address("between")
    assert between is not None
    # In the code's section: a table between functions is treated as code.
    assert table.at(between + SLIDE) is None
    # After a variable, at a label without a type, in code, outside of the file and, at 0, in a
    # section that is not in memory.
    assert elf.address("unloaded") == 0
    for linked in (tail + 1, label, code, 0, (1 << 64) - 8):
        assert table.at(linked + SLIDE) is None
    # Below the address to which 0 is moved.
    assert table.at(0) is None and table.at(SLIDE - 1) is None


def test_a_kernel_below_its_linked_address(elf: Elf) -> None:
    linked = elf.address("own")
    assert linked is not None
    assert VariableTable(elf, -0x1000).at(linked - 0x1000) == ("own", linked - 0x1000)
