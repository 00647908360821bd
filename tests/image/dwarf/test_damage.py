"""Damaged debug information and damaged saved indexes: an error in one line, or an answer."""

from __future__ import annotations

import os
import random
import re
import resource
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kinst.core.errors import KinstError
from kinst.image import saved_arrays
from kinst.image.dwarf.index import Index, open_index
from kinst.image.dwarf.lines import Lines
from kinst.image.dwarf.sections import DebugSections
from kinst.image.elf import open_elf
from kinst.image.elf_file import open_file
from tests.image.dwarf_made import compiled
from tests.tiers import EVERYTHING

SECONDS = 5.0
DRAW_ANEW = bool(os.environ.get("KINST_RANDOM"))  # make test-all
ROOM = 1 << 30
BUILDS = [
    ("gcc", "-O2", "-gdwarf-5"), ("gcc", "-O2", "-gdwarf-4"), ("clang", "-O2", "-gdwarf-5"),
    ("clang", "-O3", "-gdwarf-4"), ("gcc", "-O2", "-g", "-c"), ("gcc", "-O1", "-g", "-gz=zlib"),
]  # fmt: skip
# Bad values of offsets, counts and lengths.
BAD = [
    bytes(8), b"\xff" * 8, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xff" * 4, b"\x80" * 9 + b"\1",
    b"\xf0\xff\xff\xff", b"\1", b"\x7f",
]  # fmt: skip


@contextmanager
def bounded() -> Iterator[None]:
    """Allow at most 1 GB of address space on top of what is used now."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def debug_bytes(path: Path) -> list[int]:
    """Return the file offsets of everything in debug sections, and of the section headers."""
    file = open_file(path)
    found: list[int] = []
    for section in file.sections:
        if ".debug_" in section.name:
            found += range(section.offset, section.offset + section.size)
    table = struct.unpack_from("<Q", file.mapped, 40)[0]
    return found + list(range(table, len(file.mapped)))


def mutated(data: bytes, places: list[int], chance: random.Random) -> bytes:
    """Return one damaged version: flipped bits, numbers that are too large, pieces missing or
    moved."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 30))):
        at = chance.choice(places) % len(out)
        how = chance.randrange(10)
        if how < 5:
            out[at] ^= 1 << chance.randrange(8)
        elif how < 8:
            bad = chance.choice(BAD)
            out[at : at + len(bad)] = bad
        elif how == 8:
            out[at : at + 16] = out[(start := chance.choice(places) % len(out)) : start + 16]
        elif chance.random() < 0.1:
            del out[at:]
            break
        else:
            out[at] = chance.randrange(256)
    return bytes(out)


def use(path: Path) -> None:
    """Read everything that an index answers."""
    index = open_index(path)
    names = index.inline_names()
    for name in names:
        for copy in index.copies(name):
            if copy.entry is not None:
                index.copies_at(copy.entry)
                index.symbol_at(copy.entry)
    for name in index.function_names():
        functions = index.functions(name)
        for function in functions:
            index.copies_of(function)
    if names:
        lines = Lines(DebugSections(open_elf(path)), index)
        lines.spans(index.copies(names[0])[0].unit)


def survive(tmp_path: Path, count: int, seed: int) -> None:
    chance = random.Random(seed)
    bases = [
        compiled(tmp_path, *flags, name=f"base{number}")
        for number, flags in enumerate(BUILDS)
        if EVERYTHING or flags[0] != "clang"
    ]
    contents = [(path.read_bytes(), debug_bytes(path)) for path in bases]
    for path in bases:
        use(path)
    damaged = tmp_path / "damaged"
    errors = 0
    for number in range(count):
        data, places = contents[number % len(bases)]
        damaged.write_bytes(mutated(data, places, chance))
        start = time.process_time()  # another process may have the CPU meanwhile
        try:
            with bounded():
                use(damaged)
        except KinstError as error:
            errors += 1
            assert "\n" not in str(error) and str(damaged) in str(error)
        except BaseException:
            kept = Path("/tmp") / f"kinst-damaged-{seed}-{number}"
            kept.write_bytes(damaged.read_bytes())
            print(f"seed {seed}, mutation {number}, kept as {kept}")
            raise
        assert time.process_time() - start < SECONDS, (seed, number)
    # Some files must be refused, and some accepted.
    assert count // 10 < errors < count


def test_mutated_files(tmp_path: Path) -> None:
    survive(tmp_path, 400, random.SystemRandom().randrange(1 << 32) if DRAW_ANEW else 400)


