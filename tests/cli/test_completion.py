"""Completion: words that are offered for lines split here by hand, in the kernel of the tests."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from kinst.cli.commands import commands
from kinst.cli.completion.index import NameIndex
from kinst.cli.completion.line import TypedLine, split
from kinst.cli.completion.places import names_of
from kinst.cli.completion.prepare import save_names, words
from kinst.cli.completion.program import cursor
from kinst.cli.options import options
from kinst.dlang.vocabulary.d_options import NAMES, OWN_NAMES
from kinst.isa import load
from kinst.kernels.fetch import Prepared

BREAKS = " \t\n\"'@><=;|&(:"  # as bash has them
ENOUGH = 0.2  # seconds that a press of TAB may take
START = (sys.executable, "-m", "kinst.cli.start", "--complete")


def asked(line: str, listing: str = "0") -> list[str]:
    """Return the reply to bash for a line up to the cursor."""
    words = (*START, "bash", BREAKS, listing, line)
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.splitlines()


def names(line: str) -> list[str]:
    """Return the offered words, without their descriptions."""
    kind, *rows = asked(line, "1")
    assert kind == "words"
    return list(dict.fromkeys(row.split("  ")[0].rstrip() for row in rows))


# Lines.


@pytest.mark.parametrize(
    ("text", "words", "current", "quote", "replaced"),
    [
        ("kinst -n 'kinst::vfs_r", ("kinst", "-n"), "kinst::vfs_r", "'", 0),
        ('kinst -n "a \\"b\\" c', ("kinst", "-n"), 'a "b" c', '"', 0),
        ("kinst -n kinst::vfs_r", ("kinst", "-n"), "kinst::vfs_r", "", 7),
        ("kinst --debug=/a\\ b/c", ("kinst",), "--debug=/a b/c", "", 8),
        ("kinst -n'fbt::x", ("kinst",), "-nfbt::x", "'", 2),
        ("kinst -c 'ls -l' ", ("kinst", "-c", "ls -l"), "", "", 0),
        ("kinst '' -", ("kinst", ""), "-", "", 0),
    ],
)
def test_a_line_is_split_as_the_shell_does(
    text: str, words: tuple[str, ...], current: str, quote: str, replaced: int
) -> None:
    assert split(text, BREAKS) == TypedLine(words, current, quote, replaced)


@pytest.mark.parametrize(
    ("text", "described", "typed"),
    [
        ("", True, ""),
        ("kinst::vfs_r", True, "kinst::vfs_r"),
        ("kinst::a:1, fbt::b", True, "fbt::b"),
        ("BEGIN { x = 1; } kinst::c", True, "kinst::c"),
        ('BEGIN { printf("}{ %d", ex', False, "ex"),
        ("/* kinst::a { */ fbt::b", True, "fbt::b"),
        ("fbt::a:entry /arg", False, "arg"),
        ("fbt::a:entry /arg0 / 2 > pi", False, "pi"),
        ("fbt::a:entry /arg0/ { @[ti", False, "ti"),
        ("fbt::a:entry /x == '/'/ { } fbt::q", True, "fbt::q"),
        ("self int x; fbt::q", True, "fbt::q"),
        ("fbt::a:entry { if (x) { y } ti", False, "ti"),
    ],
)
def test_where_in_a_program_the_cursor_is(text: str, described: bool, typed: str) -> None:
    found = cursor(text)
    assert (found.described, found.typed) == (described, typed)


# Words.


def test_every_option_is_offered_and_says_what_it_does() -> None:
    rows = {one["name"]: one for one in words()["options"]}
    assert set(rows) == {name for name, option in options().items() if not option.refused}
    assert all(one["help"] for one in rows.values())
    for one in ("-n", "--root=", "--cold", "--dump="):
        assert one in [row.split("  ")[0].rstrip() for row in asked("kinst -", "1")[1:]]


def test_commands_and_their_options_are_those_that_there_are() -> None:
    made = words()
    assert set(made["commands"]) == set(commands())
    assert all(one["help"] for one in made["commands"].values())
    assert set(names("kinst ")) == set(commands())
    assert "flame" in names("kinst f")
    offered = names("kinst flame --")
    assert {"--by=", "--title=", "--root="} <= set(offered)
    assert asked("kinst diff /tm")[0] == "files"


def test_values_of_options() -> None:
    assert names("kinst --vm=") == ["amd64", "arm64", "riscv64"]
    assert set(names("kinst -x ")) == NAMES | OWN_NAMES
    assert names("kinst --dump ty") == ["typed"]
    assert names("kinst -X ") == ["a", "c", "s", "t"]
    assert asked("kinst --root=/us") == ["folders"]
    assert asked("kinst -s ") == asked("kinst --debug /x") == ["files"]
    assert "list" in names("kinst --kernel ")


# Names of a kernel.


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, prepared: Prepared) -> NameIndex:
    path = tmp_path_factory.mktemp("index") / "kernel.names"
    assert save_names(path, "amd64", "", "")
    return NameIndex(path)


def symbols(prepared: Prepared, letters: str) -> list[tuple[str, int]]:
    shown = subprocess.run(["nm", str(prepared.debug)], capture_output=True, text=True, check=True)
    rows = (line.split() for line in shown.stdout.splitlines())
    return [(row[2], int(row[0], 16)) for row in rows if len(row) == 3 and row[1] in letters]


def test_the_index_has_the_functions_that_nm_has(index: NameIndex, prepared: Prepared) -> None:
    for prefix in ("vfs_", "ext4_da_", "__x64_sys_a", "zs"):
        code = {(n, at) for n, at in symbols(prepared, "tT") if n.startswith(prefix)}
        rows = [row for row in index.begin_with(prefix) if row.size]
        assert {(row.name.partition("@")[0], row.address) for row in rows} <= code
        alone = {n for n, _ in code if [name for name, _ in code].count(n) == 1}
        assert alone - {row.name for row in rows} == set()
        everything = [row.name for row in index.begin_with(prefix)]
        assert everything == sorted(everything) == index.names(prefix, "fib")
    assert list(index.begin_with("no_such_function")) == []
    assert index.find("vfs_rea") is None


def test_functions_and_inline_functions(prepared: Prepared) -> None:
    found = names("kinst -n 'kinst::vfs_rea")
    assert found == ["vfs_read:", "vfs_readlink:", "vfs_readv:"]
    assert names("kinst -n fbt::vfs_rea") == found
    # Of many names, only their common beginnings.
    assert "vfs_" in names("kinst -n 'kinst::vf") or "vfs_read:" in names("kinst -n 'kinst::vf")
    assert len(names("kinst -n 'kinst::")) < 200
    assert names("kinst --kernel 9.9 -n 'kinst::vfs_rea") == []


def test_offsets_are_those_of_the_instruction_sets_own_decoder(
    index: NameIndex, prepared: Prepared
) -> None:
    """The offsets of functions of all sizes, with their disassembly."""
    isa, data = load("amd64"), prepared.debug.read_bytes()
    for name in ("vfs_read", "__fdget_pos", "ksys_read", "do_filp_open", "memcpy_orig"):
        row = index.find(name)
        assert row is not None
        code = data[row.offset : row.offset + row.size]
        wanted = {str(i.address - row.address): i.text for i in isa.decode(code, row.address)}
        shown = asked(f"kinst -n 'kinst::{name}:", "1")[1:]
        found = dict(line.split(maxsplit=1) for line in shown)
        assert found.pop("entry") and found.pop("return")
        assert found == wanted
    assert names("kinst -n 'fbt::vfs_read:") == ["entry", "return"]


def test_in_a_program_names_of_d_are_offered() -> None:
    assert names("kinst -n 'BEGIN { @[exec") == ["execargs", "execname"]
    assert names("kinst -n 'fbt::vfs_read:entry /timest") == ["timestamp"]
    assert "R_RDX" in names("kinst -n 'kinst::vfs_read:0 { x = regs[R_RD")
    assert names("kinst -n 'pro") == ["profile:"] or "profile:" in names("kinst -n 'pro")
    assert names("kinst -n 'dtrace:::B") == ["BEGIN"]


def test_what_bash_inserts() -> None:
    """Unquoted, only the part after the last word break is inserted; in quotes, two words if one
    would close them."""
    assert asked("kinst -n kinst::__fdget_p")[1:] == ["__fdget_pos:"]
    first, second = asked("kinst -n 'BEGIN {} kinst::__fdget_p")[1:]
    assert first == "BEGIN {} kinst::__fdget_pos:" and second.startswith(f"{first}  ")
    assert asked("kinst --col") == ["words", "--cold "]


def test_an_index_is_made_anew_when_its_file_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: Prepared
) -> None:
    """An index is renewed when its file changes: a kernel of this test, in a separate cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "own.c"
    source.write_text("int first_one(void) { return 1; }\nint main(void) { return first_one(); }\n")
    own = tmp_path / "vmlinux"
    line = f"kinst --debug {own} --kernel {own} -n 'kinst::"

    def build() -> None:
        command = ["gcc", "-g", "-O0", "-o", str(own), str(source)]
        subprocess.run(command, check=True)

    assert names(f"{line}first") == []
    build()
    assert names(f"{line}first") == ["first_one:"]
    source.write_text("int second_one(void) { return 1; }\nint main(void) { return 0; }\n")
    build()
    os.utime(own, ns=(1, 1))
    assert names(f"{line}second") == ["second_one:"]
    path, _ = names_of({"--debug": str(own)})
    path.write_bytes(b"damaged")
    assert names(f"{line}second") == ["second_one:"]


def test_it_costs_little(prepared: Prepared) -> None:
    """CPU time is measured, because other programs may use the machine."""
    for line in ("kinst -", "kinst -n 'kinst::vfs_r", "kinst -n 'kinst::vfs_read:"):
        asked(line)
        spent = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            asked(line)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert min(spent) < ENOUGH, (line, spent)
