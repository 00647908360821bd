"""Separate debug files as objcopy makes them, in each place that GDB's manual names."""

from __future__ import annotations

import binascii
import subprocess
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.image.debuglink import PIECE, debug_link, find_debug, mismatch
from kinst.image.elf_file import ElfFile, open_file
from tests.image.dwarf_made import compiled

ID = "0123456789abcdef"


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)


def split(folder: Path, *, link: bool = True, build_id: bool = True) -> tuple[Path, Path]:
    """Return a stripped program and its debug file, which is called made.debug."""
    flag = f"-Wl,--build-id=0x{ID}" if build_id else "-Wl,--build-id=none"
    whole = compiled(folder, "gcc", "-O1", "-g", flag, name="whole")
    debug, program = folder / "made.debug", folder / "program"
    run("objcopy", "--only-keep-debug", whole, debug)
    run("objcopy", "--strip-debug", whole, program)
    if link:
        run("objcopy", f"--add-gnu-debuglink={debug}", program)
    return program, debug


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    here = tmp_path / "bin"
    here.mkdir()
    return split(here)


def found(program: Path, *folders: Path) -> ElfFile | None:
    result = find_debug(open_file(program), folders)
    assert not result.warnings
    return result.file


def test_a_file_with_debug_information_is_its_own(made: tuple[Path, Path]) -> None:
    whole = open_file(made[0].with_name("whole"))
    assert find_debug(whole, ()).file is whole


def test_the_link_names_the_file_and_its_checksum(made: tuple[Path, Path]) -> None:
    program, debug = made
    name, checksum = debug_link(open_file(program))
    assert (name, checksum) == ("made.debug", binascii.crc32(debug.read_bytes()))
    assert debug_link(open_file(debug)) == ("", 0)


@pytest.mark.parametrize(
    "place",
    [
        "bin/made.debug", "bin/.debug/made.debug", f"debug/.build-id/01/{ID[2:]}.debug",
        "debug/HERE/made.debug", "debug/made.debug", "debug/HERE/program", "debug/program",
        "debug/HERE/program.debug", "debug/program.debug",
    ],
)  # fmt: skip
def test_each_place(made: tuple[Path, Path], tmp_path: Path, place: str) -> None:
    program, debug = made
    to = tmp_path / place.replace("HERE", str(program.parent.resolve().relative_to("/")))
    to.parent.mkdir(parents=True, exist_ok=True)
    data = debug.read_bytes()
    debug.unlink()
    assert found(program, tmp_path / "other", tmp_path / "debug") is None
    to.write_bytes(data)
    file = found(program, tmp_path / "other", tmp_path / "debug")
    assert file is not None and file.path.resolve() == to.resolve() and file.has_debug


def test_no_place_in_the_programs_own_folder_without_a_link(tmp_path: Path) -> None:
    program, _ = split(tmp_path, link=False)
    (tmp_path / "program.debug").write_bytes((tmp_path / "made.debug").read_bytes())
    assert found(program, tmp_path / "nothing") is None


def test_a_link_to_elsewhere_is_not_followed(tmp_path: Path) -> None:
    program, debug = split(tmp_path)
    data = program.read_bytes()
    assert data.count(b"made.debug") == 1
    (tmp_path / "ma").mkdir()
    debug.rename(tmp_path / "ma" / "e.debug")
    program.write_bytes(data.replace(b"made.debug", b"ma/e.debug"))
    assert debug_link(open_file(program))[0] == "ma/e.debug"
    assert found(program, tmp_path) is None


def test_what_belongs_to_another_image_is_told(made: tuple[Path, Path], tmp_path: Path) -> None:
    program, debug = made
    folder = tmp_path / "other"
    folder.mkdir()
    other = compiled(folder, "gcc", "-O2", "-g", "-Wl,--build-id=0xffff", name="other")
    good = tmp_path / "debug/program"
    good.parent.mkdir()
    debug.rename(good)
    debug.write_bytes(other.read_bytes())
    damaged = debug.parent / ".debug" / debug.name
    damaged.parent.mkdir()
    damaged.write_bytes(b"\x7fELF, cut off")
    result = find_debug(open_file(program), [good.parent])
    assert result.file is not None and result.file.path == good
    first, second = result.warnings
    assert first == f"{debug} is not the debug file of {program}: its build-id is ffff, not {ID}"
    with pytest.raises(KinstError) as told:
        open_file(damaged)
    assert second == str(told.value)


def test_a_file_that_is_in_two_places_is_told_once(made: tuple[Path, Path], tmp_path: Path) -> None:
    program, debug = made
    other = compiled(tmp_path, "gcc", "-O2", "-g", "-Wl,--build-id=0xffff", name="other")
    debug.write_bytes(other.read_bytes())
    (debug.parent / ".debug").symlink_to(debug.parent)
    result = find_debug(open_file(program), [debug.parent, debug.parent, debug.parent / ".debug"])
    assert result.file is None and len(result.warnings) == 1


def test_a_file_without_debug_information_is_passed_over(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    program, debug = made
    good = tmp_path / "debug/program"
    good.parent.mkdir()
    debug.rename(good)
    debug.write_bytes(program.read_bytes())  # its own build-id, and nothing else
    assert found(program, good.parent) is not None
    good.unlink()
    assert found(program, good.parent) is None


def test_the_checksum_decides_where_there_is_no_build_id(tmp_path: Path) -> None:
    program, debug = split(tmp_path, build_id=False)
    run("objcopy", "--remove-section=.gnu_debuglink", program)
    for size in (PIECE - debug.stat().st_size, 2 * PIECE):  # one piece, and several
        with debug.open("ab") as file:
            file.write(bytes(k * 7 & 0xFF for k in range(size)))
        linked = tmp_path / f"linked{size}"
        run("objcopy", f"--add-gnu-debuglink={debug}", program, linked)
        assert mismatch(open_file(linked), open_file(debug)) == ""
        assert found(linked, tmp_path / "nothing") is not None
    with debug.open("ab") as file:
        file.write(b"x")
    is_, wanted = binascii.crc32(debug.read_bytes()), debug_link(open_file(linked))[1]
    told = f"{debug} is not the debug file of {linked}: its checksum is {is_:08x}, not {wanted:08x}"
    assert mismatch(open_file(linked), open_file(debug)) == told
    said = mismatch(open_file(program), open_file(debug))
    assert said.endswith("no build-id and no .gnu_debuglink to tell by")


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (b"abc\0" + b"\x04\x03\x02\x01", ("abc", 0x01020304)),
        (b"abcd\0\0\0\0" + b"\x04\x03\x02\x01", ("abcd", 0x01020304)),
        (b"abcdefg\0" + b"\x04\x03\x02\x01", ("abcdefg", 0x01020304)),
        (b"abcdefg\0" + b"\x04\x03\x02", ("", 0)),
        (b"abcdefgh", ("", 0)),
        (b"ab\xff\0\0\0\0\0", ("ab\udcff", 0)),
    ],
)
def test_the_section(tmp_path: Path, section: bytes, expected: tuple[str, int]) -> None:
    program, _ = split(tmp_path, link=False)
    (tmp_path / "data").write_bytes(section)
    run("objcopy", f"--add-section=.gnu_debuglink={tmp_path / 'data'}", program)
    assert debug_link(open_file(program)) == expected