@pytest.mark.slow
def test_many_mutated_files(tmp_path: Path) -> None:
    """KINST_FUZZ_COUNT files (10,000 unless it is set), from KINST_SEED on (3)."""
    first = int(os.environ.get("KINST_SEED", "3"))
    for part in range(int(os.environ.get("KINST_FUZZ_COUNT", "10000")) // 10_000):
        survive(tmp_path, 10_000, first + part)


def test_the_unit_is_named(tmp_path: Path) -> None:
    """The error for damage in the second of two units names that one."""
    flags = ["gcc", "-g", "-O2", "-gdwarf-4", "-nostdlib", "-static", "-Wl,-e,one"]
    for name in ("one", "two"):
        (tmp_path / f"{name}.c").write_text(f"int {name}(int a) {{ return a * 3; }}\n")
    path = tmp_path / "both"
    command = [*flags, "-o", str(path), str(tmp_path / "one.c"), str(tmp_path / "two.c")]
    subprocess.run(command, check=True)
    file = open_file(path)
    section = file.section(".debug_info")
    assert section is not None
    (length,) = struct.unpack_from("<I", file.mapped, section.offset)
    data = bytearray(path.read_bytes())
    second = length + 4
    # Its first abbreviation code: one that no table has.
    data[section.offset + second + 11] = 0x7E
    path.write_bytes(data)
    with pytest.raises(KinstError, match=f"unit at {second:#x}: its abbreviations"):
        open_index(path)


def test_a_section_that_fits_into_no_memory(tmp_path: Path) -> None:
    """In a relocatable file, whose sections are laid out one after the other."""
    path = compiled(tmp_path, "gcc", "-g", "-c")
    file = open_file(path)
    data = bytearray(path.read_bytes())
    (table,) = struct.unpack_from("<Q", data, 40)  # e_shoff
    bss = file.section(".bss")
    assert bss is not None
    struct.pack_into("<Q", data, table + 64 * bss.index + 32, (1 << 64) - 4096)  # sh_size
    path.write_bytes(data)
    with pytest.raises(KinstError, match=r"damaged: section \.bss is too large"):
        open_index(path)


def saved(folder: Path) -> Path:
    (found,) = folder.glob("dwarf-*.index")
    return found


def copies(index: Index) -> list[tuple[int | None, str]]:
    return [(c.entry, c.caller) for name in index.inline_names() for c in index.copies(name)]


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.99])
def test_half_written_index(part: float, tmp_path: Path) -> None:
    path = compiled(tmp_path, "gcc", "-O2", "-g")
    cache = tmp_path / "cache"
    whole = copies(open_index(path, cache))
    file = saved(cache)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * part)])
    assert copies(open_index(path, cache)) == whole
    assert file.read_bytes() == content
    file.write_bytes(content[:64] + b"\xff" + content[65:])
    assert copies(open_index(path, cache)) == whole
    file.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    assert copies(open_index(path, cache)) == whole


def test_every_byte_of_an_index_counts(tmp_path: Path) -> None:
    """A change of any byte of a saved index is noticed, and the index is made again."""
    path = compiled(tmp_path, "gcc", "-O2", "-g")
    cache = tmp_path / "cache"
    whole = copies(open_index(path, cache))
    file = saved(cache)
    content = file.read_bytes()
    key = re.search(rb'"key": "([^"]+)"', content)
    assert key is not None
    assert saved_arrays.load(file, key[1].decode()) is not None
    for at in range(len(content)):
        file.write_bytes(content[:at] + bytes((content[at] ^ 0x10,)) + content[at + 1 :])
        assert saved_arrays.load(file, key[1].decode()) is None, at
    assert copies(open_index(path, cache)) == whole
    assert file.read_bytes() == content


def test_index_of_another_file(tmp_path: Path) -> None:
    """Files of one build-id with different debug sections do not share an index."""
    one = compiled(tmp_path, "gcc", "-O2", "-g", "-Wl,--build-id=0x1234", name="one")
    two = compiled(tmp_path, "gcc", "-O1", "-g", "-Wl,--build-id=0x1234", name="two")
    cache = tmp_path / "cache"
    first, second = copies(open_index(one, cache)), copies(open_index(two, cache))
    assert first == copies(open_index(one)) and second == copies(open_index(two))
    assert len(list(cache.glob("*.index"))) == 2


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    path = compiled(tmp_path, "gcc", "-O2", "-g")
    (tmp_path / "cache").write_text("a file, not a folder")
    assert copies(open_index(path, tmp_path / "cache")) == copies(open_index(path))


