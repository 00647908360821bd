"""Jump tables of arm64 functions that are written by hand: labels in the source mark the table,
its base and the number of its entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinst.core.instruction import JumpTable
from kinst.isa import load
from tests.isa.gnu_assembler import assembled

ISA = load("arm64")
TEXT = 0xFFFF_8000_0801_0000  # a page's start
TABLE = 0xA40  # bytes into the page, as in the add

# adrp of its own page, which no linker relocates.
ADDRESS = ".inst 0x90000000 | {0}\nadd x{0}, x{0}, #" + str(TABLE)
LOAD = "ldrb w3, [x2, w1, uxtw]"
JUMP = "add x3, x4, w3, sxtb #2\nbr x3\nbase: brk #0x777"
START = "cmp w1, #199\nb.hi out\n" + ADDRESS.format(2)


def tables(source: str, folder: Path) -> tuple[list[JumpTable], int]:
    """Return (tables with a base; their bases)."""
    code = assembled("arm64", f"{source}\nret\nout: ret", folder)
    found = ISA.jump_tables(list(ISA.decode(code, TEXT)))
    whole = [table for table in found if not table.base]
    assert all(table.size == 8 for table in whole)
    base = code.index((0xD4200000 | 0x777 << 5).to_bytes(4, "little"))
    return [table for table in found if table.base], TEXT + base


# The source, the bytes of an entry, and the number of entries.
FOUND = [
    (f"{START}\n{LOAD}\nadr x4, base\n{JUMP}", 1, 200),
    (f"{START}\nadr x4, base\n{LOAD}\n{JUMP}", 1, 200),
    # Of two addresses the one that the jump uses; and the last one made before it.
    (f"{START}\n{LOAD}\nadr x4, base\nadr x9, out\n{JUMP}", 1, 200),
    (f"{START}\n{LOAD}\nadr x9, out\nadr x4, base\n{JUMP}", 1, 200),
    (f"{START}\nadr x4, out\n{LOAD}\nadr x4, base\n{JUMP}", 1, 200),
    # As far apart as compilers put them.
    (f"{START}\n{LOAD}\nnop\nnop\nadr x4, base\n{JUMP}", 1, 200),
    (f"{START}\nadr x4, base\nnop\nnop\n{LOAD}\n{JUMP}", 1, 200),
    # Larger entries.
    (f"{START}\nldrh w3, [x2, w1, uxtw #1]\nadr x4, base\n{JUMP.replace('sxtb', 'sxth')}", 2, 200),
    (f"{START}\nldr w3, [x2, w1, uxtw #2]\nadr x4, base\n{JUMP.replace('sxtb', 'sxtw')}", 4, 200),
    (f"{START}\nldrsw x3, [x2, w1, uxtw #2]\nadr x4, base\n{JUMP.replace('sxtb', 'sxtw')}", 4, 200),
    # Other registers, and a load directly after another register's comparison.
    (
        f"cmp w21, #10\nb.hi out\ncmp w0, #77\n{ADDRESS.format(2)}\nldrb w3, [x2, w21, uxtw]\n"
        f"adr x4, base\n{JUMP}", 1, 11,
    ),
    (
        f"cmp w5, #4095\nb.hi out\n{ADDRESS.format(30)}\nldrb w28, [x30, w5, uxtw]\n"
        "adr x17, base\nadd x16, x17, w28, sxtb #2\nbr x16\nbase: brk #0x777", 1, 4096,
    ),
    # The comparison is in the block from which control comes.
    (
        "cmp w1, #24\nb.ls 1f\n" + "nop\n" * 9
        + f"ret\n1: {ADDRESS.format(2)}\n{LOAD}\nadr x4, base\n{JUMP}",
        1, 25,
    ),
    (
        "cmp w1, #24\nb 1f\n" + "nop\n" * 9
        + f"ret\n1: {ADDRESS.format(2)}\n{LOAD}\nadr x4, base\n{JUMP}",
        1, 25,
    ),
    # Unknown: the index has changed since, the comparison is too far, or it is of 64 bits.
    (
        f"cmp w1, #24\nb.hi out\nadd w1, w1, #1\n{ADDRESS.format(2)}\n{LOAD}\nadr x4, base\n{JUMP}",
        1, 0,
    ),
    (
        "cmp w1, #24\n" + "add w9, w9, #1\n" * 8 + f"{ADDRESS.format(2)}\n{LOAD}\n"
        f"adr x4, base\n{JUMP}", 1, 0,
    ),
    (f"cmp x1, #24\nb.hi out\n{ADDRESS.format(2)}\n{LOAD}\nadr x4, base\n{JUMP}", 1, 0),
]  # fmt: skip


@pytest.mark.parametrize(("source", "size", "count"), FOUND)
def test_a_table(source: str, size: int, count: int, tmp_path: Path) -> None:
    found, base = tables(source, tmp_path)
    assert found == [JumpTable(TEXT + TABLE, size, base, 4, count)]


def test_a_table_whose_address_is_from_elsewhere(tmp_path: Path) -> None:
    """The address is from another register, saved earlier: it may be any that the function
    makes."""
    away = f"{ADDRESS.format(7)}\nmov x2, x8\n{LOAD}\nadr x4, base\n{JUMP}"
    found, base = tables(f"cmp w1, #9\nb.hi out\n{away}", tmp_path)
    assert found == [JumpTable(TEXT + TABLE, 1, base, 4, 10)]


# A second table, of another jump, whose address is made before or after.
OTHER = "adrp x9, .\nadd x9, x9, #64"


@pytest.mark.parametrize(
    "between",
    ["nop", "add x5, x5, x6", "cbz w2, out", "cbnz x2, out", "tbz w2, #3, out", "str x5, [x6]"],
)
def test_the_table_is_the_one_that_the_register_has(between: str, tmp_path: Path) -> None:
    """The table is the one in the register, whatever is between that does not write the register.

    Branches read the register in the field in which other instructions have the one that they
    write.
    """
    own = ADDRESS.format(2)
    for first, second in ((OTHER, own), (own, OTHER)):
        source = f"cmp w1, #9\nb.hi out\n{first}\n{second}\n{between}\n{LOAD}\nadr x4, base\n{JUMP}"
        found, base = tables(source, tmp_path)
        assert found == [JumpTable(TEXT + TABLE, 1, base, 4, 10)]


def test_a_table_whose_register_is_written_again(tmp_path: Path) -> None:
    """The register was written since: the table may be any."""
    source = f"{START}\n{OTHER}\nadd x2, x2, #8\n{LOAD}\nadr x4, base\n{JUMP}"
    found, base = tables(source, tmp_path)
    page = TEXT
    wanted = {JumpTable(page + at, 1, base, 4, 200) for at in (TABLE, 64)}
    assert set(found) == wanted


# The entries are unsigned, or times 8, or of another jump.
NONE = [
    f"{START}\n{LOAD}\nadr x4, base\nadd x3, x4, w3, uxtb #2\nbr x3\nbase: brk #0x777",
    f"{START}\n{LOAD}\nadr x4, base\nadd x3, x4, w3, sxtb #3\nbr x3\nbase: brk #0x777",
    f"{START}\n{LOAD}\nadr x4, base\nadd x3, x4, w3, sxtb #2\nbr x5\nbase: brk #0x777",
    f"{START}\n{LOAD}\nadr x4, base\nsub x3, x4, w3, sxtb #2\nbr x3\nbase: brk #0x777",
    f"{START}\n{LOAD}\nadr x9, base\n{JUMP}",  # no base
    f"{START}\nldrb w9, [x2, w1, uxtw]\nadr x4, base\n{JUMP}",  # no entry
    f"{START}\nldr x3, [x2, x1, lsl #3]\nadr x4, base\n{JUMP.replace('sxtb', 'sxtw')}",
    f"{START}\nstrb w3, [x2, w1, uxtw]\nadr x4, base\n{JUMP}",
    f"{START}\nadr x4, base\n{LOAD}\nnop\nnop\nnop\nnop\n{JUMP}",  # too far
]


@pytest.mark.parametrize("source", NONE)
def test_what_is_no_table(source: str, tmp_path: Path) -> None:
    assert tables(source, tmp_path)[0] == []


def test_addresses_that_may_be_of_tables(tmp_path: Path) -> None:
    """Whole addresses: each that adrp and add make, unless they are too far apart."""
    near = ".inst 0x90000005\nnop\nadd x6, x5, #64\nret"
    far = ".inst 0x90000005\n" + "nop\n" * 8 + "add x6, x5, #64\nret"
    other = ".inst 0x90000005\nadd x6, x7, #64\nsub x6, x5, #64\nadd w6, w5, #64\nret"
    for source, wanted in ((near, [JumpTable(TEXT + 64, 8)]), (far, []), (other, [])):
        code = assembled("arm64", source, tmp_path)
        assert ISA.jump_tables(list(ISA.decode(code, TEXT))) == wanted
    last = ".inst 0x90000005\n" + "nop\n" * 7 + "add x5, x5, #4095\nret"
    code = assembled("arm64", last, tmp_path)
    assert ISA.jump_tables(list(ISA.decode(code, TEXT))) == [JumpTable(TEXT + 4095, 8)]
