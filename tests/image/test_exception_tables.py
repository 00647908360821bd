"""Functions' bounds and landing pads, compared with those that readelf and the assembler tell."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from kinst.image.elf import STT_FUNC, open_elf
from kinst.image.exception_tables import frame_entries, landing_pads
from kinst.image.program_elf import program_elf

SOURCE = r"""
#include <stdexcept>
#include <string>
#include <cstdio>
struct Noisy { ~Noisy() { puts("gone"); } };
__attribute__((noinline)) void thrower(int n) {
  if (n > 1) throw std::runtime_error(std::to_string(n));
  if (n > 0) throw n;
}
__attribute__((noinline)) int caught(int n) {
  Noisy one;
  try { thrower(n); } catch (int value) { return value; } catch (std::exception &e) { return 7; }
  return 0;
}
int main(int count, char **) { return caught(count) + caught(count + 1); }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exceptions")
    (folder / "program.cc").write_text(SOURCE)
    command = ["g++", "-O2", "-g", "-save-temps", "-o", "program", "program.cc"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "program"


def test_entries_are_those_that_readelf_lists(program: Path) -> None:
    for path in (program, Path("/usr/bin/gzip")):
        text = subprocess.run(
            ["readelf", "--debug-dump=frames", path], capture_output=True, text=True, check=True
        ).stdout
        expected = {
            (int(low, 16), int(high, 16))
            for low, high in re.findall(r"pc=([0-9a-f]+)\.\.([0-9a-f]+)", text)
        }
        found = {(one.low, one.high) for one in frame_entries(open_elf(path))}
        assert found == {(low, high) for low, high in expected if low < high and low}


def test_landing_pads_are_those_that_the_compiler_names(program: Path) -> None:
    """In the compiler's assembly, a row of a table is the start and the length of a region, and the
    label of its pad."""
    text = next(program.parent.glob("program*.s")).read_text()
    pads = landing_pads(open_elf(program))
    landing = set(re.findall(r"\.LEHE\d+-\.LEHB\d+\n\s*\.uleb128 (\.L\d+)-", text))
    assert len(landing) > 0
    assert len(pads) == len(landing)
    elf = open_elf(program)
    functions = [
        (int(at), int(at) + int(size))
        for at, size, kind in zip(
            elf.symbols.address, elf.symbols.size, elf.symbols.kind, strict=True
        )
        if kind == STT_FUNC
    ]
    assert all(any(low < pad < high for low, high in functions) for pad in pads)


def test_a_stripped_program_has_the_functions_of_the_whole_one(program: Path) -> None:
    stripped = program.with_name("stripped")
    subprocess.run(["strip", "-o", stripped, program], check=True)
    whole, bare = open_elf(program).symbols, program_elf(open_elf(stripped)).symbols
    real = (whole.kind == STT_FUNC) & (whole.section != 0) & (whole.size > 0)
    expected = dict(zip(whole.address[real].tolist(), whole.size[real].tolist(), strict=True))
    known = (bare.kind == STT_FUNC) & (bare.section != 0)
    found = dict(zip(bare.address[known].tolist(), bare.size[known].tolist(), strict=True))
    assert len(expected) > 3
    assert {at: found.get(at) for at in expected} == expected
    names = {bare.name_of(int(k)) for k in known.nonzero()[0]}
    # main() is found by the code at the program's entry; the other names are addresses.
    (main,) = (int(whole.address[k]) for k in real.nonzero()[0] if whole.name_of(int(k)) == "main")
    assert {"plt", "main"} | {f"f_{at:x}" for at in expected if at != main} - {"f_0"} <= names
