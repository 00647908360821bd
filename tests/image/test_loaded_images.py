"""Addresses of a module's file and running ones, and the types of several images."""

from __future__ import annotations

import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from kinst.core.dtypes import EnumType
from kinst.core.errors import KinstError
from kinst.core.probe import Function
from kinst.core.system import Section
from kinst.core.words import MASK
from kinst.image.debug_info import DebugFiles
from kinst.image.elf_file import open_file
from kinst.image.loaded_images import LoadedImage, LoadedImages, mover, running_index
from kinst.image.type_files import FileTypes, ImagePaths
from tests.image.dwarf_made import compiled

MODULE = """
.text; .space 100; .section .init.text,"ax"; .space 60; .data; .space 40; .bss; .space 24
.section .empty,"a"; .section .left,"a"; .space 8; .section .rodata; .space 16
"""


@dataclass(frozen=True)
class Loaded:
    sections: tuple[Section, ...]
    name: str = "m"
    text: tuple[int, int] = (0, 0)
    functions: tuple[Function, ...] = ()


def module(folder: Path, lives: dict[str, int]) -> Loaded:
    (folder / "m.s").write_text(MODULE)
    subprocess.run(["as", "-o", str(folder / "m.o"), str(folder / "m.s")], check=True)
    return Loaded(tuple(Section(n, at) for n, at in lives.items()))


def test_every_address_of_a_module(tmp_path: Path) -> None:
    """Each byte of each loaded section maps to its place and back; no other byte does."""
    names = [".text", ".init.text", ".data", ".bss", ".rodata", ".empty"]
    rng = random.Random(3)
    for _ in range(5):
        places = rng.sample(range(100), len(names))
        lives = {n: 0xFFFFFFFFC0000000 + 128 * p for n, p in zip(names, places, strict=True)}
        loaded = module(tmp_path, lives)
        file = open_file(tmp_path / "m.o")
        move, back = mover(file, loaded)
        running = {}
        for index, base in file.layout.items():
            section = file.sections[index]
            if section.name in lives:
                start = lives[section.name]
                running |= {base + k: start + k for k in range(section.size)}
        ends = max(file.layout.values()) + 4096
        found = {at: to for at in range(-4, ends) if (to := move(at)) is not None}
        assert found == running
        low, high = min(lives.values()) - 4, max(lives.values()) + 200
        came = {at: to for at in range(low, high) if (to := back(at)) is not None}
        assert came == {to: at for at, to in running.items()}


