"""Lookups of D programs in the files of a kernel and its modules: the images are programs, and the
C compiler, nm and readelf say what is true of them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from kinst.core.dtypes import IntType, PointerType, StructType
from kinst.core.errors import KinstError
from kinst.core.types import AmbiguousNameError
from kinst.core.words import stem_of
from kinst.image.debug_info import DebugFiles, DebugInfo
from kinst.image.dwarf.index import key_of
from kinst.image.elf import open_elf
from kinst.image.type_files import FileTypes, ImagePaths

KERNEL = """
struct shared { char c; long l; };
struct only_kernel { int i[5]; };
typedef struct shared shared_t;
enum first { RED = 3, GREEN = 4, SAME = 7 };
enum second { BLUE = 5, SAME_TOO = 7 };
struct shared here = { 1, 2 };
enum first hue; enum second shade; shared_t again; struct only_kernel kept;
static int twice = 4;
extern struct shared renamed __attribute__((alias("here")));
int per_cpu_value __attribute__((section(".data..percpu"))) = 6;
long add(int left, struct shared *right)
{
    char local = left;
    short other[3] = { local };
    return right->l + other[1] + twice + per_cpu_value;
}
int main(void) { return add(1, &here); }
"""
OTHER = """
int twice = 9; enum third { RED = 8 } last;
int *get(void) { return &twice; }
"""
MODULE = """
struct shared { short s[9]; };
struct only_module { void *p; };
typedef struct only_module only_t;
enum of_module { PINK = 11 };
struct shared mine; only_t own; enum of_module tint;
unsigned short of_module(char letter) { long inside = letter; return inside * 3; }
int main(void) { return of_module(1); }
"""


# In a section of its own, as the kernel's linker script puts it.
SCRIPT = "SECTIONS { .data..percpu : { *(.data..percpu) } } INSERT BEFORE .data;"


def built(folder: Path, name: str, *sources: str, options: tuple[str, ...] = ("-g",)) -> Path:
    files = []
    for number, source in enumerate(sources):
        files.append(folder / f"{name}{number}.c")
        files[-1].write_text(source)
    path, script = folder / name, folder / "percpu.ld"
    script.write_text(SCRIPT)
    command = ["gcc", "-O0", "-no-pie", *options, f"-Wl,-T,{script}", "-o", path, *files]
    subprocess.run(command, check=True)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    stripped = folder / "stripped"
    found = {
        "kernel": built(folder, "kernel", KERNEL, OTHER),
        "one": built(folder, "one", MODULE),
        "plain": built(folder, "plain", MODULE.replace("PINK", "GREY"), options=()),
    }
    subprocess.run(["objcopy", "--strip-debug", found["one"], stripped], check=True)
    return {**found, "stripped": stripped}


def types_of(files: Mapping[str, Path], debug: Path | None = None) -> FileTypes:
    modules = {"one": files["one"], "plain": files["plain"], "apart": files["stripped"]}
    places = ImagePaths(
        lambda: files["kernel"], lambda: modules, DebugFiles(),
        lambda name: debug if name == "apart" else None,
    )  # fmt: skip
    return FileTypes(places)


def symbols(path: Path) -> dict[str, list[tuple[int, int, str]]]:
    """Return (address, size, nm's letter) by name, as nm prints them."""
    shown = subprocess.run(["nm", "-S", path], check=True, capture_output=True, text=True).stdout
    found: dict[str, list[tuple[int, int, str]]] = {}
    for line in shown.splitlines():
        if match := re.fullmatch(r"(\w+) (\w+) (\w) (\w+)", line):
            row = int(match[1], 16), int(match[2], 16), match[3]
            found.setdefault(match[4], []).append(row)
    return found


def test_types_of_the_first_image_that_has_them(files: Mapping[str, Path]) -> None:
    types = types_of(files)
    sizes = {
        ("shared", ""): 16, ("shared", "vmlinux"): 16, ("shared", "one"): 18,
        ("only_kernel", ""): 20, ("only_module", ""): 8, ("only_module", "one"): 8,
    }  # fmt: skip
    for (name, module), size in sizes.items():
        found = types.tagged("struct", name, module)
        assert isinstance(found, StructType) and found.size == size, (name, module)
    assert types.tagged("struct", "only_module", "vmlinux") is None
    assert types.tagged("struct", "only_kernel", "one") is None
    assert types.tagged("union", "shared") is None and types.tagged("struct", "absent") is None
    assert types.typedef("shared_t") == types.tagged("struct", "shared")
    assert types.typedef("only_t") == types.tagged("struct", "only_module")
    assert types.typedef("only_t", "vmlinux") is None
    for name in ("kernel", "unix", "genunix"):  # names of other systems for it
        assert types.tagged("struct", "only_kernel", name) is not None
    assert types.modules() == ["vmlinux", "one", "plain", "apart"]


def test_names_of_values(files: Mapping[str, Path]) -> None:
    types = types_of(files)
    for name, module, value in (("GREEN", "", 4), ("BLUE", "", 5), ("PINK", "", 11),
                                ("PINK", "one", 11), ("SAME", "", 7)):  # fmt: skip
        found = types.enumerator(name, module)
        assert found is not None and found[1] == value
    assert types.enumerator("PINK", "vmlinux") is None and types.enumerator("BLACK") is None
    with pytest.raises(AmbiguousNameError, match=r"RED is ambiguous: .*3 in enum first") as told:
        types.enumerator("RED")
    assert "8 in enum third" in str(told.value)


def test_functions_and_local_variables(files: Mapping[str, Path]) -> None:
    types = types_of(files)
    add, other = types.function("add"), types.function("of_module")
    assert add is not None and other is not None
    assert isinstance(add.result, IntType) and add.result.size == 8
    left, right = add.parameters
    assert isinstance(left, IntType) and left.size == 4
    assert isinstance(right, PointerType) and str(right) == "struct shared *"
    assert isinstance(other.result, IntType)
    assert (other.result.size, other.result.signed) == (2, False)
    assert types.function("of_module", "vmlinux") is None and types.function("absent") is None
    local = types.local("add", "local")
    assert isinstance(local, IntType) and local.size == 1
    inside = types.local("of_module", "inside", "one")
    assert isinstance(inside, IntType) and inside.size == 8
    assert types.local("add", "inside") is None
    assert sorted(types.locals("add")) == ["left", "local", "other", "right"]
    assert sorted(types.locals("of_module", "one")) == ["inside", "letter"]
    assert types.locals("absent") == ()


def test_local_variables_of_clones(files: Mapping[str, Path]) -> None:
    """Debug information has the variables of add.isra.0 under the name add."""
    types = types_of(files)
    for clone in ("add.isra.0", "add.part.0.constprop.0"):
        local = types.local(clone, "local")
        assert local is not None and local == types.local("add", "local")
        assert types.local(clone, "inside") is None
        assert types.locals(clone) == types.locals("add") != ()
    assert types.locals("absent.isra.0") == ()


def test_a_module_whose_debug_file_is_apart(files: Mapping[str, Path]) -> None:
    types = types_of(files, debug=files["one"])
    inside = types.local("of_module", "inside", "apart")
    assert isinstance(inside, IntType) and inside.size == 8
    assert types.with_dwarf("apart").path == files["one"]
    assert types.with_dwarf("apart") is types.with_dwarf("apart")
    assert types.with_dwarf("one").path == files["one"]
    assert types.with_dwarf("vmlinux").path == files["kernel"]
    with pytest.raises(KinstError, match="plain has no debug information"):
        types.local("of_module", "inside", "plain")
    assert types.with_dwarf("plain").path == files["plain"]
    with pytest.raises(KinstError, match="no file of a module absent is known"):
        types.tagged("struct", "shared", "absent")


def test_symbols_are_nms(files: Mapping[str, Path]) -> None:
    types, known = types_of(files), symbols(files["kernel"])
    types_wanted = {"here": "struct shared", "add": "", "hue": "enum first", "kept": ""}
    for name in ("here", "add", "main", "hue", "kept", "renamed", "per_cpu_value", "get"):
        ((address, size, _),) = known[name]
        found = types.symbol(name)
        assert found is not None and (found.name, found.module) == (name, "vmlinux")
        assert (found.address, found.size) == (address, size)
        assert found.per_cpu == (name == "per_cpu_value")
        assert not types_wanted.get(name) or str(found.type) == types_wanted[name]
        assert found.type is not None
    renamed = types.symbol("renamed")
    assert renamed is not None and str(renamed.type) == "struct shared"
    # Of two symbols the global one, in either order.
    letters = {letter: (address, size) for address, size, letter in known["twice"]}
    twice = types.symbol("twice")
    assert twice is not None and (twice.address, twice.size) == letters["D"]
    of_module = types.symbol("own", "one")
    ((address, size, _),) = symbols(files["one"])["own"]
    assert of_module is not None and (of_module.address, of_module.size) == (address, size)
    assert of_module.module == "one" and types.symbol("own", "vmlinux") is None
    assert types.symbol("absent") is None


def test_sections_of_symbols_are_readelfs(files: Mapping[str, Path]) -> None:
    shown = subprocess.run(
        ["readelf", "-SW", files["kernel"]], check=True, capture_output=True, text=True
    ).stdout
    row = re.compile(r" +\[ *\d+\] (\S+) +\w+ +(\w{16}) \w+ (\w+) ")
    ranges = {m[1]: (int(m[2], 16), int(m[3], 16)) for m in map(row.match, shown.splitlines()) if m}
    debug = DebugInfo(files["kernel"])
    for name in ("here", "add", "hue", "per_cpu_value"):
        found = debug.symbol(name)
        assert found is not None
        low, size = ranges[found.section]
        assert low <= found.address < low + size
        assert debug.is_per_cpu(found.address) == (name == "per_cpu_value")
    low, size = ranges[".data..percpu"]
    assert debug.is_per_cpu(low) and debug.is_per_cpu(low + size - 1)
    assert not debug.is_per_cpu(low - 1) and not debug.is_per_cpu(low + size)


def test_the_first_symbol_of_a_name(files: Mapping[str, Path]) -> None:
    """In the file's order (nm -p), with any binding."""
    command = ["nm", "-p", files["kernel"]]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = [row[0] for row in map(str.split, shown.splitlines()) if row[-1] == "twice"]
    assert len(found) == 2
    elf = DebugInfo(files["kernel"]).elf
    assert elf.address("twice") == int(found[0], 16) == elf.address("twice")
    assert elf.address("absent") is None


def test_places_in_each_unit_are_addr2lines(files: Mapping[str, Path], tmp_path: Path) -> None:
    known = symbols(files["kernel"])
    debug = DebugInfo(files["kernel"], cache=tmp_path)
    assert debug.index.units
    for name in ("add", "main", "get"):
        ((start, size, _),) = known[name]
        for address in range(start, start + size):
            command = ["addr2line", "-e", files["kernel"], f"{address:#x}"]
            shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            place = debug.place(address)
            assert place is not None
            assert f"{place.file}:{place.line}" == shown.split()[0], hex(address)
    start = min(low for rows in known.values() for low, size, letter in rows if letter in "tT")
    assert debug.place(start - 4096) is None


def test_the_key_of_a_saved_index(tmp_path: Path) -> None:
    """By the build-id if there is one; otherwise by the whole file."""
    for build_id, same in (("0x1234", True), ("none", False)):
        path = built(tmp_path, f"k{build_id}", OTHER + "int main(void) { return *get(); }",
                     options=("-g", f"-Wl,--build-id={build_id}"))  # fmt: skip
        key, whole = key_of(open_elf(path)), bytearray(path.read_bytes())
        ((address, _, _),) = symbols(path)["twice"]
        data = next(s for s in open_elf(path).sections if s.address <= address < s.address + s.size)
        whole[data.offset + address - data.address] ^= 1
        path.write_bytes(whole)
        assert (key_of(open_elf(path)) == key) == same


def test_names_of_symbols_and_of_functions() -> None:
    """A suffix of the compiler or the linker is not part of a function's name."""
    for name in ("add@2", "add@@V_1", "add.isra.0", "add.constprop.0.cold", "add"):
        assert stem_of(name) == "add"


CLEANED = """
void g(int *);
extern int ended;
static void done(int *at) { ended += *at; }
int cleaned(int n)
{
    int value __attribute__((cleanup(done))) = n;
    for (int k = 0; k < n; k++) { int more __attribute__((cleanup(done))) = k; g(&more); }
    g(&value);
    return value;
}
int main(void) { return cleaned(3); }
"""
CALLED = "int ended; void g(int *at) { *at += 3; }"


def test_frames_of_functions_with_cleanups(tmp_path: Path) -> None:
    """Their descriptions of frames have other data before the rules (-fexceptions)."""
    path = built(tmp_path, "cleaned", CLEANED, CALLED, options=("-fexceptions", "-g", "-O1"))
    shown = subprocess.run(
        ["readelf", "-wF", path], check=True, capture_output=True, text=True
    ).stdout
    ((start, size, _),) = symbols(path)["cleaned"]
    ends = f"pc={start:016x}..{start + size:016x}"
    rows = re.findall(
        r"^([0-9a-f]{16}) (\w+)\+(\d+)", shown.partition(ends)[2].partition("\n\n")[0], re.MULTILINE
    )
    assert len(rows) > 2 and b"gcc_except_table" in path.read_bytes()
    debug = DebugInfo(path)
    for at in range(start, start + size):
        _, register, offset = next(row for row in reversed(rows) if int(row[0], 16) <= at)
        number = {"rsp": 7, "rbp": 6, "rbx": 3}[register]
        assert debug.frame_address(at, NAMES) == (NAMES[number], int(offset))


NAMES = [f"R{n}" for n in range(17)]


def test_frames_are_readelfs(files: Mapping[str, Path]) -> None:
    """For each instruction of a function, the canonical frame address: that of readelf's
    interpreted tables, and none if there are no tables or the register has no name."""
    shown = subprocess.run(
        ["readelf", "-wF", files["kernel"]], check=True, capture_output=True, text=True
    ).stdout
    ((start, size, _),) = symbols(files["kernel"])["add"]
    ends = f"pc={start:016x}..{start + size:016x}"
    table = shown.partition(ends)[2].partition("\n\n")[0]
    rows = re.findall(r"^([0-9a-f]{16}) (\w+)\+(\d+)", table, re.MULTILINE)
    assert len(rows) > 2
    registers = {"rsp": 7, "rbp": 6}
    debug = DebugInfo(files["kernel"])
    for at in range(start, start + size):
        _, register, offset = next(row for row in reversed(rows) if int(row[0], 16) <= at)
        number = registers[register]
        assert debug.frame_address(at, NAMES) == (NAMES[number], int(offset))
        assert debug.frame_address(at, NAMES[:number]) is None
        nameless = [name if n != number else "" for n, name in enumerate(NAMES)]
        assert debug.frame_address(at, nameless) is None
    assert debug.frame_address(0x1000, NAMES) is None


def test_names_that_are_spelt_almost_the_same(tmp_path: Path) -> None:
    source = "void vfs_read(void) {}  void __traceiter_sched_switch(void) {}  int main(void) {}"
    path = built(tmp_path, "named", source)
    paths = ImagePaths(lambda: path, dict, DebugFiles())
    types = FileTypes(paths, lambda: ("__traceiter_{}", "btf_trace_{}"))
    assert types.lacks_function("vfs_raed") and not types.lacks_function("vfs_read")
    assert types.similar_functions("vfs_raed") == ["vfs_read"]
    assert types.similar_tracepoints("sched_swtich") == ["sched_switch"]
    assert not types.similar_tracepoints("vfs_raed") and not types.similar_functions("zzz")
