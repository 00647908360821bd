"""kinst/image/relocations.py: pointers in images that relocate themselves, and numbers in debug
sections of files that are not linked, as ld links them."""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kinst.image.dwarf.sections import DebugSections
from kinst.image.elf import Elf, open_elf
from kinst.image.relocations import pointers

SOURCE = """
extern char first[], second[];
__attribute__((section(".text"))) char first[64] = { 1 }, second[64] = { 2 };
struct { unsigned long before; char *at[3]; unsigned long plain; } table = {
    0x1111, { first, second + 5, (char *)&table }, 0x2222,
};
void _start(void) {}
"""
COMPILERS = {"amd64": "gcc", "arm64": "aarch64-linux-gnu-gcc", "riscv64": "riscv64-linux-gnu-gcc"}


def linked(folder: Path, isa: str, *flags: str) -> Elf:
    source, path = folder / "table.c", folder / "table"
    source.write_text(SOURCE)
    command = [COMPILERS[isa], "-O1", "-nostdlib", "-ffreestanding", *flags, "-o", path, source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return open_elf(path)


def symbols(elf: Elf) -> dict[str, int]:
    shown = subprocess.run(["nm", str(elf.path)], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in shown.splitlines()]
    return {row[2]: int(row[0], 16) for row in rows if len(row) == 3}


def wanted(elf: Elf) -> list[int]:
    at = symbols(elf)
    return [0x1111, at["first"], at["second"] + 5, at["table"], 0x2222]


@pytest.mark.parametrize("isa", sorted(COMPILERS))
def test_a_table_whose_pointers_are_relocations(isa: str, tmp_path: Path) -> None:
    """All of it, and a part that begins after the first pointer and ends before the last."""
    flags = ["-fPIE", "-pie", "-static-pie", "-Wl,-z,norelro"]
    if isa == "arm64":
        flags.append("-Wl,--no-apply-dynamic-relocs")
    elf = linked(tmp_path, isa, *flags)
    start = symbols(elf)["table"]
    raw = elf.read(start, 40)
    # Most linkers also write the relocated values; the present content must not matter.
    raw = raw[:8] + bytes(24) + raw[32:]
    assert pointers(elf, start, raw).tolist() == wanted(elf)
    assert pointers(elf, start + 16, raw[16:24]).tolist() == wanted(elf)[2:3]
    assert pointers(elf, start, b"").tolist() == []
    assert raw[8:32] == bytes(24), "the bytes given are not changed"


def test_an_image_without_relocations(tmp_path: Path) -> None:
    elf = linked(tmp_path, "amd64", "-fno-pie", "-no-pie", "-static")
    start = symbols(elf)["table"]
    assert pointers(elf, start, elf.read(start, 40)).tolist() == wanted(elf)


# Names of relocations of data, with their numbers of bytes.
DATA = {
    "amd64": {"R_X86_64_64": 8, "R_X86_64_32": 4, "R_X86_64_32S": 4},
    "arm64": {"R_AARCH64_ABS64": 8, "R_AARCH64_ABS32": 4, "R_AARCH64_ABS16": 2},
    "riscv64": {
        "R_RISCV_32": 4, "R_RISCV_64": 8, "R_RISCV_ADD8": 1, "R_RISCV_ADD16": 2,
        "R_RISCV_ADD32": 4, "R_RISCV_ADD64": 8, "R_RISCV_SUB8": 1, "R_RISCV_SUB16": 2,
        "R_RISCV_SUB32": 4, "R_RISCV_SUB64": 8, "R_RISCV_SUB6": 1, "R_RISCV_SET6": 1,
        "R_RISCV_SET8": 1, "R_RISCV_SET16": 2, "R_RISCV_SET32": 4,
    },
}  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("isa", sorted(DATA))
def test_numbers_in_debug_sections(isa: str, seed: int, tmp_path: Path) -> None:
    """Of symbols of .text, which kinst takes to lie at 0; bytes between the numbers stay."""
    rng, kinds = random.Random(seed), DATA[isa]
    asked = [*kinds, *rng.choices(list(kinds), k=20)]
    rng.shuffle(asked)
    lines = ['.section .debug_info, "", @progbits']
    for k, kind in enumerate(asked):
        lines.append(f".reloc ., {kind}, place{k}")
        lines += [f".byte {rng.randrange(256)}" for _ in range(kinds[kind] + rng.randrange(3))]
    lines.append(".text")
    for k, at in enumerate(sorted(rng.randrange(1 << 16) for _ in asked)):
        lines += [f".org {at}", f"place{k}:"]
    agrees_with_ld(tmp_path, isa, [*lines, ".byte 0, 0, 0, 0"])


def test_the_upper_two_bits_beside_six(tmp_path: Path) -> None:
    """They stay (RISC-V ELF psABI, "Relocations", word6), and only they."""
    lines, places = ['.section .debug_info, "", @progbits'], (0, 1, 2, 31, 62, 63, 64, 197)
    for kind, place, old in itertools.product(
        ("R_RISCV_SET6", "R_RISCV_SUB6"), places, (0, 1, 0x3F, 0xC0, 0xFF)
    ):
        lines += [f".reloc ., {kind}, place{place}", f".byte {old}"]
    lines.append(".text")
    # Labels, as ld 2.40 adds what follows a symbol to SUB6, where psABI subtracts both.
    for place in places:
        lines += [f".org {place}", f"place{place}:"]
    agrees_with_ld(tmp_path, "riscv64", [*lines, "nop"])


def agrees_with_ld(tmp_path: Path, isa: str, lines: Sequence[str]) -> None:
    """Check that the .debug_info of these lines, assembled, is the one that ld makes."""
    (tmp_path / "a.s").write_text("\n".join(lines) + "\n")
    prefix = COMPILERS[isa].removesuffix("gcc")
    subprocess.run([f"{prefix}as", "-o", "a.o", "a.s"], cwd=tmp_path, check=True)
    command = [f"{prefix}ld", "-e", "0", "-Ttext=0", "-o", "a", "a.o"]
    subprocess.run(command, cwd=tmp_path, check=True)
    linked = open_elf(tmp_path / "a")
    section = linked.section(".debug_info")
    assert section is not None
    found = DebugSections(open_elf(tmp_path / "a.o")).array("info").tobytes()
    assert found == linked.data(section)