def test_two_writers(tmp_path: Path) -> None:
    """Several processes that make the same index at once all succeed and leave one complete
    file."""
    path = compiled(tmp_path, "gcc", "-O2", "-g")
    cache = tmp_path / "cache"
    code = (
        "import sys; from pathlib import Path; from kinst.image.dwarf.index import open_index\n"
        "index = open_index(sys.argv[1], Path(sys.argv[2]))\n"
        "print(sum(len(index.copies(name)) for name in index.inline_names()))\n"
    )
    command = [sys.executable, "-c", code, str(path), str(cache)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = {one.communicate(timeout=120)[0] for one in running}
    assert outputs == {f"{len(copies(open_index(path)))}\n"}
    assert [one.returncode for one in running] == [0] * 4
    assert os.listdir(cache) == [saved(cache).name]


def test_readers_never_see_a_part(tmp_path: Path) -> None:
    """While one thread writes an index again and again, another finds it complete each time."""
    file = tmp_path / "x.index"
    arrays = {"a": memoryview(bytes(range(256)) * 100)}

    class Array:
        """The part of numpy's arrays that save() needs."""

        class dtype:  # noqa: N801
            char = "B"

        nbytes = len(arrays["a"])

        def tobytes(self) -> bytes:
            return bytes(arrays["a"])

    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            assert saved_arrays.save(file, "key", {"a": Array()})

    assert saved_arrays.save(file, "key", {"a": Array()})
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            found = saved_arrays.load(file, "key")
            assert found is not None
            assert zlib.crc32(found["a"]) == zlib.crc32(arrays["a"])
    finally:
        stop.set()
        writer.join()
    assert saved_arrays.load(file, "another key") is None


def test_compiled_code_is_kept_by_its_sources() -> None:
    """Every file with compiled functions, and what they import, determines the code's folder."""
    folder = Path(saved_arrays.__file__).parent / "dwarf"
    known = re.search(r"SOURCES = \(([^)]*)\)", (folder / "scan" / "jit.py").read_text())
    assert known is not None
    names = set(re.findall(r'"(\w+)"', known[1]))
    checked = 0
    for path in (folder / "scan").glob("*.py"):
        text = path.read_text()
        if re.search(r"^@(compiled|entry_point)$", text, re.M):
            checked += 1
            assert path.stem in names
            imported = set(re.findall(r"^from kinst\.image\.dwarf\.scan\.(\w+) import", text, re.M))
            assert imported <= names
    assert checked > 4


def index_anew(path: Path, home: Path) -> tuple[float, str]:
    """Make an index in another process, whose compiled code is kept in `home`: (CPU seconds, the
    copies that it found)."""
    code = (
        "import sys, time\n"
        "from kinst.image.dwarf.index import open_index\n"
        "index = open_index(sys.argv[1])\n"
        "print(time.process_time())\n"
        "print([c for name in index.inline_names() for c in index.copies(name)])\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=environment,
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    seconds, found = done.stdout.split("\n", 1)
    return float(seconds), found


@pytest.mark.full
def test_damaged_compiled_code_is_made_anew(tmp_path: Path) -> None:
    """Cut off, flipped or emptied: the same answers, and complete files again afterwards."""
    path = compiled(tmp_path, "gcc", "-O2", "-g")
    made, whole = index_anew(path, tmp_path)
    files = [p for p in (tmp_path / "kinst" / "compiled").rglob("*") if p.is_file()]
    assert len(files) >= 6 and {p.suffix for p in files} == {".nbi", ".nbc"}
    kept, again = index_anew(path, tmp_path)
    assert again == whole and kept < made / 2
    for number, file in enumerate(files):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 4
        file.write_bytes([data, data[: len(data) // 2], b""][number % 3])
    assert index_anew(path, tmp_path)[1] == whole
    kept, again = index_anew(path, tmp_path)
    assert again == whole and kept < made / 2


@pytest.mark.full
def test_compiled_code_that_cannot_be_kept(tmp_path: Path) -> None:
    """There is no room for it on the disk, simulated by a limit on the sizes of files."""
    path = compiled(tmp_path, "gcc", "-O2", "-g")
    index = open_index(path)
    whole = str([c for name in index.inline_names() for c in index.copies(name)])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))
    try:
        assert index_anew(path, tmp_path)[1].strip() == whole
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
