"""kinst::FILE: and kinst::FILE@LINE in the kernel's file, with lines by addr2line."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Iterable

import pytest

import kinst
from kinst.core.probe import ProbePattern
from kinst.image.elf import open_elf
from kinst.isa import load
from kinst.kernels.fetch import Prepared
from kinst.sugar.lines import SourceFile, file_of, line_of
from tests.tiers import draws

FILE = "read_write.c"
SEED = 20261122


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        (ProbePattern("kinst", "", "a_b.c", ""), SourceFile("", "a_b.c")),
        (ProbePattern("", "kinst", "", "a_b.c@12"), SourceFile("", "a_b.c", 12)),
        (ProbePattern("kinst", "", "", "a.h@12"), SourceFile("", "a.h", 12)),
        (ProbePattern("kinst", "", "a-1.S", "@7"), SourceFile("", "a-1.S", 7)),
        (ProbePattern("kinst", "ext4", "inode.c@3", ""), SourceFile("ext4", "inode.c", 3)),
        (ProbePattern("kinst", "", "fs/a.c@7", ""), SourceFile("", "fs/a.c", 7)),
        (ProbePattern("kinst", "", "a.c", "19"), None),
        (ProbePattern("kinst", "", "f.constprop.0", ""), None),
        (ProbePattern("kinst", "", "f.isra.0@2", ""), None),
        (ProbePattern("fbt", "", "a.c", ""), None),
        (ProbePattern("kinst", "", "f", "@12"), None),
        (ProbePattern("", "kinst", "", "19"), None),
    ],
)
def test_descriptions_of_files(pattern: ProbePattern, meant: SourceFile | None) -> None:
    assert file_of(pattern) == meant
    if meant is not None:
        assert line_of(pattern) is None


def sites(prepared: Prepared, description: str) -> list[tuple[str, str]]:
    """Return (function, offset) of the sites of a description."""
    text = kinst.expand_in_file(f"{description} {{ }}", prepared.debug)
    return re.findall(r"kinst:(?:vmlinux)?:([^:]+):(\d*)", text)


def lines_at(prepared: Prepared, addresses: Iterable[int]) -> list[str]:
    """Return file:line of each address, by binutils."""
    done = subprocess.run(
        ["addr2line", "-s", "-e", str(prepared.debug)], text=True, check=True,
        input="".join(f"{at:#x}\n" for at in addresses), capture_output=True,
    )  # fmt: skip
    return [line.split(" ")[0] for line in done.stdout.splitlines()]


@pytest.mark.drawn
def test_lines_are_those_that_addr2line_says(prepared: Prepared) -> None:
    elf, isa = open_elf(prepared.debug), load("amd64")
    functions = [name for name, _ in sites(prepared, f"kinst::{FILE}:")]
    assert {"vfs_read", "vfs_write", "ksys_pread64"} <= set(functions)
    assert "vfs_open" not in functions  # is in another file
    places: dict[int, tuple[str, str]] = {}
    for name in functions:
        (index,) = elf.symbols.indexes(name)[:1]
        start, size = int(elf.symbols.address[index]), int(elf.symbols.size[index])
        for one in isa.decode(elf.read(start, size), start):
            places[one.address] = name, str(one.address - start)
    lines = dict(zip(places, lines_at(prepared, places), strict=True))
    own = sorted({line for line in lines.values() if re.fullmatch(rf"{FILE}:\d+", line)})
    assert len(own) > 200
    for line in random.Random(SEED).sample(own, draws(3, 8)):
        wanted = {places[at] for at, said in lines.items() if said == line}
        assert wanted <= set(sites(prepared, f"kinst::{line.replace(':', '@')}*")), line
        found = sites(prepared, f"kinst::{line.replace(':', '@')}*")
        starts = {name: elf.symbols.indexes(name)[0] for name, _ in found}
        at = [int(elf.symbols.address[starts[name]]) + int(offset) for name, offset in found]
        assert set(lines_at(prepared, at)) == {line}


def test_lines_of_a_header_are_where_it_was_inlined(prepared: Prepared) -> None:
    elf = open_elf(prepared.debug)
    with pytest.raises(kinst.KinstError) as caught:
        sites(prepared, "kinst::file.h@1")
    (line,) = re.findall(r"the nearest lines with instructions: (\d+)", caught.value.hint)
    found = sites(prepared, f"kinst::file.h@{line}*")
    assert len({name for name, _ in found}) > 5
    index = [elf.symbols.indexes(name)[0] for name, _ in found]
    at = [
        int(elf.symbols.address[k]) + int(offset)
        for k, (_, offset) in zip(index, found, strict=True)
    ]
    assert {said.partition(":")[2] for said in lines_at(prepared, at)} == {line}


def test_a_line_as_debuggers_write_it(prepared: Prepared) -> None:
    elf = open_elf(prepared.debug)
    start = int(elf.symbols.address[elf.symbols.indexes("vfs_read")[0]])
    (said,) = lines_at(prepared, [start])
    assert ("vfs_read", "0") in sites(prepared, f"fs/{said}")


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ("kinst::read_wirte.c:", "no function is declared in read_wirte.c (did you mean read_wr"),
        ("kinst::read_write.c@99999", "no instruction of this kernel is of read_write.c:99999 ("),
    ],
)
def test_what_is_not_there(prepared: Prepared, description: str, said: str) -> None:
    with pytest.raises(kinst.DError) as caught:
        sites(prepared, description)
    assert said in str(caught.value)
