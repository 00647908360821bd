"""Leaders, which keep an instruction out of a run's middle: each kind, made on purpose.

In a function of two-byte instructions with a probe at the first, the run is the first three,
unless something leads to the second or the third.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from kinst.core.errors import KinstError
from kinst.core.probe import Function, Site
from kinst.isa import load
from kinst.patch.leaders import Leaders
from kinst.session.kernel import RunningKernel
from tests.isa.gnu_assembler import assembled

BASE = 0xFFFF_FFFF_8100_0000
SHORT = "xor eax, eax\n" * 6 + "ret\n"
SOURCE = ".intel_syntax noprefix\nf: {f}\n.balign 64, 0xcc\ng: {g}\n.balign 64, 0xcc\n"


@dataclass
class World:
    """Answers that the two classes under test ask of a system."""

    code_bytes: bytes
    landing: Sequence[int] = ()
    fixups: dict[int, int] = field(default_factory=dict)
    changing: Sequence[int] = ()
    refused: Sequence[int] = ()
    symbols: Sequence[int] = ()
    text = (BASE, BASE + 128)

    def functions(self) -> list[Function]:
        named = [Function("vmlinux", "f", BASE, 64), Function("vmlinux", "g", BASE + 64, 64)]
        return [*named, *(Function("vmlinux", f"s{at}", at, 2) for at in self.symbols)]

    def lookup(self, name: str) -> list[Function]:
        return [f for f in self.functions() if f.name == name]

    def glob(self, pattern: str) -> list[Function]:
        return []

    def function_at(self, address: int) -> Function | None:
        return next(f for f in self.functions() if f.address <= address < f.address + 64)

    def code(self, address: int, size: int) -> bytes:
        if not BASE <= address < BASE + len(self.code_bytes):
            raise KinstError("not mapped")
        return self.code_bytes[address - BASE : address - BASE + size]

    read = code

    def modules(self) -> Sequence[object]:
        return ()

    def landings(self) -> npt.NDArray[np.uint64]:
        return np.array(sorted(self.landing), np.uint64)

    def rewritten(self, sites: Sequence[tuple[int, int]]) -> list[bool]:
        return [at in self.changing for at, _ in sites]

    def site_refusals(self, sites: Sequence[tuple[int, int]]) -> list[str]:
        return ["no" if at in self.refused else "" for at, _ in sites]

    def fixup(self, address: int) -> int | None:
        return self.fixups.get(address)

    def is_bug(self, address: int) -> bool:
        return False

    def is_fatal(self, address: int) -> bool:
        return False

    def dead_ends(self) -> Sequence[str]:
        return ()


def runs_with(
    tmp_path: Path, f: str = SHORT, g: str = "ret", *, taken: Sequence[int] = (), **more: object
) -> list[list[int]]:
    """Return the offsets in the runs for a probe at f+0."""
    world = World(assembled("amd64", SOURCE.format(f=f, g=g), tmp_path), **more)  # type: ignore[arg-type]
    isa = load("amd64")
    kernel = RunningKernel(world, world, isa)
    leaders = Leaders(isa, world, kernel)  # type: ignore[arg-type]
    (function, *_) = world.functions()
    first = next(isa.decode(world.code(BASE, 15), BASE))
    found = leaders.runs([(Site(function, 0, first.code), False)], [BASE + at for at in taken])
    members = {at for run in found.runs for at in run.members}
    assert {site.address for site in found.unprobed} == members - {BASE}
    assert all(run.code == world.code(run.start, run.size) for run in found.runs)
    return [[at - BASE for at in run.members] for run in found.runs]


def test_nothing_is_in_the_way(tmp_path: Path) -> None:
    assert runs_with(tmp_path) == [[0, 2, 4]]


@pytest.mark.parametrize(
    "g",
    [
        "jmp f + 4",  # as a .cold part has it
        "je f + 2",
        ".byte 0xb8; jmp f + 2",  # inside of another instruction's bytes
        "call f + 2",
        "lea rax, [rip + f + 4]",
        ".byte 0x48, 0xc7, 0xc0; .long 0x81000002",  # mov rax, f + 2
        ".byte 0x68; .long 0x81000004",  # push f + 4
    ],
)
def test_other_code_leads_there(tmp_path: Path, g: str) -> None:
    assert runs_with(tmp_path, g=g) == []


@pytest.mark.parametrize("g", ["jmp f", "jmp f + 6", ".byte 0x68; .long 0x81000006"])
def test_what_leads_elsewhere_is_no_hindrance(tmp_path: Path, g: str) -> None:
    assert runs_with(tmp_path, g=g) == [[0, 2, 4]]


@pytest.mark.parametrize("back", ["jmp f + 2", "loop f + 4", "jne f + 2", "call f + 4"])
def test_the_function_itself_leads_there(tmp_path: Path, back: str) -> None:
    assert runs_with(tmp_path, f=f"xor eax, eax\n{SHORT[:-4]}{back}\nret") == []


@pytest.mark.parametrize(
    ("back", "planted", "expected"),
    [
        ("jne f + 4", True, [[0, 2, 4]]),
        ("jne f + 4", False, []),
        ("jmp f + 2", True, [[0, 2, 4]]),
        ("call f + 4", True, []),  # only its target is known here, not that it is displaced
    ],
)
def test_a_planted_branch_is_no_hindrance(
    tmp_path: Path, back: str, planted: bool, expected: list[list[int]]
) -> None:
    """Displaced, the branch leads to the trampoline of its target."""
    source = SOURCE.format(f=f"{SHORT[:-4]}{back}\nret", g="ret")
    world = World(assembled("amd64", source, tmp_path))
    isa = load("amd64")
    leaders = Leaders(isa, world, RunningKernel(world, world, isa))  # type: ignore[arg-type]
    function, *_ = world.functions()
    code = list(isa.decode(world.code(BASE, 18), BASE))
    sites = [(Site(function, 0, code[0].code), False)]
    branch = code[6]
    if planted:
        sites.append((Site(function, branch.address - BASE, branch.code), len(branch.code) >= 5))
    found = leaders.runs(sites, [])
    runs = [[at - BASE for at in run.members] for run in found.runs]
    assert [run for run in runs if 0 in run] == expected


@pytest.mark.parametrize("at", [2, 4])
def test_each_other_kind(tmp_path: Path, at: int) -> None:
    there = BASE + at
    assert runs_with(tmp_path, landing=[there]) == []  # of a fix-up, or of a static key
    assert runs_with(tmp_path, symbols=[there]) == []
    assert runs_with(tmp_path, changing=[there]) == []
    assert runs_with(tmp_path, refused=[there]) == []
    assert runs_with(tmp_path, fixups={there: BASE + 100}) == []  # it may fault
    assert runs_with(tmp_path, taken=[at]) == []  # a debugger's breakpoint


def test_a_call_comes_back(tmp_path: Path) -> None:
    assert runs_with(tmp_path, f="xor eax, eax\ncall rax\nxor eax, eax\nxor eax, eax\nret") == []
    assert runs_with(tmp_path, f="xor eax, eax\nxor eax, eax\ncall rax\nret") == [[0, 2, 4]]


def test_a_computed_jump_whose_table_is_not_known(tmp_path: Path) -> None:
    assert runs_with(tmp_path, f=f"{SHORT}lea rcx, [rip + g]\njmp rax") == []
    # Nothing that could be a table, so the jump leaves the function.
    assert runs_with(tmp_path, f=f"{SHORT}jmp rax") == [[0, 2, 4]]


def test_a_jump_table(tmp_path: Path) -> None:
    """Two entries of 32 bits, relative to the table: to f + 4 and f + 6."""
    jump = "lea rcx, [rip + g]\nmovsxd rax, [rcx + rax*4]\nadd rax, rcx\njmp rax"
    assert runs_with(tmp_path, f=f"{SHORT}{jump}", g=".long f + 4 - g, f + 6 - g") == []
    assert runs_with(tmp_path, f=f"{SHORT}{jump}", g=".long f + 6 - g, f + 8 - g") == [[0, 2, 4]]


def test_room_behind_a_return(tmp_path: Path) -> None:
    assert runs_with(tmp_path, f="ret") == [[0]]
    assert runs_with(tmp_path, f="ret\nnop\nnop\nnop\nnop") == [[0, 1, 2, 3, 4]]
    assert runs_with(tmp_path, f="ret\nnop\n.byte 0x0f, 0x1f, 0x40, 0\nret") == [[0, 1, 2]]
    assert runs_with(tmp_path, f="ret\nnop\nnop\nnop\nxor eax, eax\nret") == []
    assert runs_with(tmp_path, f="ret\nnop\nnop\nnop\nnop", g="jmp f + 3") == []
    assert runs_with(tmp_path, f="ret", g="jmp f + 4") == []


PADDED = """
    test eax, eax
    je 1f
    mov eax, 1
    .byte 0xe9; .long 1f - . - 4  # of 5 bytes
    nop
1:  mov eax, 2
    mov eax, 3
    ret
"""
NOP = 14


@pytest.mark.parametrize(
    ("g", "unreached"),
    [
        ("ret", True),
        ("jmp f + 15", True),
        ("jmp f + 14", False),
        ("lea rax, [rip + f + 14]", False),
    ],
)
def test_padding_after_a_jump_has_no_other_way_to_it(
    g: str, unreached: bool, tmp_path: Path
) -> None:
    """So it needs no trap: it is displaced, and control never comes to it."""
    world = World(assembled("amd64", SOURCE.format(f=PADDED, g=g), tmp_path))
    isa = load("amd64")
    leaders = Leaders(isa, world, RunningKernel(world, world, isa))  # type: ignore[arg-type]
    (function, *_) = world.functions()
    code = [one for one in isa.decode(world.code(BASE, 26), BASE) if one.address < BASE + 26]
    assert code[4].address == BASE + NOP and code[4].code == b"\x90"
    planted = [(Site(function, c.address - BASE, c.code), len(c.code) >= 5) for c in code]
    for choose in (leaders.runs, leaders.runs_without_traps):
        found = choose(planted, [], gates=True)
        assert (BASE + NOP in found.gated) is unreached
