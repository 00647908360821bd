"""kinst/image/debug_info.py and loaded_images.py: one object for each image, and images in
memory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kinst.core.dtypes import ArrayType
from kinst.core.errors import KinstError
from kinst.image import debug_info, saved_arrays
from kinst.image.debug_info import DebugFiles, DebugInfo
from kinst.image.dwarf.index import key_of, open_index, open_saved
from kinst.image.dwarf.sections import DebugSections, section_of
from kinst.image.elf import open_elf
from kinst.image.elf_file import open_file
from kinst.image.loaded_images import LoadedImage, LoadedImages, MovedIndex, moved_by, running_index
from tests.image.dwarf_made import CROSS, compiled

SLIDE = 0x1_0000_0000


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("debug_info"), "gcc", "-O2", "-gdwarf-5")


def test_a_file_is_opened_once(program: Path, tmp_path: Path) -> None:
    """For each machine: by its path and its build-id, and for each name that it has in D."""
    files, others = DebugFiles(tmp_path), DebugFiles(tmp_path)
    first = files.open(program)
    assert files.open(str(program)) is first and files.open(program, "other") is not first
    assert others.open(program) is not first
    assert first.index is first.index and first.locals() is first.locals()
    copy = tmp_path / "rebuilt"
    for number in ("0x1111", "0x2222", "0x2222"):
        changed = compiled(tmp_path, "gcc", "-O2", "-g", f"-Wl,--build-id={number}", name=number)
        changed.replace(copy)
        found = files.open(copy)
        assert found.elf.build_id == number[2:]
        assert files.open(copy) is found


def test_an_index_is_not_made_for_a_place(program: Path, tmp_path: Path) -> None:
    """place() uses only an index that exists, since running traces wait for it."""
    debug = DebugInfo(program, cache=tmp_path)
    assert debug.made_index is None and debug.place(0x401000) is None
    assert not list(tmp_path.iterdir())
    name = debug.inline_names()[0]
    copy = debug.copies(name)[0]
    low = copy.ranges[0][0]
    place = debug.place(low)
    assert place is not None and name in [frame.function for frame in place.inlined]
    assert debug.place(low) is place
    again = DebugInfo(program, cache=tmp_path)
    assert again.made_index is not None and again.place(low) == place


def test_an_index_that_is_not_there_is_looked_for_once(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is a checksum of 64 KB of the file: too much for each record of a trace."""
    looks = []

    def looking(*asked: object) -> None:
        looks.append(asked)

    monkeypatch.setattr(debug_info, "open_saved", looking)
    debug = DebugInfo(program, cache=tmp_path)
    for at in range(0x401000, 0x401010):
        assert debug.place(at) is None
    assert len(looks) == 1


def test_names_are_known_to_lack_without_an_index(program: Path, tmp_path: Path) -> None:
    debug = DebugInfo(program, cache=tmp_path)
    names = DebugInfo(program, cache=tmp_path / "other").inline_names()
    inline = next(name for name in names if len(name) > 3)
    assert debug.lacks_function("no_such_name") and debug.is_inlined("no_such_name") is False
    assert not debug.lacks_function(inline) and debug.is_inlined(inline) is None
    assert not debug.lacks_function("xyz")  # a short name may be in .debug_info itself
    assert [one.name for one in tmp_path.iterdir()] == ["other"]
    assert debug.copies(inline)
    assert debug.is_inlined(inline) is True and debug.is_inlined("absent") is False
    assert debug.lacks_function("no_such_name") and debug.lacks_function("xyz")
    assert not any(map(debug.lacks_function, debug.index.function_names()))


