"""kinst/image/elf.py against readelf and nm, and with damaged files."""

from __future__ import annotations

import re
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinst.core.errors import KinstError
from kinst.image.elf import Elf, open_elf
from kinst.image.elf_file import build_id_in
from kinst.kernels.fetch import Prepared
from tests.tiers import draws

AMD64 = 62


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def elf(prepared: Prepared) -> Elf:
    return open_elf(prepared.debug, AMD64)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A linked program of a few functions, one of them an alias."""
    folder = tmp_path_factory.mktemp("elf")
    source = folder / "small.c"
    source.write_text(
        "int first(int x) { return x * 3; }\n"
        'int second(int) __attribute__((alias("first")));\n'
        "static int third(int x) { return x - 1; }\n"
        "int data = 7;\n"
        "int main(void) { return first(data) + third(data); }\n"
    )
    program = folder / "small"
    run("gcc", "-O1", "-fno-inline", "-Wl,--build-id=0x0123456789abcdef", "-o", str(program),
        str(source))  # fmt: skip
    return program


def test_sections_are_those_of_readelf(elf: Elf) -> None:
    theirs = {}
    for line in run("readelf", "-SW", str(elf.path)).splitlines():
        found = re.match(r" *\[ *\d+\] (\S+) +(\S+) +([0-9a-f]{16}) ([0-9a-f]+) ([0-9a-f]+)", line)
        if found and found[2] != "NULL":
            theirs.setdefault(found[1], tuple(int(found[i], 16) for i in (3, 4, 5)))
    assert len(theirs) > 40
    for name, where in theirs.items():
        mine = elf.section(name)
        assert mine is not None and (mine.address, mine.offset, mine.size) == where, name


def test_symbols_are_those_of_readelf(elf: Elf) -> None:
    kinds = {"NOTYPE": 0, "OBJECT": 1, "FUNC": 2, "SECTION": 3, "FILE": 4}
    bindings = {"LOCAL": 0, "GLOBAL": 1, "WEAK": 2}
    lines = [line.split() for line in run("readelf", "-sW", str(elf.path)).splitlines()]
    rows = [w for w in lines if len(w) >= 7 and w[0].rstrip(":").isdigit()]
    symbols = elf.symbols
    assert len(rows) == len(symbols) > 100_000
    for words in rows[::97]:
        i = int(words[0].rstrip(":"))
        assert int(words[1], 16) == symbols.address[i]
        assert int(words[2], 0) == symbols.size[i]
        assert kinds[words[3]] == symbols.kind[i]
        assert bindings[words[4]] == symbols.binding[i]
        if words[3] not in ("SECTION",) and len(words) > 7:
            assert words[7] == symbols.name_of(i) == symbols.names_of([i])[0]


def test_symbols_of_a_kernel(prepared: Prepared) -> None:
    elf = open_elf(prepared.debug)
    assert len(elf.symbols) > 100_000 and elf.address("vfs_read")


def test_addresses_and_bytes(small: Path) -> None:
    elf = open_elf(small, AMD64)
    nm = {w[2]: int(w[0], 16) for w in map(str.split, run("nm", str(small)).splitlines())
          if len(w) == 3}  # fmt: skip
    for name in ("first", "second", "third", "main", "data"):
        assert elf.address(name) == nm[name], name
    assert nm["first"] == nm["second"]
    assert elf.address("irst") is None and elf.address("no_such_name") is None
    assert int.from_bytes(elf.read(nm["data"], 4), "little") == 7
    shown = run("objdump", "-d", "--no-addresses", "--disassemble=third", str(small))
    code = bytes.fromhex("".join(re.findall(r"^\t((?:[0-9a-f]{2} )+)", shown, re.M)))
    assert code and elf.read(nm["third"], len(code)) == code
    with pytest.raises(KinstError, match=r"no section has 8 bytes at 0x1$"):
        elf.read(1, 8)


def test_build_id(small: Path, elf: Elf) -> None:
    assert open_elf(small).build_id == "0123456789abcdef"
    shown = re.search(r"Build ID: ([0-9a-f]+)", run("readelf", "-n", str(elf.path)))
    assert shown and elf.build_id == shown[1]


def test_build_id_of_a_file_without_section_headers(small: Path, tmp_path: Path) -> None:
    """The program headers have its place as well: readelf finds it by them."""
    data = bytearray(small.read_bytes())
    data[40:48] = bytes(8)  # e_shoff
    data[60:64] = bytes(4)  # e_shnum, e_shstrndx
    path = tmp_path / "file"
    path.write_bytes(data)
    assert "Build ID: 0123456789abcdef" in run("readelf", "-n", str(path))
    file = open_elf(path)
    assert not file.sections and file.build_id == "0123456789abcdef"


def test_build_id_after_other_notes() -> None:
    def note(name: bytes, kind: int, data: bytes) -> bytes:
        pad = [bytes(-len(x) % 4) for x in (name, data)]
        return struct.pack("<III", len(name), len(data), kind) + name + pad[0] + data + pad[1]

    wanted = note(b"GNU\0", 3, bytes(range(5)))
    assert build_id_in(note(b"Linux\0", 3, b"xy") + note(b"GNU\0", 1, b"abcd") + wanted) == (
        "0001020304"
    )
    for size in range(13):
        other = note(bytes(range(65, 65 + size)), 3, bytes(size % 5))
        assert build_id_in(other + wanted) == "0001020304", size
    # Cut off anywhere there is no build-id; the padding at the end may be missing.
    assert len(wanted) == 24
    for size in range(25):
        found = build_id_in(wanted[:size])
        assert found == ("0001020304" if size >= 12 + 4 + 5 else ""), size
    assert build_id_in(b"\xff" * 64) == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        (b"", "empty file"),
        (b"hello, this is text" * 10, "not an ELF file"),
        (b"MZ" + bytes(100), "compressed kernel image"),
        (b"\x7fELF\2\1\1", "inside its ELF header"),
        (b"\x7fELF\1\1\1" + bytes(100), "64-bit little-endian"),
    ],
)
def test_wrong_files(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "wrong"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KinstError, match=words) as caught:
        open_elf(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_other_machine_and_folder(small: Path, tmp_path: Path) -> None:
    with pytest.raises(KinstError, match="machine 62, not for 183"):
        open_elf(small, 183)
    with pytest.raises(KinstError, match="cannot be read"):
        open_elf(tmp_path)


def test_truncated_and_stripped(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    cut = tmp_path / "cut"
    for size in (len(data) - 1, len(data) // 2, 65):
        cut.write_bytes(data[:size])
        with pytest.raises(KinstError, match="truncated"):
            open_elf(cut)
    stripped = tmp_path / "stripped"
    run("strip", "-o", str(stripped), str(small))
    with pytest.raises(KinstError, match="no symbol table"):
        assert open_elf(stripped).symbols


@settings(max_examples=draws(100, 300), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_files_never_crash(small: Path, tmp_path: Path, data: st.DataObject) -> None:
    good = small.read_bytes()
    table = int.from_bytes(good[40:48], "little")
    content = bytearray(good)
    # Offsets where damage matters: the header and the section headers.
    places = st.one_of(st.integers(0, 63), st.integers(table, len(good) - 1))
    for at in data.draw(st.lists(places, min_size=1, max_size=6)):
        content[at] = data.draw(st.sampled_from([0, 1, 2, 8, 0x7F, 0x80, 0xFF]))
    path = tmp_path / "damaged"
    path.write_bytes(content)
    try:
        elf = open_elf(path)
        elf.address("main")
        elf.symbols.names_of(range(len(elf.symbols)))
        assert isinstance(elf.build_id, str)
        for section in elf.sections:
            elf.data(section)
    except KinstError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(("at", "mark"), [(0, b"MZ"), (0x202, b"HdrS")])
def test_compressed_kernels_are_told(tmp_path: Path, at: int, mark: bytes) -> None:
    """An EFI program, or Linux's boot header at its offset (Documentation/arch/x86/boot.rst)."""
    data = bytearray(0x400)
    data[at : at + len(mark)] = mark
    (tmp_path / "bzImage").write_bytes(data)
    with pytest.raises(KinstError, match="a compressed kernel image"):
        open_elf(tmp_path / "bzImage")
    data[at : at + len(mark) + 1] = b"\0" + mark
    (tmp_path / "bzImage").write_bytes(data)
    with pytest.raises(KinstError, match="not an ELF file"):
        open_elf(tmp_path / "bzImage")


