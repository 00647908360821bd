"""kinst/image/dwarf/cfi.py: against readelf's reading of a whole kernel's .debug_frame, and on
entries made by hand."""

from __future__ import annotations

import random
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.image.dwarf.cfi import CallerRule, Cfi, open_cfi
from kinst.image.elf import open_elf
from kinst.image.elf_file import open_file
from kinst.kernels.fetch import prepared as prepared_kernel
from tests.image.dwarf_asm import uleb

# DWARF numbers of the registers that readelf names in the CFA column, and of the return address.
NUMBERS = {
    "arm64": {"sp": 31, "ra": 30, **{f"x{n}": n for n in range(30)}},
    "riscv64": {"ra": 1, "sp": 2, "s0": 8},
}
SEED = 4
DRAWN = 20_000

# (first address, end, CFA's register, its offset, return address: "u" or "c-24")
Row = tuple[int, int, str, int, str]


def rows_of(vmlinux: Path) -> Iterator[Row]:
    """Return readelf's rows: each holds up to the next one of its entry, or to the entry's end."""
    shown = subprocess.run(
        ["readelf", "-wF", str(vmlinux)], capture_output=True, text=True, check=True, timeout=300
    ).stdout
    for block in shown.split("\n\n"):
        found = re.search(r"FDE .*pc=([0-9a-f]+)\.\.([0-9a-f]+)\n +LOC +CFA *(.*)\n", block)
        if found is None or int(found[1], 16) == 0:
            continue
        columns, lines = found[3].split(), block[found.end() :].splitlines()
        starts = [int(line.split()[0], 16) for line in lines]
        for line, end in zip(lines, [*starts[1:], int(found[2], 16)], strict=True):
            words = line.split()
            rule = re.fullmatch(r"([a-z]+\d*)\+(\d+)", words[1])
            assert rule is not None, line
            back = words[2 + columns.index("ra")] if "ra" in columns else "u"
            yield int(words[0], 16), end, rule[1], int(rule[2]), back


@pytest.mark.parametrize(
    "isa",
    [
        pytest.param("arm64", marks=pytest.mark.full),
        pytest.param("riscv64", marks=pytest.mark.slow),
    ],
)
def test_rules_are_readelfs(isa: str) -> None:
    """At the first and the last byte of rows drawn at random, and of every kind of row."""
    kernel = prepared_kernel(isa)
    if kernel is None:
        pytest.fail(f"no {isa} kernel is there: run `make setup-all`")
    cfi = open_cfi(open_elf(kernel.debug))
    assert cfi is not None and len(cfi) > 40_000
    rows = [row for row in rows_of(kernel.debug) if row[0] < row[1]]
    assert len(rows) > 200_000
    numbers = NUMBERS[isa]
    kinds = {(row[2], row[3], row[4]): row for row in rows}
    for low, end, register, offset, back in [
        *kinds.values(), *random.Random(SEED).sample(rows, DRAWN),
    ]:  # fmt: skip
        at = None if back == "u" else int(back.removeprefix("c"))
        wanted = CallerRule(numbers[register], offset, numbers["ra"], at)
        for address in (low, end - 1):
            assert cfi.rule(address) == wanted, hex(address)


MODULE = """
int other(int, int *);
int first(int a) { return a + 1; }
int second(int a) { int b[20]; other(a, b); return b[a] + other(b[1], b); }
int third(int a) { if (!a) return 0; int b[4]; return other(a, b) + other(b[2], b); }
__attribute__((section("more"))) int fourth(int a) { return second(a) + third(a); }
"""


@pytest.mark.parametrize("isa", ["arm64", "riscv64"])
def test_a_relocatable_file(isa: str, tmp_path: Path) -> None:
    """Modules are such files: addresses, and riscv64's distances too, are relocations.  If two
    sections begin at 0 readelf cannot tell them apart; kinst has .text at 0, and the others after
    it."""
    prefix = {"arm64": "aarch64", "riscv64": "riscv64"}[isa]
    (tmp_path / "m.c").write_text(MODULE)
    compiler = [f"{prefix}-linux-gnu-gcc", "-g", "-O2", "-c", "m.c"]
    kernels = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-stack-protector"]
    subprocess.run([*compiler, *kernels], cwd=tmp_path, check=True)
    cfi = open_cfi(open_elf(tmp_path / "m.o"))
    assert cfi is not None and len(cfi) == 4
    numbers, seen = NUMBERS[isa], set()
    for low, end, register, offset, back in rows_of(tmp_path / "m.o"):
        at = None if back == "u" else int(back.removeprefix("c"))
        for address in range(low, end):
            assert cfi.rule(address) == CallerRule(numbers[register], offset, numbers["ra"], at)
        seen.add((offset, at))
    assert len(seen) > 2 and any(at is not None for _, at in seen)
    file = open_file(tmp_path / "m.o")
    (more,) = (base for n, base in file.layout.items() if file.sections[n].name == "more")
    assert cfi.rule(more) == CallerRule(numbers["sp"], 0, numbers["ra"], None)
    assert cfi.rule(more - 32) is None


START, SIZE = 0x1000, 0x100


def cfi_of(*program: int) -> Cfi:
    """Return one entry over [START, START + SIZE): code alignment 4, data alignment -8, return
    address in register 30; at its start the CFA is register 31 + 0."""
    cie = struct.pack("<IBB", 0xFFFFFFFF, 1, 0) + bytes([4, 0x78, 30, 0x0C, 31, 0])
    cie = struct.pack("<I", len(cie)) + cie
    fde = struct.pack("<IQQ", 0, START, SIZE) + bytes(program)
    return Cfi(cie + struct.pack("<I", len(fde)) + fde)