def test_an_index_is_made_once(program: Path, tmp_path: Path) -> None:
    """Progress is reported only while an index is made; one of another format is made again."""
    told: list[tuple[str, float | None]] = []

    def progress(work: str, part: float | None) -> None:
        told.append((work, part))

    made = open_index(program, tmp_path, progress)
    (saved,) = (path for path in tmp_path.iterdir() if path.name.startswith("dwarf-"))
    count, kept = len(told), saved.read_bytes()
    assert count and "indexing" in told[-1][0] and told[-1][1] == 1.0
    assert open_index(program, tmp_path, progress).inline_names() == made.inline_names()
    assert len(told) == count and saved.read_bytes() == kept
    key = key_of(open_file(program))
    arrays = saved_arrays.load(saved, key)
    assert arrays is not None
    older = {name: np.asarray(array) for name, array in arrays.items() if "enumeration" not in name}
    assert saved_arrays.save(saved, key, older)
    assert open_saved(open_file(program), tmp_path) is None
    again = open_index(program, tmp_path, progress)
    assert len(told) == 2 * count and again.enumerations == made.enumerations
    assert saved.read_bytes() == kept
    assert open_saved(open_file(program), tmp_path) is not None


def test_what_an_index_is_kept_by(program: Path, tmp_path: Path) -> None:
    """The build-id, the sizes of the sections that it is made from, and the start of .debug_info;
    for a file without a build-id the whole file."""
    with_id, without = tmp_path / "with", tmp_path / "without"
    remove = "--remove-section=.note.gnu.build-id"
    subprocess.run(["objcopy", program, with_id], check=True)
    subprocess.run(["objcopy", remove, program, without], check=True)
    for path, others in ((with_id, False), (without, True)):
        file = open_file(path)
        assert bool(file.build_id) != others
        whole, key = path.read_bytes(), key_of(file)
        for name, changes in ((".debug_info", True), (".text", others), (".debug_str", others)):
            section = file.section(name)
            assert section is not None
            at = section.offset + section.size // 2
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert (key_of(open_file(path)) != key) == changes, name
        path.write_bytes(whole)
    zipped = tmp_path / "zipped"
    subprocess.run(["objcopy", "--compress-debug-sections=zlib-gnu", with_id, zipped], check=True)
    file = open_file(zipped)
    section = file.section(".zdebug_info")
    assert section is not None
    whole, key, at = zipped.read_bytes(), key_of(file), section.offset + section.size // 2
    zipped.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert key_of(open_file(zipped)) != key


def test_names_of_enumerators_are_kept(tmp_path: Path) -> None:
    """In a file of their own, from which they are loaded again."""
    (tmp_path / "a.c").write_text(
        "enum hue { RED, BLUE = 7 } it = BLUE; int main(void) { return it; }"
    )
    subprocess.run(["gcc", "-g", "-o", "a", "a.c"], cwd=tmp_path, check=True)
    cache = tmp_path / "cache"
    for number, name in enumerate(("BLUE", "BLUE", "RED", "absent")):
        dwarf = DebugInfo(tmp_path / "a", cache=cache).dwarf
        assert dwarf is not None
        found = [(str(type_), value) for type_, value in dwarf.enumerators(name)]
        assert found == {"BLUE": [("enum hue", 7)], "RED": [("enum hue", 0)]}.get(name, [])
        kept = list(cache.glob("enumerators-*"))
        assert len(kept) == 1
        if number == 0:
            before = kept[0].stat().st_mtime_ns
        assert kept[0].stat().st_mtime_ns == before


GROUPS = """
    .section .debug_info, "G", @progbits, group, comdat
    .ascii "of a type"
    .section .debug_info
    .ascii "of functions"
"""


def test_the_section_that_is_in_no_group(tmp_path: Path) -> None:
    """It has the functions, in any order of sections."""
    first, second, _ = GROUPS.partition("    .section .debug_info\n")
    parts = [first, second + _]
    for order in (parts, parts[::-1]):
        (tmp_path / "a.s").write_text("".join(order))
        subprocess.run(["as", "-o", "a.o", "a.s"], cwd=tmp_path, check=True)
        file = open_elf(tmp_path / "a.o")
        assert sum(section.name == ".debug_info" for section in file.sections) == 2
        found = section_of(file, "info")
        assert found is not None and file.data(found) == b"of functions"
        assert DebugSections(file).array("info").tobytes() == b"of functions"


BTF_ALONE = """
struct own { int a; long b; };
struct own global; static int counter = 5;
int used(void) { return ++counter; }
"""


