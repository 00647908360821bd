"""Debug sections as objcopy compresses them, and damaged ones."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kinst.core.errors import KinstError
from kinst.image.dwarf import sections
from kinst.image.elf_file import ElfFile, open_file
from tests.image.dwarf_made import compiled

HAS_ZSTD = importlib.util.find_spec("zstandard") is not None
NAME = ".debug_info"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("compressed"), "gcc", "-O2", "-g", name="plain")


def squeezed(plain: Path, folder: Path, how: str) -> ElfFile:
    made = folder / how
    subprocess.run(
        ["objcopy", f"--compress-debug-sections={how}", str(plain), str(made)], check=True
    )
    return open_file(made)


def unpacked(file: ElfFile) -> bytes:
    section = file.section(NAME) or file.section(NAME.replace(".", ".z"))
    assert section is not None
    return bytes(np.asarray(sections._unpacked(file, section)).tobytes())


def content(plain: Path) -> bytes:
    file = open_file(plain)
    section = file.section(NAME)
    assert section is not None
    return bytes(file.data(section))


@pytest.mark.parametrize("how", ["none", "zlib-gabi", "zlib-gnu", "zstd"])
def test_what_is_packed_is_what_was_there(plain: Path, tmp_path: Path, how: str) -> None:
    file = squeezed(plain, tmp_path, how)
    if how == "zstd" and not HAS_ZSTD:
        with pytest.raises(KinstError, match="needs the Python package zstandard"):
            unpacked(file)
        return
    assert unpacked(file) == content(plain)


def test_other_flags_say_nothing_of_packing(plain: Path, tmp_path: Path) -> None:
    """Only SHF_COMPRESSED (0x800) marks a compressed section: this one has all of ELF's lower
    flags."""
    section = open_file(plain).section(NAME)
    assert section is not None
    data = bytearray(plain.read_bytes())
    flags = int.from_bytes(data[40:48], "little") + 64 * section.index + 8
    data[flags : flags + 8] = (0x7FF).to_bytes(8, "little")
    (tmp_path / "flagged").write_bytes(data)
    assert unpacked(open_file(tmp_path / "flagged")) == content(plain)


@pytest.mark.parametrize(
    ("how", "at", "new", "said"),
    [
        ("zlib-gabi", 0, b"\x09\0\0\0", r"compressed in an unknown way \(9\)"),
        ("zlib-gabi", 8, bytes([255] * 5 + [0] * 3), "bytes cannot unpack to"),
        ("zlib-gabi", 8, b"\x05\0\0\0\0\0\0\0", "does not unpack to 5 bytes"),
        ("zlib-gabi", 24, b"\xff\xff", "damaged: Error -3"),
        ("zlib-gnu", 0, b"ZLIX", "does not start with ZLIB"),
        ("zlib-gnu", 4, b"\0\0\0\0\0\0\0\x05", "does not unpack to 5 bytes"),
        ("zlib-gnu", 12, b"\xff\xff", "damaged: Error -3"),
    ],
)
def test_damage_is_told(
    plain: Path, tmp_path: Path, how: str, at: int, new: bytes, said: str
) -> None:
    file = squeezed(plain, tmp_path, how)
    section = file.section(NAME) or file.section(NAME.replace(".", ".z"))
    assert section is not None
    data = bytearray(file.path.read_bytes())
    data[section.offset + at : section.offset + at + len(new)] = new
    damaged = tmp_path / "damaged"
    damaged.write_bytes(data)
    with pytest.raises(KinstError, match=said):
        unpacked(open_file(damaged))


@pytest.mark.parametrize("size", [0, 1, 23, 24])
def test_a_section_that_is_all_header(plain: Path, tmp_path: Path, size: int) -> None:
    """ELF's Elf64_Chdr has 24 bytes: a shorter section has no header, one of that size no
    content."""
    file = squeezed(plain, tmp_path, "zlib-gabi")
    section = file.section(NAME)
    assert section is not None
    data = bytearray(file.path.read_bytes())
    table = int.from_bytes(data[40:48], "little") + 64 * section.index
    data[table + 32 : table + 40] = size.to_bytes(8, "little")
    (tmp_path / "cut").write_bytes(data)
    with pytest.raises(KinstError) as caught:
        unpacked(open_file(tmp_path / "cut"))
    assert ("has no compression header" in str(caught.value)) == (size < 24)