def rules(cfi: Cfi, *offsets: int) -> list[tuple[int, int, int | None] | None]:
    found = [cfi.rule(START + offset) for offset in offsets]
    assert all(rule is None or rule.return_register == 30 for rule in found)
    return [None if r is None else (r.register, r.offset, r.return_at) for r in found]


AT_ENTRY = (31, 0, None)


def test_advances_of_every_size() -> None:
    """DW_CFA_advance_loc, 1, 2 and 4, in units of 4 bytes; DW_CFA_def_cfa_offset between them."""
    cfi = cfi_of(
        0x41, 0x0E, 16, 0x02, 2, 0x0E, 32, 0x03, 3, 0, 0x0E, 48, 0x04, 4, 0, 0, 0, 0x0E, 64
    )
    found = rules(cfi, 0, 3, 4, 11, 12, 23, 24, 39, 40, SIZE - 1)
    offsets = [rule[1] for rule in found if rule is not None]
    assert offsets == [0, 0, 16, 16, 32, 32, 48, 48, 64, 64]


def test_return_address_saved_and_restored() -> None:
    """DW_CFA_offset of register 30 by 3 * -8, DW_CFA_restore; other registers do not matter."""
    cfi = cfi_of(0x41, 0x80 | 30, 3, 0x80 | 29, 4, 0x41, 0xC0 | 29, 0x41, 0xC0 | 30)
    assert rules(cfi, 0, 4, 8, 12) == [AT_ENTRY, (31, 0, -24), (31, 0, -24), AT_ENTRY]


def test_states_are_remembered() -> None:
    """DW_CFA_remember_state around an epilogue in the middle of a function."""
    cfi = cfi_of(0x41, 0x0E, 32, 0x80 | 30, 1, 0x0A, 0x41, 0x0E, 0, 0xC0 | 30, 0x41, 0x0B)
    assert rules(cfi, 0, 4, 8, 12) == [AT_ENTRY, (31, 32, -8), AT_ENTRY, (31, 32, -8)]


def test_the_frame_register() -> None:
    """DW_CFA_def_cfa, DW_CFA_def_cfa_register; signed and factored: DW_CFA_def_cfa_sf -2 * -8."""
    cfi = cfi_of(0x41, 0x0C, 29, 16, 0x41, 0x0D, 31, 0x41, 0x12, 29, 0x7E)
    assert rules(cfi, 0, 4, 8, 12) == [AT_ENTRY, (29, 16, None), (31, 16, None), (29, 16, None)]


def test_a_register_without_an_offset() -> None:
    """DW_CFA_def_cfa_register first, as binutils for RISC-V begin; an offset without a register
    means nothing."""
    for program, wanted in (((0x0D, 2), (2, 0, None)), ((0x0E, 16), None)):
        cie = struct.pack("<IBB", 0xFFFFFFFF, 1, 0) + bytes([1, 0x7C, 30, *program])
        fde = struct.pack("<IQQ", 0, START, SIZE)
        made = b"".join(struct.pack("<I", len(one)) + one for one in (cie, fde))
        assert rules(Cfi(made), 0) == [wanted]


def test_advances_before_the_function() -> None:
    """All of a CIE's own instructions are run, and advances among them mean nothing."""
    cie = struct.pack("<IBB", 0xFFFFFFFF, 1, 0) + bytes([1, 0x7C, 30, 0x0C, 31, 0, 0x41, 0x0E, 24])
    fde = struct.pack("<IQQ", 0, START, SIZE)
    made = b"".join(struct.pack("<I", len(one)) + one for one in (cie, fde))
    assert rules(Cfi(made), 0, SIZE - 1) == [(31, 24, None)] * 2


def test_an_entry_of_more_than_16_megabytes() -> None:
    """Its length takes all four bytes: an expression for a register, followed by the CFA."""
    cie = struct.pack("<IBB", 0xFFFFFFFF, 1, 0) + bytes([1, 0x7C, 30, 0x10, 29])
    cie += uleb(1 << 24) + bytes(1 << 24) + bytes([0x0C, 31, 24])
    fde = struct.pack("<IQQ", 0, START, SIZE)
    made = b"".join(struct.pack("<I", len(one)) + one for one in (cie, fde))
    assert rules(Cfi(made), 0) == [(31, 24, None)]


def test_what_cannot_be_said_has_no_rule() -> None:
    """A CFA by an expression; a return address that is undefined, or in another register."""
    for program in (
        (0x0F, 1, 0x30),
        (0x07, 30),
        (0x09, 30, 17),
        (0x10, 30, 1, 0x30),
        (0x1B,),
        (0x1B, 2),
        (0x3F, 0x7E),
    ):  # the last ones are undefined
        assert rules(cfi_of(0x41, *program), 0, 4) == [AT_ENTRY, None], program


def test_where_there_is_no_entry() -> None:
    """Except in the padding for ftrace in front of one."""
    cfi = cfi_of(0x41, 0x0E, 16)
    assert rules(cfi, -8, -4, SIZE) == [AT_ENTRY, AT_ENTRY, None]
    assert rules(cfi, -17, -4096) == [None, None]


def test_damage() -> None:
    good = cfi_of(0x41, 0x0E, 16)._section
    with pytest.raises(KinstError, match="debug_frame"):
        Cfi(good[:-2])
    # An operand that runs over the end of its program.
    assert rules(cfi_of(0x41, 0x0E, 0x80), 8) == [None]
    assert rules(cfi_of(0x0B), 0) == [None]  # nothing was remembered