def test_symbols_with_types_of_btf(tmp_path: Path) -> None:
    """In a file without DWARF: the types of variables and functions are those of its .BTF."""
    (tmp_path / "b.c").write_text(BTF_ALONE)
    subprocess.run(["gcc", "-gbtf", "-c", "-o", "b.o", "b.c"], cwd=tmp_path, check=True)
    debug = DebugInfo(tmp_path / "b.o", "b")
    assert not debug.has_dwarf and debug.btf is not None
    found = {name: debug.symbol(name) for name in ("global", "counter", "used", "absent")}
    types = {name: str(one.type) for name, one in found.items() if one is not None}
    assert types == {"global": "struct own", "counter": "int", "used": "int (void)"}
    subprocess.run(["gcc", "-c", "-o", "c.o", "b.c"], cwd=tmp_path, check=True)
    plain = DebugInfo(tmp_path / "c.o", "c").symbol("global")
    assert plain is not None and plain.type is None and plain.size == 16


TLS = """
__thread struct own { int a; long b; } counter = { 5 };
long after = 7;
long used(void) { return counter.b + after; }
"""


@pytest.mark.parametrize(
    "flags", [["-gdwarf-4"], ["-gdwarf-5"], ["-gdwarf-5", "-O2"]], ids=" ".join
)
@pytest.mark.parametrize(
    "compiler", [*CROSS.values(), pytest.param("clang", marks=pytest.mark.full)]
)
def test_thread_local_variables_of_what_is_not_linked(
    compiler: str, flags: list[str], tmp_path: Path
) -> None:
    """The place of such a variable in its thread's memory is also a relocation of .debug_info."""
    (tmp_path / "a.c").write_text(TLS)
    subprocess.run([compiler, *flags, "-c", "-o", "a.o", "a.c"], cwd=tmp_path, check=True)
    debug = DebugInfo(tmp_path / "a.o", "a")
    found = {name: debug.symbol(name) for name in ("counter", "after", "used")}
    types = {name: str(one.type) for name, one in found.items() if one is not None}
    assert types == {"counter": "struct own", "after": "long", "used": "long (void)"}
    (function,) = debug.functions("used")
    assert function.ranges == ((0, found["used"].size if found["used"] else 0),)


@pytest.mark.skipif("KINST_TEST_VMLINUX" not in os.environ, reason="no vmlinux")
def test_an_array_without_a_bound_has_its_symbols() -> None:
    """Such as linux_banner, which the kernel's debug information has as `const char []`."""
    vmlinux = Path(os.environ["KINST_TEST_VMLINUX"])
    listed = subprocess.run(["nm", "-S", vmlinux], capture_output=True, text=True, check=True)
    sizes = [
        line.split()[1] for line in listed.stdout.splitlines() if line.endswith(" linux_banner")
    ]
    found = DebugInfo(vmlinux, "vmlinux").symbol("linux_banner")
    assert found is not None and isinstance(found.type, ArrayType)
    assert [found.type.count] == [int(size, 16) for size in sizes]


def test_variables_with_other_names(tmp_path: Path) -> None:
    """A linker script may give a variable another name, which the debug information lacks, as the
    kernel's does with jiffies; the type is that of the variable at the address."""
    (tmp_path / "a.c").write_text(
        "struct own { int a; long b; }; struct own real = { 1 }; long beside = 3;\n"
        '__asm__(".data\\n.globl bare\\n.type bare, @object\\n.size bare, 8\\n"'
        '"bare: .quad 0\\n.text");'
        "int main(void) { return real.a; }\n"
    )
    names = ("nick", "second", "third")
    flags = [
        f"-Wl,--defsym={name}={of}"
        for name, of in zip(names, ("real", "beside", "bare"), strict=True)
    ]
    subprocess.run(["gcc", "-g", "-no-pie", *flags, "-o", "a", "a.c"], cwd=tmp_path, check=True)
    debug = DebugInfo(tmp_path / "a", "a")
    found = {name: debug.symbol(name) for name in ("real", "bare", *names)}
    types = {name: str(one.type) for name, one in found.items() if one is not None}
    assert types == {"real": "struct own", "bare": "None", "nick": "struct own", "second": "long",
                     "third": "None"}  # fmt: skip


