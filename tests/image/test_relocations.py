"""kinst/image/relocations.py: pointers in images that relocate themselves, as ld links them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

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
    """All of it, and a part that begins behind the first pointer and ends before the last."""
    flags = ["-fPIE", "-pie", "-static-pie", "-Wl,-z,norelro"]
    if isa == "arm64":
        flags.append("-Wl,--no-apply-dynamic-relocs")
    elf = linked(tmp_path, isa, *flags)
    start = symbols(elf)["table"]
    raw = elf.read(start, 40)
    # Most linkers also write what the relocations say; what is there must not matter.
    raw = raw[:8] + bytes(24) + raw[32:]
    assert pointers(elf, start, raw).tolist() == wanted(elf)
    assert pointers(elf, start + 16, raw[16:24]).tolist() == wanted(elf)[2:3]
    assert pointers(elf, start, b"").tolist() == []
    assert raw[8:32] == bytes(24), "the bytes given are not changed"


def test_an_image_without_relocations(tmp_path: Path) -> None:
    elf = linked(tmp_path, "amd64", "-fno-pie", "-no-pie", "-static")
    start = symbols(elf)["table"]
    assert pointers(elf, start, elf.read(start, 40)).tolist() == wanted(elf)