def test_nothing_is_loaded(tmp_path: Path) -> None:
    loaded = module(tmp_path, {})
    move, back = mover(open_file(tmp_path / "m.o"), loaded)
    assert move(0) is None and back(0) is None and back(1 << 63) is None


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two programs, of the second of which only a part is loaded."""
    folder = tmp_path_factory.mktemp("two")
    return (compiled(folder, "gcc", "-O2", "-g", name="first"),
            compiled(folder, "gcc", "-O1", "-g", name="second"))  # fmt: skip


def test_images_of_a_machine(two: tuple[Path, Path], tmp_path: Path) -> None:
    files = DebugFiles(tmp_path)
    first, second = files.open(two[0]), files.open(two[1], "other")
    asked = []
    cut = min(c.ranges[0][0] for name in second.inline_names() for c in second.copies(name)) + 1
    slides = (0x1000_0000, 0x7000_0000)
    kernel = LoadedImage(first, lambda at: at + slides[0], lambda at: at - slides[0])
    part = LoadedImage(
        second, lambda at: None if at < cut else at + slides[1] & MASK,
        lambda at: None if at - slides[1] < cut else at - slides[1],
    )  # fmt: skip

    def find(name: str) -> LoadedImage | None:
        asked.append(name)
        return part if name == "other" else None

    images = LoadedImages(kernel, find, lambda: ("nothing", "other"))
    assert images.of("") is images.of("vmlinux") is images.kernel
    assert images.of("other") is part and images.of("other") is part
    assert images.modules() == [part] and asked == ["other", "nothing"]
    said: list[str] = []
    index = running_index(images, said.append)
    assert not said
    names = sorted({*first.inline_names(), *second.inline_names()})
    assert index.inline_names() == names and "nested" not in names
    for name in names:
        copies = index.copies(name)
        plain, others = list(first.copies(name)), list(second.copies(name))
        assert len(copies) == len(plain) + len(others)
        for copy, old in zip(copies, plain, strict=False):
            assert copy.ranges == tuple((a + slides[0], b + slides[0]) for a, b in old.ranges)
            assert copy.entry == (None if old.entry is None else old.entry + slides[0])
        for copy, old in zip(copies[len(plain) :], others, strict=True):
            kept = [(a, b) for a, b in old.ranges if a >= cut]
            assert copy.ranges == tuple((a + slides[1], b + slides[1]) for a, b in kept)
            entry = old.entry if old.entry is not None and old.entry >= cut else None
            assert copy.entry == (None if entry is None else entry + slides[1])
            for low, _ in kept:
                assert copy in index.copies_at(low + slides[1])
        for old in plain:
            for low, _ in old.ranges:
                ranges = tuple((a + slides[0], b + slides[0]) for a, b in old.ranges)
                assert ranges in [c.ranges for c in index.copies_at(low + slides[0])]
    functions = index.functions("simple")
    expected = [[(a + slides[0], b + slides[0]) for a, b in f.ranges]
                for f in first.functions("simple")]  # fmt: skip
    expected += [[(a + slides[1], b + slides[1]) for a, b in f.ranges if a >= cut]
                 for f in second.functions("simple")]  # fmt: skip
    assert [list(f.ranges) for f in functions] == expected
    low = first.copies(first.inline_names()[0])[0].ranges[0][0]
    assert images.place("", low + slides[0]) == first.place(low)
    assert images.place("other", cut - 1 + slides[1]) is None
    assert images.place("nothing", low) is None


def test_an_image_without_debug_information_is_told(two: tuple[Path, Path], tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run(["objcopy", "--strip-debug", str(two[0]), str(bare)], check=True)
    files = DebugFiles(tmp_path)
    image = LoadedImage(files.open(bare, "m"), lambda at: at, lambda at: at)
    kernel = LoadedImage(files.open(two[0]), lambda at: at, lambda at: at)
    said: list[str] = []
    running_index(LoadedImages(kernel, lambda name: image, lambda: ("m",)), said.append)
    assert len(said) == 1 and said[0].startswith("kinst: module m is skipped: ")
    said.clear()
    none = running_index(LoadedImages(image), said.append)
    assert said[0].startswith("kinst: inline functions cannot be found: ")
    assert not none.inline_names()


SOURCES = {
    "kernel": """
        struct shared { int a; }; struct only_kernel { long x[3]; };
        typedef struct shared shared_t; enum numbers { ONE = 1, TWO };
        struct shared object; struct only_kernel other; shared_t third; enum numbers e;
        int both(int first) { int inside = first + 1; return inside * 3; }
        void _start(void) { both(1); }
    """,
    "m": """
        struct shared { char b[9]; }; struct only_m { short y; };
        typedef struct only_m m_t; enum letters { AY = 10, TWO = 22 };
        struct shared object; struct only_m mine; m_t fourth; enum letters l;
        long both(long p, char q) { long local = p - 1; return local * q; }
        void own(void *v) { char *text = v; *text = 0; }
    """,
}


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> FileTypes:
    folder = tmp_path_factory.mktemp("types")
    for name, source in SOURCES.items():
        (folder / f"{name}.c").write_text(source)
        flags = ["-nostdlib", "-static"] if name == "kernel" else ["-c"]
        subprocess.run(
            ["gcc", "-g", "-O0", "-fno-eliminate-unused-debug-types", *flags,
             "-o", str(folder / name), str(folder / f"{name}.c")], check=True,
        )  # fmt: skip
    subprocess.run(["objcopy", "--strip-debug", str(folder / "m"), str(folder / "bare")],
                   check=True)  # fmt: skip
    places = ImagePaths(
        lambda: folder / "kernel", lambda: {"m": folder / "m", "bare": folder / "bare"},
        DebugFiles(folder), lambda name: folder / "m" if name == "bare" else None,
    )  # fmt: skip
    return FileTypes(places)


def test_types_of_each_image_and_of_the_first_that_has_them(types: FileTypes) -> None:
    assert list(types.modules()) == ["vmlinux", "m", "bare"]
    for module_, size in (("", 4), ("vmlinux", 4), ("genunix", 4), ("kernel", 4), ("m", 9)):
        found = types.tagged("struct", "shared", module_)
        assert found is not None and found.size == size, module_
    only = types.tagged("struct", "only_m")
    assert only is not None and only.size == 2
    assert types.tagged("struct", "only_m", "vmlinux") is None
    assert types.tagged("struct", "only_kernel", "m") is None
    assert types.tagged("union", "shared") is None
    assert types.typedef("m_t") is not None and types.typedef("m_t", "vmlinux") is None
    assert types.typedef("shared_t", "m") is None


def test_enumerators_symbols_and_functions(types: FileTypes) -> None:
    for name, module_, value in (("TWO", "", 2), ("TWO", "m", 22), ("AY", "", 10)):
        found = types.enumerator(name, module_)
        assert found is not None and isinstance(found[0], EnumType) and found[1] == value
    assert types.enumerator("ONE", "m") is None and types.enumerator("THREE") is None
    for module_, size in (("", 4), ("m", 9)):
        symbol = types.symbol("object", module_)
        assert symbol is not None and symbol.type is not None and symbol.type.size == size
    assert types.symbol("mine") is not None and types.symbol("mine", "vmlinux") is None
    assert types.symbol("nothing") is None
    for module_, count in (("", 1), ("m", 2)):
        function = types.function("both", module_)
        assert function is not None and len(function.parameters) == count
    assert types.function("own") is not None and types.function("own", "vmlinux") is None


def test_locals(types: FileTypes) -> None:
    for module_, names in (("", {"first", "inside"}), ("m", {"p", "q", "local"})):
        assert set(types.locals("both", module_)) == names
    assert set(types.locals("own")) == {"v", "text"} and not types.locals("own", "vmlinux")
    inside, local = types.local("both", "inside"), types.local("both", "local", "m")
    assert inside is not None and inside.size == 4 and local is not None and local.size == 8
    assert types.local("both", "nothing") is None
    # In the file with debug information, since the module's own has none.
    assert set(types.locals("own", "bare")) == {"v", "text"}
    assert types.local("own", "text", "bare") is not None
    assert types.with_dwarf("bare") is types.with_dwarf("bare")
    assert (
        types.with_dwarf("m").path.name == "m" and types.with_dwarf("vmlinux").path.name == "kernel"
    )


def test_a_module_that_is_not_there(types: FileTypes) -> None:
    with pytest.raises(KinstError, match="no file of a module gone is known"):
        types.tagged("struct", "shared", "gone")


def test_no_debug_information_at_all(types: FileTypes, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    kernel = types.with_dwarf("vmlinux").path
    subprocess.run(["objcopy", "--strip-debug", str(kernel), str(bare)], check=True)
    none = FileTypes(ImagePaths(lambda: bare, dict, DebugFiles(tmp_path)))
    with pytest.raises(KinstError, match="vmlinux has no debug information"):
        none.local("both", "inside")
    assert not none.locals("both")