def test_places_are_addr2lines(program: Path, tmp_path: Path) -> None:
    """Every instruction's functions and lines, inlined ones first."""
    debug = DebugInfo(program, cache=tmp_path)
    symbols = debug.elf.symbols
    addresses: list[int] = []
    for name in ("nested", "twice", "looping", "simple"):
        (row,) = symbols.indexes(name)
        start = int(symbols.address[row])
        addresses += range(start, start + int(symbols.size[row]), 3)
    assert debug.index.units and len(addresses) > 20
    shown = subprocess.run(
        ["addr2line", "-ifse", program, *(f"{at:#x}" for at in addresses)],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    expected = list(zip(shown[::2], (line.split(" ")[0] for line in shown[1::2]), strict=True))
    inlined = 0
    for at in addresses:
        place = debug.place(at)
        assert place is not None, hex(at)
        frames = [(f.function, f.file, f.line) for f in place.inlined]
        rows = [*frames, ("", place.file, place.line)]
        inlined += len(frames)
        for function, file, line in rows:
            name, where = expected.pop(0)
            assert function in ("", name)
            wanted = f"{Path(file).name}:{line}"
            assert where == wanted or where.endswith((":?", ":0")), (hex(at), where, wanted)
    assert not expected and inlined > 10


def test_images_at_running_addresses(program: Path) -> None:
    debug = DebugInfo(program)
    own = LoadedImages(moved_by(debug, SLIDE))
    index = running_index(own, print)
    for name in debug.inline_names():
        for linked, running in zip(debug.copies(name), index.copies(name), strict=True):
            assert running.entry is not None and linked.entry is not None
            assert running.entry == linked.entry + SLIDE
            assert [low - SLIDE for low, _ in running.ranges] == [low for low, _ in linked.ranges]
            for low, _ in running.ranges:
                assert [c.die for c in index.copies_at(low)] == [
                    c.die for c in debug.copies_at(low - SLIDE)
                ]
    (function,) = debug.functions("nested")
    (moved,) = index.functions("nested")
    assert moved.ranges == tuple((low + SLIDE, high + SLIDE) for low, high in function.ranges)
    place = own.place("vmlinux", function.ranges[0][0] + SLIDE)
    assert place == debug.place(function.ranges[0][0]) is not None


def test_what_is_not_loaded_is_left_out(program: Path) -> None:
    """Only the .text of a module is in memory."""
    debug = DebugInfo(program)
    gone = LoadedImage(debug, lambda at: None, lambda at: None)
    asked: list[str] = []

    def find(name: str) -> LoadedImage | None:
        asked.append(name)
        return gone if name == "gone" else None

    images = LoadedImages(moved_by(debug, 0), find, lambda: ["gone", "none"])
    assert images.of("") is images.kernel is images.of("vmlinux")
    assert images.modules() == [gone] == images.modules() and asked == ["gone", "none"]
    assert images.place("gone", 0x401000) is None and images.place("none", 0x401000) is None
    moved = MovedIndex(gone)
    name = debug.inline_names()[0]
    assert all(c.entry is None and c.ranges == () for c in moved.copies(name))
    assert moved.copies_at(0x401000) == []


def test_an_image_without_debug_information(program: Path, tmp_path: Path) -> None:
    """Nothing is known about it, and that is said once."""
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-g", "-o", stripped, program], check=True)
    debug = DebugInfo(stripped)
    assert not debug.has_dwarf and debug.dwarf is None and debug.locals() is None
    assert debug.copies("early") == () == debug.functions("nested") == debug.inline_names()
    with pytest.raises(KinstError, match="no debug information"):
        assert debug.index
    told: list[str] = []
    index = running_index(LoadedImages(moved_by(debug, 0)), told.append)
    assert index.functions("nested") == [] and len(told) == 1
    assert told[0].startswith("kinst: inline functions cannot be found: ")