@pytest.mark.parametrize("large", [(True, False), (False, True), (True, True)],
                         ids=["many sections", "names far behind", "both"])  # fmt: skip
def test_numbers_that_do_not_fit_the_header(
    large: tuple[bool, bool], small: Path, tmp_path: Path
) -> None:
    """System V ABI, chapter 4, e_shnum and e_shstrndx: they are in the first section's header, as
    its size and its link; readelf reads the same."""
    data = bytearray(small.read_bytes())
    (table,) = struct.unpack_from("<Q", data, 40)
    count, names = struct.unpack_from("<HH", data, 60)
    if large[0]:
        struct.pack_into("<H", data, 60, 0)
        struct.pack_into("<Q", data, table + 32, count)
    if large[1]:
        struct.pack_into("<H", data, 62, 0xFFFF)
        struct.pack_into("<I", data, table + 40, names)
    path = tmp_path / "file"
    path.write_bytes(data)
    shown = run("readelf", "-SW", str(path))
    theirs = re.findall(r"^ +\[ *(\d+)\] (\S*) ", shown, re.MULTILINE)
    found, plain = open_elf(path).sections, open_elf(small).sections
    assert [(str(one.index), one.name) for one in found[1:]] == theirs[1:]
    assert len(theirs) == len(found) == count and found[1:] == plain[1:]


