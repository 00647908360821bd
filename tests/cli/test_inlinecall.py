"""The inlinecall command on C files, against the tables in their comments (tests/c/copies.c)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kinst.cli.inlinecall import main
from tests.image.dwarf_made import COPIES, CROSS, compiled, marks, symbols, table

COMMAND = Path(sys.executable).with_name("inlinecall")
BUILDS = [
    pytest.param(
        (compiler, f"-O{level}", f"-gdwarf-{version}"),
        marks=pytest.mark.full if compiler == "clang" else (),
        id=f"{compiler} -O{level} -gdwarf-{version}",
    )
    for compiler in ("gcc", "clang")
    for level in (1, 2, 3)
    for version in (4, 5)
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a separate cache: no later run can use the indexes of this module's files."""
    monkeypatch.setattr(
        "kinst.inlines.cache_folder", lambda: tmp_path_factory.getbasetemp() / "indexes"
    )


def inlinecall(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(words)
    out, err = capsys.readouterr()
    return status, out, err


def asked(capsys: pytest.CaptureFixture[str], function: str, path: Path) -> list[Any]:
    status, out, err = inlinecall(capsys, "--json", function, str(path))
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert isinstance(found, list)
    return found


def base(symbol: str) -> str:
    """Return a function's name without the suffixes that compilers append to parts and clones."""
    return symbol.split(".")[0]


def check(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    """Compare all output of inlinecall for a linked copies.c with the file's comments and
    marks."""
    said, where, marked = table(), symbols(path), marks(path)
    assert {name for _, name in marked} == set(said.decl)
    for function, line in said.decl.items():
        (found,) = asked(capsys, function, path)
        assert found["function"] == function
        assert Path(found["decl_file"]) == COPIES
        assert found["decl_line"] == line
        copies = found["copies"]
        seen: Counter[tuple[str, int, str]] = Counter()
        for copy in copies:
            assert Path(copy["call_file"]) == COPIES
            seen[function, copy["call_line"], base(copy["caller"])] += 1
            address, size = where[copy["caller"]]
            assert copy["caller_offset"] == copy["entry"] - address
            assert 0 <= copy["caller_offset"] < size
            # gcc's entry may be before the ranges, but never in another function.
        expected = Counter({key: n for key, n in said.copies.items() if key[0] == function})
        assert set(seen) == set(expected)
        for key, count in seen.items():
            assert count == expected[key] or (key in said.open and count > expected[key]), key
        for address, name in marked:
            holders = [
                copy
                for copy in copies
                if any(low <= address < high for low, high in copy["ranges"])
            ]
            # Only outer contains another copy (early).
            inside = name == function or (name, function) == ("early", "outer")
            assert len(holders) <= (1 if inside else 0)
            assert holders or name != function


@pytest.mark.parametrize("build", BUILDS)
def test_the_table(
    build: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(capsys, compiled(tmp_path, *build))


@pytest.mark.parametrize("isa", ["arm64", "riscv64"])
@pytest.mark.parametrize("version", [4, 5])
def test_other_isas(
    isa: str, version: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(capsys, compiled(tmp_path, CROSS[isa], "-O2", f"-gdwarf-{version}"))


@pytest.mark.parametrize("isa", sorted(CROSS))
@pytest.mark.parametrize("version", [4, 5])
def test_relocatable_files(
    isa: str, version: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For an object file the output is as for the linked file, except for the addresses."""
    flags = ["-O2", f"-gdwarf-{version}", *(["-mno-relax"] if isa == "riscv64" else [])]
    linked = compiled(tmp_path, CROSS[isa], *flags)
    unlinked = compiled(tmp_path, CROSS[isa], *flags, "-c", name="copies.o")
    for function in table().decl:
        (one,), (other,) = (asked(capsys, function, path) for path in (linked, unlinked))
        assert len(one["copies"]) == len(other["copies"]) > 0
        for copy, same in zip(one["copies"], other["copies"], strict=True):
            for key in ("caller", "caller_offset", "call_file", "call_line"):
                assert copy[key] == same[key], key
            assert [high - low for low, high in copy["ranges"]] == [
                high - low for low, high in same["ranges"]
            ]


def test_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """inlinecall(1): the declaration, followed by a line for each range of each copy."""
    path = compiled(tmp_path, "gcc", "-O2", "-g")
    status, out, err = inlinecall(capsys, "rare", str(path))
    assert (status, err) == (0, "")
    (found,) = asked(capsys, "rare", path)
    (copy,) = found["copies"]
    where = symbols(path)
    lines = [f"{COPIES}:{table().decl['rare']}"]
    for low, high in copy["ranges"]:
        (holder,) = (name for name, (at, size) in where.items() if at <= low < at + size)
        lines.append(f"\t[{low:#x} - {high:#x}]\t{COPIES}:{copy['call_line']}\t{holder}()")
    assert out.splitlines() == lines


def test_cold_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy in the cold part of its caller belongs to that caller; a copy may be in both
    parts."""
    path = tmp_path / "cold.o"
    source = COPIES.with_name("cold.c")
    subprocess.run(["gcc", "-O2", "-g", "-c", "-o", path, source], check=True)
    assert {"check", "check.cold"} <= set(symbols(path))
    (complain,) = asked(capsys, "complain", path)
    (copy,) = complain["copies"]
    assert (copy["caller"], copy["call_line"]) == ("check.cold", 16)
    (both,) = asked(capsys, "both", path)
    (copy,) = both["copies"]
    assert (copy["caller"], copy["call_line"]) == ("check", 22)
    status, out, _ = inlinecall(capsys, "both", str(path))
    callers = {line.split("\t")[-1] for line in out.splitlines()[1:]}
    assert (status, callers) == (0, {"check()", "check.cold()"})


def test_without_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "nothing.c"
    source.write_text(
        "static inline __attribute__((always_inline)) void nothing(void) { }\n"
        "int f(int a) { nothing(); return a; }\n"
        "static inline int never(int a) { return a; }\nint g(void) { return sizeof(never(1)); }\n"
    )
    path = tmp_path / "nothing.o"
    subprocess.run(["gcc", "-g", "-O1", "-c", "-o", path, source], check=True)
    status, out, _ = inlinecall(capsys, "nothing", str(path))
    assert status == 0
    # gcc may leave the copy out or say where it would be; it never has code.
    (found,) = asked(capsys, "nothing", path)
    assert all(copy["ranges"] == [] for copy in found["copies"])
    assert out.count("[no code]") == len(found["copies"])


def test_separate_debug_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is found by .gnu_debuglink; one of another file is skipped with a warning."""
    path = compiled(tmp_path, "gcc", "-O2", "-g", "-Wl,--build-id")
    whole = asked(capsys, "early", path)
    debug = tmp_path / "copies.debug"
    subprocess.run(["objcopy", "--only-keep-debug", path, debug], check=True)
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", stripped, path], check=True)
    subprocess.run(["objcopy", f"--add-gnu-debuglink={debug}", stripped], check=True)
    assert asked(capsys, "early", stripped) == whole
    other = compiled(tmp_path, "gcc", "-O3", "-g", "-Wl,--build-id", name="other")
    subprocess.run(["objcopy", "--only-keep-debug", other, debug], check=True)
    status, out, err = inlinecall(capsys, "early", str(stripped))
    assert (status, out) == (1, "")
    warning, error = err.splitlines()
    assert str(debug) in warning and str(stripped) in warning and "build-id" in warning
    assert f"{stripped}: no debug information" in error


def test_checksum_decides_without_build_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = compiled(tmp_path, "gcc", "-O2", "-g", "-Wl,--build-id=none")
    debug, stripped = tmp_path / "copies.debug", tmp_path / "stripped"
    subprocess.run(["objcopy", "--only-keep-debug", path, debug], check=True)
    subprocess.run(["strip", "-o", stripped, path], check=True)
    subprocess.run(["objcopy", f"--add-gnu-debuglink={debug}", stripped], check=True)
    assert len(asked(capsys, "early", stripped)[0]["copies"]) >= 5
    debug.write_bytes(debug.read_bytes() + b"\0")
    status, _, err = inlinecall(capsys, "early", str(stripped))
    assert status == 1 and "checksum" in err


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["early"], 2, "a function and a file are needed"),
        (["--nonsense", "early", "FILE"], 2, "unknown option --nonsense"),
        (["early", "/nonexistent"], 1, "/nonexistent: no such file"),
        (["early", "/"], 1, "/: cannot be read"),
        (["early", "/etc/passwd"], 1, "/etc/passwd: not an ELF file"),
        (["nobody", "FILE"], 1, "no function nobody"),
        (["simple", "FILE"], 1, "simple is not an inline function"),
        (["early", "STRIPPED"], 1, "no debug information"),
    ],
)
def test_errors(
    words: list[str], status: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = compiled(tmp_path, "gcc", "-O1", "-g", "-Wl,--build-id=none")
    subprocess.run(["strip", "-o", tmp_path / "stripped", path], check=True)
    files = {"FILE": str(path), "STRIPPED": str(tmp_path / "stripped")}
    found = inlinecall(capsys, *(files.get(word, word) for word in words))
    assert found[0] == status and found[1] == "" and text in found[2]
    assert len(found[2].splitlines()) == (2 if status == 2 else 1)


def test_the_command_is_installed(tmp_path: Path) -> None:
    path = compiled(tmp_path, "gcc", "-O1", "-g")
    done = subprocess.run(
        [COMMAND, "early", path], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith(f"{COPIES}:")
    assert done.stderr == ""


TYPES = """struct s { int a, b; };
static inline __attribute__((always_inline)) int sum(struct s *p) { return p->a + p->b; }
int g(struct s *p) { return sum(p); }
"""


@pytest.mark.parametrize("compiler", ["gcc", pytest.param("clang", marks=pytest.mark.full)])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("linked", [True, False])
def test_types_in_sections_of_their_own(
    compiler: str, version: int, linked: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """.debug_types and type units hold no functions, so all copies are found."""
    source, path = tmp_path / "types.c", tmp_path / "types"
    source.write_text(TYPES)
    how = ["-shared", "-fPIC"] if linked else ["-c"]
    flags = ["-O2", f"-gdwarf-{version}", "-fdebug-types-section", *how]
    subprocess.run([compiler, *flags, "-o", path, source], check=True)
    (found,) = asked(capsys, "sum", path)
    (copy,) = found["copies"]
    assert (copy["caller"], copy["caller_offset"], copy["call_line"]) == ("g", 0, 3)


def test_split_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """.dwo files are not read, but they are reported."""
    source, path = tmp_path / "types.c", tmp_path / "types.o"
    source.write_text(TYPES)
    subprocess.run(["gcc", "-O2", "-g", "-gsplit-dwarf", "-c", "-o", path, source], check=True)
    status, out, err = inlinecall(capsys, "sum", str(path))
    assert (status, out) == (1, "")
    assert ".dwo file" in err and "-gno-split-dwarf" in err
