"""kinst/image/function_table.py against nm, for a kernel and for a made program."""

from __future__ import annotations

import fnmatch
import itertools
import subprocess
from pathlib import Path

import pytest

from kinst.image.elf import Elf, open_elf
from kinst.image.function_table import FunctionTable
from kinst.kernels.fetch import Prepared
from kinst.systems.linux.system import MODULE, PADDING

SLIDE = 0x1A000000

MADE = r"""
    .text
    .globl whole, whole_again, __whole, weak_one
    .weak weak_one
    .type whole, @function
whole: nop; nop; nop
inner_label: nop; ret
    .size whole, . - whole
    .set whole_again, whole
    .set __whole, whole
    .type whole_again, @function
    .type __whole, @function
    .balign 32
    .type too_long, @function
too_long: nop; nop
    .type clipper, @function
    .globl clipper
clipper: nop; nop; ret
    .size too_long, 100
    .size clipper, . - clipper
    .balign 32
    .globl bare
bare: nop; nop; nop; ret
    .type unsized, @function
unsized: nop; ret
some_text_end:
    .type weak_one, @function
    .type strong_local, @function
weak_one:
strong_local: ret
    .size weak_one, 1
    .size strong_local, 1
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> FunctionTable:
    folder = tmp_path_factory.mktemp("made")
    (folder / "a.s").write_text(MADE)
    (folder / "b.s").write_text(".text\n.type whole2, @function\ninner2: nop\n"
                                ".type dup, @function\ndup: ret\n.size dup, 1\n")  # fmt: skip
    (folder / "c.s").write_text(".text\n.type dup, @function\ndup: nop; ret\n.size dup, 2\n")
    objects = []
    for name in "abc":
        objects.append(str(folder / f"{name}.o"))
        subprocess.run(["as", "-o", objects[-1], str(folder / f"{name}.s")], check=True)
    program: Path = folder / "made"
    subprocess.run(["ld", "-e", "whole", "-o", str(program), *objects], check=True)
    return FunctionTable(open_elf(program), SLIDE, MODULE, PADDING)


def test_aliases_and_the_canonical_name(made: FunctionTable) -> None:
    (whole,) = made.lookup("whole")
    assert whole.size == 5 and made.at(whole.address) == whole
    for alias in ("whole_again", "__whole"):
        (other,) = made.lookup(alias)
        assert (other.address, other.size, other.name) == (whole.address, 5, alias)
    assert [f.name for f in made.glob("whole*")] == ["whole"]
    assert [f.name for f in made.glob("__who*")] == ["__whole"]
    # A weak global name is preferred to a local one.
    assert made.at(made.lookup("strong_local")[0].address) == made.lookup("weak_one")[0]


def test_sizes(made: FunctionTable) -> None:
    sizes = {name: made.lookup(name)[0].size for name in ("too_long", "clipper", "bare", "unsized")}
    assert sizes == {"too_long": 2, "clipper": 3, "bare": 4, "unsized": 2}


def test_labels_and_markers_are_no_functions(made: FunctionTable) -> None:
    assert made.lookup("inner_label") == [] and made.lookup("some_text_end") == []
    assert made.lookup("no_such") == [] and made.glob("no_such*") == []


def test_two_of_one_name(made: FunctionTable) -> None:
    found = made.lookup("dup")
    assert [f.size for f in found] == [1, 2] and found[0].address < found[1].address
    assert made.glob("dup") == found


def test_addresses(made: FunctionTable) -> None:
    (whole,) = made.lookup("whole")
    assert made.at(whole.address + 4) == whole
    assert made.at(whole.address + 5) is None and made.at(0) is None
    assert list(made.all) == sorted(made.all, key=lambda f: f.address)


def test_code_of_labels_alone(tmp_path: Path) -> None:
    """As nm has them: no symbol is marked as a function."""
    code = ".text\n.globl one, two\none: nop; ret\ntwo: nop; nop; ret\n.data\n.quad 1\n"
    (tmp_path / "a.s").write_text(code)
    subprocess.run(["as", "-o", "a.o", "a.s"], cwd=tmp_path, check=True)
    subprocess.run(["ld", "-e", "one", "-o", "a", "a.o"], cwd=tmp_path, check=True)
    shown = subprocess.run(["nm", "a"], cwd=tmp_path, capture_output=True, text=True, check=True)
    starts = {w[2]: int(w[0], 16) for w in map(str.split, shown.stdout.splitlines())}
    found = FunctionTable(open_elf(tmp_path / "a"), SLIDE, MODULE, PADDING).all
    assert [(f.name, f.address - SLIDE, f.size) for f in found] == [
        ("one", starts["one"], 2), ("two", starts["two"], 3),
    ]  # fmt: skip


def test_labels_of_data_are_no_functions_where_data_is_executable(tmp_path: Path) -> None:
    code = ".text\n.globl one, word\none: nop; ret\n.data\nword: .quad 1\n"
    (tmp_path / "a.s").write_text(code)
    flags = ["--set-section-flags", ".data=alloc,load,contents,code"]
    for command in (["as", "-o", "a.o", "a.s"], ["ld", "-e", "one", "-o", "a", "a.o"],
                    ["objcopy", *flags, "a"]):  # fmt: skip
        subprocess.run(command, cwd=tmp_path, check=True)
    elf = open_elf(tmp_path / "a")
    assert [s.name for s in elf.sections if s.flags & 4] == [".text", ".data"]
    assert [f.name for f in FunctionTable(elf, SLIDE, MODULE, PADDING).all] == ["one"]


@pytest.fixture(scope="module")
def vmlinux(prepared: Prepared) -> Elf:
    return open_elf(prepared.debug)


def test_kernel_against_nm(vmlinux: Elf) -> None:
    table = FunctionTable(vmlinux, SLIDE, MODULE, PADDING)
    shown = subprocess.run(["nm", "-S", str(vmlinux.path)], capture_output=True, text=True,
                           check=True).stdout  # fmt: skip
    rows = [w for w in map(str.split, shown.splitlines()) if len(w) == 4 and w[2] in "tTwW"]
    assert len(rows) > 40_000
    for address, size, _, name in rows[::13]:
        if name.startswith("__pfx_"):
            continue
        match = [f for f in table.lookup(name) if f.address == int(address, 16) + SLIDE]
        assert len(match) == 1, name
        assert match[0].size <= max(int(size, 16), 1 << 20)
        if name in ("vfs_read", "tcp_v4_rcv", "schedule"):
            assert match[0].size == int(size, 16)
    names = {w[3] for w in rows}
    expected = set(fnmatch.filter(names, "vfs_*"))
    found = {f.name for f in table.glob("vfs_*")}
    assert found <= expected and len(expected) - len(found) < 5
    functions = table.all
    assert len(functions) > 22_000
    assert all(a.address + a.size <= b.address for a, b in itertools.pairwise(functions))


def test_kernel_lookups(vmlinux: Elf) -> None:
    table = FunctionTable(vmlinux, 0, MODULE, PADDING)
    assert len(table.glob("*")) > 22_000 and table.lookup("vfs_read")
    assert len(table.glob("*")) > 22_000 and table.glob("ext4_*")