def test_names_outside_of_their_section(small: Path, tmp_path: Path) -> None:
    """There is no name after the section's end, even if more follows in the file."""
    data = bytearray(small.read_bytes())
    (table,) = struct.unpack_from("<Q", data, 40)
    count, names = struct.unpack_from("<HH", data, 60)
    plain = open_elf(small).sections
    size = plain[names].size
    end = plain[names].offset + size
    letters = [size + k for k, byte in enumerate(data[end:]) if byte][:2]
    assert len(letters) == 2
    for at in (size, size + 1, *letters, 0xFFFF_FFFF):
        changed = bytearray(data)
        struct.pack_into("<I", changed, table + 64 * (count - 2), at)
        (tmp_path / "file").write_bytes(changed)
        found = [one.name for one in open_elf(tmp_path / "file").sections]
        assert found == [*(one.name for one in plain[:-2]), "", plain[-1].name]


@pytest.mark.parametrize("behind", [0, 1, 1000])
def test_names_in_a_section_that_there_is_not(behind: int, small: Path, tmp_path: Path) -> None:
    """Then no section has a name; their other fields are still valid."""
    data = bytearray(small.read_bytes())
    (count,) = struct.unpack_from("<H", data, 60)
    struct.pack_into("<H", data, 62, count + behind)
    (tmp_path / "file").write_bytes(data)
    plain = open_elf(small).sections
    found = open_elf(tmp_path / "file").sections
    assert found == tuple(replace(section, name="") for section in plain)


def test_names_of_symbols_end_with_their_table(small: Path, tmp_path: Path) -> None:
    """The NUL at the table's end is the last name; there is none after it."""
    data, plain = bytearray(small.read_bytes()), open_elf(small)
    table, strings = plain.section(".symtab"), plain.section(".strtab")
    assert table is not None and strings is not None
    (main,) = plain.symbols.indexes("main")
    for at, known in ((strings.size - 1, True), (strings.size, False), (0xFFFF_FFFF, False)):
        struct.pack_into("<I", data, table.offset + 24 * main, at)
        (tmp_path / "file").write_bytes(data)
        other = open_elf(tmp_path / "file")
        if known:
            assert other.symbols.name_of(main) == "" and other.address("main") is None
            assert other.address("first") == plain.address("first")
            continue
        with pytest.raises(KinstError, match="symbol names lie outside the string table"):
            assert other.symbols


def test_sections_that_the_file_does_not_have(tmp_path: Path) -> None:
    """Zeros in memory, and no bytes of the file; notes are there."""
    (tmp_path / "a.c").write_text("char zeros[5000]; int main(void) { return zeros[9]; }\n")
    flags = ["-Wl,--build-id=0xabcdef", "-no-pie"]
    run("gcc", *flags, "-o", str(tmp_path / "a"), str(tmp_path / "a.c"))
    file = open_elf(tmp_path / "a")
    bss, note, zeros = (
        file.section(".bss"),
        file.section(".note.gnu.build-id"),
        file.address("zeros"),
    )
    assert bss is not None and note is not None and zeros is not None
    assert file.read(zeros, 5000) == bytes(5000) and file.data(bss) == b""
    assert file.data(note).endswith(b"GNU\0" + bytes.fromhex("abcdef"))
    assert file.read(note.address, note.size) == file.data(note)


def test_zeros_of_threads_hide_nothing(tmp_path: Path) -> None:
    """.tbss takes no room: the section at its address is read, as readelf shows it; .tdata,
    threads' initial data, is in memory."""
    (tmp_path / "a.c").write_text(
        "__thread long zeros[64], number = 0x1234; static long n;\n"
        "__attribute__((constructor)) void before(void) { n = zeros[3] + number; }\n"
        "int main(void) { return n; }\n"
    )
    run("gcc", "-no-pie", "-o", str(tmp_path / "a"), str(tmp_path / "a.c"))
    file = open_elf(tmp_path / "a")
    first, zeros = file.section(".tdata"), file.section(".tbss")
    table = file.section(".init_array")
    assert first is not None and zeros is not None and table is not None
    assert zeros.address <= table.address and table.end <= zeros.end
    shown = run("readelf", "-x", ".init_array", str(file.path))
    words = re.findall(r"^ +0x[0-9a-f]+ ((?:[0-9a-f]{8} )+)", shown, re.M)
    found = file.read(table.address, table.size)
    assert found == bytes.fromhex("".join(words))
    assert struct.pack("<Q", file.address("before") or 0) in found
    assert file.read(first.address, first.size) == struct.pack("<Q", 0x1234)
